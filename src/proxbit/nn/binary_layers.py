"""Binary layers: PyTorch's own linear and convolution, with a binary product inside.

Each overrides ``forward`` only. A float layer becomes binary by taking the class and getting the
parts: it stays the same object, with the same Parameters, hooks, name and state_dict keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.core.weight_layout import Layout
from proxbit.kernels.training import watched
from proxbit.nn.border import AddBorder, inner_lines
from proxbit.nn.product import BinaryProduct, Form
from proxbit.nn.quantizers import WeightQuantizer, whole


@dataclass(frozen=True, eq=False)
class BinaryWeight:
    """One binary weight of a model: where its latent values live and what quantizes them.

    Attributes:
        name: Full name of the tensor in the model.
        parameter: The Parameter that the optimizer owns.
        quantizer: What turns it into the quantized weight.
        rows: The rows that this weight takes of the Parameter; None for all.
        layout: Where the Parameter holds its output channels; None if they come first.
    """

    name: str
    parameter: nn.Parameter
    quantizer: WeightQuantizer
    rows: slice | None = None
    layout: Layout | None = None

    @property
    def latent(self) -> Tensor:
        """The latent weight, detached, output channels first; gathered if sharded (FSDP2)."""
        return self.oriented(whole(self.parameter.detach()))

    def oriented(self, w: Tensor) -> Tensor:
        """The part of a tensor in the Parameter's shape that is this weight's, outputs first."""
        w = w if self.rows is None else w[self.rows]
        return w if self.layout is None else self.layout.rows(w)

    def write(self, value: Tensor) -> None:
        """Replace the latent weight, whether the Parameter is whole or sharded."""
        parameter: Any = self.parameter.detach()
        w = whole(parameter)
        value = value if self.layout is None else self.layout.back(value)
        (w if self.rows is None else w[self.rows]).copy_(value)
        if w is not parameter:
            from torch.distributed.tensor import distribute_tensor

            parameter.copy_(distribute_tensor(w, parameter.device_mesh, parameter.placements))

    def harden(self, bits: Tensor, scale: Tensor) -> None:
        """Become these bits times this scale, for good."""
        self.write(bits * scale)
        self.quantizer.harden(scale)
        self._sync_requires_grad()

    def reconcile(self) -> None:
        """Bring Parameter and quantizer together after either was loaded.

        The scale of a hard weight is read off it, and weights from a float checkpoint are measured
        anew as long as no step was taken.
        """
        quantizer = self.quantizer
        if quantizer.stale and quantizer.counter.step == 0:
            quantizer.measure_unit(self.latent)
        quantizer.stale = False
        if quantizer.hard:
            quantizer.find_scale(self.latent)
        self._sync_requires_grad()

    def _sync_requires_grad(self) -> None:
        """A hard weight is frozen, and a soft one thawed if ``harden`` had frozen it."""
        quantizer, parameter = self.quantizer, self.parameter
        if quantizer.hard and parameter.requires_grad:
            quantizer.thaw = True
            parameter.requires_grad_(False)
            parameter.grad = None  # a left-over gradient would let an optimizer move it
        elif quantizer.thaw and not quantizer.hard:
            quantizer.thaw = False
            parameter.requires_grad_(True)


class BinaryLayer(nn.Module):
    """The part that a binary layer adds to the float layer that it subclasses."""

    binary: BinaryProduct

    def make_binary(self, form: Form) -> None:
        """Get the parts; called once, after the class has changed."""
        weight: Tensor = self.get_parameter("weight")
        channels = weight.shape[1] * getattr(self, "groups", 1)
        self.binary = BinaryProduct(form, weight, channels, weight.dim() - 2)

    def binary_weights(self, prefix: str) -> Iterator[BinaryWeight]:
        """The binary weights of this layer alone."""
        weight = self.get_parameter("weight")
        yield BinaryWeight(f"{prefix}weight", weight, self.binary.weight_quantizer)

    def make_float(self) -> None:
        """Give the parts back; called once, before the class changes back."""
        self._modules.pop("binary", None)


class BinaryLinear(BinaryLayer, nn.Linear):
    """A linear layer with binary weights, and binary inputs in BWA."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale * (F(x) F(w)^T) + bias."""
        return self.binary(x, self.weight, self.bias, functional.linear)


class BinaryConv1D(BinaryLayer):
    """transformers' ``Conv1D`` (GPT-2), a linear layer with inputs first, with binary weights."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def make_binary(self, form: Form) -> None:
        """Get the parts, for the weight with its outputs first."""
        self.binary = BinaryProduct(form, self.weight.detach().t(), self.weight.shape[0], 0)

    def binary_weights(self, prefix: str) -> Iterator[BinaryWeight]:
        """The one weight, transposed."""
        quantizer, layout = self.binary.weight_quantizer, Layout(transposed=True)
        yield BinaryWeight(f"{prefix}weight", self.weight, quantizer, layout=layout)

    def forward(self, x: Tensor) -> Tensor:
        """Scale * (F(x) F(w)) + bias, one scale per output."""
        return self.binary(x, self.weight.t(), self.bias, functional.linear)


class _BinaryConv(BinaryLayer, nn.modules.conv._ConvNd):
    """Padding of a binary input, with an explicit value: zero would be a third one."""

    pad_value: float
    convolution: Callable[..., Tensor]

    def make_binary(self, form: Form) -> None:
        super().make_binary(form)
        self.pad_value = form.task.pad_value

    def make_float(self) -> None:
        super().make_float()
        self.__dict__.pop("pad_value", None)

    def forward(self, x: Tensor) -> Tensor:
        """Scale * conv(pad(F(x)), F(w)) + bias."""
        zeros = self.pad_value == 0 and self.padding_mode == "zeros"
        op = self._conv_forward if zeros or self.binary.float_input else self._convolve
        return self.binary(x, self.weight, self.bias, op)

    def _convolve(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """The convolution of a binary input with its border."""
        options = self.stride, 0, self.dilation, self.groups
        border = self._reversed_padding_repeated_twice
        if any(border) and self.padding_mode != "zeros":
            x = functional.pad(x, border, mode=self.padding_mode)
        elif any(border) and self.training:
            one = torch.zeros_like(x[:1] if x.dim() == w.dim() else x)
            frame = functional.pad(one, border, value=self.pad_value)
            added = type(self).convolution(frame, w, None, *options)
            sums = self._conv_forward(x, w, b)
            if x.dim() != w.dim() or watched():
                return sums + added
            return AddBorder.apply(sums, added, inner_lines(x.shape[2:], border[-2::-2], self))
        elif any(border):
            x = functional.pad(x, border, value=self.pad_value)
        return type(self).convolution(x, w, b, *options)


class BinaryConv1d(_BinaryConv, nn.Conv1d):
    """A 1-d convolution with binary weights, and binary inputs in BWA."""

    convolution = staticmethod(functional.conv1d)


class BinaryConv2d(_BinaryConv, nn.Conv2d):
    """A 2-d convolution with binary weights, and binary inputs in BWA."""

    convolution = staticmethod(functional.conv2d)


LAYERS = (BinaryLinear, BinaryConv1D, BinaryConv1d, BinaryConv2d)
