"""The parts of a data set (train, validation, test) and the split that makes a validation part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

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
