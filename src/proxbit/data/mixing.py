"""The last steps of a training batch: erasing, mixing in pairs, soft targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from proxbit.data.epoch_rng import seeded
from proxbit.data.recipes import Recipe
from proxbit.util.optional_imports import extra


def erased(images: Tensor, keys: Tensor) -> Tensor:
    """Normalized images with a rectangle of noise, in place, wherever the key is not -1."""
    # Noise is drawn on the CPU on every device, so that a key gives the same one.
    erase = extra("timm.data.random_erasing").RandomErasing(1.0, mode="pixel", device="cpu")
    for image, key in zip(images, keys.tolist(), strict=True):
        if key >= 0:
            with seeded(key):
                erase(image)
    return images


def mixed(
    images: Tensor, labels: Tensor, recipe: Recipe, classes: int, key: int
) -> tuple[Tensor, Tensor]:
    """Mix each image with the one at its place in the reversed batch, by blending or pasting."""
    mix = extra("timm.data.mixup").Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        label_smoothing=recipe.label_smoothing,
        num_classes=classes,
    )
    with seeded(key):
        x, y = mix(images, labels)
    return x, y


def smoothed(labels: Tensor, classes: int, label_smoothing: float) -> Tensor:
    """Soft targets: 1 - s on the label's class and s / k on all k classes.

    >>> import torch
    >>> smoothed(torch.tensor([1]), classes=2, label_smoothing=0.5)
    tensor([[0.2500, 0.7500]])
    """
    return F.one_hot(labels, classes) * (1 - label_smoothing) + label_smoothing / classes
