"""Records from the plain values of a JSON file: every name and every type is checked."""

from __future__ import annotations

import json
import types
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from proxbit.util.text import saying, unknown_name_message

T = TypeVar("T")

WORDS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object",
    list: "a list", tuple: "a list",
}  # fmt: skip


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
    # Brackets without end are a RecursionError.
    with saying(f"{source} is not a readable JSON file", ValueError, RecursionError):
        return json.loads(text)


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
            raise ValueError(f"{source}: {unknown_name_message('option', key[:80], names)}")
    for name in names:
        if name not in values:
            raise ValueError(f"{source} lacks {name}")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    whole = {name: _built(hint, values[name], source) for name, hint in hints.items()}
    with saying(source, ValueError):
        check_types(kind, whole)
        return kind(**whole)


def _built(hint: Any, value: Any, source: str) -> Any:
    """Convert values that JSON has no type for: a record inside a record, and a tuple."""
    if is_dataclass(hint):
        return record_from(hint, value, source)  # type: ignore[arg-type]
    is_tuple = any(get_origin(kind) is tuple for kind in _kinds(hint))
    return tuple(value) if is_tuple and isinstance(value, list) else value


def check_types(kind: type, values: dict[str, Any]) -> None:
    """One sentence for a value that is not of its field's type."""
    for name, hint in _hints(kind).items():
        if not any(_is(values[name], each) for each in _kinds(hint)):
            words = " or ".join(_word(each) for each in _kinds(hint) if each is not type(None))
            raise ValueError(f"{name} must be {words}, not {values[name]!r:.200}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be any."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _word(hint: Any) -> str:
    """The name of a value of this type."""
    held = [each for each in get_args(hint) if each is not ...][-1:]
    inside = [WORDS[each] for each in held if each in WORDS]
    return WORDS[get_origin(hint) or hint] + "".join(f" of {each} each" for each in inside)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    return get_type_hints(kind)


def _is(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    kind: Any = get_origin(hint) or hint
    inside = get_args(hint)
    if isinstance(value, bool):  # Python counts True as the whole number 1
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    if not isinstance(value, kind):
        return False
    held = value.values() if kind is dict else value if kind in (list, tuple) else ()
    return all(_is(each, inside[0] if kind is tuple else inside[-1]) for each in held)
