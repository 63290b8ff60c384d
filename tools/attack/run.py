"""Attack proxbit: fuzzes and storms that take minutes, each with its counts in one line.

Usage: python tools/attack/run.py [NAME ...] [--seed N] [--seconds N]

A module of this folder that has ``attack(random, clock)`` is an attack of its name: it returns an
Outcome and stops when ``clock.over()``. The status is 1 where one of them found a failure.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from common import Clock  # noqa: E402


def names() -> list[str]:
    """The attacks there are."""
    files = sorted(HERE.glob("*.py"))
    return [file.stem for file in files if "\ndef attack(" in file.read_text(encoding="utf-8")]


def run(name: str, seed: int, seconds: float) -> int:
    """Run one attack and print its line; how many failures it found."""
    module, clock = importlib.import_module(name), Clock(seconds)
    began = time.monotonic()
    outcome = module.attack(random.Random(seed), clock)
    counts = ", ".join(f"{count:,} {what}" for what, count in outcome.counts.items())
    took = time.monotonic() - began
    print(f"{name}: {counts}; {len(outcome.failures)} failures ({took:.0f} s, seed {seed})")
    for failure in outcome.failures[:5]:
        print(f"  {failure}")
    return len(outcome.failures)


def main() -> None:
    """Run those that were named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", choices=[[], *names()], help="which; default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=90.0, help="for each attack, about")
    given = parser.parse_args()
    failures = [run(name, given.seed, given.seconds) for name in given.names or names()]
    raise SystemExit(1 if any(failures) else 0)


if __name__ == "__main__":
    main()
