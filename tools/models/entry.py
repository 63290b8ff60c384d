"""One model of the sweep: how to make it, and what to give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Entry:
    """A model family in a small random configuration.

    Attributes:
        library: Where it comes from: "timm", "torchvision" or "transformers".
        name: Its name there.
        job: What it does, as "classify images".
        build: Makes it, with random weights and without a download.
        example: Makes a batch: a tensor, or a dict of keywords.
        options: Arguments for ``binarize`` that a user would give for this model.
    """

    library: str
    name: str
    job: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    options: tuple[tuple[str, Any], ...] = ()
