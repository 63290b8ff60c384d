"""One word, one meaning: docs/glossary.md and the code keep to each other."""

import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

import proxbit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(proxbit.__file__).parent
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
GLOSSARY = dict(ROW.findall(PAGE))

# The words that are ours: a newcomer meets them in code, options, files or messages.
OURS = (
    "accumulator", "bits", "bounds", "cell", "counter", "cyclic function", "flips", "frozen",
    "gap", "golden", "grid", "hard", "interval", "knot", "label smoothing", "latent", "law",
    "method", "overflow", "pace", "packed", "pair", "panel", "part", "phase", "pipeline",
    "preset", "quantized", "recipe", "route", "rule", "rung", "saturated", "scale", "schedule",
    "settings", "share", "sharp", "sign", "smoothing", "soft", "stage", "strength", "task", "trial",
    "unit", "verdict",
)  # fmt: skip

# Names that were given up, and what to write instead.
RETIRED = {
    "Board": "GridProgress", "Diary": "SelectionLog", "Draws": "EpochRNG", "Job": "PreparedRun",
    "Judge": "Evaluator", "Meter": "StepTimer", "Sharing": "ShardedBatches",
    "RunSize": "Preset", "Team": "Distributed", "Wish": "CellQuery", "crop_and_flip": "Loader",
    "hold_back": "with_val_split", "rate_at": "lr_at", "unknown": "unknown_name_message",
}  # fmt: skip

# A word with one meaning is a name only where that meaning is at home.
HOMES = {
    "cell": {"experiments", "cli"},
    "cells": {"experiments", "cli"},
    "interval": {"theory"},
    "pace": {"experiments"},
    "smoothing": {"core", "theory"},
    "rung": {"experiments"},
    "rungs": {"experiments"},
    "verdict": {"theory", "experiments", "cli", "core", "testing"},
}


def names() -> dict[str, set[str]]:
    """The names in the code, each with the packages that use it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        for token in tokens:
            if token.type == tokenize.NAME:
                found[token.string].add(package)
    return found


NAMES = names()
OTHER_TESTS = [path for path in (ROOT / "tests").glob("*.py") if path != Path(__file__)]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")).lower()


def test_the_glossary_has_every_word_of_ours_and_no_other():
    assert sorted(GLOSSARY) == sorted(OURS)
    assert PAGE.count("\n| **") == len(GLOSSARY)


@pytest.mark.parametrize("word", sorted(GLOSSARY))
def test_a_word_of_the_glossary_occurs_in_the_code(word):
    texts = [SOURCE, *(path.read_text(encoding="utf-8").lower() for path in OTHER_TESTS)]
    assert any(re.search(rf"\b{word.replace(' ', '[ _]')}", text) for text in texts)


@pytest.mark.parametrize("name", RETIRED)
def test_a_name_that_was_given_up_stays_away(name):
    assert name not in NAMES, f"write {RETIRED[name]}"


@pytest.mark.parametrize("word", HOMES)
def test_a_word_is_a_name_only_where_its_meaning_is_at_home(word):
    assert NAMES[word], f"{word} is nowhere"
    assert NAMES[word] <= HOMES[word]


def test_a_share_is_a_fraction_and_never_something_that_is_done():
    assert not re.search(r"def (share|shared|sharing)\b", SOURCE)
