"""Which sums of a binary layer make the next layer's input +1.

A layer has few possible sums. So the sign behind each of them is computed beforehand, by the very
modules that stand between the two layers: the bits are exact whatever these modules are. Modules of
torch take other kernels for other memory formats: where these disagree, there are no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from proxbit.core import maps
from proxbit.engine.forms import PackedForm

_WIDEST = 16  # bits of a register whose every value is tabled
_BEYOND = torch.iinfo(torch.int32).max
Steps: TypeAlias = Iterable[Callable[[Tensor], Any]]


class Bounds(NamedTuple):
    """bit = (low <= sum < high) != flip, for each output."""

    low: Tensor
    high: Tensor
    flip: Tensor


def possible_sums(form: PackedForm) -> Tensor | None:
    """Every sum that a layer can have, in order; None where they are too many.

    >>> possible_sums(PackedForm(outputs=1, products=3, binary=True))
    tensor([-3, -1,  1,  3], dtype=torch.int32)
    """
    if form.register_bits > _WIDEST:
        return None
    if form.register_bits:
        half = 2 ** (form.register_bits - 1)
        return torch.arange(-half, half, dtype=torch.int32)
    return torch.arange(-form.products, form.products + 1, 2, dtype=torch.int32)


def find_bounds(
    sums: Tensor, shape: tuple[int, ...], steps: Steps, shift: Tensor | None
) -> Bounds | None:
    """The bounds behind ``steps``; None where the sums of some output are not one interval.

    Args:
        sums: All sums, in order.
        shape: That of the weight: its outputs have scales and biases of their own, and four
            dimensions are those of images.
        steps: From sums [..., outputs] or images of them to the next layer's input.
        shift: Thresholds of that input.
    """
    with torch.no_grad():
        values = sums.float().unsqueeze(1).expand(-1, shape[0])
        if len(shape) != 4:
            return intervals(sums, _positive(values, steps, shift))
        image = values.t().reshape(1, shape[0], 1, -1)
        found = [
            _positive(image.contiguous(memory_format=layout), steps, shift).flatten(0, 2).t()
            for layout in (torch.contiguous_format, torch.channels_last)
        ]
        return intervals(sums, found[0]) if torch.equal(*found) else None


def _positive(values: Any, steps: Steps, shift: Tensor | None) -> Tensor:
    """Where the next layer's input is +1 behind the steps."""
    for step in steps:
        values = step(values)
    if shift is not None:
        values = values - shift.reshape(-1, *(1 for _ in values.shape[2:]))
    return ~(maps.sign(values) < 0)  # NaN is +1, as in a kernel


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
