"""Words for people, and from people: tables, sizes, lists, places, errors, numbers, odd names."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import PurePath
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table; columns of numbers are set to the right, the others to the left.

    >>> print(table(("layer", "bits"), [("fc", 12)]))
    layer  bits
    fc       12
    """
    texts = [tuple(head), *(tuple(visible(str(entry)) for entry in row) for row in rows)]
    columns = [_justified(column) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def _justified(column: tuple[str, ...]) -> list[str]:
    width = max(len(entry) for entry in column)
    numbers = all(entry[:1] in "0123456789+-" for entry in column[1:])
    return [entry.rjust(width) if numbers else entry.ljust(width) for entry in column]


def visible(text: str) -> str:
    r"""Text of a file as one line that a terminal shows and does not obey.

    >>> print(visible("shoe\x1b[2J\nshirt"), visible("caf\u00e9"))
    shoe\x1b[2J\nshirt café
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    plain = letter.isprintable() or unicodedata.category(letter) == "Zs"
    return letter if plain else letter.encode("unicode_escape").decode()


def size(count: float) -> str:
    """A number of bytes as people read it.

    >>> size(1_092_624), size(512)
    ('1.09 MB', '512 B')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def smaller(ratio: float) -> str:
    """A ratio of sizes in words.

    >>> smaller(13.04), smaller(0.5)
    ('13.0x smaller', '2.0x larger')
    """
    return f"{ratio:.1f}x smaller" if ratio >= 1 else f"{1 / ratio:.1f}x larger"


def percent(share: float) -> str:
    """A share as a percentage with sensible digits.

    >>> percent(0.0731), percent(1.0)
    ('7.3 %', '100 %')
    """
    return f"{100 * share:.3g} %" if share >= 0.1 else f"{100 * share:.2g} %"


def few(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many there are besides.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def last_part(place: str) -> str:
    """The name of a place, wherever its folder may be.

    >>> last_part("npz:/tmp/c10.npz"), last_part("npz:c10.npz"), last_part("nets/a.py:build")
    ('c10.npz', 'c10.npz', 'a.py:build')
    """
    return PurePath(place.removeprefix("npz:").removeprefix("folder:")).name


def without_folder(place: str) -> str:
    """The same place without any folder of the machine that it is on.

    >>> without_folder("npz:/home/ann/c10.npz"), without_folder("timm/resnet50")
    ('npz:c10.npz', 'timm/resnet50')
    """
    kind = next((kind for kind in ("npz:", "folder:", "timm/") if place.startswith(kind)), "")
    return place if kind == "timm/" else kind + last_part(place)


def first_line(error: BaseException) -> str:
    r"""The type of an error and the first line of its message.

    >>> first_line(ValueError("one\ntwo")), first_line(ZeroDivisionError())
    ('ValueError: one', 'ZeroDivisionError')
    """
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


@contextmanager
def saying(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Let an error inside, of these kinds or of any, come out as one sentence that says ``what``.

    >>> with saying("cannot read 'a.npz'", OSError):
    ...     raise OSError("no such file")
    Traceback (most recent call last):
    ValueError: cannot read 'a.npz': OSError: no such file
    """
    kinds = errors or (Exception,)
    try:
        yield
    except kinds as error:
        words = str(error) if isinstance(error, ValueError) else first_line(error)
        raise ValueError(f"{what}: {words}") from error


def numbers(text: str) -> list[float]:
    """The numbers between colons; none at all where one of them is not a number.

    >>> numbers("0.1:10"), numbers("5"), numbers("5:x")
    ([0.1, 10.0], [5.0], [])
    """
    try:
        return [float(part) for part in text.split(":")]
    except ValueError:
        return []


def unknown_name_message(what: str, given: object, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist, with near matches first.

    >>> unknown_name_message("scale", "Chanel", ["channel", "layer"])
    "unknown scale 'Chanel': did you mean 'channel'? known: channel, layer"
    """
    names, word = list(known), str(given).lower()
    near = difflib.get_close_matches(word, [name.lower() for name in names], n=3)
    # Of names that are equally near, the one that begins alike: resnet2 is more like resnet20.
    close = [name for name in names if name.lower() in near]
    best = max(close, default=None, key=lambda name: _likeness(word, name.lower()))
    hint = "" if best is None else f"did you mean {best!r}? "
    return f"unknown {what} {given!r}: {hint}known: {', '.join(names)}"


def require_known(what: str, given: object, known: Collection[str]) -> None:
    """Refuse a name that is not known, with :func:`unknown_name_message`."""
    if given not in known:
        raise ValueError(unknown_name_message(what, given, known))


def _likeness(a: str, b: str) -> tuple[float, int]:
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return difflib.SequenceMatcher(None, b, a).ratio(), len(list(alike))


def pattern(name: str) -> str:
    """A name with a star for each index inside it.

    >>> pattern("layer1.0.conv1"), pattern("layers.3")
    ('layer1.*.conv1', 'layers.3')
    """
    return re.sub(r"(?<![^.])\d+(?=\.)", "*", name)


def alike(names: Iterable[str]) -> list[str]:
    """Names that differ only by an index inside them, once each with a star where they differ.

    >>> alike(["layer1.0.relu", "layer1.1.relu", "stem", "net.0.0.conv"])
    ['layer1.*.relu', 'stem', 'net.0.0.conv']
    """
    groups = [[name.split(".") for name in group] for group in grouped(names, pattern).values()]
    return [
        ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*group, strict=True))
        for group in groups
    ]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items that have the same key together, in the order in which they come.

    >>> grouped(["a.x", "b", "a.y"], lambda name: name[0])
    {'a': ['a.x', 'a.y'], 'b': ['b']}
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
