"""The binary product: one weight with its quantizers, accumulator and scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn

from proxbit.core.methods import Method
from proxbit.core.tasks import Task
from proxbit.nn.accumulators import WrapAccumulator
from proxbit.nn.quantizers import InputQuantizer, WeightQuantizer
from proxbit.nn.step_counter import StepCounter

Operation: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Form:
    """The kind of binary layer to make.

    Attributes:
        method: Pair, schedule, rule, scale and unit.
        task: What is binary besides the weights, with the details of that.
        counter: The steps of all quantizers that are made.
    """

    method: Method
    task: Task
    counter: StepCounter = field(default_factory=StepCounter)

    def input_quantizer(self, channels: int, trailing: int, like: Tensor) -> nn.Module:
        """The quantizer of the input, or nothing in BW."""
        if self.task.name == "BW":
            return nn.Identity()
        return InputQuantizer(self.method, channels, trailing, like, self.counter)

    def accumulator(self) -> nn.Module:
        """The wrap-around register of BWAA, or nothing."""
        if self.task.name != "BWAA" or not self.method.binary:
            return nn.Identity()
        return WrapAccumulator(self.task.bits, self.task.k)


class BinaryProduct(nn.Module):
    """y = scale * c(F(w) . F(x)) + bias, for one weight that the layer around it owns.

    Where only the value counts, the scale rides on the weight and costs nothing: in BW, and while
    BWA trains. In evaluation of BWA, and in BWAA, the sum of +-1 products is kept apart from the
    scale: it is an exact integer, as a packed network will have it, and a register may wrap it.
    """

    def __init__(self, form: Form, weight: Tensor, channels: int, trailing: int) -> None:
        """Make the parts; ``trailing`` counts the dims behind the channel, as in an image."""
        super().__init__()
        self.weight_quantizer = WeightQuantizer(form.method, weight, form.counter)
        self.input_quantizer = form.input_quantizer(channels, trailing, weight)
        self.accumulator = form.accumulator()
        self.trailing = trailing

    @property
    def float_input(self) -> bool:
        """Whether the input is float now: in BW, and while PTB trains."""
        inputs = self.input_quantizer
        return not isinstance(inputs, InputQuantizer) or inputs.looks_through()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, op: Operation) -> Tensor:
        """Quantize, multiply by ``op(x, w, b)``, accumulate, scale, add the bias."""
        wraps = isinstance(self.accumulator, WrapAccumulator)
        if self.float_input or (self.training and not wraps):
            return op(self.input_quantizer(x), self.weight_quantizer(weight), bias)
        signs, scale = self.weight_quantizer.split(weight)
        inputs = self.input_quantizer(x)
        if wraps:
            sums = self.accumulator(_exact(inputs, signs, op)).to(inputs.dtype)
        else:
            sums = op(inputs, signs, None)
        return self._finish(sums, scale, bias)

    def _finish(self, sums: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        shape = (-1, *(1 for _ in range(self.trailing)))
        parts = (None if t is None else t.reshape(shape).to(sums.dtype) for t in (scale, bias))
        return scaled(sums, *parts)


def scaled(sums: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale times sums plus bias; a zero leaves as +0.0, as the kernels of packed layers give it.

    A sum below 0 times a scale of 0 is -0.0, which the next layer would read as -1.
    """
    if bias is not None:
        return (sums if scale is None else sums * scale) + (bias + 0.0)
    if scale is None:
        return sums + 0.0
    return torch.addcmul(torch.zeros((), dtype=sums.dtype, device=sums.device), sums, scale)


def _exact(x: Tensor, w: Tensor, op: Operation) -> Tensor:
    """Compute the product in float32 in any context: sums below 2^24 are then exact integers."""
    with torch.autocast(x.device.type, enabled=False):
        return op(x.float(), w.float(), None)
