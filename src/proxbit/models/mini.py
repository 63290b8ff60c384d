"""The smallest networks of the paper's families: for trying machinery, not for accuracy.

Images of 28 and 32 pixels fit all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from proxbit.models.from_timm import from_timm, import_timm
from proxbit.models.vit import tiny_vit


def mini_vit(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two blocks of width 48 with three heads."""
    return tiny_vit(classes, channels, image_size, depth=2, embed_dim=48)


def mini_bottleneck(classes: int, channels: int) -> nn.Module:
    """A ResNet of bottlenecks, one in each of four narrow stages."""
    kinds = import_timm().models.resnet
    narrow = {"num_classes": classes, "in_chans": channels, "channels": (8, 16, 32, 64)}
    net: nn.Module = kinds.ResNet(kinds.Bottleneck, (1, 1, 1, 1), **narrow)
    return net


def mini_swin(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two stages of shifted windows, on patches of 2x2 pixels."""
    return from_timm(
        "swin_tiny_patch4_window7_224", classes=classes, channels=channels,
        image_size=image_size, patch_size=2, embed_dim=24, depths=(2, 2), num_heads=(2, 4),
    )  # fmt: skip


def mini_nest(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two levels of blocks of patches, on patches of 2x2 pixels."""
    sizes = {"num_classes": classes, "in_chans": channels, "img_size": image_size, "patch_size": 2}
    inner = {"num_levels": 2, "embed_dims": (24, 48), "num_heads": (2, 4), "depths": (1, 2)}
    net: nn.Module = import_timm().models.nest.Nest(**sizes, **inner)
    return net


MINIS: dict[str, Callable[..., nn.Module]] = {
    "mini_vit": mini_vit,
    "mini_bottleneck": mini_bottleneck,
    "mini_swin": mini_swin,
    "mini_nest": mini_nest,
}
