"""Cells as processes: run, skipped, resumed, retried, refused; nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proxbit.experiments.reproduce.configs import Missing, Options
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.grids import MORE
from proxbit.experiments.reproduce.measuring import packed_figures, verdict_of
from proxbit.experiments.reproduce.process import wait_for
from proxbit.experiments.reproduce.results import FILE, append_result, read_results, sole_writer
from proxbit.experiments.reproduce.running import run_cell, run_folder, run_grid, to_do
from proxbit.train import Config, fit
from proxbit.train.records import read_records
from proxbit.train.run_folder import RunFolder
from small_net import SLOW, write_images

NETS = (
    SLOW
    + """
import os

def dies_once(classes, channels):
    marker = Path(__file__).with_name("died")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return net(classes, channels)

def dies(classes, channels):
    with Path(__file__).with_name("tries").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), 9)
"""
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NETS)
    write_images(path / "i.npz", 256)
    return path


def cells(*methods: str, seeds: tuple[int, ...] = (0,)):
    return plan(CellQuery("cnn", "small", ("cifar10",), ("E2E",), ("BW",), methods, seeds))


def options(place: Path, net: str = "net", **more) -> Options:
    data = (("*", f"npz:{place}/i.npz"),)
    values = {"epochs": 2, "max_steps_per_epoch": 2, "measure": False, "cpu": True} | more
    return Options(data=data, model=f"{place}/net.py:{net}", **values)


def states(events) -> list[str]:
    return [event.state for event in events]


def test_a_cell_runs_once_and_its_line_says_everything(place, tmp_path):
    wanted, asked = cells("BNN++"), options(place)
    assert states(run_grid(wanted, asked, tmp_path)) == ["done"]
    before = (tmp_path / FILE).read_bytes()
    [line] = read_results(tmp_path)
    run = run_folder(wanted[0], tmp_path)
    assert line.cell == wanted[0]
    assert line.result == json.loads((run / "result.json").read_text())
    kept = json.loads((run / "config.json").read_text())
    assert str(place) in kept["data"] and str(place) not in json.dumps(line.to_dict())
    assert line.config == kept | {"data": "npz:i.npz", "model": "net.py:net"}
    assert line.curve == [record.to_dict() for record in read_records(run / "metrics.jsonl")]
    assert "signs of BNN++: refused" in line.verdict and line.packed is None
    assert {"proxbit", "torch", "numpy", "python"} <= line.versions.keys() and line.seconds > 0
    assert states(run_grid(wanted, asked, tmp_path)) == ["skipped"]
    assert (tmp_path / FILE).read_bytes() == before
    with pytest.raises(ValueError, match="has epochs 2, not 3: give the same options, or choose"):
        run_grid(wanted, replace(asked, epochs=3), tmp_path)
    broken = replace(line, result=None, error="no memory", curve=[])
    append_result(tmp_path / "b", broken)  # a broken cell is tried anew, and its old line stays
    (tmp_path / "b" / "runs").symlink_to(tmp_path / "runs")
    assert states(run_grid(wanted, asked, tmp_path / "b")) == ["done"]
    old, new = read_results(tmp_path / "b")
    assert old == broken and new.result == line.result


def test_a_cell_that_another_grid_ran_is_not_run_again(place, tmp_path):
    ran = plan(CellQuery("cnn", "small", ("cifar10",), ("FT",), ("BW",), ("BNN++",)))
    same = plan(
        CellQuery("additional", "small", ("resnet20-cifar10",), ("FT",), ("BW",), ("BNN++",))
    )
    asked = options(place, epochs=1, float_epochs=1)
    assert states(run_grid(ran, asked, tmp_path)) == ["done"]
    assert states(run_grid(same, asked, tmp_path)) == ["skipped"]
    first, second = read_results(tmp_path)
    assert second == replace(first, grid="additional", row="resnet20-cifar10")
    assert second.cell == same[0] and not run_folder(same[0], tmp_path).exists()
    assert states(run_grid(same, asked, tmp_path)) == ["skipped"]
    assert read_results(tmp_path) == [first, second]
    (tmp_path / FILE).write_text(json.dumps(first.to_dict()) + "\n")
    assert to_do(same, replace(asked, epochs=2), tmp_path) == same  # another run: not the same
    left = to_do(plan(CellQuery("additional", "small", ("resnet20-cifar10",))), asked, tmp_path)
    assert [cell.axes["method"] for cell in left] == list(MORE[:-1]) and MORE[-1] == "BNN++"


def test_one_float_network_serves_every_task(place, tmp_path):
    wanted = plan(CellQuery("cnn", "small", ("cifar10",), ("E2E",), ("BW", "BWA"), ("FP",)))
    asked = options(place, epochs=1)
    assert states(run_grid(wanted, asked, tmp_path)) == ["done", "skipped"]
    first, second = read_results(tmp_path)
    assert [line.cell for line in (first, second)] == wanted
    assert second == replace(first, key=second.key) and first.config["task"] == "BW"
    assert not run_folder(wanted[1], tmp_path).exists()


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_the_next_call_continues_it(place, tmp_path):
    wanted, asked = cells("BC"), options(place, "slow", epochs=8)  # it cannot end by itself before

    def press(event):
        if event.share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(wanted, asked, tmp_path, press)
    run = run_folder(wanted[0], tmp_path)
    kept = (run / "last.safetensors").stat().st_mtime_ns
    assert not (run / "result.json").exists() and not (tmp_path / FILE).exists()
    wait_for(RunFolder(run))  # its process has ended
    seen = read_records(run / "metrics.jsonl")
    assert kept and seen[-1].epoch < 8
    (place / "hurry").touch()
    assert states(run_grid(wanted, asked, tmp_path)) == ["done"]
    [line] = read_results(tmp_path)
    assert line.curve[: len(seen)] == [record.to_dict() for record in seen]
    assert [record["epoch"] for record in line.curve] == list(range(1, 9))


@pytest.mark.slow
def test_a_cell_that_dies_is_tried_again_and_one_that_dies_twice_is_reported(place, tmp_path):
    assert states(run_grid(cells("BC"), options(place, "dies_once"), tmp_path / "a")) == ["done"]
    [event] = run_grid(cells("BC"), options(place, "dies"), tmp_path / "b")
    assert event.state == "broken" and "ended by signal 9" in event.note
    [line] = read_results(tmp_path / "b")
    assert line.result is None and line.error == event.note and not line.done
    assert (place / "tries").read_text() == "xx"


def test_missing_data_stops_its_own_cells_only(place, tmp_path):
    both = cells("FP") + plan(CellQuery("cnn", "small", ("imagenet",), ("E2E",), ("BW",), ("FP",)))
    asked = replace(options(place), data=(("cifar10", f"npz:{place}/no.npz"),))
    events = run_grid(both, asked, tmp_path)
    assert states(events) == ["refused", "refused"]
    assert "no.npz" in events[0].note and "give it as --data folder:DIR" in events[1].note
    assert not (tmp_path / FILE).exists()  # nothing ran, nothing is recorded
    with pytest.raises(Missing):
        run_cell(both[1], asked, tmp_path)


def test_a_folder_in_use_is_left_alone(place, tmp_path):
    with (
        sole_writer(tmp_path),
        pytest.raises(ValueError, match="another process is writing results into"),
    ):
        run_grid(cells("BC"), options(place), tmp_path)
    assert not (tmp_path / "runs").exists()


DRIVER = """
import sys
from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.running import run_grid
place, out = sys.argv[1:]
options = Options(data=(("*", f"npz:{place}/i.npz"),), model=f"{place}/net.py:net", epochs=100_000)
run_grid(plan(CellQuery("cnn", "small", ("cifar10",), ("E2E",), ("BW",), ("BC",))), options, out)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_the_run_of_a_killed_driver_saves_itself_and_leaves_its_folder(place, tmp_path):
    command = [sys.executable, "-c", DRIVER, str(place), str(tmp_path)]
    run = run_folder(cells("BC")[0], tmp_path)
    with subprocess.Popen(command) as driver:
        while driver.poll() is None and not (run / "last.safetensors").exists():
            time.sleep(0.1)
        os.kill(driver.pid, signal.SIGKILL)
    wait_for(RunFolder(run))  # raises if another process keeps the folder
    assert (run / "last.safetensors").exists() and not (run / "result.json").exists()
    with sole_writer(tmp_path):
        pass


