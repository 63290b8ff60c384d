"""The folder of a selection: what was asked, and what was done, line by line.

select.json     the request: configuration, minutes, methods
diary.jsonl     the pace, every rung, every trial, every pause; only ever appended to
runs/           the run that is going on
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from proxbit.experiments.selection.halving import Pace, Rung
from proxbit.experiments.selection.trials import Trial
from proxbit.train.config import Config
from proxbit.util.files import lock_folder, write_atomically
from proxbit.util.schema import parse_json, read_json, record_from

VERSION = 1
_KINDS: dict[str, type[Any]] = {"pace": Pace, "trial": Trial}


@dataclass(frozen=True)
class Request:
    """What a selection was asked: every run has this configuration but for method and length."""

    config: Config
    minutes: float
    methods: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"version": VERSION, **asdict(self)}


class Diary:
    """The folder, open to this process alone."""

    def __init__(self, path: str | Path) -> None:
        """Name the files; nothing is touched yet."""
        self.path = Path(path)
        self.request, self.lines = self.path / "select.json", self.path / "diary.jsonl"
        self._lock: IO[str] | None = None

    def refuse_used(self) -> None:
        """A new selection begins in a folder that is not there or empty."""
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise ValueError(
                f"{str(self.path)!r} exists and is not empty: choose another --out, or continue "
                f"with --resume {self.path}"
            )

    def create(self, request: Request) -> None:
        """Begin, or say why nothing can be written."""
        self.refuse_used()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            text = json.dumps(request.to_dict(), indent=1) + "\n"
            write_atomically(self.request, text.encode())
        except OSError as error:
            self.close()
            raise ValueError(f"cannot write into {str(self.path)!r}: {error.strerror}") from error

    def open(self) -> tuple[Request, list[Any]]:
        """Continue: what was asked, and the records so far."""
        if not self.request.is_file():
            raise ValueError(
                f"{str(self.path)!r} is not the folder of a selection: no select.json in it"
            )
        self.lock()
        try:
            return _read_request(self.request), self._read()
        except BaseException:
            self.close()
            raise

    def lock(self) -> None:
        """Keep other processes out until this one ends."""
        self._lock = lock_folder(self.path, "selecting in")

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()

    def append(self, kind: str, value: Any) -> None:
        """One more line, on the disk before this returns."""
        plain = value if kind == "pause" else asdict(value)
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: plain}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run_folder(self, rung: int, place: int, seed: int) -> Path:
        """Where one run keeps its checkpoints while it goes on."""
        return self.path / "runs" / f"rung{rung}-method{place}-seed{seed}"

    def forget_runs(self) -> None:
        """Remove the folder of the run that is over and written down."""
        shutil.rmtree(self.path / "runs", ignore_errors=True)

    def _read(self) -> list[Any]:
        """The records; a last line that a kill cut off is removed."""
        if not self.lines.is_file():
            return []
        data = self.lines.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            write_atomically(self.lines, whole)
        lines = whole.decode("utf-8", "replace").splitlines()
        return [_record(line, f"{self.lines}, line {i}") for i, line in enumerate(lines, 1)]


def _read_request(path: Path) -> Request:
    values = read_json(path)
    if not isinstance(values, dict) or values.get("version") != VERSION:
        given = values.get("version") if isinstance(values, dict) else None
        raise ValueError(f"{path} is of version {given}, and this proxbit reads {VERSION}")
    try:
        config = Config.from_dict(values["config"], str(path))
        return Request(config, float(values["minutes"]), tuple(values["methods"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _record(line: str, where: str) -> Any:
    """The pace, rung, trial or pause (a number of seconds) of one line."""
    values = parse_json(line, where)
    kind, value = next(iter(values.items()), ("", None)) if isinstance(values, dict) else ("", None)
    if kind == "pause" and isinstance(value, float):
        return value
    if kind == "rung" and isinstance(value, dict):
        return _rung(value, where)
    if kind in _KINDS:
        return record_from(_KINDS[kind], value, where)
    raise ValueError(f"{where} is damaged: it holds no pace, rung, trial or pause")


def _rung(values: dict[str, Any], where: str) -> Rung:
    try:
        return Rung(**values | {"methods": tuple(values["methods"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
