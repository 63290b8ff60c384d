"""The kernels through their C ABI, without Python: every backend of this CPU beside plain C++.

``make arm`` runs the same program for ARM under emulation.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from every_backend import EXECUTED, SUPPORTED
from proxbit.kernels import library

LAWS = Path(__file__).parent / "laws"
COMPILER = os.environ.get("CXX") or shutil.which("c++")


@pytest.fixture(scope="module")
def laws(tmp_path_factory):
    """A call of the program of laws: its exit status and its lines."""
    if not SUPPORTED or COMPILER is None:
        pytest.skip("no kernels or no C++ compiler")
    built = Path(os.environ.get("PROXBIT_LIBRARY", str(library._PLACE)))
    program = tmp_path_factory.mktemp("laws") / "laws"
    # a sanitizer may be in front of Python, and is not wanted in front of the compiler
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", *LAWS.glob("*.cpp")]
    command += ["-o", program, built, f"-Wl,-rpath,{built.parent}", "-pthread"]
    subprocess.run(command, check=True, env=plain)

    def call(*words):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    return call


def test_every_backend_answers_as_plain_cpp_does_and_a_wrong_answer_is_seen(laws):
    status, lines = laws()
    assert status == 0, "\n".join(lines)
    assert set(lines[0].split()[1:]) == set(SUPPORTED)
    EXECUTED.update(SUPPORTED)
    for backend in set(SUPPORTED) - {"portable"}:
        status, lines = laws("--spoil", backend)
        assert status == 1
        count = lines[-2].split()
        assert count[1].strip(",") == count[3].strip(",")  # as many laws are broken as there are
    assert laws("--tempo", "1")[0] == 2
