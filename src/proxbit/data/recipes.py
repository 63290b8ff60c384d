"""Recipes for training images by name, and their last steps: erasing, mixing, soft targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from proxbit.data.epoch_rng import seeded
from proxbit.util.compat import extra


@dataclass(frozen=True)
class Recipe:
    """Random changes of training images; a zero, False or None leaves its step out.

    Attributes:
        name: How messages call it.
        crop: Reach of the random shift as a share of the side; image folders are instead cropped
            to a random part and resized wherever it is not zero.
        flip: Whether every second image is mirrored.
        colour: Reach of random brightness, contrast and saturation.
        policy: RandAugment as timm writes it, such as ``rand-m9-mstd0.5-inc1``.
        erasing: Share of the images in which a rectangle becomes noise.
        mixup: Parameter of the beta distribution by which two images are blended.
        cutmix: Parameter of the beta distribution by which a part of one is pasted into the other.
        label_smoothing: Share of the target that is spread over all classes.
    """

    name: str
    crop: float = 0.0
    flip: bool = False
    colour: float = 0.0
    policy: str | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0

    @property
    def per_image(self) -> bool:
        """Whether each image has to go through PIL by itself."""
        return bool(self.colour or self.policy)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    def padding(self, size: int) -> int:
        """Largest shift of an image of this size, an even number of pixels.

        >>> [RECIPES["crop"].padding(size) for size in (28, 32, 64)]
        [2, 4, 8]
        """
        return int(self.crop * size) // 2 * 2


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("none"),
        Recipe("crop", crop=0.125, flip=True),
        Recipe(
            "timm", crop=0.125, flip=True, policy="rand-m9-mstd0.5-inc1", erasing=0.25, mixup=0.8,
            cutmix=1.0, label_smoothing=0.1,
        ),
    )
}  # fmt: skip

_LIMITS = {
    "crop": 0.5, "colour": 1.0, "erasing": 1.0, "mixup": math.inf, "cutmix": math.inf,
    "label_smoothing": 1.0,
}  # fmt: skip


def check_recipe(recipe: Recipe) -> None:
    """Raise one sentence for a number that a recipe cannot have."""
    for field, limit in _LIMITS.items():
        value = getattr(recipe, field)
        if not 0 <= value <= limit:
            reach = f"from 0 to {limit:g}" if limit < math.inf else "not below 0"
            raise ValueError(f"recipe {recipe.name!r} has {field}={value}: choose one {reach}")


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
