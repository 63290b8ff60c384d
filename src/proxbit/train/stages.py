"""The stages before a run: float fine-tuning on new classes, and binary pre-training.

Each is a separate run, with its own folder inside that of the run, and ends before the next
begins. The float network that the first one ends with is what becomes binary, and the teacher.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from proxbit.core.methods import Method
from proxbit.core.schedules import Schedule
from proxbit.train.checkpoint import load_checkpoint, require_same
from proxbit.train.config import Config
from proxbit.train.network_state import full_state, load_fitting
from proxbit.train.run_folder import RunFolder
from proxbit.train.settings import augmentation_for, weaker

if TYPE_CHECKING:
    from proxbit.train.trainer import Trainer

FLOAT, PRETRAINING = "float", "pre-training"  # how progress calls them
FOLDERS = {FLOAT: "float", PRETRAINING: "pretrain"}
FLOAT_LRS = {"adam": 3e-4, "adamw": 1e-4, "sgd": 0.01}


def stage_configs(config: Config, method: Method) -> dict[str, Config]:
    """The configurations of the stages of a resolved run, in the order in which they run."""
    stages = {FLOAT: float_config(config)} if config.float_epochs else {}
    return stages | ({PRETRAINING: pretraining_config(config, method)} if config.pretrain else {})


def float_config(config: Config) -> Config:
    """The same network in float on the same images, gently: its weights know most of it."""
    optimizer, epochs = config.optimizer or "adam", config.float_epochs or 1
    return replace(
        config, method="fp", task="BW", epochs=epochs, float_epochs=0, pretrain=0,
        pretrain_data=None, lr=config.float_lr or FLOAT_LRS[optimizer], float_lr=None,
        distill=False, teacher=None, teacher_model=None, terms=None, attention_norm=False,
        relu="keep", ema=0.0, strength=None, input_strength=None, sharp=None, sharp_strength=None,
        frozen=None, scale=None, unit=None, penalty=0.0, patch_drop=0.0,
        augment=weaker(config.augment, augmentation_for(epochs)),
    )  # fmt: skip


def pretraining_config(config: Config, method: Method) -> Config:
    """The same network held at its first strength, on other data if given, else more gently."""
    other, lr = config.pretrain_data is not None, config.lr or 0.0
    return replace(
        config, epochs=config.pretrain or 1, pretrain=0, frozen=0.0, sharp=0.0, pretrain_data=None,
        data=config.pretrain_data or config.data, lr=lr if other else lr / 10,
        float_epochs=0 if other else config.float_epochs,
        new_head=config.new_head or other, distill=config.distill and not other,
        strength=_first(config.strength, method.schedule),
        input_strength=_first(config.input_strength, method.input_schedule),
    )  # fmt: skip


def run_stages(run: Trainer) -> None:
    """Run what comes before a run; each stage hands its weights to those after it."""
    left = [*run.stages, run]
    for stage in run.stages:
        stage.watch, stage.stop = run.watch, run.stop
        for record in stage:
            run.tell(stage, record)
        left.remove(stage)
        found = full_state(stage.core)
        if stage.binary:
            load_fitting(run.core, found)
        else:
            for each in left:
                each.start_from(found)


def _first(strength: str | None, schedule: Schedule | None) -> str | None:
    """The strength that a run begins with."""
    if strength is not None:
        return strength.split(":")[0]
    return None if schedule is None else f"{schedule(0.0):g}"


def read_float_network(folder: RunFolder, cure: str = "") -> dict[str, Tensor]:
    """The network of a float stage that has ended; with a ``cure``, of this very run only."""
    inner = RunFolder(folder.path / FOLDERS[FLOAT])
    inner.require(inner.model, "the float network that the run started from")
    tensors, state = load_checkpoint(inner.model)
    if cure:
        require_same(inner.options(), state.get("config"), inner.path, cure)
    return tensors


def float_stage_done(folder: RunFolder, config: Config) -> bool:
    """Whether a run has a float stage, and it has ended."""
    return bool(config.float_epochs) and RunFolder(folder.path / FOLDERS[FLOAT]).result.is_file()
