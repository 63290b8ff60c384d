"""The demo and the examples run from a plain shell."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow  # each is a process of its own


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )


def test_the_quick_demo_shows_every_method_and_packs_the_last_two() -> None:
    done = run("-m", "proxbit", "demo", "--quick")
    assert done.returncode == 0, done.stderr
    trained, packed = done.stdout.split("The same networks, packed")
    for method in ("BC BW", "BNN++ BW", "BNN++ BWA"):
        assert f" {method} " in trained
    assert "seed 0" in trained
    rows = [line.split("│")[1:-1] for line in packed.splitlines() if "BNN++" in line]
    assert [row[0].strip() for row in rows] == ["BNN++ BW", "BNN++ BWA"]
    for row in rows:
        held, written, ratio, other = (float(cell.replace(",", "")) for cell in row[1:5])
        assert ratio == pytest.approx(held / written, abs=0.05) and ratio > 10
        assert other <= 2  # of 2,000: a sign may turn where rounding decides it
        assert all(0.01 < float(cell) < 1000 for cell in row[6:8])  # milliseconds they are


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("plain_pytorch.py", ["--epochs", "1", "--steps", "3"], "hard, with fresh statistics"),
        ("with_accelerate.py", ["--epochs", "1", "--images", "256"], "of 2,000 test images"),
        ("text_encoder.py", ["--steps", "20"], "of 2,000 new sequences"),
    ],
)
def test_every_example_runs(script: str, arguments: list[str], said: str) -> None:
    done = run(str(EXAMPLES / script), *arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_there_is_no_example_that_is_not_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "plain_pytorch.py", "with_accelerate.py", "text_encoder.py",
    }  # fmt: skip
