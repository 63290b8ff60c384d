"""Choices by the length of a run and its number of images, from measurements (docs/recipes.md)."""

from __future__ import annotations

import math

STRENGTHS = ("none", "crop", "timm")  # the weakest first
LONG = 50  # epochs from which on the whole recipe of DeiT pays
BATCH_SIZE, SMALL_BATCH_SIZE = 128, 32
FEW_STEPS = 50  # in an epoch of the larger batches
FLOAT_VIEWS = 4_000  # images that a float stage sees at least, a few epochs at most


def augmentation_for(epochs: int) -> str:
    """The augmentation of a transformer: what a short run cannot learn from costs it points.

    In a single epoch every image is new as it is.

    >>> [augmentation_for(epochs) for epochs in (1, 4, 100)]
    ['none', 'crop', 'timm']
    """
    if epochs == 1:
        return "none"
    return "timm" if epochs >= LONG else "crop"


def weaker(given: str | None, other: str) -> str:
    """The weaker of two augmentations.

    >>> weaker("none", "crop"), weaker("timm", "crop"), weaker(None, "crop")
    ('none', 'crop', 'crop')
    """
    return min(given or other, other, key=STRENGTHS.index)


def batch_size_for(images: int, pretrained_transformer: bool) -> int:
    """Images per step: of few images a transformer learns more in more steps.

    >>> batch_size_for(2_000, True), batch_size_for(50_000, True), batch_size_for(2_000, False)
    (32, 128, 128)
    """
    few = images < FEW_STEPS * BATCH_SIZE
    return min(SMALL_BATCH_SIZE if few and pretrained_transformer else BATCH_SIZE, images)


def float_epochs_for(images: int) -> int:
    """Epochs of the float stage after its classifier was fitted: fewer, the more images there are.

    >>> float_epochs_for(2_000), float_epochs_for(50_000), float_epochs_for(100)
    (2, 1, 3)
    """
    return min(max(math.ceil(FLOAT_VIEWS / max(images, 1)), 1), 3)
