"""``proxbit train``, ``evaluate`` and ``show``: what they write, print and repeat."""

import json
import platform
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from typer.testing import CliRunner

import proxbit
from proxbit.cli.root import app
from proxbit.train import Config, Record, evaluate, open_run
from proxbit.train.config import read_config
from proxbit.train.divergence import Interrupted
from small_net import write_images

pytestmark = pytest.mark.usefixtures("light_garbage")
NETS = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
"""
SHORT = ["--epochs=3", "--batch-size=16", "--frozen=0.3", "--recalibrate=2", "--cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place[1]")  # brackets are markup to some printers
    (path / "net.py").write_text(NETS)
    write_images(path / "i.npz", 64)
    return path


def said(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    assert "\x1b" not in result.output  # no colours where nobody looks
    return result


def options(place: Path) -> list[str]:
    return ["--model", f"{place}/net.py:net", "--data", f"npz:{place}/i.npz", *SHORT]


@pytest.fixture(scope="module")
def run(place: Path) -> tuple[Path, str]:
    """A run, and what it printed."""
    out = place / "runs" / "a"
    return out, said("train", *options(place), "--out", str(out)).output


# What a run writes


def test_the_configuration_of_a_run_is_complete_and_resolved(place, run):
    kept = json.loads((run[0] / "config.json").read_text())
    assert kept.keys() == {each.name for each in fields(Config)}
    given = {"epochs": 3, "batch_size": 16, "frozen": 0.3, "recalibrate": 2, "cpu": True, "seed": 0}
    assert given.items() <= kept.items()
    resolved = ("pipeline", "augment", "optimizer", "lr", "weight_decay", "relu", "distill")
    assert all(kept[name] is not None for name in resolved)
    assert asdict(read_config(run[0] / "config.json")) == kept


def test_metrics_hold_one_whole_record_per_epoch(run):
    lines = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in lines] == [4, 8, 12]
    for line in lines:
        assert line.keys() == {each.name for each in fields(Record)}
        assert 0 <= line["hard"] <= 1 and line["seconds"] > 0 and line["part"] == "test"


def test_the_circumstances_are_recorded(run):
    about = json.loads((run[0] / "about.json").read_text())
    versions = {"proxbit": proxbit.__version__, "torch": torch.__version__,
                "numpy": np.__version__, "python": platform.python_version()}  # fmt: skip
    assert versions.items() <= about.items()
    names = {"platform", "commit", "device", "cores", "threads", "command", "started"}
    assert about.keys() == versions.keys() | names
    assert about["commit"] is None or len(about["commit"]) == 40
    assert about["threads"] == torch.get_num_threads() and about["started"].endswith("Z")


def test_a_run_prints_a_line_per_epoch_and_its_figures(place, run):
    out, printed = run
    result = json.loads((out / "result.json").read_text())
    first, *_, last = printed.strip().splitlines()
    assert first.startswith(f"run in {out}: {place}/net.py:net on npz:")  # brackets and all
    assert last.startswith(f"soft {100 * result['soft']:.2f} %")
    assert f"hard {100 * result['hard']:.2f} %" in last and "(64 test images, seed 0)" in last
    for epoch in (1, 2, 3):
        assert printed.count(f"   {epoch}/3  ") == 1


# Repeating


def without_seconds(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "last.safetensors"):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert without_seconds(one / "metrics.jsonl") == without_seconds(other / "metrics.jsonl")
    assert (one / "config.json").read_text() == (other / "config.json").read_text()


def test_the_configuration_of_a_run_repeats_it(run, tmp_path):
    said("train", "--config", str(run[0] / "config.json"), "--out", str(tmp_path / "b"))
    assert_same_run(run[0], tmp_path / "b")


def test_an_option_beside_a_configuration_wins(run, tmp_path):
    config = ["--config", str(run[0] / "config.json")]
    said("train", *config, "--seed", "5", "--epochs", "1", "--out", str(tmp_path / "b"))
    kept = read_config(run[0] / "config.json")
    assert read_config(tmp_path / "b" / "config.json") == replace(kept, seed=5, epochs=1)


def test_resume_continues_on_the_command_line(place, run, tmp_path):
    trainer = open_run(read_config(run[0] / "config.json"), tmp_path / "b")
    trainer.stop = lambda: trainer.progress.step == 6
    with pytest.raises(Interrupted):
        list(trainer)
    row = said("show", str(tmp_path / "b")).output.splitlines()[-1].split()
    assert row[6] == "1/3" and row[-1] == "open"
    same = [
        "--batch-size",
        "16",
        "--method",
        "bnn++",
    ]  # options that are those of the run may be given
    printed = said("train", "--resume", str(tmp_path / "b"), *same).output
    assert "   2/3  " in printed and "   1/3  " not in printed
    assert_same_run(run[0], tmp_path / "b")


def test_runs_get_the_next_free_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["--epochs=1", "--max-steps-per-epoch=1"]
    for number in (1, 2):
        assert f"run in runs/{number}:" in said("train", *options(place), *quick).output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "2"]


def test_quiet_prints_the_same_lines(place, run, tmp_path):
    printed = said("train", *options(place), "--out", str(tmp_path / "q"), "--quiet").output
    loud, quiet = run[1].splitlines(), printed.splitlines()
    assert len(loud) == len(quiet) and loud[1:3] == quiet[1:3]


@pytest.mark.filterwarnings("always::proxbit.SettingsWarning")
def test_advice_is_a_sentence(place, tmp_path):
    """Not a file and a line of ours."""
    paper = ["--method=pq", "--settings=paper", "--epochs=8", "--max-steps-per-epoch=1"]
    result = said("train", *options(place), *paper, "--out", str(tmp_path / "p"))
    (note,) = result.stderr.strip().splitlines()
    assert note.startswith("note: PQ: a threshold of 0.01 and more at every step pins")


# Looking at runs


def test_show_compares_runs(run, place, tmp_path):
    out = tmp_path / "other"
    said("train", *options(place), "--method=fp", "--seed=2", "--out", str(out))
    head, *rows = said("show", str(run[0]), str(out)).output.splitlines()
    assert head.split()[:7] == ["run", "method", "task", "model", "data", "seed", "epochs"]
    hard = [evaluate(path)["hard"] for path in (run[0], out)]
    for row, path, method, seed, share in zip(
        rows, (run[0], out), ("bnn++", "fp"), "02", hard, strict=True
    ):
        cells = row.split()
        assert cells[:2] == [str(path), method] and cells[5:7] == [seed, "3/3"]
        assert cells[-2:] == [f"{100 * share:.2f}", "done"]


def test_show_as_json(run):
    (line,) = said("show", str(run[0]), "--json").output.splitlines()
    view = json.loads(line)
    assert view["run"] == str(run[0]) and view["epochs"] == 3
    assert view["result"] == json.loads((run[0] / "result.json").read_text())
    assert view["best"]["hard"] == view["result"]["hard"]


def test_evaluate_measures_what_was_recorded(run):
    result = json.loads((run[0] / "result.json").read_text())
    printed = said("evaluate", str(run[0])).output
    assert printed == f"{run[0]}: hard {100 * result['hard']:.2f} % of 64 test images\n"
    first, second = said("evaluate", str(run[0]), str(run[0]), "--json").output.splitlines()
    assert json.loads(first) == json.loads(second)
    assert json.loads(first) == {
        "run": str(run[0]), "part": "test", "n": 64, "hard": result["hard"]
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_writes_a_real_picture(run, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curves.{suffix}"
    printed = said("show", str(run[0]), "--plot", str(path)).output
    assert printed.endswith(f"drawn: {path}\n")
    if suffix == "svg":
        assert path.read_text().startswith("<?xml") and "</svg>" in path.read_text()
        return
    from matplotlib.image import imread

    pixels = imread(path)
    assert pixels.shape[0] > 500 and pixels.shape[1] > 1000 and pixels[..., :3].std() > 0.01


def test_a_run_without_a_finished_epoch_is_not_drawn(run, tmp_path):
    (tmp_path / "config.json").write_text((run[0] / "config.json").read_text())
    result = said("show", str(tmp_path), "--plot", str(tmp_path / "x.png"), status=2)
    assert "has no finished epoch yet" in result.stderr
    assert not (tmp_path / "x.png").exists()


def test_tensorboard_gets_every_curve(place, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said("train", *options(place), "--out", str(tmp_path / "t"), "--tensorboard")
    events = EventAccumulator(str(tmp_path / "t" / "events"))
    events.Reload()
    hard = [event.value for event in events.Scalars("hard")]
    lines = without_seconds(tmp_path / "t" / "metrics.jsonl")
    assert hard == pytest.approx([line["hard"] for line in lines])


def test_divergence_ends_with_status_4_and_keeps_the_last_checkpoint(place, tmp_path):
    out = tmp_path / "d"
    wild = ["--method=fp", "--lr=1e30", "--warmup=0", "--out", str(out)]
    result = said("train", *options(place), *wild, status=4)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("proxbit: the loss became ") and " at step 1, where " in line
    assert line.endswith(f"the last good checkpoint is in {out}")
    assert all(bool(torch.isfinite(t).all()) for t in load_file(out / "last.safetensors").values())


def test_every_option_is_in_the_help():
    printed = said("train", "--help").output
    for each in fields(Config):
        assert "--" + each.name.replace("_", "-") in printed
