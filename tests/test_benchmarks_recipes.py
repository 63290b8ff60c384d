"""docs/recipes.md: the arithmetic of equal cost, and that the page is that of the records."""

import importlib.util
import itertools
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def recipes() -> ModuleType:
    path = ROOT / "benchmarks" / "recipes.py"
    spec = importlib.util.spec_from_file_location("recipes", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        spec.loader.exec_module(module)
    return module


@given(figures=st.lists(st.floats(0, 100), min_size=1, max_size=9), budget=st.integers(1, 9))
def test_the_best_of_a_few_is_the_mean_over_every_choice(
    recipes: ModuleType, figures: list[float], budget: int
) -> None:
    choices = itertools.combinations(figures, min(budget, len(figures)))
    expected = statistics.fmean(max(choice) for choice in choices)
    assert recipes.expected_best(figures, budget) == pytest.approx(expected)


def test_the_page_shows_the_records(recipes: ModuleType) -> None:
    text = (ROOT / "results" / "recipes.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert recipes.tally(lines, recipes.ROUNDS) in page
    assert recipes.tables(lines, recipes.ROUNDS) in page


def test_every_method_of_the_tables_had_as_many_candidates(recipes: ModuleType) -> None:
    text = (ROOT / "results" / "recipes.jsonl").read_text()
    page = recipes.tally([json.loads(line) for line in text.splitlines()], recipes.ROUNDS)
    rows = [row.strip("| ").split(" | ") for row in page.splitlines()[4:]]
    given = {(task, method): int(count) for task, method, count, *_ in rows}
    wanted = {("BW", method) for method in (*recipes.OTHERS, *recipes.EVERY, "bnn++")}
    assert {place: given.get(place, 0) for place in wanted if given.get(place, 0) < 5} == {}
