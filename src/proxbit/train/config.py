"""Everything that a run depends on, as one frozen record that turns into JSON and back.

The help of ``proxbit train`` is made from this file: a field, its default and its sentence.
"""

from __future__ import annotations

import json
from dataclasses import Field, asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from proxbit.util.schema import check_types, read_json, record_from
from proxbit.util.text import unknown_name_message


def _option(
    group: str, default: Any, help: str, known: tuple[str, ...] = (), shown: str = ""
) -> Any:
    """A field with its help, in one group of the options.

    ``known`` lists the words that it takes, if they are few; ``shown`` stands for a default of
    None.
    """
    shown = shown or ("none" if default is None else str(default))
    metadata = {"help": help, "group": group, "known": known, "shown": shown}
    return field(default=default, metadata=metadata)


_data, _model, _bits = (partial(_option, group) for group in ("Data", "Model", "Binarization"))
_steps, _protocols, _run = (
    partial(_option, group) for group in ("Optimization", "Protocols", "The run")
)


@dataclass(frozen=True)
class Config:
    """The options of a run; the model, the data and the method choose those that are ``None``."""

    model: str = _model(
        "resnet8",
        "resnet8 to resnet56, bireal_resnet8 to 56, tiny_vit, timm/NAME, or FILE.py:FUNCTION "
        "(executed).",
    )
    data: str = _data("fashion", "fashion (embedded), cifar10, cifar100, npz:FILE or folder:PATH.")
    method: str = _bits("bnn++", "A method (see 'proxbit methods'); fp trains in float.")
    task: str = _bits(
        "BW",
        "What is binary: weights (BW), also inputs (BWA), also accumulators (BWAA).",
        known=("BW", "BWA", "BWAA"),
    )
    pipeline: str | None = _model(
        None,
        "fine-tune (from --weights) or end-to-end (from random weights).",
        known=("fine-tune", "end-to-end"),
        shown="by --weights",
    )
    weights: str | None = _model(
        None,
        "Float weights to start from: a .safetensors file, a run of ours, or 'pretrained'.",
        shown="random ones",
    )
    new_head: bool | None = _model(
        None,
        "Train a new classifier in place of the one in --weights.",
        shown="where the classes differ",
    )
    image_size: int | None = _model(
        None, "Side of the images that the model gets.", shown="that of the data"
    )
    patch_size: int | None = _model(
        None, "Side of a vision transformer's patches.", shown="that of the model"
    )
    drop_path: float = _model(0.0, "Stochastic depth of a timm model.")
    patch_drop: float = _model(
        0.0,
        "Share of a vision transformer's patches that a step leaves out, up to the frozen phase.",
    )
    data_root: str = _data("data", "Folder that holds CIFAR.")
    download: bool = _data(False, "Fetch CIFAR where it is missing.")
    augment: str | None = _data(
        None,
        "none, crop (crop and flip) or timm (RandAugment, mixup, cutmix, erasing).",
        known=("none", "crop", "timm"),
        shown="by model and length",
    )
    normalize: str = _data(
        "data",
        "Mean and deviation of the images: their own; ImageNet's, which many weights expect; or "
        "half and half, which Google's vision transformers expect.",
        known=("data", "imagenet", "half"),
    )
    val_split: float = _data(
        0.0,
        "Share of the training images kept for validation; the best checkpoint is then "
        "chosen on them, otherwise on the test images.",
    )
    workers: int = _data(0, "Processes that decode image folders.")
    settings: str = _bits(
        "default",
        "default; paper: the paper's, with one way to train for all methods; or admitted: a pair "
        "that Corollary 1 admits, to the last step.",
        known=("default", "paper", "admitted"),
    )
    strength: str | None = _bits(
        None, "FROM:TO or FROM:TO:log, the strength over the run.", shown="the method's"
    )
    input_strength: str | None = _bits(
        None, "The same for binary inputs, in BWA and BWAA.", shown="the method's"
    )
    input_pair: str | None = _bits(
        None, "A method whose pair and strength binary inputs take.", shown="the method's"
    )
    scale: str | None = _bits(
        None,
        "The float beside the bits: none, the mean per layer or channel, or least squares: ls (per "
        "channel) or ls-layer.",
        shown="the method's",
    )
    unit: str | None = _bits(
        None,
        "Unit in which the pair measures weights: one, current or initial.",
        shown="the method's",
    )
    learn_shift: bool | None = _bits(
        None,
        "Learn a shift per output channel, and per channel of a binary input.",
        shown="the method's",
    )
    only: str | None = _bits(
        None,
        "Globs of the layers to binarize, with commas.",
        shown="all but the first, the last and adapters",
    )
    skip: str | None = _bits(None, "Globs of the layers to leave float, with commas.")
    relu: str | None = _bits(
        None,
        "Replacement of a ReLU in front of a binary input.",
        known=("keep", "hardtanh", "prelu", "identity"),
        shown="by method",
    )
    bits: int = _bits(8, "Width of the BWAA accumulator.")
    penalty: float = _bits(0.0, "Weight of the overflow penalty in BWAA.")
    epochs: int = _steps(5, "Passes over the training images.")
    batch_size: int | None = _steps(
        None,
        "Images per step, over all processes.",
        shown="128; 32 where a pretrained transformer has few images",
    )
    max_steps_per_epoch: int | None = _steps(None, "Largest number of steps per epoch.")
    eval_every: int = _run(1, "Epochs from one evaluation to the next; the last is evaluated too.")
    optimizer: str | None = _steps(
        None, "adam, adamw or sgd (Nesterov 0.9).", known=("adam", "adamw", "sgd"), shown="by model"
    )
    lr: float | None = _steps(None, "Highest learning rate.", shown="by optimizer")
    warmup: float = _steps(0.05, "Share of the steps in which the learning rate rises.")
    lr_schedule: str = _steps(
        "cosine", "How the learning rate falls afterwards.", known=("cosine", "linear", "constant")
    )
    weight_decay: float | None = _steps(
        None, "Weight decay of float weights; norms and biases have none.", shown="by model"
    )
    latent_decay: float = _steps(0.0, "Weight decay of latent weights.")
    clip_norm: float | None = _steps(None, "Largest norm of the gradient.")
    grad_accum_steps: int = _steps(1, "Parts in which a batch is computed, to save memory.")
    label_smoothing: float = _steps(0.0, "Share of each target that is spread over all classes.")
    sharp: float | None = _steps(
        None,
        "Share of the steps, before hardening, in which the network sees the signs.",
        shown="by method",
    )
    sharp_strength: float | None = _steps(
        None, "Strength of the backward map while --sharp lasts.", shown="the last one"
    )
    frozen: float | None = _steps(
        None,
        "Last share of the steps, after hardening: signs stay, the rest trains on.",
        shown="0.15; 0 in paper settings",
    )
    recalibrate: int = _steps(20, "Batches that refresh batch-norm statistics of a hard network.")
    ema: float = _steps(
        0.0, "Decay of a running average of the weights, which is evaluated instead."
    )
    distill: bool | None = _protocols(
        None, "Learn from the float network.", shown="on for transformers"
    )
    teacher: str | None = _protocols(
        None, "Weights of the teacher, if the run does not start from them."
    )
    teacher_model: str | None = _protocols(
        None,
        "Model of the teacher, as in --model; it may be a larger one.",
        shown="that of --model",
    )
    terms: str | None = _protocols(
        None,
        "Terms of the distillation with commas: logits,labels,relations,hidden.",
        shown="all that the networks have; logits,labels from another model",
    )
    temperature: float = _protocols(
        1.0, "Divides the scores of network and teacher in the term logits; above 1 softens them."
    )
    per_sample: bool = _protocols(False, "Norms of the distillation per sample, not per batch.")
    float_epochs: int | None = _protocols(
        None,
        "Epochs of float fine-tuning before the network becomes binary; 0 for weights that need "
        "none.",
        shown="by data where the classifier is new, else 0",
    )
    float_lr: float | None = _protocols(
        None, "Highest learning rate of the float epochs.", shown="by optimizer"
    )
    attention_norm: bool | None = _protocols(
        None, "One more LayerNorm on each attention branch.", shown="on for transformers"
    )
    pretrain: int | None = _protocols(
        None, "Epochs of binary pre-training before fine-tuning.", shown="1 for transformers"
    )
    pretrain_data: str | None = _protocols(
        None,
        "Data of the pre-training; on --data itself the learning rate is a tenth.",
        shown="that of --data",
    )
    seed: int = _run(0, "Every random choice follows from it.")
    precision: str = _run(
        "auto",
        "Mixed precision of the training steps: bf16 where the device multiplies it natively, else "
        "no. Accuracy is always measured in float32.",
        known=("auto", "no", "bf16", "fp16"),
    )
    cpu: bool = _run(False, "Stay on the CPU where there is a GPU.")
    fsdp: bool = _run(False, "Shard weights, gradients and optimizer over the processes (FSDP2).")

    def __post_init__(self) -> None:
        """Refuse impossible values, with one sentence."""
        check_types(Config, vars(self))
        for each in fields(self):
            check_field(each, getattr(self, each.name))
        if self.batch_size is not None and self.grad_accum_steps > self.batch_size:
            raise ValueError(
                f"a batch of {self.batch_size} cannot be cut into {self.grad_accum_steps} parts"
            )

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_dict(values: Any, source: str = "the configuration") -> Config:
        """The record from plain values; unknown keys and wrong types are named."""
        known = asdict(Config()) | values if isinstance(values, dict) else values
        return record_from(Config, known, source)


