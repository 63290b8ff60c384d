"""Print the lowest versions that pyproject.toml allows, as pip takes them; torch is left out.

    pip install $(python tools/floors.py)

An older torch would be a build for GPUs of several gigabytes: it stays as in constraints.txt.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def floors() -> list[str]:
    """NAME==FLOOR for every dependency of the package."""
    named = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    matches = [re.fullmatch(r"([\w-]+)>=([\d.]+)", each) for each in named]
    if not all(matches):
        sys.exit(f"every dependency is NAME>=VERSION, but one is not: {', '.join(named)}")
    return [f"{m[1]}=={m[2]}" for m in matches if m and m[1] != "torch"]


if __name__ == "__main__":
    print(*floors())
