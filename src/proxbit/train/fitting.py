"""Begin, continue and repeat runs: the three ways to get a trainer, and ``fit`` over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from proxbit.nn.model_weights import binary_weights
from proxbit.train import checkpoint
from proxbit.train.config import Config
from proxbit.train.distributed import Distributed
from proxbit.train.evaluation import count_right
from proxbit.train.network_state import restore_quantizers
from proxbit.train.records import Record, Result, keep_records, read_records
from proxbit.train.run_folder import RunFolder
from proxbit.train.setup import PreparedRun, prepare
from proxbit.train.stages import FLOAT, FOLDERS, float_stage_done, read_float_network, stage_configs
from proxbit.train.trainer import Trainer
from proxbit.util.schema import read_json, record_from
from proxbit.util.text import saying

Saved = tuple[dict[str, Tensor], dict[str, Any]]
_CURE = f", or go on with it as it is by {checkpoint.ON_PURPOSE}"


def fit(
    config: Config,
    out: str | Path | None = None,
    *,
    watch: Callable[[Trainer], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Record]:
    """Train as ``config`` says; yields one record per epoch and prints nothing.

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
    """Open a new run: everything is checked and built, nothing is trained yet."""
    config, dist = _join(config)
    folder = None if out is None else RunFolder(dist.broadcast(str(out)))
    if folder is not None:
        dist.on_main(folder.refuse_used)  # before the images are opened
    trainer = _built(_prepare_together(config, dist), dist, folder)
    if folder is not None:  # last, so that a mistake leaves no folder
        with folder.closed_if_refused():
            dist.on_main(lambda: _create(trainer, list(command)))
    return trainer


def _join(config: Config) -> tuple[Config, Distributed]:
    """The processes of a run that trains, and its configuration with their precision."""
    dist = Distributed(config.precision, config.cpu, config.fsdp)
    if config.precision == "fp16" and dist.device.type == "cpu":
        raise ValueError("fp16 trains on a GPU only: choose --precision bf16, or no")
    return replace(config, precision=dist.precision), dist


def _prepare_together(
    config: Config, dist: Distributed, found: dict[str, Tensor] | None = None
) -> PreparedRun:
    """Call :func:`prepare`, and refuse what these processes cannot train together."""
    prepared = prepare(config, found)
    outputs = prepared.terms.logits or prepared.terms.labels  # gradients are gathered from them on
    if dist.world > 1 and prepared.teacher is not None and not outputs:
        raise ValueError(
            f"several processes need a term on the outputs, and --terms is {config.terms}: add "
            "logits or labels"
        )
    return prepared


def _create(trainer: Trainer, command: list[str]) -> None:
    """Make the folder of a run, and then those of the stages before it."""
    assert trainer.folder is not None
    for each in (trainer, *trainer.stages):
        if each.folder is not None:
            best = _network_bytes(each)
            each.folder.require_space(2 * _last_bytes(each, best) + best)  # an old one and a new
            each.folder.create(each.config, command)
    if trainer.stages:  # from now on a missing stage is one that was lost
        empty = checkpoint.nothing_yet(trainer.config, staged=True)
        checkpoint.save_checkpoint(trainer.folder.last, {}, empty)


def _network_bytes(trainer: Trainer) -> int:
    """About how many bytes model.safetensors will have; nothing is gathered for it."""
    return 4 * sum(p.numel() for p in trainer.core.parameters())


def _last_bytes(trainer: Trainer, network: int) -> int:
    """About how many bytes last.safetensors will have, of a network that is not sharded yet."""
    moments = 1 if trainer.config.optimizer == "sgd" else 2
    signs = sum(w.latent.numel() for w in binary_weights(trainer.core))
    return network * (1 + moments + bool(trainer.config.ema)) + signs


def _built(prepared: PreparedRun, dist: Distributed, folder: RunFolder | None) -> Trainer:
    """A trainer, and those of the stages before it that have not ended: runs in folders inside."""
    trainer = Trainer(prepared, dist, folder)
    found = _float_network(folder, prepared.config)
    for name, config in stage_configs(prepared.config, prepared.method).items():
        if name == FLOAT and found is not None:
            continue
        inner = None if folder is None else RunFolder(folder.path / FOLDERS[name])
        stage = Trainer(prepare(config, found if config.float_epochs else None), dist, inner)
        stage.stage, stage.keeps_last = name, name == FLOAT
        trainer.stages.append(stage)
    return trainer


def _float_network(
    folder: RunFolder | None, config: Config, needed: bool = False, cure: str = ""
) -> dict[str, Tensor] | None:
    """The network of a run's float stage; None if the stage has not ended, or there is none."""
    if folder is None or not config.float_epochs:
        return None
    done = needed or float_stage_done(folder, config)
    return read_float_network(folder, cure) if done else None


