"""Checked records: what JSON can say comes back, and anything else is one sentence."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.util.schema import record_from


@dataclass(frozen=True)
class Inner:
    x: float
    on: bool


@dataclass(frozen=True)
class Outer:
    inner: Inner
    names: tuple[str, ...]
    sizes: dict[str, int]
    rest: list[dict[str, Any]]
    note: str | None


WHOLE = Outer(Inner(1.5, True), ("a", "b"), {"n": 3}, [{"k": None}], None)


@given(
    x=st.floats(allow_nan=False), on=st.booleans(), names=st.lists(st.text()),
    sizes=st.dictionaries(st.text(), st.integers()), note=st.none() | st.text(),
)  # fmt: skip
def test_a_record_survives_json(x, on, names, sizes, note):
    record = Outer(Inner(x, on), tuple(names), sizes, [{"any": [1, None]}], note)
    assert record_from(Outer, json.loads(json.dumps(asdict(record))), "file") == record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inner": {"x": True, "on": True}}, "file: x must be a number, not True"),
        ({"inner": {"x": 1}}, "file lacks on"),
        ({"inner": 3}, "file holds int, not a JSON object"),
        ({"names": ["a", 1]}, "file: names must be a list of text each, not"),
        ({"names": "a"}, "file: names must be a list of text each, not 'a'"),
        ({"sizes": {"n": 1.5}}, "file: sizes must be an object of a whole number each, not"),
        ({"rest": [1]}, "file: rest must be a list"),
        ({"note": 1}, "file: note must be text, not 1"),
        ({"nota": 1}, "file: unknown option 'nota': did you mean 'note'?"),
    ],
)
def test_what_is_wrong_is_named_once(change, words):
    with pytest.raises(ValueError) as caught:
        record_from(Outer, asdict(WHOLE) | change, "file")
    assert words in str(caught.value) and str(caught.value).count("file") == 1
