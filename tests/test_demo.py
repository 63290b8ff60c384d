"""The demo runs from a plain shell and shows every method."""

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(DEMO), *arguments]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # two wait for each other on a busy machine
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=one_thread
    )


def test_the_quick_demo_shows_every_method() -> None:
    done = run("--quick")
    assert done.returncode == 0, done.stderr
    for method in ("BC", "BNN+", "BNN++"):
        assert f" {method} " in done.stdout
    assert "seed 0" in done.stdout


def test_an_unknown_option_shows_the_usage() -> None:
    done = run("--fast")
    assert done.returncode != 0
    assert "--quick" in done.stderr
