"""Random choices that depend on seed, epoch and place alone, and touch no global generator."""

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
