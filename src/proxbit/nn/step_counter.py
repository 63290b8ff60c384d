"""The one count of optimizer steps that the quantizers of a model share."""

from __future__ import annotations

from typing import Any


class StepCounter:
    """The optimizer steps of a model: one for all quantizers that are trained together.

    Attributes:
        step: Steps taken so far, as told by ``attach``.
        loaded: Whether the step was loaded, and none was taken since.
        attached: Whether an optimizer leads; nobody else then tells when signs begin.
    """

    def __init__(self, step: int = 0, loaded: bool = False) -> None:
        """Start at a step."""
        self.step, self.loaded, self.attached = step, loaded, False

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy, deep or pickled, count by itself: no optimizer drives it."""
        return StepCounter, (self.step, self.loaded)