def resume_run(out: str | Path, *, accept_changes: bool = False) -> Trainer:
    """Open an interrupted run exactly where its last checkpoint was written.

    Args:
        out: Its folder.
        accept_changes: Continue even if config.json differs from the checkpoint's, or records of
            metrics.jsonl are missing or doubled.
    """
    folder = RunFolder(out)
    config = folder.options() if folder.config.is_file() else Config()
    config, dist = _join(config)
    dist.on_main(folder.open)
    with folder.closed_if_refused():
        if not folder.config.is_file():
            raise ValueError(f"{str(out)!r} is not on every machine: put it where all see it")
        saved = folder.checkpoint()
        # Before anything is built: what config.json names may be a file that is executed.
        kept = saved[1].get("config")
        told = [] if accept_changes else checkpoint.require_same(config, kept, folder.path, _CURE)
        cure = "" if accept_changes else _CURE
        found = _float_network(folder, config, checkpoint.begun(saved[1]), cure)
        prepared = _prepare_together(config, dist, found)
        notes = (f"config.json now has {words}" for words in told)
        prepared = replace(prepared, notes=(*notes, *prepared.notes))
        trainer = (Trainer if checkpoint.begun(saved[1]) else _built)(prepared, dist, folder)
        _take_up(trainer, folder, saved, accept_changes)
    return trainer


def _take_up(trainer: Trainer, folder: RunFolder, saved: Saved, accept: bool) -> None:
    """Go to the last checkpoint of a run; without one, to those of the stages before it."""
    tensors, state = saved
    if checkpoint.begun(state):
        with _fitting(folder.last):
            trainer.begin(tensors, state)
        trainer.dist.on_main(lambda: _require_room(trainer, folder))
    else:
        for stage in trainer.stages:
            if stage.folder is not None:
                _take_up_stage(stage, stage.folder, bool(state.get("staged")), accept)
    trainer.dist.on_main(lambda: _resume_records(trainer, folder, accept))
    if accept:
        _rebind(trainer, folder)


def _require_room(trainer: Trainer, folder: RunFolder) -> None:
    """Refuse a run whose best network is lost, or whose next checkpoint will not fit."""
    if trainer.progress.best >= 0:
        folder.require(folder.model, "the best network so far")
    if trainer.progress.step < trainer.steps:
        best = 0 if folder.model.is_file() else _network_bytes(trainer)
        folder.require_space(folder.last.stat().st_size + best)


def _resume_records(trainer: Trainer, folder: RunFolder, accept: bool) -> None:
    """Refuse records with gaps, and forget those that are going to be written again."""
    step, records = trainer.progress.step, read_records(folder.metrics)
    # A kill between a record and its checkpoint leaves one record too many.
    fault = checkpoint.record_fault(records, step, trainer.epoch_steps, ahead=int(trainer.begun))
    if fault is not None and not accept:
        raise ValueError(f"{folder.metrics} {fault}: put its lines back{_CURE}")
    keep_records(folder.metrics, records, step)


def _rebind(trainer: Trainer, folder: RunFolder) -> None:
    """Let the checkpoints belong to the configuration that was accepted."""
    if not trainer.begun:
        state = checkpoint.nothing_yet(trainer.config, staged=bool(trainer.stages))
        trainer.dist.on_main(lambda: checkpoint.save_checkpoint(folder.last, {}, state))
        return
    trainer.save()
    trainer.dist.on_main(lambda: checkpoint.rebind(folder.model, trainer.config))


def _take_up_stage(stage: Trainer, inner: RunFolder, made: bool, accept: bool) -> None:
    if made:
        stage.dist.on_main(lambda: inner.require(inner.config, "the stage before"))
    if stage.dist.broadcast(inner.config.is_file()):
        stage.dist.on_main(inner.open)
        with inner.closed_if_refused():
            saved = inner.checkpoint()
            if not accept:
                checkpoint.require_same(stage.config, saved[1].get("config"), inner.path, _CURE)
            _take_up(stage, inner, saved, accept)
    else:  # killed while the folders were made
        stage.dist.on_main(lambda: inner.create(stage.config, []))


def _fitting(path: Path) -> AbstractContextManager[None]:
    """Say which file does not fit."""
    return saying(f"{path} does not fit the config.json beside it", ValueError)


def load_network(out: str | Path) -> tuple[nn.Module, PreparedRun]:
    """Load the best hard network of a run, in eval mode, and the run in which it was trained."""
    folder = RunFolder(out)
    config = folder.options()
    bare = replace(
        config, weights=None, pipeline=None, teacher=None, distill=False, pretrain=0, float_epochs=0
    )
    tensors, state = checkpoint.load_checkpoint(folder.model)
    if "config" in state:
        checkpoint.require_same(config, state["config"], folder.path)
    prepared = prepare(bare)
    with _fitting(folder.model):
        checkpoint.require_like(tensors, prepared.model.state_dict(), "the network")
        prepared.model.load_state_dict(tensors)
        restore_quantizers(prepared.model, state.get("quantizers"))
    return prepared.model.eval(), prepared


def evaluate(out: str | Path, part: str = "test") -> dict[str, Any]:
    """Measure the accuracy of a run's best hard network on the test (or validation) images."""
    model, prepared = load_network(out)
    dist = Distributed(cpu=prepared.config.cpu)
    loader = prepared.loader(part, False, dist.device, dist.rank, dist.world)
    right, seen = dist.all_sum(*count_right(model.to(dist.device), loader.epoch(0)))
    return {"run": str(out), "part": part, "n": int(seen), "hard": right / max(seen, 1)}


def read_result(out: str | Path) -> dict[str, Any] | None:
    """The final figures of a run; None while it is not done."""
    path = RunFolder(out).result
    return asdict(record_from(Result, read_json(path), str(path))) if path.is_file() else None