# What is measured besides


def test_packed_figures_are_those_of_the_file(place, tmp_path):
    data = {"data": f"npz:{place}/i.npz", "epochs": 1, "max_steps_per_epoch": 1, "cpu": True}
    for method in ("bnn++", "fp"):
        list(fit(Config(model="resnet8", method=method, **data), tmp_path / method))
    began = time.perf_counter()
    found = packed_figures(tmp_path / "bnn++", seconds=0.01)
    elapsed = 1000 * (time.perf_counter() - began)
    assert found["bytes"] == (tmp_path / "bnn++" / "net.safetensors").stat().st_size
    # Milliseconds of one image: several of both were timed, and a network takes microseconds.
    assert 0.01 < found["ms"] < elapsed / 2 and 0.01 < found["float_ms"] < elapsed / 2
    with pytest.raises(ValueError, match="is a float one"):
        packed_figures(tmp_path / "fp")


def test_the_verdict_follows_the_method_and_its_settings():
    by_phase = verdict_of(Config(method="bnn++"))
    shares = ("35 % of the steps, BNN++: admitted", "50 % of the steps, signs of BNN++: refused")
    assert all(words in by_phase for words in (*shares, "15 % train no binary weight"))
    assert "85 % of the steps, BNN++: admitted" in verdict_of(Config(method="bnn++", sharp=0.0))
    assert verdict_of(Config(method="bnn+", settings="paper")).startswith("refused: ")
    assert verdict_of(Config(method="pq")).startswith("refused: the step starts from the quantized")
    assert verdict_of(Config(method="fp")).startswith("float")
    assert "at strength 0.1:" in verdict_of(Config(method="ede"))
    assert "at strength 0.7:" in verdict_of(Config(method="ede", strength="0.7:10:log"))
