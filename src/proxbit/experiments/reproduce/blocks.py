"""A model without tensors: its kind, and the blocks that become binary one at a time."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from proxbit.models import build
from proxbit.models.structure import layers


@cache
def skeleton(model: str) -> nn.Module:
    """The model called ``model``, to look at: names and kinds of layers, no numbers."""
    size = 32 if not model.startswith("timm/") else 224
    with torch.device("meta"):
        return build(model, image_size=size)


def block_names(model: str) -> tuple[str, ...]:
    """The blocks of the model called ``model``: first layer, numbered blocks, classifier.

    >>> block_names("resnet8")
    ('conv1', 'layer1.0', 'layer2.0', 'layer3.0', 'linear')
    """
    return tuple(dict.fromkeys(_block(name) for name in layers(skeleton(model))))


def _block(layer: str) -> str:
    """A layer's name up to its first number, or else its first part."""
    parts = layer.split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: numbered + 1])
