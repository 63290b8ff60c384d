"""Files that are written whole or not at all, and folders that one process writes into."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows: there, nothing keeps two processes out of one folder
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp"
LOCK = ".lock"
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # as far as there are any


def write_atomically(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step: a kill at any moment leaves the old file or the new.

    The temporary file lies in the same folder; a full disk leaves the old file as it was. Files
    reach the disk in the order in which they were written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed and had our number
        with temporary.open("xb") as file:  # never through a link that another user put there
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _settle(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_or_say(path: Path, content: bytes) -> None:
    """The same, with one sentence for a place that takes no file."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _settle(folder: Path) -> None:
    """Let the names in a folder reach the disk; only POSIX opens folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_place(path: Path) -> None:
    """Refuse a file that could not be written: in the place of a folder, or in none."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ValueError(f"cannot write {str(path)!r}: {why}")


def lock_folder(folder: Path, doing: str) -> IO[str]:
    """Keep other processes out of a folder until the file that this returns is closed."""
    lock = open_lock(folder / LOCK)
    try:
        lock_file(lock, wait=False)
    except BlockingIOError:
        lock.close()
        raise ValueError(
            f"another process is {doing} {str(folder)!r}: wait for it, or choose another --out"
        ) from None
    return lock


def lock_file(file: IO[Any], *, wait: bool = True) -> None:
    """Keep other processes from locking a file until it is closed; the lock is only advisory."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def open_lock(path: Path) -> IO[str]:
    """The file of a lock, made if need be; what it may hold stays, and links are refused."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise ValueError(f"{str(path)!r} is a link, and a lock is a file: remove it") from error
        raise
    return os.fdopen(handle, "r+")


def user() -> int:
    """The number of the user; 0 on Windows, as that of every file."""
    return os.getuid() if hasattr(os, "getuid") else 0


def private_folder(path: Path) -> Path:
    """A folder that no other user can read, write or put there before us; made if need be."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == user()
    if not ours or (os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077):
        raise ValueError(
            f"{str(path)!r} was put there by another user, or others can reach it: remove it, or "
            "set TMPDIR to a folder of your own"
        )
    return path


def is_trusted(folder: str | Path) -> bool:
    """Whether a folder is there and is ours or the system's: what another user put there is not."""
    try:
        found = Path(folder).stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, user())


def is_leftover(name: str) -> bool:
    """Whether a file name is that of :func:`write_atomically` before its last step."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote."""
    for path in folder.iterdir():
        if is_leftover(path.name):
            path.unlink(missing_ok=True)


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
            with self.closed_if_refused():
                self.path.mkdir(parents=True, exist_ok=True)
                self.lock()
                yield
        except OSError as error:
            raise ValueError(f"cannot write into {str(self.path)!r}: {error.strerror}") from error

    @contextmanager
    def closed_if_refused(self) -> Iterator[None]:
        """Let others in again if what begins here cannot."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def lock(self) -> None:
        """Keep other processes out until this one ends or closes the folder."""
        self._lock = lock_folder(self.path, self.doing)

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
