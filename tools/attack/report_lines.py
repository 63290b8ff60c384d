"""Lines of results are changed in every place: a report, or one sentence."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from common import Clock, Outcome

from proxbit.experiments.report.assembly import read_folders, render

LINES = Path(__file__).resolve().parents[2] / "results" / "results.jsonl"
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 0.5, 1e15, 1e308, math.nan, math.inf, 10**400, -(10**30), "", "x",
    "\x1b[31m", "\ud800", "\x00", "a,b\n|c", "a" * 10_000, [], {}, [[]], [1], {"a": 1}, [{}],
    {"hard": 1}, [{"epoch": 1, "hard": None}],
)  # fmt: skip


def attack(random: Random, clock: Clock) -> Outcome:
    """Every changed folder in all three forms."""
    lines = [json.loads(line) for line in LINES.read_text().split("\n") if line]
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        while not clock.over():
            picked = copy.deepcopy(random.choices(lines, k=random.randint(1, 4)))
            for _ in range(random.randint(1, 2)):
                _change(random.choice(picked), random)
            text = "\n".join(json.dumps(line) for line in picked)
            (Path(folder) / "results.jsonl").write_text(text + random.choice(["\n", "", "\n["]))
            for form in ("html", "markdown", "csv"):
                _try(Path(folder), form, outcome)
    return outcome


def _try(folder: Path, form: str, outcome: Outcome) -> None:
    outcome.counts["reports"] += 1
    try:
        render(read_folders([folder]), form, [folder]).encode()
        outcome.counts["written"] += 1
    except ValueError as error:
        outcome.counts["refused"] += 1
        if "\n" in str(error):
            outcome.failures.append(f"{form}: more than one line: {error}")
    except Exception as error:
        outcome.failures.append(f"{form}: {type(error).__name__}: {error}")


def _change(line: dict[str, Any], random: Random) -> None:
    """Replace, drop or rename one value somewhere in a line."""
    top = random.choice(list(line))
    owner, key = random.choice([(line, top), *_places(line[top])])
    if random.random() < 0.1:
        del owner[key]
    elif random.random() < 0.05 and isinstance(owner, dict):
        owner[random.choice(["x", "\x1b"])] = owner.pop(key)
    else:
        owner[key] = copy.deepcopy(random.choice(JUNK))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where a value holds others: all of an object, the first two of a list."""
    lists = range(len(value))[:2] if isinstance(value, list) else ()
    for key in list(value) if isinstance(value, dict) else lists:
        yield value, key
        yield from _places(value[key])
