"""A folder of results: one finished cell is one line of results.jsonl, never written again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxbit.experiments.reproduce.grids import AXES, Cell
from proxbit.util.files import lock_folder
from proxbit.util.schema import parse_json
from proxbit.util.text import unknown

VERSION = 1
FILE = "results.jsonl"
NAMED = AXES[:5]
MOST = 2**63  # no number of a line is larger: seeds, bytes, images, seconds
_MAYBE_DICT, _MAYBE_TEXT = (dict, type(None)), (str, type(None))
KINDS: dict[str, tuple[type, ...]] = {
    "version": (int,), "grid": (str,), "row": (str,), "scale": (str,), "key": (dict,),
    "seed": (int,), "config": (dict,), "result": _MAYBE_DICT, "error": _MAYBE_TEXT,
    "curve": (list,), "verdict": (str,), "packed": _MAYBE_DICT, "commit": _MAYBE_TEXT,
    "versions": (dict,), "device": (str,), "started": (str,), "seconds": (int, float),
}  # fmt: skip


@dataclass(frozen=True)
class ResultLine:
    """One cell that ran, with everything that its figures depend on.

    Attributes:
        grid: Name of the grid.
        row: Name of its row.
        scale: "smoke", "small" or "paper".
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
    scale: str
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
        return Cell(self.grid, self.row, key, self.seed, self.scale)

    @property
    def done(self) -> bool:
        """Whether the cell has a result."""
        return self.result is not None

    def to_json(self) -> str:
        """One line, with either a result or an error."""
        values = {"version": self.version} | asdict(self)
        values.pop("error" if self.done else "result")
        return json.dumps(values, allow_nan=False)


def read_results(folder: str | Path) -> list[ResultLine]:
    """The lines of a folder, oldest first; a last line that a kill cut off does not count."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"there are no results in {str(folder)!r}: no {FILE} in it")
    try:
        *lines, tail = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    whole = lines if _torn(tail) else [*lines, tail]
    return [_line(text, f"{path}, line {i}") for i, text in enumerate(whole, 1)]


def _torn(tail: str) -> bool:
    """Whether what follows the last newline is not a whole line."""
    try:
        return not isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):  # the latter from brackets without end
        return True


def _line(text: str, where: str) -> ResultLine:
    values = parse_json(text, where)
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
    whole: dict[str, Any] = {"result": None, "error": None} | values
    _check(whole, where)
    return ResultLine(**whole)


def _check(values: dict[str, Any], where: str) -> None:
    """One sentence for a name or a value that a line cannot have."""
    for name in values:
        if name not in KINDS:
            raise ValueError(f"{where}: {unknown('part of a result', name, KINDS)}")
    for name, kinds in KINDS.items():
        if name not in values:
            raise ValueError(f"{where} lacks {name}")
        if not isinstance(values[name], kinds):
            raise ValueError(f"{where}: {name} cannot be {values[name]!r}")
    odd = next(_unsound(values), None)
    if odd is not None:
        raise ValueError(f"{where} holds {ascii(odd)[:80]}, which no result can be")
    if not all(isinstance(record, dict) for record in values["curve"]):
        raise ValueError(f"{where}: the curve must hold one object per epoch")
    key = values["key"]
    if not set(NAMED) <= key.keys() <= set(AXES) or not all(
        isinstance(k, str) for k in key.values()
    ):
        raise ValueError(f"{where}: the key must name {', '.join(NAMED)}, not {key!r}")


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
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _mend(file)
        file.write(line.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _mend(file: Any) -> None:
    """End a whole last line that lacks its newline; cut off one that a kill left unfinished."""
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    if start == len(content):
        return
    if _torn(content[start:].decode(errors="replace")):
        file.truncate(start)
    else:
        file.write(b"\n")


@contextmanager
def sole_writer(folder: str | Path) -> Iterator[None]:
    """Keep every other process from writing results into a folder."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(path, "writing results into")
    except OSError as error:
        raise ValueError(f"cannot write into {str(folder)!r}: {error.strerror}") from error
    with lock:
        yield
