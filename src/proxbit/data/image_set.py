"""Labelled images held in memory, and the parts that every data set has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from proxbit.data.pixels import take
from proxbit.util.compat import extra
from proxbit.util.text import require_known

T = TypeVar("T")

PARTS = ("train", "validation", "test")


def one_part(name: str, parts: Mapping[str, T | None], part: str) -> T:
    """The part of a data set by its name, or one sentence that says what there is."""
    require_known("part", part, PARTS)
    found = parts[part]
    if found is None:
        raise ValueError(f"{name} has no {part} part: make one with data.with_val_split(0.1)")
    return found


def balanced_split(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold back: the same share of every class, both in rising order.

    A class always keeps one image; which ones are held back follows from the seed alone.

    >>> kept, held = balanced_split(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), 0.25)
    >>> len(kept), len(held)
    (6, 2)
    """
    if not 0 < share < 1:
        raise ValueError(f"cannot hold back a share of {share}: choose one between 0 and 1")
    generator = np.random.default_rng(seed)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        count = min(round(share * len(rows)), len(rows) - 1)
        chosen[rows[torch.from_numpy(generator.permutation(len(rows))[:count])]] = True
    if not chosen.any():
        raise ValueError(
            f"a share of {share} holds back no image of any class: choose a larger one"
        )
    return (~chosen).nonzero().squeeze(1), chosen.nonzero().squeeze(1)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in parts: uint8 images ``(n, channels, height, width)``, int64 labels.

    ``mean`` and ``std`` hold one number per channel, of the train part scaled to [0, 1]. The
    validation part is there after ``with_val_split``.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    x_validation: Tensor | None = None
    y_validation: Tensor | None = None

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.x_train.shape[1]

    @property
    def image_size(self) -> int:
        """Side of an image in pixels."""
        return self.x_train.shape[-1]

    def images(self, part: str) -> Tensor:
        """The uint8 images of a part."""
        parts = {"train": self.x_train, "validation": self.x_validation, "test": self.x_test}
        return one_part(self.name, parts, part)

    def labels(self, part: str) -> Tensor:
        """The int64 labels of a part."""
        parts = {"train": self.y_train, "validation": self.y_validation, "test": self.y_test}
        return one_part(self.name, parts, part)

    def count(self, part: str) -> int:
        """Number of images of a part."""
        return len(self.images(part))

    def picture(self, part: str, row: int) -> Any:
        """One image of a part for PIL."""
        pixels = self.images(part)[row].permute(1, 2, 0).contiguous()
        return extra("PIL.Image").fromarray(pixels.squeeze(-1).numpy())

    def with_val_split(self, share: float, seed: int = 0) -> ImageSet:
        """The same set with a share of every class moved from the train to the validation part."""
        if self.x_validation is not None:
            raise ValueError(f"{self.name} has a validation part already: hold back only once")
        kept, held = balanced_split(self.y_train, share, seed)
        return replace(
            self,
            x_train=take(self.x_train, kept),
            y_train=self.y_train[kept],
            x_validation=take(self.x_train, held),
            y_validation=self.y_train[held],
        )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, scaled to [0, 1].

    A channel of one colour gets the deviation 1, so that it can be divided by.

    >>> mean, std = statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    >>> mean, std
    ((0.5,), (0.5,))
    """
    # From counts of the 256 values: exact, and without a float copy of all images.
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean.append(float(share @ values))
        std.append(float((share @ (values - mean[-1]) ** 2).sqrt()) or 1.0)
    return tuple(mean), tuple(std)
