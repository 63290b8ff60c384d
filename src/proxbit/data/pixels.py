"""Batches of images as tensors: take, move, mirror, resize, normalize.

Everything up to ``normalize`` works on uint8. Images have the shape ``(n, channels, height,
width)`` and are stored with the channels last, as convolutions on a CPU prefer them; any other
storage works too and gives the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def take(images: Tensor, rows: Tensor) -> Tensor:
    """The images of these rows, channels last.

    >>> take(torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1), torch.tensor([2, 0])).flatten()
    tensor([2, 0], dtype=torch.uint8)
    """
    return images.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


def shifted(images: Tensor, down: Tensor, right: Tensor, mirror: Tensor, pad: int) -> Tensor:
    """Each image's window of its own size in the image padded with black, mirrored where told.

    Args:
        images: Of any type, ``(n, channels, height, width)``.
        down: Row of each window's upper edge in the padded image, 0 to ``2 * pad``.
        right: Column of each window's left edge, 0 to ``2 * pad``.
        mirror: Whether the window is mirrored left to right.
        pad: Black pixels added on every side.

    >>> x = torch.tensor([[1, 2, 3]], dtype=torch.uint8).expand(2, 1, 3, 3)
    >>> zero, two = torch.zeros(2, dtype=torch.long), torch.full((2,), 2)
    >>> shifted(x, two, zero, torch.tensor([False, True]), 1)[:, 0, 0]
    tensor([[0, 1, 2],
            [2, 1, 0]], dtype=torch.uint8)
    """
    n, channels, height, width = images.shape
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, pad, pad, pad, pad))
    x = torch.arange(width, device=images.device)
    rows = down[:, None] + torch.arange(height, device=images.device)
    columns = right[:, None] + torch.where(mirror[:, None], x.flip(0), x)
    first = torch.arange(n, device=images.device)[:, None] * (height + 2 * pad)
    # One gather of whole pixels: three times as fast as indexing image, row and column.
    pixel = (first + rows)[:, :, None] * (width + 2 * pad) + columns[:, None, :]
    taken = padded.flatten(0, 2).index_select(0, pixel.flatten())
    return taken.view(n, height, width, channels).permute(0, 3, 1, 2)


def resize(images: Tensor, size: int) -> Tensor:
    """Square uint8 images of another size: bilinear, averaging over what a smaller pixel covers."""
    if images.shape[-2:] == (size, size):
        return images
    # uint8 with the channels last takes a vectorized path, 20 times as fast as float32.
    images = images.contiguous(memory_format=torch.channels_last)
    return F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Float images (x / 255 - mean) / std from uint8 ones, channel by channel.

    >>> normalize(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2), (0.5,), (0.25,))
    tensor([[[[-2.,  2.]]]])
    """
    n, channels, height, width = images.shape
    lines = images.permute(0, 2, 3, 1).reshape(n * height, width * channels)
    # One number per column of a line: adding along three channels would not be vectorized.
    m, s = (
        torch.tensor(v, device=images.device).expand(channels).repeat(width) for v in (mean, std)
    )
    x = (lines / 255).sub_(m).div_(s)
    if channels == 1:
        return x.view(images.shape)
    return x.view(n, height, width, channels).permute(0, 3, 1, 2)
