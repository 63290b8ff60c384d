"""A folder of results: one finished cell is one line of results.jsonl, never written again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxbit.experiments.reproduce.grids import AXES, Cell
from proxbit.util.files import SoleFolder
from proxbit.util.jsonl import append_line, read_lines
from proxbit.util.schema import record_from

VERSION = 1
FILE = "results.jsonl"
NAMED = AXES[:5]
MOST = 2**63  # no number of a line is larger: seeds, bytes, images, seconds


@dataclass(frozen=True)
class ResultLine:
    """One cell that ran, with everything that its figures depend on.

    Attributes:
        grid: Name of the grid.
        row: Name of its row.
        preset: "smoke", "small" or "paper".
        key: Axis and value, in the words of the paper.
        seed: What every random choice followed from.
        config: The configuration of the run, with nothing left open.
        result: Its result.json; None if the cell is broken.
        error: Why it is broken, in one sentence; None if it is not.
        curve: Its records, one per epoch.
        verdict: What the theory says of the method at its strengths.
        packed: Bytes and milliseconds of the packed network; None if it was not measured.
        commit: Commit of the source, if known.
        versions: Of proxbit, torch, numpy and Python.
        device: What computed it.
        started: When, in ISO form.
        seconds: Wall time of the whole cell.
    """

    grid: str
    row: str
    preset: str
    key: dict[str, str]
    seed: int
    config: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    curve: list[dict[str, Any]]
    verdict: str
    packed: dict[str, Any] | None
    commit: str | None
    versions: dict[str, Any]
    device: str
    started: str
    seconds: float
    version: int = field(default=VERSION)

    @property
    def cell(self) -> Cell:
        """The cell that ran."""
        key = tuple((axis, self.key[axis]) for axis in AXES if axis in self.key)
        return Cell(self.grid, self.row, key, self.seed, self.preset)

    @property
    def done(self) -> bool:
        """Whether the cell has a result."""
        return self.result is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with either a result or an error."""
        values = {"version": self.version} | asdict(self)
        values.pop("error" if self.done else "result")
        return values


def read_results(folder: str | Path) -> list[ResultLine]:
    """The lines of a folder, oldest first; a last line that a kill cut off does not count."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"there are no results in {str(folder)!r}: no {FILE} in it")
    return [_line(values, where) for where, values in read_lines(path)]


def _line(values: Any, where: str) -> ResultLine:
    if not isinstance(values, dict):
        raise ValueError(f"{where} holds {type(values).__name__}, not a result")
    version = values.get("version")
    if version != VERSION:
        raise ValueError(
            f"{where}, is of version {version!r}, and this proxbit knows version {VERSION}: "
            "install the proxbit that wrote it, or choose another folder"
        )
    if ("result" in values) == ("error" in values):
        raise ValueError(f"{where} must hold either a result or an error")
    if "scale" in values:  # a line of before the word "preset"
        values = {"preset" if key == "scale" else key: each for key, each in values.items()}
    line = record_from(ResultLine, {"result": None, "error": None} | values, where)
    odd = next(_unsound(values), None)
    if odd is not None:
        raise ValueError(f"{where} holds {ascii(odd)[:80]}, which no result can be")
    if not set(NAMED) <= line.key.keys() <= set(AXES):
        raise ValueError(f"{where}: the key must name {', '.join(NAMED)}, not {line.key!r}")
    return line


def _unsound(value: Any) -> Iterator[Any]:
    """Numbers that nobody can compute with, and texts that nobody can print."""
    if isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from _unsound(each)
    elif isinstance(value, list):
        for each in value:
            yield from _unsound(each)
    elif isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            yield value
    elif isinstance(value, int | float) and not -MOST <= value <= MOST:
        yield value


def append_result(folder: str | Path, line: ResultLine) -> None:
    """One more line at the end, on the disk before this returns; older lines stay as they are."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, line.to_dict())


@contextmanager
def sole_writer(folder: str | Path) -> Iterator[None]:
    """Keep every other process from writing results into a folder."""
    own = SoleFolder(folder, "writing results into")
    with own.making():
        pass
    with closing(own):
        yield
