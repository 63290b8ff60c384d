"""The three tasks: which parts of a layer become binary, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from proxbit.util.text import require_known

TaskName: TypeAlias = Literal["BW", "BWA", "BWAA"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)


@dataclass(frozen=True)
class Task:
    """Which parts of a layer become binary.

    Attributes:
        name: "BW": weights. "BWA": weights and the inputs of their layers. "BWAA": as BWA, with
            sums in a wrap-around accumulator.
        pad_value: What a convolution pads its binary input with: 1, -1, or 0 as a float one does.
        bits: Width of the accumulator.
        k: Slope of its cyclic function.
    """

    name: TaskName
    pad_value: float = 1.0
    bits: int = 8
    k: float = 2.0


def find_task(task: Task | str) -> Task:
    """A task by name, or the task itself; refuses numbers that no layer can have.

    >>> find_task("BWA")
    Task(name='BWA', pad_value=1.0, bits=8, k=2.0)
    """
    found = task if isinstance(task, Task) else Task(task)  # type: ignore[arg-type]
    require_known("task", found.name, TASKS)
    if found.pad_value not in (-1, 0, 1):
        raise ValueError(f"a binary input is padded with 1, -1 or 0, not {found.pad_value}")
    check_register(found.bits, found.k)
    return found


def check_register(bits: int, k: float) -> None:
    """Refuse a width that no accumulator has, and a slope that would never come back."""
    if bits < 2 or bits > 24 or bits != int(bits):
        raise ValueError(f"an accumulator has 2 to 24 bits, not {bits}")
    if not 0 < k < math.inf:
        raise ValueError(f"the slope k of the cyclic function is positive, not {k}")
