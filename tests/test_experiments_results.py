"""results.jsonl: what is written is read again, nothing is lost, damage is named."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.experiments.reproduce.results import (
    FILE,
    ResultLine,
    append_result,
    read_results,
    sole_writer,
)

KEY = {
    "model": "ResNet20", "dataset": "CIFAR-10", "pipeline": "FT", "task": "BW", "method": "BNN++"
}  # fmt: skip
LINE = ResultLine(
    grid="cnn", row="cifar10", preset="small", key=KEY, seed=0, config={"epochs": 1},
    result={"hard": 0.5, "n": 10}, error=None, curve=[{"epoch": 1}], verdict="admitted: yes",
    packed={"bytes": 3, "ms": 0.5, "float_ms": 1.0}, commit="abc", versions={"torch": "2"},
    device="cpu", started="2026-01-01T00:00:00Z", seconds=1.5,
)  # fmt: skip
BROKEN = replace(LINE, result=None, error="no\u2028memory \U0001f600 left", packed=None)


def test_lines_are_read_as_they_were_written(tmp_path):
    for line in (LINE, BROKEN, replace(LINE, seed=2)):
        append_result(tmp_path / "new" / "folder", line)
    assert read_results(tmp_path / "new" / "folder") == [LINE, BROKEN, replace(LINE, seed=2)]


def test_a_line_has_the_parts_of_the_format_and_either_result_or_error(tmp_path):
    append_result(tmp_path, LINE)
    append_result(tmp_path, BROKEN)
    good, bad = (json.loads(each) for each in (tmp_path / FILE).read_text().split("\n")[:2])
    names = {each.name for each in fields(ResultLine)}
    assert good.keys() == names - {"error"} and bad.keys() == names - {"result"}
    assert good["version"] == 1 and next(iter(good)) == "version"


@given(seeds=st.lists(st.integers(0, 2**63 - 1), max_size=4), words=st.text(max_size=20))
def test_appending_never_changes_what_was_there(tmp_path_factory, seeds, words):
    folder = tmp_path_factory.mktemp("results")
    before = b""
    for seed in seeds:
        append_result(folder, replace(BROKEN, seed=seed, error=words))
        after = (folder / FILE).read_bytes()
        assert after.startswith(before) and len(after) > len(before)
        before = after
    if seeds:
        assert [line.seed for line in read_results(folder)] == seeds
        assert read_results(folder)[0].error == words


@given(cut=st.integers(1, 10_000))
def test_a_kill_while_appending_loses_only_the_line_that_was_being_written(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("results")
    append_result(folder, LINE)
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole + whole[: 1 + cut % (len(whole) - 1)])
    survived = read_results(folder)
    assert survived in ([LINE], [LINE, LINE])  # the second where only the newline is missing
    append_result(folder, replace(LINE, seed=1))
    assert read_results(folder) == [*survived, replace(LINE, seed=1)]


def test_the_cell_of_a_line_does_not_depend_on_the_order_of_its_key():
    turned = replace(LINE, key=dict(reversed(KEY.items())))
    assert turned.cell == LINE.cell and turned.cell.axes == KEY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, r"line 2, is of version 2, and this proxbit knows version 1: install"),
        ({"version": None}, r"line 2, is of version None"),
        ({"seed": "0"}, r"line 2: seed must be a whole number, not '0'"),
        ({"speed": 1}, r"line 2: unknown option 'speed': did you mean 'seed'"),
        ({"error": "x"}, r"line 2 must hold either a result or an error"),
        ({"key": {"model": "x"}}, r"line 2: the key must name model, dataset, pipeline"),
        ({"key": KEY | {"task": 1}}, r"line 2: key must be an object of text each, not"),
        ({"curve": {}}, r"line 2: curve must be a list, not {}"),
        ({"curve": [{"epoch": 1}, "x"]}, r"line 2: curve must be a list, not"),
        ({"curve": [{"hard": float("inf")}]}, r"line 2 holds inf, which no result can be"),
        ({"result": {"hard": float("nan")}}, r"line 2 holds nan, which no result"),
        ({"result": {"hard": 10**400}}, r"line 2 holds 10000.*, which no result"),
        ({"packed": {"ms": 1e308}}, r"line 2 holds 1e\+308, which no result"),
        ({"device": "\ud800"}, r"line 2 holds '\\ud800', which no result"),
        ({"versions": {"\ud800": "1"}}, r"line 2 holds '\\ud800', which no result"),
    ],
)
def test_a_line_that_cannot_be_is_named_by_file_and_number(tmp_path, change, words):
    append_result(tmp_path, LINE)
    values = LINE.to_dict() | change
    with (tmp_path / FILE).open("a") as file:
        file.write(json.dumps(values) + "\n")
    with pytest.raises(ValueError, match=words) as error:
        read_results(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)


@pytest.mark.parametrize("tail", ["[" * 100_000, '{"a":' * 100_000, "{", "9" * 5000])
def test_whatever_stands_behind_the_last_line_does_not_count(tmp_path, tail):
    (tmp_path / FILE).write_text(f"{json.dumps(LINE.to_dict())}\n{tail}")
    assert read_results(tmp_path) == [LINE]
    append_result(tmp_path, BROKEN)
    assert read_results(tmp_path) == [LINE, BROKEN]


@pytest.mark.parametrize("junk", ["{", "[1]", "", "nonsense", '{"version": 1}'])
def test_damage_in_the_middle_is_an_error_and_not_a_gap(tmp_path, junk):
    (tmp_path / FILE).write_text(f"{junk}\n{json.dumps(LINE.to_dict())}\n")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1"):
        read_results(tmp_path)


def test_bytes_that_are_no_text_and_a_folder_without_results_are_named(tmp_path):
    with pytest.raises(ValueError, match="there are no results in"):
        read_results(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="is damaged"):
        read_results(tmp_path)


def test_a_number_that_json_has_not_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_result(tmp_path, replace(LINE, seconds=float("nan")))
    append_result(tmp_path, LINE)
    assert read_results(tmp_path) == [LINE]


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with (
        sole_writer(tmp_path),
        pytest.raises(ValueError, match=r"another process is writing results into .*: wait for it"),
        sole_writer(tmp_path),
    ):
        pass
    with sole_writer(tmp_path):
        pass


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ValueError, match=r"cannot write into '.*file'"),
        sole_writer(tmp_path / "file"),
    ):
        pass


WRITER = """
import sys
from dataclasses import fields, replace
from pathlib import Path
from proxbit.experiments.reproduce.results import append_result, read_results
folder = sys.argv[1]
[line, *_] = read_results(folder)
for seed in range(20):
    append_result(folder, replace(line, seed=seed, device=sys.argv[2]))
"""


def test_lines_of_two_writers_do_not_mix(tmp_path):
    append_result(tmp_path, LINE)
    commands = ([sys.executable, "-c", WRITER, str(tmp_path), name] for name in ("a", "b"))
    assert [each.wait() for each in [subprocess.Popen(command) for command in commands]] == [0, 0]
    lines = read_results(tmp_path)
    assert lines[0] == LINE and len(lines) == 41
    for name in ("a", "b"):
        assert [line.seed for line in lines if line.device == name] == list(range(20))


COMMITTED = sorted((Path(__file__).parents[1] / "results").rglob("*.jsonl"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_lines_name_files_and_not_places_on_a_machine(path):
    assert not re.search(r'"([a-z]+:)?(/|~|[A-Z]:\\\\)', path.read_text())


@pytest.mark.parametrize("path", [each for each in COMMITTED if each.name == FILE])
def test_committed_results_can_be_read(path):
    assert all(line.done for line in read_results(path.parent))
