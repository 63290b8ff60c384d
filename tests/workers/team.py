"""One process of a team that trains; test_train_distributed.py starts two, or calls parts itself.

Usage: team.py FOLDER, in an environment such as a launcher makes. It writes what it saw to
rankN.pt, and then waits for a command to run: the file arguments.json.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from proxbit.cli.root import main
from proxbit.train.config import Config
from proxbit.train.divergence import Diverged, Interrupted
from proxbit.train.fitting import evaluate, open_run, resume_run
from proxbit.train.network_state import full_state
from proxbit.train.trainer import Trainer

NETWORK = """
import math, os, time, torch
from pathlib import Path
from torch import nn

class Nap(nn.Module):
    def forward(self, x):
        time.sleep(float(os.environ.get("NAP", "0")) if self.training else 0)
        return x

class Here(nn.Module):
    ranks = ("1",)
    def forward(self, x):
        return self.act(x) if self.training and os.environ.get("RANK") in self.ranks else x

class Poison(Here):
    def act(self, x): return x / 0

class Everywhere(Poison):
    ranks = ("0", "1")

class Loud(Here):
    def act(self, x): return x * 1e9

class Silent(Here):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
    def act(self, x):
        self.seen.fill_(math.nan)
        return x

class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)
    def forward(self, x): return x

def group_norm(channels):
    return nn.GroupNorm(2, channels)

def network(classes, middle=nn.Identity, norm=group_norm, last=nn.Identity):
    if "PIDS" in os.environ:
        Path(os.environ["PIDS"], os.environ["RANK"]).write_text(str(os.getpid()))
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.Hardtanh(), middle(),
        nn.Conv2d(8, 8, 3, padding=1, stride=2), norm(8), nn.Hardtanh(),
        nn.Flatten(), nn.Linear(72, 20), nn.Hardtanh(), nn.Linear(20, classes), last(),
    )

