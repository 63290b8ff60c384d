"""Schedules: from progress in [0, 1] to a strength. Plain functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[float], float]


def check_schedule(schedule: Schedule) -> None:
    """Refuse a schedule whose ends are not strengths: finite numbers >= 0."""
    if not callable(schedule):
        raise TypeError(
            f"a schedule maps progress in [0, 1] to a strength, such as pb.Linear(1, 20); "
            f"it is {schedule!r}"
        )
    for progress in (0.0, 1.0):
        strength = schedule(progress)
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(
                f"schedule {schedule} gives {strength} at progress {progress:g}: "
                f"a strength is a finite number >= 0"
            )


@dataclass(frozen=True)
class Constant:
    """The same strength throughout."""

    value: float = 1.0

    def __call__(self, progress: float) -> float:
        """The value, whatever the progress."""
        return self.value

    def __str__(self) -> str:
        """The value."""
        return f"{self.value:g}"


@dataclass(frozen=True)
class Linear:
    """From ``start`` to ``end`` in equal steps.

    >>> Linear(5, 30)(0.5)
    17.5
    """

    start: float
    end: float

    def __call__(self, progress: float) -> float:
        """The strength at a progress in [0, 1]."""
        return self.start + (self.end - self.start) * progress

    def __str__(self) -> str:
        """Start and end."""
        return f"{self.start:g} to {self.end:g}"


@dataclass(frozen=True)
class Logarithmic:
    """From ``start`` to ``end`` in equal ratios; both must be positive.

    >>> round(Logarithmic(0.01, 10)(2 / 3), 6)
    1.0
    """

    start: float
    end: float

    def __call__(self, progress: float) -> float:
        """The strength at a progress in [0, 1]."""
        if not (self.start > 0 and self.end > 0):
            raise ValueError(f"a logarithmic schedule needs positive ends, not {self}")
        low, high = math.log(self.start), math.log(self.end)
        return math.exp(low + (high - low) * progress)

    def __str__(self) -> str:
        """Start and end."""
        return f"{self.start:g} to {self.end:g}, log"


@dataclass(frozen=True)
class AtLeast:
    """Another schedule, never below ``floor``."""

    floor: float
    schedule: Schedule

    def __call__(self, progress: float) -> float:
        """The strength at a progress in [0, 1]."""
        return max(self.floor, self.schedule(progress))

    def __str__(self) -> str:
        """The schedule and its floor."""
        return f"{self.schedule}, at least {self.floor:g}"
