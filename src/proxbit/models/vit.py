"""A vision transformer small enough to train on a laptop: the paper's family, on top of timm."""

from __future__ import annotations

from typing import Any

from torch import nn

from proxbit.models.from_timm import from_timm

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