def plain(classes): return network(classes)
def slow(classes): return network(classes, Nap)
def poisoned(classes): return network(classes, Poison)
def poisoned_normed(classes): return network(classes, Poison, nn.BatchNorm2d)
def poisoned_everywhere(classes): return network(classes, Everywhere)
def loud(classes): return network(classes, last=Loud)
def silent(classes): return network(classes, Silent)
def idle(classes): return network(classes, Idle)
def normed(classes): return network(classes, norm=nn.BatchNorm2d)
"""
KINDS = {"ddp": "false", "fsdp": "true"}
STEPS = 8
RUNS: dict[str, dict[str, Any]] = {
    "bnn++ BW": {},
    "bc BWA": {"method": "bc", "task": "BWA"},
    "sharpened": {"sharp": 0.25, "optimizer": "adamw", "lr": 0.01, "ema": 0.5},
    "shifts": {"method": "react", "task": "BWA"},
    "parts": {"grad_accum_steps": 2, "clip_norm": 0.5},
    "two stages": {"pretrain": 1, "clip_norm": 0.5},
}
CASES = [  # what only one kind of sharing can break is tried under it alone
    (kind, name)
    for kind in KINDS
    for name in RUNS
    if (kind, name) not in (("ddp", "two stages"), ("fsdp", "shifts"))
]
DIVERGING = ("poisoned", "poisoned_normed", "loud", "poisoned_everywhere", "silent")
STOPS = {"ddp": 3, "fsdp": 7}  # in the soft and in the frozen phase; the other resumes


def options(folder: Path, net: str = "plain", **values: Any) -> Config:
    """Eight steps, the last three frozen."""
    base = Config(
        model=f"{folder / 'nets.py'}:{net}", data=f"npz:{folder / 'images.npz'}", batch_size=16,
        epochs=2, frozen=0.3, optimizer="sgd", lr=0.05, cpu=True, precision="no",
    )  # fmt: skip
    return replace(base, **values)


def finish(trainer: Trainer) -> dict[str, Any]:
    """All that a run to its end shows, as plain values and tensors."""
    losses: list[float] = []
    best: dict[str, torch.Tensor] = {}
    trainer.watch = lambda now: losses.append(now.last_loss)
    records = []
    for record in trainer:
        records.append(replace(record, seconds=0.0).to_dict())
        if record.best:
            model = trainer.evaluator.model
            best = {name: value.clone() for name, value in model.state_dict().items()}
    first = next(trainer.core.parameters())
    local = first.to_local() if hasattr(first, "to_local") else first
    return {
        "losses": losses, "records": records, "state": full_state(trainer.core),
        "best": best, "share": local.numel() / first.numel(),
    }  # fmt: skip


def interrupt(trainer: Trainer, step: int, rank: int) -> None:
    """Only one of the processes is asked to stop."""
    trainer.stop = lambda: trainer.progress.step == step and trainer.dist.rank == rank
    try:
        list(trainer)
    except Interrupted:
        return
    raise AssertionError("nobody stopped")


def mistake(work: Callable[[], object]) -> str:
    try:
        work()
    except (ValueError, Diverged) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


@contextmanager
def written(folder: Path) -> Iterator[list[str]]:
    """The files below a folder that this process opens for writing, makes or renames."""
    found: list[str] = []
    active = [True]

    def look(event: str, args: tuple[Any, ...]) -> None:
        if not active[0] or event not in ("open", "os.mkdir", "os.rename", "os.remove"):
            return
        reads = event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not reads and isinstance(args[0], str | Path) and str(folder) in str(args[0]):
            found.append(f"{event} {args[0]}")

    sys.addaudithook(look)
    yield found
    active[0] = False


def work(folder: Path) -> dict[Any, Any]:
    """Every run of a team, under both kinds of sharing."""
    seen: dict[Any, Any] = {}
    for kind, sharded in KINDS.items():
        os.environ |= {"ACCELERATE_USE_FSDP": sharded, "FSDP_VERSION": "2"}
        for name in [name for each, name in CASES if each == kind]:
            out = folder / kind / name
            with written(out) as files:
                seen[kind, name] = finish(open_run(options(folder, **RUNS[name]), out))
            seen[kind, name]["files"] = files
        normed, out = options(folder, net="normed"), folder / kind / "normed"
        seen[kind, "normed"] = finish(open_run(normed, out)) | {"evaluated": evaluate(out)}
        seen[kind, "bf16"] = finish(open_run(options(folder, precision="bf16")))
        stopped = open_run(options(folder, **RUNS["sharpened"]), folder / kind / "stopped")
        interrupt(stopped, STOPS[kind], rank=1)
        seen[kind, "resumed"] = finish(resume_run(folder / "one" / kind))
        seen[kind, "mistakes"] = mistakes(folder, kind)
        seen[kind, "divergences"] = [told(folder, net=name) for name in DIVERGING]
        seen[kind, "idle"] = [told(folder, net="idle", grad_accum_steps=n) for n in (1, 2)]
    return seen


def told(folder: Path, **values: Any) -> str:
    """What this process says of a run that goes wrong."""
    return mistake(lambda: list(open_run(options(folder, **values))))


def mistakes(folder: Path, kind: str) -> list[str]:
    """What this process answers where it, or only another one, meets a mistake."""
    blind = options(
        folder, model="tiny_vit", patch_size=2, weights=str(folder / "vit.safetensors"),
        terms="hidden", pretrain=0,
    )  # fmt: skip
    return [
        mistake(lambda: open_run(options(folder), folder / kind / "bnn++ BW")),
        mistake(lambda: open_run(blind)),
        mistake(lambda: open_run(options(folder, batch_size=15))),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, rank = Path(sys.argv[1]), os.environ["RANK"]
    torch.save(work(place), place / f"rank{rank}.part")
    (place / f"rank{rank}.part").rename(place / f"rank{rank}.pt")
    while not (place / "arguments.json").exists():
        time.sleep(0.05)
    os.environ |= {"ACCELERATE_USE_FSDP": "false", "NAP": "0.1"}
    sys.argv[1:] = json.loads((place / "arguments.json").read_text())
    main()
