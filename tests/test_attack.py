"""The attacks of `make attack` can be found, run and counted; here for a moment each."""

import importlib
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).resolve().parents[1] / "tools" / "attack"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(ATTACK), *sys.path])
    yield importlib.import_module("run")
    for name in ("run", "common", "report_lines", "config_bits", "onnx_nodes"):
        sys.modules.pop(name, None)


def test_every_attack_is_found(runner):
    others = {"common", "run"}
    assert set(runner.names()) == {path.stem for path in ATTACK.glob("*.py")} - others
    assert {"config_bits", "kill_storm", "packed_headers", "report_lines"} <= set(runner.names())


@pytest.mark.parametrize("name", ["report_lines", "config_bits", "onnx_nodes"])
def test_an_attack_counts_in_one_line_and_finds_nothing(runner, name, capsys):
    assert runner.run(name, seed=1, seconds=0.5) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert line.startswith(f"{name}: ") and "0 failures" in line
