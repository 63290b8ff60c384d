"""The command line: ``proxbit check`` and ``proxbit methods``."""

import json
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import proxbit as pb
from proxbit.cli.root import app
from proxbit.theory import check

ROOT = Path(__file__).resolve().parents[1]


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def mistake(*words):
    """The one sentence that a mistake is answered with."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("proxbit: ")
    return result.stderr


HEAD = "import torch\nfrom proxbit import Pair; from proxbit.core import maps\n"
FILES = {
    "good": "mine = Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2)",
    "bad": "mine = Pair(maps.sign, lambda w, s: torch.exp(-w * w))",
    "nan": "mine = Pair(lambda w, s: w.sqrt(), maps.one)",
    "shape": "mine = Pair(maps.sign, lambda w, s: w.sum())",
    "mean": "mine = Pair(lambda w, s: w - w.mean(), maps.one)",
    "raises": "mine = Pair(maps.sign, lambda w, s: w[99, 99])",
    "long": "def f(w, s): raise RuntimeError('first\\nsecond')\nmine = Pair(f, maps.one)",
}


@pytest.fixture
def pair_file(tmp_path):
    def write(text):
        path = tmp_path / "my_pairs.py"
        path.write_text(HEAD + text + "\n")
        return path

    return write


@pytest.mark.parametrize("key", pb.METHODS)
def test_the_exit_status_is_the_verdict(key):
    result, verdict = run("check", key, "--json"), check(pb.METHODS[key])
    assert result.exit_code == (0 if verdict.admitted else 3)
    data = json.loads(result.stdout)
    assert data["admitted"] is verdict.admitted
    assert data["reasons"] == list(verdict.reasons)
    assert data["strengths"] == list(verdict.strengths)
    assert data["name"] == verdict.name


def test_a_refusal_comes_with_its_reason_and_the_neighbours():
    result = run("check", "bnn+", "--strength", "5")
    assert result.exit_code == 3
    assert "P is constant on w > 0 while B runs from 5 to -0.369" in result.stdout
    assert "admitted instead: BNN++" in result.stdout
    assert run("check", "bnn", "--strength", "1:30").stdout.startswith("BNN: admitted")


def test_json_is_strict_even_with_infinite_segments():
    def refuse(name):
        raise AssertionError(name)

    text = run("check", "bnn", "--json").stdout
    assert json.loads(text, parse_constant=refuse)["free"] == [[None, -1.0], [1.0, None]]


def test_a_pair_of_the_user_s_file_is_checked(pair_file):
    assert run("check", f"{pair_file(FILES['good'])}:mine", "--strength", "1:30").exit_code == 0
    result = run("check", f"{pair_file(FILES['bad'])}:mine")
    assert result.exit_code == 3
    assert "refused" in result.stdout


@pytest.mark.parametrize("kind", ["nan", "shape", "mean", "raises", "long"])
def test_a_broken_pair_of_the_user_is_a_mistake(kind, pair_file):
    assert "map" in mistake("check", f"{pair_file(FILES[kind])}:mine")


def test_an_unknown_method_is_answered_with_the_known_ones():
    message = mistake("check", "bnn+++")
    assert "bnn++" in message and "bi-real" in message


@pytest.mark.parametrize("name", ["nowhere.py:mine", "my pairs/nowhere.py:x"])
def test_a_missing_file_is_a_mistake(name):
    assert "there is no file" in mistake("check", name)


@pytest.mark.parametrize(
    "text", ["1 / 0", "def broken(:", "import no_such_module", "raise SystemExit(0)", "exit(0)"]
)
def test_a_file_that_does_not_run_is_a_mistake(text, pair_file):
    assert "does not run" in mistake("check", f"{pair_file(text)}:mine")


@pytest.mark.parametrize(("key", "status"), [("bnn++prox", 0), ("bnn++", 3), ("pq", 3)])
def test_a_method_of_the_users_file_is_checked_with_its_schedule_and_rule(key, status, pair_file):
    path = pair_file(f"import proxbit as pb\nmine = pb.METHODS[{key!r}]")
    result = run("check", f"{path}:mine", "--json")
    assert result.exit_code == status
    assert result.stdout == run("check", key, "--json").stdout


def test_a_name_that_is_no_pair_is_answered_with_the_pairs(pair_file):
    path = pair_file(FILES["good"] + "\nfive = 5")
    assert "has a int, not a Pair or Method" in mistake("check", f"{path}:five")
    assert "its pairs and methods: mine" in mistake("check", f"{path}:yours")


@pytest.mark.parametrize("strength", ["abc", "nan", "1:2:3", "1:", "inf", ""])
@pytest.mark.parametrize("key", ["bnn", "pq"])
def test_a_bad_strength_is_a_mistake(key, strength):
    assert "strength" in mistake("check", key, "--strength", strength)


def test_a_negative_strength_is_a_mistake():
    assert "strength" in mistake("check", "bnn", "--strength=-1")


def test_a_file_may_hold_a_dataclass(pair_file):
    text = "from dataclasses import dataclass\n@dataclass\nclass C:\n    x: 'int' = 1\n"
    assert run("check", f"{pair_file(text + FILES['good'])}:mine").exit_code == 0


def test_a_file_leaves_no_module_behind_that_hides_another(tmp_path):
    path = tmp_path / "json.py"
    path.write_text(HEAD + FILES["good"])
    assert run("check", f"{path}:mine", "--json").exit_code == 0
    assert sys.modules["json"] is json


def test_a_refused_pair_without_derivative_still_gets_its_verdict(pair_file):
    # numpy inside: no jvp, so "F kept and differentiated" cannot be an option.
    text = (
        "import numpy as np\n"
        "def f(w, s): return torch.from_numpy(np.tanh(w.numpy()))\n"
        "mine = Pair(f, lambda w, s: torch.cos(w))"
    )
    result = run("check", f"{pair_file(text)}:mine")
    assert result.exit_code == 3


def test_the_help_says_that_a_file_is_executed():
    assert "executed" in run("check", "--help").stdout


# The methods -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed():
    return run("methods").stdout


def as_data():
    return json.loads(run("methods", "--json").stdout, parse_constant=pytest.fail)


def test_methods_lists_every_one_with_its_verdict(listed):
    rows = {line.split()[0]: line for line in listed.splitlines() if line}
    short = {"admitted in part": "in part"}
    for key, method in pb.METHODS.items():
        answer = check(method).answer
        assert rows[key].endswith(f"  {short.get(answer, answer)}")


def test_the_table_of_methods_fits_a_hundred_columns_and_lines_up(listed):
    lines = listed.splitlines()
    assert max(len(line) for line in lines) <= 100
    body = lines[: lines.index("")]
    assert len(body) == 1 + len(pb.METHODS)
    for column in ("F", "B", "strength", "rule", "verdict"):
        start = body[0].index(f" {column}") + 1
        for line in body:
            assert line[start] != " " and line[start - 2 : start] == "  ", f"{column} in {line!r}"


def test_every_short_formula_is_written_out_below_the_table(listed):
    body, _, below = listed.partition("\n\n")
    for row in as_data():
        line = next(line for line in body.splitlines() if line.startswith(f"{row['name']} "))
        for formula in (row["F"], row["B"]):
            assert f" {formula} " in line or formula in below.splitlines(), formula


def test_the_methods_are_told_in_the_words_of_the_page():
    """One row of docs/methods.md holds method, name, F, B and rule; another the settings."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").replace("\\|", "|")
    for row in as_data():
        assert "| {method} | `{name}` | {F} | {B} | {rule} |".format(**row) in page
        assert "| {method} | {strength} | {inputs} | {unit} | {scale} |".format(**row) in page


def test_the_methods_as_json_are_those_of_the_code():
    for row, (key, method) in zip(as_data(), pb.METHODS.items(), strict=True):
        verdict = check(method)
        assert (row["name"], row["method"]) == (key, method.name)
        assert row["verdict"] == verdict.answer
        assert [phase["share"] for phase in row["phases"]] == [p.share for p in verdict.phases]
        assert row["reasons"] == list(verdict.reasons)


def test_methods_answers_within_two_seconds_of_work():
    start = time.process_time()
    run("methods")
    assert time.process_time() - start < 2
