"""A mistake is one sentence, said once."""

import pytest
import typer

from proxbit.cli_errors import fail, mistakes


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
