"""Begin, continue and repeat runs: the three ways to get a trainer, and ``fit`` over it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from proxbit.methods import find_method
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.config import Config, read_config
from proxbit.train.folder import RunFolder
from proxbit.train.records import Record, keep_records
from proxbit.train.replica import count_right, restore_quantizers
from proxbit.train.setup import Job, prepare
from proxbit.train.team import Team
from proxbit.train.trainer import Trainer


def fit(
    config: Config,
    out: str | Path | None = None,
    *,
    watch: Callable[[Trainer], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Record]:
    """Train as ``config`` says: yields one record per epoch, prints nothing.

    Mistakes in the configuration are found at once, before the first record is asked for. Torch's
    random generator is seeded anew at every step.

    Args:
        config: What to train on what, and how.
        out: Folder for checkpoints, metrics and the best network; None writes nothing.
        watch: Called after every step with the :class:`Trainer`.
        stop: Asked after every step; when it says yes, the run is saved and ``Interrupted`` raised.
    """
    trainer = open_run(config, out)
    trainer.watch, trainer.stop = watch or trainer.watch, stop or trainer.stop
    return iter(trainer)


def open_run(config: Config, out: str | Path | None = None, command: Sequence[str] = ()) -> Trainer:
    """A new run: everything is checked and built, nothing is trained yet."""
    team, folder = Team(config.precision, config.cpu), None if out is None else RunFolder(out)
    job = prepare(config)
    if folder is not None and team.main:
        folder.create(job.config, list(command))
    trainer = Trainer(job, team, folder)
    if folder is not None and team.main:
        values = sum(p.numel() for p in job.model.parameters())
        folder.require_space(6 * 4 * values)  # weights, two moments, the best; old beside new
    trainer.before = _stage_before(job, team, folder)
    return trainer


def resume_run(out: str | Path) -> Trainer:
    """A run that was interrupted, exactly where its last checkpoint was written."""
    folder = RunFolder(out)
    config = read_config(folder.config) if folder.config.is_file() else Config()
    team = Team(config.precision, config.cpu)
    if team.main:
        folder.open()
    elif not folder.config.is_file():
        raise ValueError(f"{str(folder.path)!r} is not the folder of a run: no config.json in it")
    return _resumed(prepare(config), team, folder)


def _resumed(job: Job, team: Team, folder: RunFolder) -> Trainer:
    trainer = Trainer(job, team, folder)
    if not folder.last.is_file():  # killed before the first checkpoint, or in the stage before
        trainer.before = _stage_before(job, team, folder)
        return trainer
    trainer.begin(*load_checkpoint(folder.last))
    if team.main:
        keep_records(folder.metrics, trainer.progress.step)
    return trainer


def _stage_before(job: Job, team: Team, folder: RunFolder | None) -> Trainer | None:
    """Binary pre-training as a run of its own, in a folder inside the run's; None without one."""
    if not job.config.pretrain:
        return None
    inner = None if folder is None else RunFolder(folder.path / "pretrain")
    ready = prepare(_stage_config(job.config))
    if inner is not None and inner.config.is_file():
        if team.main:
            inner.open()
        stage = _resumed(ready, team, inner)
    else:
        if inner is not None and team.main:
            inner.create(ready.config, [])
        stage = Trainer(ready, team, inner)
    stage.stage = "pre-training"
    return stage


def _stage_config(config: Config) -> Config:
    """The same network held at its first strength, on other data if given, else more gently."""
    other, rate = config.pretrain_data is not None, config.rate or 0.0
    first = find_method(config.method, config.settings).schedule(0.0)
    return replace(
        config, epochs=config.pretrain or 1, pretrain=0, frozen=0.0, pretrain_data=None,
        data=config.pretrain_data or config.data, rate=rate if other else rate / 10,
        new_head=config.new_head or other, distill=config.distill and not other,
        strength=(config.strength or f"{first:g}").split(":")[0],
    )  # fmt: skip


def load_network(out: str | Path) -> tuple[nn.Module, Job]:
    """The best hard network of a run, in eval mode, and the job that it was trained for."""
    folder = RunFolder(out)
    config = read_config(folder.config)
    bare = replace(config, weights=None, pipeline=None, teacher=None, distill=False, pretrain=0)
    job = prepare(bare)
    tensors, state = load_checkpoint(folder.model)
    try:
        job.model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{folder.model} does not fit its config.json: {error}") from error
    restore_quantizers(job.model, state["quantizers"])
    return job.model.eval(), job


def evaluate(out: str | Path, part: str = "test") -> dict[str, Any]:
    """Accuracy of a run's best hard network on the test (or validation) images."""
    model, job = load_network(out)
    team = Team(job.config.precision, job.config.cpu)
    loader = job.loader(part, False, team.device, team.rank, team.world)
    with team.autocast():
        right, seen = team.total(*count_right(model.to(team.device), loader.epoch(0)))
    return {"run": str(out), "part": part, "n": int(seen), "hard": right / max(seen, 1)}


def read_result(out: str | Path) -> dict[str, Any] | None:
    """The final figures of a run; None while it is not done."""
    path = RunFolder(out).result
    if not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text())
    return values