def read_config(path: str | Path) -> Config:
    """A configuration from a JSON file, such as the config.json of a run."""
    return Config.from_dict(read_json(path), str(path))


_POSITIVE = (
    "epochs", "batch_size", "grad_accum_steps", "max_steps_per_epoch", "eval_every", "image_size",
    "patch_size", "lr", "float_lr", "clip_norm", "bits", "temperature",
)  # fmt: skip
_SHARES = (
    "sharp",
    "val_split",
    "warmup",
    "frozen",
    "ema",
    "label_smoothing",
    "drop_path",
    "patch_drop",
)
_SEEDS = 2**63
_NOT_NEGATIVE = (
    "sharp_strength", "workers", "recalibrate", "weight_decay", "latent_decay", "penalty",
    "pretrain", "float_epochs",
)  # fmt: skip


def check_field(each: Field[Any], value: Any) -> None:
    """Refuse an impossible value, with one sentence."""
    name, known = each.name, each.metadata["known"]
    if value is None:
        return
    if known and value not in known:
        raise ValueError(unknown_name_message(name, value, known))
    if name in _POSITIVE and not 0 < value < float("inf"):
        raise ValueError(f"{name} is a number above 0, not {value}")
    if name in _NOT_NEGATIVE and not 0 <= value < float("inf"):
        raise ValueError(f"{name} is a number from 0 on, not {value}")
    if name in _SHARES and not 0 <= value < 1:
        raise ValueError(f"{name} is a share from 0 to below 1, not {value}")
    if name == "seed" and not 0 <= value < _SEEDS:
        raise ValueError(f"seed is a whole number from 0 to 2^63 - 1, not {value}")
