"""Where proxbit runs, and what it says elsewhere."""

import subprocess
import sys


def test_a_system_without_our_locks_is_told_in_one_sentence():
    code = "import sys; sys.modules['fcntl'] = None; import proxbit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: proxbit runs on Linux and macOS; on Windows use it inside WSL"
    )
