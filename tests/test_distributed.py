"""Two processes that share a batch train the network that one process trains on all of it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import proxbit as pb

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]

WORKER = Path(__file__).parent / "workers" / "train.py"
worker = SimpleNamespace(**runpy.run_path(str(WORKER)))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], Any]]:
    """What both processes saw, for every kind of sharing and every run."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = dict(os.environ)
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # no name look-up of this machine
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """The same runs in this process, with the whole batches."""
    runs = {}
    for name in worker.RUNS:
        run = worker.train(name, rank=0, world=1)
        model = run.pop("model")
        runs[name] = run | {"state": worker.whole(model)}
        runs[name]["hard"] = worker.whole(pb.harden(model))
    return runs


def assert_close(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert "error" not in given, given["error"]
    assert sorted(given) == sorted(expected)
    for name, value in expected.items():
        torch.testing.assert_close(given[name], value, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", list(worker.RUNS))
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind: str, name: str, ranks: Any, alone: Any) -> None:
    for seen in ranks:
        run = seen[kind, name]
        assert "error" not in run, run["error"]
        assert run["step"] == worker.STEPS
        assert run["numbers"] == alone[name]["numbers"]
        assert_close(run["state"], alone[name]["state"])


@pytest.mark.parametrize("name", list(worker.RUNS))
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_harden_as_one(kind: str, name: str, ranks: Any, alone: Any) -> None:
    for seen in ranks:
        assert_close(seen[kind, name]["hard"], alone[name]["hard"])


def test_a_float_checkpoint_loads_into_a_sharded_model(ranks: Any) -> None:
    model = worker.source()
    state = model.state_dict()
    pb.binarize(model, pb.method("bnn++", unit="initial"))
    for seen in ranks:
        loaded = seen["fsdp", "load"]
        assert "error" not in loaded, loaded["error"]
        assert_close(loaded["state"], state)
        for weight in pb.binary_weights(model):
            torch.testing.assert_close(loaded["units"][weight.name], weight.quantizer.unit)


def test_the_runs_do_train(alone: Any) -> None:
    """Else all of the above would hold of five steps that did nothing."""
    for name, run in alone.items():
        method, attention, *_ = worker.RUNS[name]
        torch.manual_seed(0)
        start = worker.Net(attention)
        pb.binarize(start, method, "BW")
        for weight in pb.binary_weights(start):
            key = weight.name.partition("[")[0]
            assert not torch.allclose(run["state"][key], start.state_dict()[key], atol=1e-3), name
