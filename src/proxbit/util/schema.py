"""Records from the plain values of a JSON file: every name and every type is checked."""

from __future__ import annotations

import json
import types
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from proxbit.util.text import unknown

T = TypeVar("T")

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read_json(path: str | Path) -> Any:
    """The plain values of a JSON file, or one sentence."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}") from None
    except (UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path} is not a readable JSON file: {error}") from error
    return parse_json(text, str(path))


def parse_json(text: str, source: str) -> Any:
    """The plain values of a JSON text, or one sentence that names its source."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter from brackets without end
        raise ValueError(f"{source} is not a readable JSON file: {error}") from error


def record_from(kind: type[T], values: Any, source: str) -> T:
    """A dataclass from plain values that must be all of its fields, of their types.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: float
    >>> record_from(Point, {"x": 1}, "point.json")
    Point(x=1)
    >>> record_from(Point, {"x": "1"}, "point.json")
    Traceback (most recent call last):
    ValueError: point.json: x must be a number, not '1'
    """
    if not isinstance(values, dict):
        raise ValueError(f"{source} holds {type(values).__name__}, not a JSON object")
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise ValueError(f"{source}: {unknown('option', key, names)}")
    for name in names:
        if name not in values:
            raise ValueError(f"{source} lacks {name}")
    try:
        check_types(kind, values)
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def check_types(kind: type, values: dict[str, Any]) -> None:
    """One sentence for a value that is not of its field's type."""
    for name, wanted in _kinds(kind).items():
        if not any(_is(values[name], each) for each in wanted):
            words = " or ".join(WORDS[each] for each in wanted if each in WORDS)
            raise ValueError(f"{name} must be {words}, not {values[name]!r}")


@cache
def _kinds(kind: type) -> dict[str, tuple[type, ...]]:
    """The types that each field of a dataclass allows."""
    union = (Union, types.UnionType)
    hints = get_type_hints(kind).items()
    return {name: get_args(t) if get_origin(t) in union else (t,) for name, t in hints}


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # Python counts True as the whole number 1
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)
