"""Which sums of a binary layer make the next layer's input +1.

A layer has few possible sums. So the sign behind each of them is computed beforehand, by the very
modules that stand between the two layers: the bits are exact whatever these modules are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxbit import maps
from proxbit.engine.forms import Form

_WIDEST = 16  # bits of a register whose every value is tabled
_BEYOND = torch.iinfo(torch.int32).max


class Bounds(NamedTuple):
    """bit = (low <= sum < high) != flip, for each output."""

    low: Tensor
    high: Tensor
    flip: Tensor


def possible_sums(form: Form) -> Tensor | None:
    """Every sum that a layer can have, in order; None where they are too many.

    >>> possible_sums(Form(outputs=1, products=3, binary=True))
    tensor([-3, -1,  1,  3], dtype=torch.int32)
    """
    if form.register_bits > _WIDEST:
        return None
    if form.register_bits:
        half = 2 ** (form.register_bits - 1)
        return torch.arange(-half, half, dtype=torch.int32)
    return torch.arange(-form.products, form.products + 1, 2, dtype=torch.int32)


def find_bounds(
    sums: Tensor,
    outputs: int,
    dims: int,
    steps: Iterable[Callable[[Tensor], Any]],
    shift: Tensor | None,
) -> Bounds | None:
    """The bounds behind ``steps``; None where the sums of some output are not one interval.

    Args:
        sums: All sums, in order.
        outputs: How many outputs, each with scale and bias of its own.
        dims: Dims behind the channels: 2 for images.
        steps: From sums [count, outputs, ...] to the next layer's input.
        shift: Thresholds of that input.
    """
    with torch.no_grad():
        trailing = [1 for _ in range(dims)]
        values: Any = sums.float().reshape(-1, 1, *trailing).expand(-1, outputs, *trailing)
        for step in steps:
            values = step(values)
        if shift is not None:
            values = values - shift.reshape(-1, *trailing)
        return intervals(sums, ~(maps.sign(values).flatten(1) < 0))  # NaN is +1, as in a kernel


def intervals(sums: Tensor, positive: Tensor) -> Bounds | None:
    """Where each column of ``positive`` differs from its first value: one interval, or None."""
    differs = positive != positive[:1]
    starts = differs & ~differs.roll(1, 0)
    if bool((starts.sum(0) > 1).any()):
        return None
    some, begin = differs.any(0), differs.int().argmax(0)
    ends = torch.cat([sums, sums.new_tensor([_BEYOND])])
    low = torch.where(some, sums[begin], 0).int().contiguous()
    high = torch.where(some, ends[begin + differs.sum(0)], 0).int().contiguous()
    return Bounds(low, high, positive[0].to(torch.uint8).contiguous())
