"""docs/recipes.md: the arithmetic of equal cost, and that the page is that of the records."""

import importlib
import itertools
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbit.train.config import Config
from proxbit.train.settings import settled

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def recipes() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("recipes")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    text = (ROOT / "results" / "recipes.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@given(figures=st.lists(st.floats(0, 100), min_size=1, max_size=9), budget=st.integers(1, 9))
def test_the_best_of_a_few_is_the_mean_over_every_choice(
    recipes: ModuleType, figures: list[float], budget: int
) -> None:
    choices = itertools.combinations(figures, min(budget, len(figures)))
    expected = statistics.fmean(max(choice) for choice in choices)
    assert recipes.expected_best(figures, budget) == pytest.approx(expected)


def test_the_page_shows_the_records(recipes: ModuleType, records: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert recipes.tally(records, recipes.ROUNDS) in page
    assert recipes.tables(records, recipes.ROUNDS) in page


def test_every_method_had_as_many_candidates(
    recipes: ModuleType, records: list[dict[str, Any]]
) -> None:
    page = recipes.tally(records, recipes.ROUNDS)
    rows = [row.strip("| ").split(" | ") for row in page.splitlines()[4:]]
    counts = {(task, method): int(count) for task, method, count, *_ in rows}
    wanted = {("BW", method) for method in (*recipes.OTHERS, *recipes.EVERY, "bnn++")}
    wanted |= {("BWA", method) for method in (*recipes.BESIDE, "bc", "bnn++")}
    assert {place for place in wanted if counts.get(place, 0) < recipes.BUDGET} == set()


def test_the_default_is_what_the_page_recommends(recipes: ModuleType) -> None:
    default = settled(Config(method="bnn++"))
    found = {name: getattr(default, name) for name in recipes.SIGNS_SOON}
    assert found == recipes.SIGNS_SOON
