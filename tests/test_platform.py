"""Where proxbit runs, and what it says elsewhere."""

import os
import subprocess
import sys

import pytest


def test_a_system_without_our_locks_is_told_in_one_sentence():
    code = "import sys; sys.modules['fcntl'] = None; import proxbit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: proxbit runs on Linux and macOS; on Windows use it inside WSL"
    )


@pytest.mark.parametrize(
    ("variable", "value", "status", "said"),
    [
        ("PROXBIT_KERNELS", "portable", 0, "kernels: portable"),
        ("PROXBIT_KERNELS", "torch", 0, "no kernels: PROXBIT_KERNELS is 'torch'"),
        ("PROXBIT_KERNELS", "quantum", 2, "unknown value of PROXBIT_KERNELS 'quantum'"),
        ("PROXBIT_LIBRARY", "/nowhere.so", 0, "no kernels: install proxbit again with a C++"),
    ],
)
def test_the_version_says_what_computes(variable, value, status, said):
    command = [sys.executable, "-m", "proxbit", "--version"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PROXBIT_")}
    done = subprocess.run(
        command, env=plain | {variable: value}, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
