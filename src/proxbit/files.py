"""Files that are written whole or not at all, and folders that one process writes into."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

TEMPORARY = ".tmp"
LOCK = ".lock"


def write_atomically(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step: a kill at any moment leaves the old file or the new.

    The temporary file lies in the same folder; a full disk leaves the old file as it was. Files
    reach the disk in the order in which they were written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _settle(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Let the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(folder: Path, doing: str) -> IO[str]:
    """Keep other processes out of a folder until the file that this returns is closed."""
    lock = (folder / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ValueError(
            f"another process is {doing} {str(folder)!r}: wait for it, or choose another --out"
        ) from None
    return lock


def is_leftover(name: str) -> bool:
    """Whether a file name is that of :func:`write_atomically` before its last step."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote."""
    for path in folder.iterdir():
        if is_leftover(path.name):
            path.unlink(missing_ok=True)
