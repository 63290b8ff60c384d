"""The progress of a run, as a checkpoint holds it besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxbit.util.schema import record_from


@dataclass
class Progress:
    """All that changes besides tensors.

    Attributes:
        step: Optimizer steps done.
        loss: Sum of the losses of this epoch.
        seconds: Time that this epoch has taken.
        spent: Time that all epochs before it have taken.
        best: The best hard accuracy so far, -1 before the first.
        start: Accuracy of the float network that the run began with; None from random weights.
        soft: Accuracy when the network was last measured before it was made hard.
        hardened: Accuracy of that network, hardened at once.
    """

    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    spent: float = 0.0
    best: float = -1.0
    start: float | None = None
    soft: float | None = None
    hardened: float | None = None


def read_progress(values: Any, steps: int) -> Progress:
    """The progress in a checkpoint of a run of ``steps`` steps, or one sentence."""
    progress = record_from(Progress, values, "its progress")
    if not 0 <= progress.step <= steps:
        raise ValueError(f"it was written at step {progress.step}, and the run has {steps} steps")
    return progress
