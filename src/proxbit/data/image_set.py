"""Labelled images held in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from proxbit.data.pixels import take
from proxbit.data.splits import balanced_split, one_part
from proxbit.util.optional_imports import extra


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
