"""``python -m proxbit.cli.child PID train ...``: a command that ends with its parent.

A run whose driver was killed would go on alone and keep its folder locked. On Linux the kernel
sends it SIGTERM instead, and it saves itself as after Ctrl-C.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Ask for SIGTERM when the parent ends; leave at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Run the command line that follows the parent's number."""
    name, parent, *arguments = sys.argv
    end_with(int(parent))
    sys.argv = [name, *arguments]
    from proxbit.cli.root import main as command

    command()


if __name__ == "__main__":
    main()
