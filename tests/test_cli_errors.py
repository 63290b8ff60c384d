"""A mistake is one sentence, said once."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from proxbit.cli.errors import _OPTIONS, _OTHERWISE, fail, in_options, mistakes
from proxbit.cli.root import app
from small_net import NET


@pytest.mark.parametrize(
    ("rank", "everyone", "heard"),
    [(None, False, True), ("0", False, True), ("1", False, False), ("1", True, True)],
)
def test_of_several_processes_the_first_speaks(rank, everyone, heard, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(typer.Exit) as left:
        fail("no such\nthing", 7, everyone=everyone)
    assert left.value.exit_code == 7
    assert capsys.readouterr().err == ("proxbit: no such thing\n" if heard else "")


@pytest.mark.parametrize("kind", [ValueError, TypeError, OSError, ImportError])
def test_errors_of_the_user_become_a_sentence_and_others_do_not(kind, capsys):
    with pytest.raises(typer.Exit) as left, mistakes():
        raise kind("wrong")
    assert left.value.exit_code == 2
    assert "proxbit: wrong" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError), mistakes():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("python", "options"),
    [
        ("pass only='*' to binarize these too", "pass --only '*' to binarize these too"),
        ("pass relu=nn.Identity, or method 'react'", "pass --relu identity, or method 'react'"),
        ("use float_rest='float32'", "use --float-rest float32"),
        ("not in only=", "not in --only"),
        ("within=(-1.5, 2)", "--within -1.5:2"),
        ("schedule= is", "--strength is"),
        ("or open the data with download=True", "or open the data with --download"),
        (
            "pass parametrize= with its name, or swaps=",
            "pass parametrize= with its name, or swaps=",
        ),
        ("--only=x and my_only=2 stay", "--only=x and my_only=2 stay"),
    ],
)
def test_arguments_in_python_are_told_as_options(python: str, options: str) -> None:
    assert in_options(python) == options


def test_every_option_that_is_told_exists() -> None:
    shown = "".join(
        CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
        for command in ("train", "check", "pack", "run")
    )
    for name in _OPTIONS:
        assert f"--{_OTHERWISE.get(name, name).replace('_', '-')}" in shown, name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sharp", "2"], "sharp is a share"),
        (["--sharp-strength", "-1"], ""),
        (["--skip", "*"], "in --skip"),
        (["--bits", "99", "--task", "BWAA"], ""),
        (["--scale", "huge"], ""),
    ],
)
def test_a_mistake_in_training_names_no_argument_of_python(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET)
    start = ["train", "--model", f"{tmp_path}/net.py:net", "--out", str(tmp_path / "r"), "--cpu"]
    answer = CliRunner().invoke(app, [*start, *arguments])
    assert answer.exit_code == 2 and words in answer.stderr
    assert not any(f" {name}=" in answer.stderr for name in _OPTIONS), answer.stderr
