"""Cells on a real Ray cluster of two nodes, one of which is killed while it works."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.on_ray import NodeBoard, folder_here, require_answer, run_grid
from proxbit.experiments.reproduce.results import read_results
from small_net import SLOW, write_images

SCRIPT = Path(__file__).parent / "workers" / "ray_grid.py"


def test_a_missing_ray_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"'ray://head:10001' by Ray, which is not installed: pip"):
        run_grid([], Options(), tmp_path, address="ray://head:10001")


@pytest.mark.parametrize("form", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_an_address_where_nobody_listens_is_one_sentence(form):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        require_answer(address)
    with pytest.raises(ValueError, match=f"no Ray cluster answers at '{address}'"):
        require_answer(address)


def test_a_worker_uses_the_folder_of_the_results_only_where_it_sees_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert folder_here(str(tmp_path)) == str(tmp_path)
    own = folder_here("/not/on/this/node")
    assert Path(own).is_dir() and Path(own).parent == tmp_path
    assert folder_here("/not/on/this/node") == own != folder_here("/not/here/either")


def test_the_board_gives_each_note_once():
    board = NodeBoard()
    board.put("a", "node", 0.0, "starting")
    board.put("a", "node", 0.5, "training")
    assert board.take() == {"a": ("node", 0.5, "training")} and board.take() == {}


@pytest.fixture(scope="module")
def cluster_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'proxbit[cluster]'")
    place = tmp_path_factory.mktemp("ray")
    folder = place / "results"
    (place / "net.py").write_text(SLOW)
    write_images(place / "i.npz", 64)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, place], capture_output=True, text=True, timeout=240,
        env=os.environ | quiet,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray may speak too
    return json.loads(told[-1]), folder


@pytest.mark.slow
def test_every_cell_has_one_result_though_a_node_was_killed_under_one(cluster_run):
    told, folder = cluster_run
    assert len(told["killed"]) == 1
    lines = read_results(folder)
    assert Counter(line.cell.name for line in lines) == Counter(told["asked"])
    assert all(line.done for line in lines)


@pytest.mark.slow
def test_the_cell_of_the_dead_node_was_run_again_elsewhere(cluster_run):
    told, _ = cluster_run
    events = [(state, note) for name, state, note in told["seen"] if name == told["killed"][0]]
    states = [state for state, _ in events]
    begun = next(i for i, (_, note) in enumerate(events) if told["second"] in note)
    assert states[begun] == "running" and states[-1] == "done"  # notes in between may be lost
    assert told["alive"] and told["second"] not in told["alive"]


@pytest.mark.slow
def test_a_second_call_runs_nothing_and_impossible_resources_are_refused(cluster_run):
    told, _ = cluster_run
    assert told["again"] == ["skipped"] * len(told["asked"])
    assert "asks for 1 CPU and 1 GPU, and the nodes have 1 CPU 0 GPU" in told["refusal"]
