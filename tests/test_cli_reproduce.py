"""``proxbit reproduce`` as people and scripts meet it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.grid_progress import GridProgress, inside
from proxbit.experiments.reproduce.grids import GRIDS
from proxbit.experiments.reproduce.results import FILE, ResultLine, read_results
from proxbit.experiments.reproduce.running import Event
from small_net import NET


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NET)
    labels = np.arange(256) % 3
    images = np.random.default_rng(0).integers(0, 255, (256, 8, 8, 3)).astype("u1")
    np.savez(path / "i.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


def said(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def small(place: Path, *more: str) -> list[str]:
    return [
        "cnn", "--rows", "cifar10", "--preset", "small", "--data", f"npz:{place}/i.npz", "--model",
        f"{place}/net.py:net", "--pipelines", "E2E", "--tasks", "BW", "--cpu",
        "--max-steps-per-epoch", "2", "--no-measure", *more,
    ]  # fmt: skip


def test_without_arguments_it_lists_everything():
    text = said().output
    for grid in GRIDS.values():
        assert f"\n{grid.name}: " in text


def test_cells_run_and_are_skipped_the_second_time(place, tmp_path):
    call = small(place, "--methods", "FP,BC", "--epochs", "1", "--out", str(tmp_path / "r"))
    first = said(*call).output
    assert "2 of 2  cifar10 E2E BW BC seed 0: hard " in first and "2 done; see" in first
    lines = read_results(tmp_path / "r")
    assert [line.key["method"] for line in lines] == ["FP", "BC"]
    assert "2 skipped; see  proxbit report" in said(*call).output
    assert read_results(tmp_path / "r") == lines
    words = said(
        *call[:-2], "--max-steps-per-epoch", "3", "--out", str(tmp_path / "r"), status=2
    ).output
    assert "has max_steps_per_epoch 2, not 3" in words


def test_a_teacher_teaches_a_run_from_random_weights(place, tmp_path):
    out = ["--epochs", "1", "--out", str(tmp_path / "r")]
    said(*small(place, "--methods", "FP", *out))
    (teacher,) = (path for path in (tmp_path / "r" / "runs").iterdir() if path.is_dir())
    said(*small(place, "--methods", "BC", "--teacher", str(teacher), *out))
    first, second = read_results(tmp_path / "r")
    assert (first.config["distill"], second.config["distill"]) == (False, True)
    assert (second.config["teacher"], second.config["weights"]) == (teacher.name, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cn"], "unknown grid 'cn': did you mean 'cnn'"),
        (["cnn", "--rows", "cifar"], "unknown row of cnn 'cifar'"),
        (["cnn", "--preset", "tiny"], "unknown preset 'tiny'"),
        (["cnn", "--seeds", "0,x"], "--seeds are whole numbers with commas"),
        (["cnn", "--seeds", ","], "--seeds are whole numbers with commas"),
        (["cnn", "--methods", "bnn3"], "unknown method 'bnn3'"),
        (["cnn", "--data", "npz:a.npz"], "is for one row, and these are of CIFAR-10"),
        (["bivit", "--teacher", "a.npz"], "is for one row, and these are of Swin-T, NesT-T"),
        (["ptb", "--rows", "vit-b-cifar10"], "has no stand-in in the preset smoke"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(arguments, words, tmp_path):
    result = said(*arguments, "--out", str(tmp_path / "r"), status=2)
    assert result.output.startswith("proxbit: ") and words in result.output
    assert result.output.count("\n") == 1 and not (tmp_path / "r").exists()


def test_what_is_missing_is_said_once_for_all_its_cells(tmp_path):
    result = said("cnn", "--preset", "small", "--out", str(tmp_path), status=2)
    assert "80 refused" in result.output
    for words in ("row cifar10 needs CIFAR-10: give it as --data npz:FILE", "needs ImageNet-1K"):
        assert result.output.count(words) == 1
    assert "(40 cells)" in result.output and not (tmp_path / FILE).exists()


def test_results_of_another_version_are_refused_and_kept(place, tmp_path):
    (tmp_path / FILE).write_text('{"version": 99}\n')
    result = said(*small(place, "--methods", "BC", "--out", str(tmp_path)), status=2)
    assert "line 1, is of version 99" in result.output
    assert (tmp_path / FILE).read_text() == '{"version": 99}\n'


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(place, tmp_path):
    call = small(place, "--methods", "BC", "--epochs", "100000", "--out", str(tmp_path))
    command = [sys.executable, "-m", "proxbit", "reproduce", *call]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        while process.poll() is None and not list(tmp_path.glob("runs/*/last.safetensors")):
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        try:
            _, words = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert words.startswith("stopped, nothing is lost: continue with  proxbit reproduce cnn --rows")
    assert list(tmp_path.glob("runs/*/last.safetensors"))


# The table while it runs


def board(**console) -> GridProgress:
    cells = plan(CellQuery("cnn", rows=("cifar10",), methods=("FP", "BC"), seeds=(0, 1)))
    return GridProgress(cells, Options(), Console(width=100, **console))


def test_the_table_has_the_methods_across_and_fills(tmp_path):
    with (tmp_path / "screen").open("w") as file:
        shown = board(file=file, force_terminal=True)
        before = shown.left()
        shown.watch(Event(shown.cells[0], "running", note="training", share=0.5))
        shown.watch(Event(shown.cells[2], "broken", note="no memory"))
        for cell in shown.cells[4:]:
            shown.watch(Event(cell, "refused", note="no data"))
        with shown:
            pass
    text = (tmp_path / "screen").read_text()
    assert "FP" in text and "BC" in text and "cifar10 FT BWAA" in text
    assert "..." in text and "broken" in text and "training 50 %" in text
    assert 0 < shown.left() < before


def test_a_place_shows_the_mean_of_its_seeds():
    [cell, *_] = board().cells
    halves = [Event(cell, "done", line_with(hard)) for hard in (0.5, 0.25)]
    assert inside(halves) == "37.50" and inside(halves[:1]) == "50.00"
    assert inside([*halves, Event(cell, "running")]) == "37.50 ..."
    assert inside([None, Event(cell, "broken")]) == "broken"
    assert inside([None]) == ""


def line_with(hard: float) -> ResultLine:
    return ResultLine(
        grid="", row="", preset="", key={}, seed=0, config={}, result={"hard": hard}, error=None,
        curve=[], verdict="", packed=None, commit=None, versions={}, device="", started="",
        seconds=0.0,
    )  # fmt: skip
