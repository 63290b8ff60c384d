"""Several processes train the network that one process trains: shares, shards, kills, resumes."""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from proxbit.models import build
from proxbit.train.config import Config
from proxbit.train.distributed import Distributed
from proxbit.train.fitting import evaluate, load_network, open_run, resume_run
from proxbit.train.records import read_records
from proxbit.train.trainer import Trainer

WORKER = Path(__file__).parent / "workers" / "team.py"
worker = SimpleNamespace(**runpy.run_path(str(WORKER)))
needs_processes = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without distributed"
)
CASES, KINDS, STEPS, STOPS = worker.CASES, worker.KINDS, worker.STEPS, worker.STOPS
finish, interrupt, options = worker.finish, worker.interrupt, worker.options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, 64 images to learn and 21 to test: two processes cannot share them equally."""
    place = tmp_path_factory.mktemp("distributed")
    (place / "nets.py").write_text(worker.NETWORK)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (85, 6, 6), dtype=np.uint8), draw.integers(0, 3, 85)
    arrays = {"x_train": x[:64], "y_train": y[:64], "x_test": x[64:], "y_test": y[64:]}
    np.savez(place / "images.npz", **arrays)
    return place


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    """The same runs in this process, and some that the team will continue."""
    whole = {name: values | {"grad_accum_steps": 1} for name, values in worker.RUNS.items()}
    seen = {name: finish(open_run(options(folder, **values))) for name, values in whole.items()}
    for kind, step in zip(KINDS, reversed(STOPS.values()), strict=True):
        stopped = open_run(options(folder, **worker.RUNS["sharpened"]), folder / "one" / kind)
        interrupt(stopped, step, rank=0)
    teacher = build("tiny_vit", classes=3, channels=1, image_size=6, patch_size=2)
    save_file(teacher.state_dict(), folder / "vit.safetensors")
    return seen


def environment(**values: str) -> dict[str, str]:
    found = os.environ | {"COLUMNS": "200"} | values
    if sys.platform == "linux":
        found["GLOO_SOCKET_IFNAME"] = "lo"  # no name look-up of this machine
    return found


def run(command: list[str], text: Path, **values: str) -> subprocess.Popen[str]:
    with text.open("w") as file:
        env = environment(**values)
        return subprocess.Popen(command, env=env, stdout=file, stderr=file, text=True)


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def wait_for(event: Callable[[], bool], process: subprocess.Popen[str], text: Path) -> None:
    last = time.monotonic() + 200
    while not event():
        assert process.poll() is None and time.monotonic() < last, text.read_text()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def team(folder: Path, alone: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that have found each other, after their runs; textN is what rank N says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, str(WORKER), str(folder)]
    processes = [
        run(command, folder / f"text{rank}", **where, RANK=rank, LOCAL_RANK=rank)
        for rank in ("0", "1")
    ]
    try:
        for rank, process in enumerate(processes):
            wait_for((folder / f"rank{rank}.pt").exists, process, folder / f"text{rank}")
        yield processes
    finally:
        end(*processes)


@pytest.fixture(scope="module")
def ranks(folder: Path, team: Any) -> list[dict[Any, Any]]:
    """What the two processes saw in their runs."""
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def assert_close(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(given) == sorted(expected)
    for name, value in expected.items():
        torch.testing.assert_close(given[name], value, rtol=0, atol=1e-5, msg=name)


def assert_same_run(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """A resumed run equals the end of the whole one."""
    losses, records = (expected[key][-len(given[key]) :] for key in ("losses", "records"))
    assert given["losses"] == pytest.approx(losses, abs=1e-5)
    for mine, other in zip(given["records"], records, strict=True):
        assert mine == pytest.approx(other, abs=1e-5)
    assert_close(given["state"], expected["state"])


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_two_processes_train_as_one(kind: str, name: str, ranks: Any, alone: Any) -> None:
    assert [each["phase"] for each in alone[name]["records"]][-1] == "frozen"
    for seen in ranks:
        assert_same_run(seen[kind, name], alone[name])
        assert seen[kind, name]["share"] == (0.5 if kind == "fsdp" else 1)


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_one_process_loads_what_two_wrote(kind: str, name: str, ranks: Any, folder: Path) -> None:
    network, _ = load_network(folder / kind / name)
    assert_close(network.state_dict(), ranks[1][kind, name]["best"])
    saved = load_file(folder / kind / name / "last.safetensors")
    for key, value in ranks[1][kind, name]["state"].items():
        assert torch.equal(saved[f"model/{key}"], value), key


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_test_image_counts_once(kind: str, ranks: Any, folder: Path) -> None:
    out = folder / kind / "normed"
    best = max(record.hard for record in read_records(out / "metrics.jsonl"))
    for seen in ranks:
        assert seen[kind, "normed"]["evaluated"] == evaluate(out)
    assert evaluate(out)["n"] == 21
    assert evaluate(out)["hard"] == best


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_processes_agree_on_batch_norm(kind: str, ranks: Any) -> None:
    """Each has normalized its own half of the batches; the network is one all the same."""
    first, second = (seen[kind, "normed"] for seen in ranks)
    assert first["records"] == second["records"]
    assert any(name.endswith("running_mean") for name in first["state"])
    for key in ("state", "best"):
        for name, value in first[key].items():
            assert torch.equal(value, second[key][name]), name


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_only_the_main_process_writes(kind: str, name: str, ranks: Any) -> None:
    names = " ".join(ranks[0][kind, name]["files"])
    assert "last.safetensors" in names
    assert "metrics.jsonl" in names
    assert ranks[1][kind, name]["files"] == []


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_resumes_on_another_number_of_processes(
    kind: str, ranks: Any, alone: Any, folder: Path
) -> None:
    by_one = finish(resume_run(folder / kind / "stopped"))
    assert len(by_one["losses"]) == STEPS - STOPS[kind]
    for run in (by_one, *(seen[kind, "resumed"] for seen in ranks)):
        assert 0 < len(run["losses"]) < STEPS
        assert_same_run(run, alone["sharpened"])


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_bf16_is_near_float32_and_is_not_it(kind: str, ranks: Any, alone: Any) -> None:
    for seen in ranks:
        losses = seen[kind, "bf16"]["losses"]
        assert losses == pytest.approx(alone["bnn++ BW"]["losses"], abs=0.05)
        assert losses != pytest.approx(alone["bnn++ BW"]["losses"], abs=1e-5)
        assert {value.dtype for value in seen[kind, "bf16"]["state"].values()} == {torch.float32}


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_all_processes_meet_a_mistake_together(kind: str, ranks: Any) -> None:
    for seen in ranks:
        used, terms, batch = seen[kind, "mistakes"]
        assert used.startswith("ValueError: ") and "is not empty" in used
        assert "add logits or labels" in terms
        assert "a batch of 15 cannot be shared by 2" in batch


@pytest.mark.slow
@needs_processes
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_layer_that_diverged_is_named_with_its_rank(kind: str, ranks: Any) -> None:
    """In every process alike: the first one speaks, and the trouble may be in another."""
    for seen in ranks:
        nan, bn, huge, all_alike, broken = seen[kind, "divergences"]
        began = "Diverged: the loss became nan at step 0, where the output of"
        assert nan.startswith(f"{began} 3 is not finite on rank 1: try")
        assert bn.startswith(f"{began} 3 is not finite on rank 1: try")
        assert re.search(r"at step 0, where the output of 11 reaches \S+ on rank 1: try", huge)
        assert all_alike.startswith(f"{began} 3 is not finite: try")
        assert broken.startswith("Diverged: 3.seen on rank 1 was no longer finite after step 4")


@pytest.mark.slow
@needs_processes
def test_parameters_that_take_no_part_in_the_loss_are_named(ranks: Any) -> None:
    for seen in ranks:
        for told in seen["ddp", "idle"]:
            assert told.startswith("ValueError: 2 of 14 parameters take no part in the loss")
            assert "(3.extra.weight, 3.extra.bias)" in told
            assert "take them out of the model or call requires_grad_(False)" in told
        assert seen["fsdp", "idle"] == ["none", "none"]


@pytest.fixture
def slow(folder: Path, tmp_path: Path) -> tuple[Config, list[str]]:
    """A run of eight epochs with time to be killed in, and its command."""
    config = options(folder, net="slow", epochs=8)
    (tmp_path / "config.json").write_text(config.to_json())
    given = ["--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "run")]
    return config, ["train", *given]


def assert_goes_on(out: Path, config: Config) -> None:
    assert_same_run(finish(resume_run(out)), finish(open_run(config)))
    assert [record.epoch for record in read_records(out / "metrics.jsonl")] == list(range(1, 9))


@pytest.mark.slow
@needs_processes
def test_who_loses_another_process_says_so_and_ends(
    slow: Any, team: Any, folder: Path, tmp_path: Path
) -> None:
    config, command = slow
    text, out = folder / "text0", tmp_path / "run"
    (tmp_path / "arguments").write_text(json.dumps(command))
    (tmp_path / "arguments").rename(folder / "arguments.json")
    wait_for(lambda: "   1/8 " in text.read_text(), team[0], text)
    team[1].kill()
    assert team[0].wait(timeout=20) == 1
    words = text.read_text()
    assert words.count(f"run in {out}: ") == words.count("   1/8 ") == 1
    assert words.count("another one of the run stopped") == 1
    assert f"continue with proxbit train --resume {out}" in words
    assert "run in" not in (folder / "text1").read_text()  # nothing is said twice
    assert_goes_on(out, config)


@pytest.mark.slow
@needs_processes
def test_a_launcher_ends_when_a_process_is_killed(slow: Any, tmp_path: Path) -> None:
    """Sharded, and the main process of all."""
    config, command = slow
    text = tmp_path / "text"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    values = {"NAP": "0.1", "PIDS": str(tmp_path)}
    launcher = run([*torchrun, "-m", "proxbit", *command, "--fsdp"], text, **values)
    try:
        wait_for(lambda: "   1/8 " in text.read_text(), launcher, text)
        os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)
        assert launcher.wait(timeout=20) != 0
    finally:
        end(launcher)
    assert "Signal 9 (SIGKILL) received" in text.read_text()
    assert text.read_text().count("   1/8 ") == 1
    assert_goes_on(tmp_path / "run", config)


def test_the_loss_scale_goes_through_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    """On a CPU there is no fp16 training; its scaler works all the same."""

    def with_scaler(trainer: Trainer) -> Trainer:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
        trainer.dist.scaler = scaler
        return trainer

    expected = finish(with_scaler(open_run(options(folder))))
    stopped = with_scaler(open_run(options(folder), tmp_path / "run"))
    interrupt(stopped, step=5, rank=0)
    state = stopped.dist.scaler_state()
    assert (state["scale"], state["_growth_tracker"]) == (128.0, 2)

    team = Distributed(cpu=True)
    team.load_scaler(state)  # float32: nothing to load it into
    assert team.scaler_state() == {}
    team.scaler = torch.amp.GradScaler("cpu")
    team.load_scaler(state)
    assert team.scaler_state() == state

    before = Distributed.wrap

    def wrap(team: Distributed, model: nn.Module) -> nn.Module:
        team.scaler = torch.amp.GradScaler("cpu")
        return before(team, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Distributed, "wrap", wrap)
        resumed = resume_run(tmp_path / "run")
    assert resumed.dist.scaler_state() == state
    assert_same_run(finish(resumed), expected)


def test_processes_that_would_train_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ValueError, match="started 3 processes on this machine, which has 0"):
        Distributed()


def test_what_cannot_be_trained_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="fp16 trains on a GPU only"):
        open_run(options(folder, precision="fp16"))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(ValueError, match="by FSDP2, not 1: pass --fsdp_version 2"):
        Distributed(cpu=True)
