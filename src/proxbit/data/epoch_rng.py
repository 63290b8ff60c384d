"""Which images when: choices by seed, epoch and place alone, and the share of each rank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class EpochRNG:
    """The random choices of one epoch: tables with one row per place in the epoch.

    A table depends on nothing but the seed, the epoch and its purpose; so whoever needs row 17,
    on whichever rank, in whichever process, after whichever resume, finds the same number there.

    >>> torch.equal(EpochRNG(0, 3, 50).order(), EpochRNG(0, 3, 50).order())
    True
    >>> torch.equal(EpochRNG(0, 3, 50).order(), EpochRNG(0, 4, 50).order())
    False
    """

    seed: int
    epoch: int
    count: int

    def order(self) -> Tensor:
        """The image at each place: a permutation."""
        return torch.from_numpy(self._generator(0).permutation(self.count))

    def shifts(self, pad: int) -> tuple[Tensor, Tensor]:
        """Shifts down and right, 0 to ``2 * pad``."""
        table = self._generator(1).integers(2 * pad + 1, size=(2, self.count))
        down, right = torch.from_numpy(table)
        return down, right

    def mirrors(self) -> Tensor:
        """Whether an image is mirrored: every second one on average."""
        return torch.from_numpy(self._generator(2).random(self.count) < 0.5)

    def picture_keys(self) -> Tensor:
        """A seed for the transforms of each image."""
        return torch.from_numpy(self._generator(3).integers(2**63 - 1, size=self.count))

    def erasings(self, share: float) -> Tensor:
        """A seed for the erasing of each image, -1 for the ones that stay whole."""
        generator = self._generator(4)
        chosen = generator.random(self.count) < share
        keys = generator.integers(2**63 - 1, size=self.count)
        return torch.from_numpy(np.where(chosen, keys, -1))

    def mixing_key(self, step: int) -> int:
        """A seed for the mixing of a batch."""
        return int(self._generator(5, step).integers(2**63 - 1))

    def _generator(self, purpose: int, step: int = 0) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.epoch, purpose, step))


@dataclass(frozen=True)
class ShardedBatches:
    """An epoch of ``count`` places, cut into batches and each batch over the ranks.

    In training a batch has ``batch`` images and a last partial one is dropped, unless it is the
    only one. Otherwise every image occurs exactly once over all ranks: batches, and the ranks'
    shares of them, are as equal as can be, and none is empty.

    >>> [ShardedBatches(10, 4, rank=0, world=2, training=True).rows(step) for step in (0, 1)]
    [slice(0, 2, None), slice(4, 6, None)]
    >>> test = [ShardedBatches(10, 4, rank, world=2, training=False) for rank in (0, 1)]
    >>> [(one.rows(step).start, one.rows(step).stop) for step in range(3) for one in test]
    [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 10)]
    """

    count: int
    batch: int
    rank: int
    world: int
    training: bool

    @property
    def steps(self) -> int:
        """Batches of an epoch, the same number on every rank."""
        if self.training:
            return max(1, self.count // self.batch)
        return max(1, min(-(-self.count // self.batch), self.count // self.world))

    def rows(self, step: int) -> slice:
        """The places of this rank's part of a batch."""
        if self.training:
            begin, end = step * self.batch, min((step + 1) * self.batch, self.count)
        else:
            begin, end = (self.count * i // self.steps for i in (step, step + 1))
        first, last = ((end - begin) * i // self.world for i in (self.rank, self.rank + 1))
        return slice(begin + first, begin + last)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Let the global generators of Python, numpy and torch start from a key, and restore them.

    For transforms of other packages, which draw from all three.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(key)
        np.random.seed(key % 2**32)
        # Not torch.manual_seed, which would also reset the generators of the accelerators.
        torch.default_generator.manual_seed(key)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
