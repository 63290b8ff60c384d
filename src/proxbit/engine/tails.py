"""The steps after a packed layer, in one pass: a norm, a sum, an activation, and the next signs.

A batch norm in evaluation is a line for each channel, and how torch rounds it depends on its build.
So torch is asked: gain and shift are read off the module itself, and every sum that the layer can
have is sent through both; only where all results are the same bits, in both memory formats, the
kernel takes the place of the module.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.kernels import inference as kernels

IDENTITY, RELU, HARDTANH = 0, 1, 3


class Line(NamedTuple):
    """y * gain + shift for each channel; ``contracted`` where that is rounded once."""

    gain: Tensor
    shift: Tensor
    contracted: bool


def following(
    line: Line | None = None,
    other: Tensor | None = None,
    activation: int = IDENTITY,
    bits: Tensor | None = None,
) -> kernels.Following:
    """Make a value y activation(line(y) + other), and put its sign into ``bits``.

    It holds addresses only: whoever makes it keeps the tensors until the kernel has run.
    """
    gain, shift = (None, None) if line is None else (line.gain.data_ptr(), line.shift.data_ptr())
    return kernels.Following(
        gain, shift, None if other is None else other.data_ptr(),
        None if bits is None else bits.data_ptr(), line is not None and line.contracted, activation,
    )  # fmt: skip


def follow(rows: Tensor, how: kernels.Following) -> None:
    """Apply what follows to rows of floats, [..., width], contiguous; in place."""
    wide = rows.shape[-1]
    code = kernels.library().pb_follow(
        rows.data_ptr(), rows.numel() // wide, wide, how, torch.get_num_threads()
    )
    if code:
        kernels.check(code)


def as_rows(image: Tensor) -> Tensor:
    """An image with its channels last in memory, as one row per pixel."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def with_norm(scale: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Scale and bias with a batch norm behind them folded in."""
    assert norm.running_mean is not None and norm.running_var is not None
    gain = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        gain = gain * norm.weight.double()
    shift = (0 if bias is None else bias.double()) - norm.running_mean.double()
    moved = shift * gain + (0 if norm.bias is None else norm.bias.double())
    return (scale.double() * gain).float(), moved.float()


def find_line(norm: nn.BatchNorm2d, values: Tensor) -> Line | None:
    """The line of a batch norm, if a kernel gives the norm's bits for all of ``values``.

    Args:
        norm: In evaluation, with fixed statistics, in float32.
        values: Everything that the norm can be given, [values, channels].
    """
    with torch.no_grad():
        image = values.t().reshape(1, values.shape[1], 1, -1)
        plain, last = (
            as_rows(norm(image.contiguous(memory_format=layout)))
            for layout in (torch.contiguous_format, torch.channels_last)
        )
        if not _same(plain, last):
            return None
        gain, shift = _gain(norm), norm(torch.zeros(1, values.shape[1], 1, 1)).flatten().clone()
        for contracted in (False, True):
            line = Line(gain, shift, contracted)
            found = values.clone(memory_format=torch.contiguous_format)
            follow(found, following(line))
            if _same(found, plain):
                return line
    return None


def _gain(norm: nn.BatchNorm2d) -> Tensor:
    """The gain of the norm: its answer to 1 with nothing subtracted or added."""
    zeros, ones = torch.zeros(norm.num_features), torch.ones(1, norm.num_features, 1, 1)
    out = functional.batch_norm(ones, zeros, norm.running_var, norm.weight, zeros, eps=norm.eps)
    return out.flatten().clone()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are the same bits, the sign of a zero included."""
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
