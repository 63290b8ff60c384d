"""How long cells take on this machine, roughly: arithmetic by counting, speed by a short trial."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import torch

from proxbit.experiments.reproduce.configs import Missing, Options, config_of
from proxbit.experiments.reproduce.grids import Cell
from proxbit.train.config import Config
from proxbit.train.lengths import BATCH_SIZE

# Million multiply-adds of one forward, at the size of images that the preset has.
_MACS: dict[str, float] = {
    "resnet8": 10, "resnet20": 41, "tiny_vit": 30, "timm/resnet50": 4_100,
    "timm/vit_base_patch16_224": 17_600, "timm/deit_tiny_patch16_224": 1_260,
    "timm/deit_small_patch16_224": 4_600, "timm/deit_base_patch16_224": 17_600,
    "timm/swin_tiny_patch4_window7_224": 4_500, "timm/nest_tiny_jx": 5_800,
}  # fmt: skip
_OTHER = 10.0
_IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet-1K": 1_281_167, "fashion": 8_000}
_TRAINING = 3 * 2  # forward and twice as much backward, two operations per multiply-add
_SHARE = 0.35  # of a large product's speed that training reaches (ResNet-20 on two cores)
START = 8.0  # seconds to start a process, open images and evaluate


@cache
def speed(seconds: float = 0.1) -> float:
    """Operations per second of a matrix product here."""
    a = torch.randn(512, 512)
    a @ a
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        a @ a
        count += 1
    return count * 2 * 512**3 / (time.perf_counter() - began)


def seconds_of(cell: Cell, options: Options) -> float:
    """Seconds of a cell, up to a factor of two or so; without the float network of its row."""
    try:
        config = config_of(cell, options, "")
    except Missing:  # nothing given yet: as if it were
        given = replace(options, data=(("*", "npz:"),), weights=(("*", "pretrained"),))
        config = config_of(cell, given, "")
    images = _IMAGES["fashion" if config.data == "fashion" else cell.axes["dataset"]]
    batch_size = config.batch_size or BATCH_SIZE
    steps = -(-images // batch_size)
    steps = min(steps, config.max_steps_per_epoch or steps)
    epochs = config.epochs + (config.pretrain or 0)
    work = epochs * steps * batch_size * _work(config)
    return START + work / (_SHARE * speed())


def _work(config: Config) -> float:
    """Operations to train on one image."""
    macs = _MACS.get(config.model.partition(".")[0], _OTHER)  # whatever its weights
    if config.model.startswith("timm/") and config.image_size:
        macs *= (config.image_size / 224) ** 2
    return 1e6 * macs * _TRAINING


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(45), duration(3000), duration(3.2e8)
    ('45 s', '50 min', '10 years')
    """
    units = (("years", 365.25 * 86400), ("days", 86400), ("h", 3600), ("min", 60))
    for name, size in units:
        if seconds >= 1.5 * size:
            digits = 0 if seconds >= 10 * size else 1
            return f"{seconds / size:.{digits}f} {name}"
    return f"{seconds:.0f} s"
