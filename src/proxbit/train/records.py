"""The numbers of a run: one record per epoch, the progress in a checkpoint, the final figures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from proxbit.util.files import write_atomically
from proxbit.util.jsonl import read_lines
from proxbit.util.schema import record_from

_Number: TypeAlias = float
_Share: TypeAlias = float | None  # these names because a field of Result is called float


@dataclass(frozen=True)
class Record:
    """One epoch. Accuracies are shares of the images that ``part`` names.

    Attributes:
        epoch: Epochs done.
        step: Optimizer steps done.
        phase: "float", "soft" (the pair acts), "sharp" (its sign) or "frozen" (the signs stay).
        loss: Mean training loss of the epoch.
        lr: Learning rate of its last step.
        strength: Strength of the first binary layer; None in float training.
        soft: Accuracy of the network as it trains; None where the epoch was not evaluated.
        hard: Accuracy of its hard copy; in float training that of the network itself.
        flips: Share of the signs that changed during the epoch.
        saturated: Share of the quantized weights within 5 % of +-scale.
        overflow: Share of BWAA sums that wrapped around.
        seconds: Wall time of the epoch, evaluation included.
        part: The images that were evaluated: "test" or "validation".
        best: Whether this is the best hard accuracy so far.
    """

    epoch: int
    step: int
    phase: str
    loss: float
    lr: float
    strength: float | None
    soft: float | None
    hard: float | None
    flips: float | None
    saturated: float | None
    overflow: float | None
    seconds: float
    part: str
    best: bool

    @property
    def gap(self) -> float | None:
        """Soft minus hard accuracy."""
        return None if self.soft is None or self.hard is None else self.soft - self.hard

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Result:
    """The final figures of a run. Accuracies are shares of the ``n`` images that ``part`` names.

    Attributes:
        method: Name of the method.
        task: BW, BWA or BWAA.
        seed: What every random choice followed from.
        part: The images that were evaluated: "test" or "validation".
        n: How many they are.
        float: Accuracy of the float network that the run began with; None from random weights.
        soft: Accuracy when the network was last soft; None in float training.
        hardened: Accuracy of that network, hardened at once.
        hard: The best hard accuracy of any epoch: that of model.safetensors.
        gap: Soft minus hard accuracy.
        bytes_float: Size of the float network.
        bytes_packed: Size with one bit per binary weight.
        steps: Optimizer steps.
        epochs: Epochs.
        seconds: Wall time, evaluation included.
    """

    method: str
    task: str
    seed: int
    part: str
    n: int
    float: _Share
    soft: _Share
    hardened: _Share
    hard: _Number
    gap: _Share
    bytes_float: int
    bytes_packed: int
    steps: int
    epochs: int
    seconds: _Number


@dataclass
class Progress:
    """All that changes in a run besides tensors, as a checkpoint holds it.

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


def read_records(path: Path) -> list[Record]:
    """The records of a metrics file; a last line that a kill cut off does not count."""
    return [record_from(Record, values, where) for where, values in read_lines(path)]


def keep_records(path: Path, records: list[Record], step: int) -> None:
    """Forget what was recorded after ``step``: a resumed run records it again."""
    kept = [record for record in records if record.step <= step]
    text = "".join(json.dumps(record.to_dict()) + "\n" for record in kept)
    write_atomically(path, text.encode())


def read_progress(values: Any, steps: int) -> Progress:
    """The progress in a checkpoint of a run of ``steps`` steps, or one sentence."""
    progress = record_from(Progress, values, "its progress")
    if not 0 <= progress.step <= steps:
        raise ValueError(f"it was written at step {progress.step}, and the run has {steps} steps")
    return progress
