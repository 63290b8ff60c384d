"""Short words about long lists and long errors."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many there are besides.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    r"""What an error says, without its further lines.

    >>> first_line(ValueError("one\ntwo")), first_line(ZeroDivisionError())
    ('ValueError: one', 'ZeroDivisionError')
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])
