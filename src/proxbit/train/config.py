"""Everything that a run depends on, as one frozen record that turns into JSON and back.

The help of ``proxbit train`` is made from this file: a field, its default and its sentence.
"""

from __future__ import annotations

import json
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from proxbit.util.schema import check_types, read_json, record_from
from proxbit.util.text import unknown_name_message


def option(
    default: Any, help: str, *, group: str, known: tuple[str, ...] = (), shown: str = ""
) -> Any:
    """A field with its help.

    ``known`` lists the words that it takes, if they are few; ``shown`` stands for a default of
    None.
    """
    shown = shown or ("none" if default is None else str(default))
    metadata = {"help": help, "group": group, "known": known, "shown": shown}
    return field(default=default, metadata=metadata)


_DATA, _MODEL, _BITS = "Data", "Model", "Binarization"
_STEPS, _PROTOCOLS, _RUN = "Optimization", "Protocols", "The run"


@dataclass(frozen=True)
class Config:
    """The options of a run; the model, the data and the method choose those that are ``None``."""

    model: str = option(
        "resnet8",
        "resnet8 to resnet56, bireal_resnet8 to 56, tiny_vit, timm/NAME, or FILE.py:FUNCTION "
        "(executed).",
        group=_MODEL,
    )
    data: str = option(
        "fashion", "fashion (embedded), cifar10, cifar100, npz:FILE or folder:PATH.", group=_DATA
    )
    method: str = option(
        "bnn++", "A method (see 'proxbit methods'); fp trains in float.", group=_BITS
    )
    task: str = option(
        "BW",
        "BW: weights; BWA: and activations; BWAA: and accumulators.",
        group=_BITS,
        known=("BW", "BWA", "BWAA"),
    )
    pipeline: str | None = option(
        None,
        "fine-tune (from --weights) or end-to-end (from random weights).",
        group=_MODEL,
        known=("fine-tune", "end-to-end"),
        shown="by --weights",
    )
    weights: str | None = option(
        None,
        "Float weights to start from: a .safetensors file, a run of ours, or 'pretrained'.",
        group=_MODEL,
    )
    new_head: bool | None = option(
        None,
        "A new classifier in the place of that of the weights.",
        group=_MODEL,
        shown="where the classes differ",
    )
    image_size: int | None = option(
        None, "Side of the images that the model gets.", group=_MODEL, shown="that of the data"
    )
    patch_size: int | None = option(
        None, "Side of a vision transformer's patches.", group=_MODEL, shown="that of the model"
    )
    drop_path: float = option(0.0, "Stochastic depth of a timm model.", group=_MODEL)
    data_root: str = option("data", "Folder that holds CIFAR.", group=_DATA)
    download: bool = option(False, "Fetch CIFAR where it is missing.", group=_DATA)
    augment: str | None = option(
        None,
        "none, crop (crop and flip) or timm (RandAugment, mixup, cutmix, erasing).",
        group=_DATA,
        known=("none", "crop", "timm"),
        shown="by model and length",
    )
    normalize: str = option(
        "data",
        "Mean and deviation of the images: their own; ImageNet's, which many weights expect; or "
        "half and half, which Google's vision transformers expect.",
        group=_DATA,
        known=("data", "imagenet", "half"),
    )
    val_split: float = option(
        0.0,
        "Share of the training images kept for validation; the best checkpoint is then "
        "chosen on them, otherwise on the test images.",
        group=_DATA,
    )
    workers: int = option(0, "Processes that decode image folders.", group=_DATA)
    settings: str = option(
        "default",
        "default; paper: the paper's, with one way to train for all methods; or admitted: a pair "
        "that Corollary 1 admits, to the last step.",
        group=_BITS,
        known=("default", "paper", "admitted"),
    )
    strength: str | None = option(
        None,
        "FROM:TO or FROM:TO:log, the strength over the run.",
        group=_BITS,
        shown="the method's",
    )
    input_strength: str | None = option(
        None,
        "The same for binary inputs, in BWA and BWAA.",
        group=_BITS,
        shown="the method's",
    )
    scale: str | None = option(
        None, "none, layer, channel, ls or ls-layer.", group=_BITS, shown="the method's"
    )
    unit: str | None = option(
        None,
        "Unit in which the pair measures weights: one, current or initial.",
        group=_BITS,
        shown="the method's",
    )
    learn_shift: bool | None = option(
        None,
        "Learn a shift per output channel, and per channel of a binary input.",
        group=_BITS,
        shown="the method's",
    )
    only: str | None = option(None, "Globs of the layers to binarize, with commas.", group=_BITS)
    skip: str | None = option(None, "Globs of the layers to leave float, with commas.", group=_BITS)
    relu: str | None = option(
        None,
        "Replacement of a ReLU in front of a binary input.",
        group=_BITS,
        known=("keep", "hardtanh", "prelu", "identity"),
        shown="by method",
    )
    bits: int = option(8, "Width of the BWAA accumulator.", group=_BITS)
    penalty: float = option(0.0, "Weight of the overflow penalty in BWAA.", group=_BITS)
    epochs: int = option(5, "Passes over the training images.", group=_STEPS)
    batch_size: int | None = option(
        None,
        "Images per step, over all processes.",
        group=_STEPS,
        shown="128; 32 where a pretrained transformer has few images",
    )
    max_steps_per_epoch: int | None = option(
        None, "Largest number of steps per epoch.", group=_STEPS
    )
    optimizer: str | None = option(
        None,
        "adam, adamw or sgd (Nesterov 0.9).",
        group=_STEPS,
        known=("adam", "adamw", "sgd"),
        shown="by model",
    )
    lr: float | None = option(None, "Highest learning rate.", group=_STEPS, shown="by optimizer")
    warmup: float = option(
        0.05, "Share of the steps in which the learning rate rises.", group=_STEPS
    )
    lr_schedule: str = option(
        "cosine",
        "How the learning rate falls afterwards.",
        group=_STEPS,
        known=("cosine", "linear", "constant"),
    )
    weight_decay: float | None = option(
        None,
        "Weight decay of float weights; norms and biases have none.",
        group=_STEPS,
        shown="by model",
    )
    latent_decay: float = option(0.0, "Weight decay of latent weights.", group=_STEPS)
    clip_norm: float | None = option(None, "Largest norm of the gradient.", group=_STEPS)
    grad_accum_steps: int = option(
        1, "Parts in which a batch is computed, to save memory.", group=_STEPS
    )
    label_smoothing: float = option(0.0, "Label smoothing.", group=_STEPS)
    sharp: float | None = option(
        None,
        "Share of the steps, before hardening, in which the network sees the signs.",
        group=_STEPS,
        shown="by method",
    )
    sharp_strength: float | None = option(
        None, "Strength of its backward map there.", group=_STEPS, shown="the last one"
    )
    frozen: float | None = option(
        None,
        "Last share of the steps, after hardening: signs stay, the rest trains on.",
        group=_STEPS,
        shown="0.15; 0 in paper settings",
    )
    recalibrate: int = option(
        20, "Batches that refresh batch-norm statistics of a hard network.", group=_STEPS
    )
    ema: float = option(
        0.0, "Decay of a running average of the weights, which is evaluated instead.", group=_STEPS
    )
    distill: bool | None = option(
        None, "Learn from the float network.", group=_PROTOCOLS, shown="on for transformers"
    )
    teacher: str | None = option(
        None, "Weights of the teacher, if the run does not start from them.", group=_PROTOCOLS
    )
    terms: str | None = option(
        None,
        "Terms of the distillation with commas: logits,labels,relations,hidden.",
        group=_PROTOCOLS,
    )
    per_sample: bool = option(
        False, "Norms of the distillation per sample, not per batch.", group=_PROTOCOLS
    )
    float_epochs: int | None = option(
        None,
        "Epochs of float fine-tuning before the network becomes binary; 0 for weights that need "
        "none.",
        group=_PROTOCOLS,
        shown="by data where the classifier is new, else 0",
    )
    float_lr: float | None = option(
        None, "Its highest learning rate.", group=_PROTOCOLS, shown="by optimizer"
    )
    attention_norm: bool | None = option(
        None,
        "One more LayerNorm on each attention branch.",
        group=_PROTOCOLS,
        shown="on for transformers",
    )
    pretrain: int | None = option(
        None,
        "Epochs of binary pre-training before fine-tuning.",
        group=_PROTOCOLS,
        shown="1 for transformers",
    )
    pretrain_data: str | None = option(
        None,
        "Data of the pre-training; by default --data, at a tenth of the learning rate.",
        group=_PROTOCOLS,
    )
    seed: int = option(0, "Every random choice follows from it.", group=_RUN)
    precision: str = option(
        "auto",
        "Mixed precision of the training steps: bf16 where the device multiplies it natively, else "
        "no. Accuracy is always measured in float32.",
        group=_RUN,
        known=("auto", "no", "bf16", "fp16"),
    )
    cpu: bool = option(False, "Stay on the CPU where there is a GPU.", group=_RUN)
    fsdp: bool = option(
        False, "Shard weights, gradients and optimizer over the processes (FSDP2).", group=_RUN
    )

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
    "epochs", "batch_size", "grad_accum_steps", "max_steps_per_epoch", "image_size", "patch_size",
    "lr", "float_lr", "clip_norm", "bits",
)  # fmt: skip
_SHARES = ("sharp", "val_split", "warmup", "frozen", "ema", "label_smoothing", "drop_path")
_SEEDS = 2**63
_NOT_NEGATIVE = (
    "sharp_strength",
    "workers",
    "recalibrate",
    "weight_decay",
    "latent_decay",
    "penalty",
    "pretrain",
    "float_epochs",
)


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
