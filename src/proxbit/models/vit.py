"""Small networks of the paper's families on top of timm: for laptops, and to try machinery.

Images of 28 and 32 pixels fit all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from proxbit.models.from_timm import from_timm, import_timm

GRIDS = (7, 8)


def tiny_vit(
    classes: int = 10,
    channels: int = 3,
    image_size: int | None = None,
    patch_size: int | None = None,
    **options: Any,
) -> nn.Module:
    """Four blocks of width 96 with three heads, on 7x7 or 8x8 patches: 0.45 million parameters.

    Options are those of timm's VisionTransformer, such as ``depth``, ``embed_dim``, ``num_heads``
    and ``drop_path``.
    """
    if image_size is None:
        raise ValueError("tiny_vit must know the size of the images: pass image_size")
    return from_timm(
        "vit_tiny_patch16_224",
        classes=classes,
        channels=channels,
        image_size=image_size,
        patch_size=patch_size or patch_for(image_size),
        **{"embed_dim": 96, "depth": 4, "num_heads": 3, **options},
    )


def patch_for(image_size: int) -> int:
    """The patch size that cuts an image into 7x7 patches, or else 8x8.

    >>> patch_for(28), patch_for(32)
    (4, 4)
    """
    for grid in GRIDS:
        if image_size % grid == 0:
            return image_size // grid
    raise ValueError(
        f"tiny_vit cuts an image into 7x7 or 8x8 patches, and {image_size} is not a multiple of "
        "7 or 8: pass a patch_size that divides it"
    )


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


_MAKERS: tuple[Callable[..., nn.Module], ...] = (mini_vit, mini_bottleneck, mini_swin, mini_nest)
MINIS = {make.__name__: make for make in _MAKERS}
