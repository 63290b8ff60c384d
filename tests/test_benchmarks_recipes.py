"""docs/recipes.md: the arithmetic of equal cost, and that the page is that of the records."""

import importlib
import itertools
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from proxbit.core.methods import METHODS
from proxbit.models import build

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
    assert recipes.tally(records) in page
    assert recipes.tables(records) in page


def test_every_method_had_as_many_candidates_and_its_default_was_one(
    recipes: ModuleType, records: list[dict[str, Any]]
) -> None:
    rows = [row.strip("|").split("|") for row in recipes.tally(records).splitlines()[4:]]
    counts = {(row[0].strip(), row[1].strip()): int(row[2]) for row in rows}
    measured = {(row[0].strip(), row[1].strip()) for row in rows if row[-1].strip()}
    wanted = {("BW", method) for method in METHODS if method != "fp"}
    wanted |= {("BWA", method) for method in ("pq", "rpc", "bc", "pc", "bnn", "bnn+", "bnn++")}
    assert {place for place in wanted if counts.get(place, 0) < recipes.BUDGET} == set()
    assert wanted <= measured


def test_no_candidate_was_counted_twice(records: list[dict[str, Any]]) -> None:
    keys = [json.dumps([line["options"], line["seed"]], sort_keys=True) for line in records]
    assert len(keys) == len(set(keys))


def test_candidates_are_every_combination_with_all_their_options(recipes: ModuleType) -> None:
    words = ["method=bc,bnn++", "lr=1e-2", "strength=2,1:3:log", "distill=true", "epochs=6"]
    found = recipes.candidates(words)
    assert [(each["method"], each["strength"]) for each in found] == [
        (method, strength) for method in ("bc", "bnn++") for strength in ("2", "1:3:log")
    ]
    for each in found:
        assert (each["lr"], each["distill"], each["epochs"]) == (1e-2, True, 6)
        settled = {name: each[name] for name in ("relu", "optimizer", "sharp", "image_size")}
        assert None not in settled.values()
    with pytest.raises(SystemExit, match="'rates' is no option of proxbit train"):
        recipes.candidates(["rates=1"])


def test_a_row_says_what_is_not_the_default(recipes: ModuleType) -> None:
    (default,) = recipes.candidates(["method=bnn++"])
    (other,) = recipes.candidates(
        ["method=bnn++", "task=BWA", "lr=3e-3", "max_steps_per_epoch=352"]
    )
    (paper,) = recipes.candidates(["method=bnn++", "settings=paper"])
    assert recipes.asked_of(default) == {}
    assert recipes.asked_of(other) == {"task": "BWA", "lr": 3e-3, "max_steps_per_epoch": 352}
    assert recipes.asked_of(paper) == {"settings": "paper"}


@pytest.mark.slow
def test_a_round_is_run_recorded_shown_and_not_run_again(
    recipes: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    parts = {f"x_{part}": rng.integers(0, 256, (40, 32, 32, 3), "u1") for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(40) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "images.npz", **parts, **labels)
    save_file(build("resnet20").state_dict(), tmp_path / "w.safetensors")
    command = [
        recipes.__file__, "try", "--data", "npz:images.npz", "--weights", "w.safetensors",
        "--results", "lines.jsonl", "--markdown", "page.md", "--threads", "1",
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    few = ["method=bc", "max_steps_per_epoch=1", "batch_size=8", "val_split=0.5", "recalibrate=1"]
    for arguments, ran in ((few, 1), (["--seeds", "0", "1"], 1)):
        monkeypatch.setattr(sys, "argv", [*command, *arguments])
        recipes.main()
        assert capsys.readouterr().out.count("soft, hard at once, hard") == ran
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [(line["rounds"], line["seed"]) for line in lines] == [(["try"], 0), (["try"], 1)]
    assert all(0 <= line["result"]["hard"] <= 1 for line in lines)
    assert (
        "| bc | val_split 0.5, batch_size 8, max_steps_per_epoch 1, recalibrate 1 |"
        in (tmp_path / "page.md").read_text()
    )


def test_the_folder_of_a_run_is_a_line_without_places(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        lines = importlib.import_module("run_lines")
    run = tmp_path / "run"
    run.mkdir()
    held = {
        "config": {"data": "folder:/home/me", "weights": "/home/me/w", "seed": 3, "lr": 0.1},
        "result": {"seed": 3, "hard": 0.5},
        "about": dict.fromkeys(("commit", "proxbit", "torch", "started", "threads"), "x"),
    }
    for name, values in held.items():
        (run / f"{name}.json").write_text(json.dumps(values))
    (run / "metrics.jsonl").write_text('{"hard": 0.5}\n{"hard": 0.4}\n')
    (line,) = lines.new_lines("a", [run, run], "")
    assert "/home" not in line and lines.new_lines("a", [run], line) == []
    found = json.loads(line)
    assert (found["rounds"], found["seed"], found["options"]) == (["a"], 3, {"lr": 0.1})
    assert (found["result"]["hard"], found["result"]["last"]) == (0.5, 0.4)
