"""What a run tells: one record per epoch, as an object and as a line of metrics.jsonl."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from proxbit.train.checkpoint import write_atomically


@dataclass(frozen=True)
class Record:
    """One epoch. Accuracies are shares of the images that ``part`` names.

    Attributes:
        epoch: Epochs done.
        step: Optimizer steps done.
        phase: "float", "soft" (the pair acts) or "frozen" (hard, the signs stay).
        loss: Mean training loss of the epoch.
        rate: Learning rate of its last step.
        strength: Strength of the first binary layer; None in float training.
        soft: Accuracy of the network as it trains.
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
    rate: float
    strength: float | None
    soft: float
    hard: float
    flips: float | None
    saturated: float | None
    overflow: float | None
    seconds: float
    part: str
    best: bool

    @property
    def gap(self) -> float:
        """Soft minus hard accuracy."""
        return self.soft - self.hard

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def append_record(path: Path, record: Record) -> None:
    """One more line at the end of a metrics file."""
    with path.open("a") as file:
        file.write(json.dumps(record.to_dict()) + "\n")


def read_records(path: Path) -> list[Record]:
    """The records of a metrics file; a last line that a kill cut off does not count."""
    if not path.is_file():
        return []
    *lines, rest = path.read_text().split("\n")
    del rest  # empty, or a line without its end
    names = {each.name for each in fields(Record)}
    try:
        values = [json.loads(line) for line in lines]
        return [Record(**{k: v for k, v in each.items() if k in names}) for each in values]
    except (json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def keep_records(path: Path, step: int) -> list[Record]:
    """Forget what was recorded after ``step``: a resumed run records it again."""
    kept = [record for record in read_records(path) if record.step <= step]
    text = "".join(json.dumps(record.to_dict()) + "\n" for record in kept)
    write_atomically(path, text.encode())
    return kept
