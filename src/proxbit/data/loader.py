"""Batches for training and testing, the same for a seed however they are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor

from proxbit.data.decoding import Pictures, picture_batches, plain_transform, random_transform
from proxbit.data.epoch_rng import EpochRNG, ShardedBatches
from proxbit.data.image_set import ImageSet
from proxbit.data.opening import Data
from proxbit.data.pixels import normalize, resize, shifted, take
from proxbit.data.recipes import RECIPES, Recipe, check_recipe, erased, mixed, smoothed

FOLDER_SIZE = 224


@dataclass(frozen=True, eq=False)
class Loader:
    """Batches of one part of the data, epoch by epoch.

    The train part is shuffled and goes through the recipe; the others come in their own order,
    resized and normalized only. Every random choice follows from the seed, the epoch and the
    image's place in it, so neither the ranks nor the workers nor a resume change it.

    ``for x, y in loader`` gives epoch after epoch, from 0 on; ``loader.epoch(n)`` any one of them.

    Attributes:
        data: What ``open_data`` gives.
        part: ``train``, ``validation`` (after ``with_val_split``) or ``test``.
        batch_size: Images of a batch over all ranks.
        seed: Of the order and of the recipe.
        recipe: What happens to training images.
        image_size: Side of the images that come out; their own (224 for folders) if None.
        rank: Which part of each batch to take, of ``world`` parts.
        world: Number of ranks.
        workers: Processes that decode and transform single images; 0 for none. Images in memory
            that are only cropped and flipped never need one.
        device: Where the batches go.

    >>> from proxbit.data import open_data
    >>> loader = Loader(open_data("fashion"), batch_size=100, seed=1)
    >>> len(loader)
    80
    >>> x, y = next(loader.epoch(0))
    >>> x.shape, x.dtype, y.shape
    (torch.Size([100, 1, 28, 28]), torch.float32, torch.Size([100]))
    """

    data: Data
    part: str = "train"
    batch_size: int = 128
    seed: int = 0
    recipe: Recipe = RECIPES["crop"]
    image_size: int | None = None
    rank: int = 0
    world: int = 1
    workers: int = 0
    device: torch.device | str | None = None
    _epochs: Iterator[int] = field(default_factory=count, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.training:
            _check_training(self)
        _ = self._transform  # a policy that timm cannot read speaks up here, not in a worker

    def __len__(self) -> int:
        """Batches of an epoch, as :attr:`steps`."""
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next epoch: the first one at the first call."""
        return self.epoch(next(self._epochs))

    @property
    def steps(self) -> int:
        """Batches of an epoch, the same number on every rank."""
        return self.shards.steps

    @property
    def size(self) -> int:
        """Side of the images that come out."""
        return self.image_size or self.data.image_size or FOLDER_SIZE

    @cached_property
    def shards(self) -> ShardedBatches:
        """Which images this rank takes, and when."""
        count = self.data.count(self.part)
        return ShardedBatches(count, self.batch_size, self.rank, self.world, self.training)

    @property
    def training(self) -> bool:
        """Whether images are shuffled and go through the recipe."""
        return self.part == "train"

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from batch ``start`` on: images and labels, or soft targets.

        Images are normalized float32 of shape ``(n, channels, size, size)``. Labels are int64, or
        float32 of shape ``(n, classes)`` where the recipe mixes images or smooths labels.
        """
        if number < 0:
            raise ValueError(f"there is no epoch {number}: count epochs from 0")
        if not 0 <= start <= self.steps:
            raise ValueError(
                f"cannot start at batch {start}: an epoch has the batches 0 to {self.steps - 1}"
            )
        rng = EpochRNG(self.seed, number, self.shards.count)
        return self._train(rng, start) if self.training else self._test(rng, start)

    def _train(self, rng: EpochRNG, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order, recipe, classes = rng.order(), self.recipe, len(self.data.classes)
        keys = rng.erasings(recipe.erasing)
        labels = self.data.labels(self.part)[order]
        for step, rows, pixels in self._pixels(rng, order, start):
            x, y = self._finish(pixels), labels[rows].to(device=self.device)
            if recipe.erasing:
                x = erased(x, keys[rows])
            if recipe.mixes:
                x, y = mixed(x, y, recipe, classes, rng.mixing_key(step))
            elif recipe.label_smoothing:
                y = smoothed(y, classes, recipe.label_smoothing)
            yield x, y

    def _test(self, rng: EpochRNG, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        labels = self.data.labels(self.part)
        for _, rows, pixels in self._pixels(rng, torch.arange(rng.count), start):
            yield self._finish(pixels), labels[rows].to(device=self.device)

    def _finish(self, pixels: Tensor) -> Tensor:
        # Moved as bytes, a quarter of the floats.
        pixels = resize(pixels, self.size).to(device=self.device)
        return normalize(pixels, self.data.mean, self.data.std)

    def _pixels(
        self, rng: EpochRNG, order: Tensor, start: int
    ) -> Iterator[tuple[int, slice, Tensor]]:
        steps = range(start, self.steps)
        places = [self.shards.rows(step) for step in steps]
        if self._transform is None:
            images = self._from_memory(rng, order, places)
        else:
            keys = rng.picture_keys()
            items = (list(zip(order[s].tolist(), keys[s].tolist(), strict=True)) for s in places)
            fixed = None if self._random else self.size
            pictures = Pictures(self.data, self.part, self._transform, fixed)
            images = picture_batches(pictures, items, self.workers)
        return zip(steps, places, images, strict=True)

    def _from_memory(self, rng: EpochRNG, order: Tensor, places: list[slice]) -> Iterator[Tensor]:
        assert isinstance(self.data, ImageSet)
        images, recipe = self.data.images(self.part), self.recipe
        pad = recipe.padding(self.data.image_size)
        (down, right), mirror = rng.shifts(pad), rng.mirrors() & recipe.flip
        for rows in places:
            x = take(images, order[rows])
            if self.training and (pad or recipe.flip):
                x = shifted(x, down[rows], right[rows], mirror[rows], pad)
            yield x

    @cached_property
    def _transform(self) -> Any:
        """The transforms of each single image; None where whole batches are faster."""
        if self._random:
            return random_transform(self.data, self.recipe, self.size)
        return plain_transform(self.size) if self.data.image_size is None else None

    @property
    def _random(self) -> bool:
        """Whether single images go through random transforms."""
        recipe, folder = self.recipe, self.data.image_size is None
        moves = folder and bool(recipe.crop or recipe.flip)
        return self.training and (recipe.per_image or moves)


def _check_numbers(loader: Loader) -> None:
    least = {"batch_size": 1, "seed": 0, "world": 1, "workers": 0, "image_size": 1}
    for name, lowest in least.items():
        value = getattr(loader, name)
        if value is not None and value < lowest:
            raise ValueError(f"a loader cannot have {name}={value}: choose {lowest} or more")
    if not 0 <= loader.rank < loader.world:
        raise ValueError(f"there is no rank {loader.rank} of {loader.world}: count ranks from 0")
    count = loader.data.count(loader.part)
    if count < loader.world:
        raise ValueError(
            f"the {loader.part} part of {loader.data.name} has {count} images for {loader.world} "
            f"ranks: use fewer ranks"
        )


def _check_training(loader: Loader) -> None:
    recipe, world = loader.recipe, loader.world
    check_recipe(recipe)
    if loader.batch_size % world:
        raise ValueError(
            f"a batch of {loader.batch_size} cannot be shared by {world} ranks: "
            "choose a multiple of it"
        )
    images = min(loader.batch_size, loader.data.count("train"))
    if recipe.mixes and images % (2 * world):
        raise ValueError(
            f"recipe {recipe.name!r} mixes images in pairs, and a batch of {images} over {world} "
            f"ranks leaves one over: choose a multiple of {2 * world}"
        )
    if recipe.per_image and loader.data.channels not in (1, 3):
        raise ValueError(
            f"recipe {recipe.name!r} needs pictures in grey or RGB, and {loader.data.name} has "
            f"{loader.data.channels} channels: use RECIPES['crop']"
        )
