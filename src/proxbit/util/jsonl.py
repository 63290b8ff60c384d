"""Files of JSON objects, one per line, that only grow.

A kill may cut off the last line. A line counts when its object is whole, with or without its
newline; what is left of a torn one is passed over by readers and removed by the next writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from proxbit.util.files import lock_file
from proxbit.util.schema import parse_json
from proxbit.util.text import saying


def append_line(path: Path, values: dict[str, Any]) -> None:
    """One more line at the end, on the disk before this returns; older lines stay as they are."""
    text = json.dumps(values, allow_nan=False)
    with path.open("ab+") as file:
        lock_file(file)
        _mend(file)
        file.write(text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each line stands, in words, and its plain values; nothing where there is no file."""
    if not path.is_file():
        return
    with saying(f"{path} is damaged", UnicodeDecodeError):
        *lines, tail = path.read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines if _torn(tail) else [*lines, tail], 1):
        where = f"{path}, line {i}"
        yield where, parse_json(line, where)


def _mend(file: IO[bytes]) -> None:
    """End a whole last line that lacks its newline; cut off one that a kill left unfinished."""
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    if start < len(content):
        torn = _torn(content[start:].decode(errors="replace"))
        file.truncate(start) if torn else file.write(b"\n")


def _torn(tail: str) -> bool:
    """Whether what follows the last newline is not a whole line."""
    try:
        return not isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):  # the latter from brackets without end
        return True
