"""Folders that one process at a time writes into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from proxbit.util.files import LOCK, is_leftover, lock_folder


class SoleFolder:
    """A folder, and the lock that keeps other processes out of it.

    Attributes:
        path: Where it is.
        doing: What a process does that holds the lock, as in "training in".
    """

    def __init__(self, path: str | Path, doing: str) -> None:
        """Nothing is touched yet."""
        self.path, self.doing = Path(path), doing
        self._lock: IO[str] | None = None

    def refuse_used(self) -> None:
        """Require a folder that is missing or empty for a new start: nothing is overwritten."""
        if not self.path.exists():
            return
        inside = self.path.iterdir() if self.path.is_dir() else ()
        if not self.path.is_dir() or any(not self.is_left_by_kill(each) for each in inside):
            raise ValueError(
                f"{str(self.path)!r} exists and is not empty: choose another --out, or continue "
                f"with --resume {self.path}"
            )

    def is_left_by_kill(self, path: Path) -> bool:
        """Whether a file may be of a process that was killed before it had its folder."""
        return path.name == LOCK or is_leftover(path.name)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make the folder and lock it; if it cannot be filled, say why and let others in."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            yield
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise ValueError(f"cannot write into {str(self.path)!r}: {error.strerror}") from error

    def lock(self) -> None:
        """Keep other processes out until this one ends or closes the folder."""
        self._lock = lock_folder(self.path, self.doing)

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
