"""Images one by one through PIL and timm's transforms, in worker processes if wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from proxbit.data.epoch_rng import seeded
from proxbit.data.image_folder import FolderSet
from proxbit.data.opening import Data
from proxbit.data.recipes import Recipe
from proxbit.util.compat import extra

Item = tuple[int, int]  # a row of the part and the key of its random choices


def plain_transform(size: int) -> Any:
    """Resize the shorter side to 8/7 of the size and cut out the middle, as ImageNet is tested."""
    factory = extra("timm.data.transforms_factory")
    return factory.transforms_imagenet_eval(size, interpolation="bicubic", normalize=False)


def random_transform(data: Data, recipe: Recipe, size: int) -> Any:
    """The transforms of timm for training, up to the uint8 tensor.

    Images in memory keep their own size and are shifted, where those of a folder are cropped to a
    random part and resized.
    """
    if data.image_size is None and not recipe.crop:
        whole = plain_transform(size).transforms[:-1]
    elif data.image_size is None:
        whole = []
    else:
        crop = extra("torchvision.transforms").RandomCrop
        whole = [crop(data.image_size, padding=recipe.padding(data.image_size))]
    made = _timm_train(recipe, data.image_size or size, data.mean)
    made.transforms = [*whole, *made.transforms[1 if whole else 0 :]]
    return made


def _timm_train(recipe: Recipe, size: int, mean: tuple[float, ...]) -> Any:
    try:
        made = extra("timm.data.transforms_factory").transforms_imagenet_train(
            size,
            hflip=0.5 if recipe.flip else 0.0,
            color_jitter=recipe.colour or None,
            force_color_jitter=True,
            auto_augment=recipe.policy,
            interpolation="bicubic",
            mean=mean,
            normalize=False,
        )
    except (AssertionError, KeyError, ValueError) as error:
        raise ValueError(
            f"recipe {recipe.name!r} has policy={recipe.policy!r}, which timm cannot read: write "
            f"it like rand-m9-mstd0.5-inc1"
        ) from error
    for transform in made.transforms:
        for operation in getattr(transform, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.level_fn = partial(_keep_one_bit, operation.level_fn)
    return made


def _keep_one_bit(level: Any, *arguments: Any) -> tuple[int]:
    # timm asks for no bits at the highest level, which Pillow refuses since version 13.
    return (max(1, level(*arguments)[0]),)


@dataclass(frozen=True, eq=False)
class Pictures(Dataset[Tensor | str]):
    """The transformed images of a part by row and key; for one that cannot be read, the reason.

    Attributes:
        fixed_size: Side of what the transform gives if it has no random choice, else None.
    """

    data: Data
    part: str
    transform: Any
    fixed_size: int | None = None

    def __getitem__(self, item: Item) -> Tensor | str:
        row, key = item
        try:
            if self.fixed_size is not None and isinstance(self.data, FolderSet):
                return self.data.fixed_picture(self.part, row, self.fixed_size, self.transform)
            picture = self.data.picture(self.part, row)
        except ValueError as error:
            return str(error)  # as a value, because a worker would wrap it into a traceback
        with seeded(key):
            return torch.as_tensor(self.transform(picture))


def _together(images: list[Tensor | str]) -> Tensor | str:
    reasons = [image for image in images if isinstance(image, str)]
    return reasons[0] if reasons else torch.stack([i for i in images if isinstance(i, Tensor)])


def picture_batches(
    pictures: Pictures, batches: Iterable[list[Item]], workers: int
) -> Iterator[Tensor]:
    """Batches of transformed uint8 images, in the order given whatever the number of workers."""
    loader: DataLoader[Tensor | str] = DataLoader(
        pictures,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_together,
        generator=Generator(),  # else it would draw from the global one
    )
    for images in loader:
        if isinstance(images, str):
            raise ValueError(images)
        yield images
