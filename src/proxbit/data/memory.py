"""Things that are worth keeping in memory, up to a number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")

MOST_BYTES = 2**30


class Memory:
    """Results by key; once the bytes are full, further ones are made anew each time.

    A copy, deep or pickled, starts empty: worker processes should not be sent gigabytes.

    >>> memory = Memory(most=3)
    >>> [memory.get(key, lambda: key, size=2) for key in ("a", "b", "a")], memory.used
    (['a', 'b', 'a'], 2)
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Start empty."""
        self.most, self.used = most, 0
        self._kept: dict[Hashable, object] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[int]]:
        """Copy the limit alone."""
        return Memory, (self.most,)

    def get(self, key: Hashable, make: Callable[[], T], size: int | None = None) -> T:
        """What ``make`` gave for this key; ``size`` is its bytes if it cannot tell them itself."""
        if key in self._kept:
            return self._kept[key]  # type: ignore[return-value]
        made = make()
        taken = _bytes(made) if size is None else size
        if self.used + taken <= self.most:
            self._kept[key], self.used = made, self.used + taken
        return made


def _bytes(made: object) -> int:
    nbytes = getattr(made, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    width, height = made.size  # type: ignore[attr-defined]
    return 4 * int(width) * int(height)  # PIL pads RGB to four bytes
