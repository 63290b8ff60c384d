"""Files of JSON lines: what was appended is read, whatever a kill left at the end."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.util.jsonl import append_line, read_lines

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(), PLAIN, max_size=3)


def values(path: Path) -> list[object]:
    return [value for _, value in read_lines(path)]


@given(first=st.lists(OBJECTS, max_size=4), torn=OBJECTS, cut=st.integers(0, 200), last=OBJECTS)
def test_a_cut_loses_at_most_the_line_that_it_is_in(tmp_path_factory, first, torn, cut, last):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    for each in first:
        append_line(path, each)
    assert values(path) == first
    text = json.dumps(torn).encode()
    with path.open("ab") as file:
        file.write(text[: cut % (len(text) + 1)])
    found = values(path)
    assert found in (first, [*first, torn])
    append_line(path, last)
    assert values(path) == [*found, last]
    assert path.read_bytes().endswith(b"\n")


def test_where_a_line_stands_is_said(tmp_path):
    path = tmp_path / "a.jsonl"
    assert list(read_lines(path)) == []
    path.write_text('{"a": 1}\nnonsense\n{"b": 2}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is not a readable JSON"):
        list(read_lines(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="is damaged"):
        list(read_lines(path))


def test_numbers_that_json_does_not_have_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "a.jsonl"
    append_line(path, {"a": 1})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(path, {"a": float("nan")})
    assert path.read_bytes() == before
