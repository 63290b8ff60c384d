"""Tiny networks of the paper's families, for machines where the real ones are out of reach.

Runs name them as FILE.py:FUNCTION. Images of 28 and 32 pixels fit all of them.
"""

from __future__ import annotations

from torch import nn

from proxbit.models import build
from proxbit.models.from_timm import import_timm


def small_vit(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two blocks of width 48 with three heads."""
    return build(
        "tiny_vit", classes=classes, channels=channels, image_size=image_size, depth=2, embed_dim=48
    )


def bottlenecks(classes: int, channels: int) -> nn.Module:
    """A ResNet of bottlenecks, one in each of four narrow stages."""
    kinds = import_timm().models.resnet
    narrow = {"num_classes": classes, "in_chans": channels, "channels": (8, 16, 32, 64)}
    net: nn.Module = kinds.ResNet(kinds.Bottleneck, (1, 1, 1, 1), **narrow)
    return net


def small_swin(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two stages of shifted windows, on patches of 2x2 pixels."""
    return build(
        "timm/swin_tiny_patch4_window7_224", classes=classes, channels=channels,
        image_size=image_size, patch_size=2, embed_dim=24, depths=(2, 2), num_heads=(2, 4),
    )  # fmt: skip


def small_nest(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two levels of blocks of patches, on patches of 2x2 pixels."""
    sizes = {"num_classes": classes, "in_chans": channels, "img_size": image_size, "patch_size": 2}
    inner = {"num_levels": 2, "embed_dims": (24, 48), "num_heads": (2, 4), "depths": (1, 2)}
    net: nn.Module = import_timm().models.nest.Nest(**sizes, **inner)
    return net
