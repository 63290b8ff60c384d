"""The place of the operators' shared library."""

from __future__ import annotations

import sys
from pathlib import Path

_ENDINGS = {"darwin": ".dylib", "win32": ".dll"}


def library() -> str:
    """The shared library of the operators, for ``SessionOptions.register_custom_ops_library``."""
    name = f"libproxbit{_ENDINGS.get(sys.platform, '.so')}"
    path = Path(__file__).parent / name
    if not path.is_file():
        raise FileNotFoundError(
            f"proxbit-runtime was installed without {name}, which a C++ compiler makes: install a "
            "wheel for this platform, or install it again with a compiler at hand"
        )
    return str(path)
