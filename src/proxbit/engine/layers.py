"""Packed layers: a linear layer or convolution whose weight is one bit per value.

They serve inference only. Where a kernel fits (float32 on the CPU) it computes on the bits;
elsewhere torch computes with the unpacked weight, and gives the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit import maps
from proxbit.engine import kernels, ops
from proxbit.engine.bits import pack_rows, unpack_bits
from proxbit.engine.contents import PackedWeight
from proxbit.engine.forms import EXACT, Form, Kernel, Window, lay_out
from proxbit.nn.accumulators import cyclic, wrap

Route = str  # "bits" or "float"


class PackedLayer(nn.Module):
    """What packed layers share: the bits, the scale, and the two ways to compute.

    Attributes:
        bits: The signs of the weight in row-major order, eight to a byte.
        scale: One value, or one per output; 1 where the method has none.
        shift: Thresholds of a binary input per channel; None for 0.
        route: "bits" for the kernels, "float" for torch with the unpacked weight.
    """

    bits: Tensor
    scale: Tensor
    shift: Tensor | None
    laid: Tensor | None

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None, groups: int = 1, precision: int = EXACT
    ) -> None:
        """Take the packed weight; ``bias`` stays the tensor or Parameter that it is."""
        super().__init__()
        self.shape, self.task, self.pad_value = weight.shape, weight.task, weight.pad_value
        self.register_buffer("bits", weight.bits)
        scale = torch.ones(1) if weight.scale is None else weight.scale
        self.register_buffer("scale", scale)
        self.register_buffer("shift", weight.shift)
        self.register_parameter("bias", None)
        if bias is not None:
            self.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)
        self.form = Form(
            weight.shape[0] // groups, math.prod(weight.shape[1:]), groups,
            weight.task != "BW", weight.register_bits, weight.slope,
            int(weight.pad_value > 0), precision, math.prod(weight.shape[2:]),
        )  # fmt: skip
        self.route: Route = "bits" if self._fits() else "float"
        self.register_buffer("laid", None, persistent=False)
        self._kernel: Kernel | None = None
        self._dense: Tensor | None = None

    def _fits(self) -> bool:
        return self.form.served and (
            not self.form.binary or self.pad_value != 0 or self.form.taps == 1
        )

    def take(self, route: Route) -> None:
        """Compute this way from now on; "bits" only where there is a kernel for it."""
        self.route = route if self._fits() else "float"

    def packed(self, name: str) -> PackedWeight:
        """The weight as a file holds it, under the name of the float tensor."""
        form = self.form
        return PackedWeight(
            name, self.shape, self.bits, self.scale, None, self.task, form.register_bits,
            form.slope, self.pad_value, self.shift,
        )  # fmt: skip

    @property
    def kernel(self) -> Kernel | None:
        """The kernel bound to this layer's tensors; None where torch must compute."""
        if self.route != "bits" or kernels.library() is None:
            return None
        if self._kernel is None:
            self._prepare()
        return self._kernel

    def _prepare(self) -> None:
        if self.bits.device.type != "cpu":
            return
        with torch.no_grad():
            if self.laid is None:
                self.laid = lay_out(pack_rows(self._rows()), self.form)
            bias = None if self.bias is None else self.bias.detach().float().contiguous()
            self._kernel = Kernel(self.form, self.laid, self._scales(), bias, self._shifts())

    def _rows(self) -> Tensor:
        """The signs, one row per output, in the order of the kernels."""
        signs = unpack_bits(self.bits, self.shape)
        if len(self.shape) == 2:
            return signs
        taps = signs.flatten(2).transpose(1, 2)  # outputs, positions, channels
        if self.form.binary:  # the channels of each position begin with a new byte
            taps = functional.pad(taps, (0, -taps.shape[2] % 8), value=-1.0)
        return taps.flatten(1)

    def _scales(self) -> Tensor:
        return self.scale.float().expand(self.shape[0]).contiguous()

    def _shifts(self) -> Tensor | None:
        return None if self.shift is None else self.shift.float().contiguous()

    def dense(self) -> Tensor:
        """The unpacked weight: +-1 with binary inputs, +-scale with float ones; made once."""
        if self._dense is None or self._dense.device != self.bits.device:
            signs = unpack_bits(self.bits, self.shape)
            if not self.form.binary:
                signs = signs * self.scale.reshape(-1, *(1 for _ in self.shape[1:]))
            if torch.compiler.is_compiling():
                return signs
            self._dense = signs
        return self._dense

    def by_torch(self, x: Tensor, op: Callable[..., Tensor]) -> Tensor:
        """The same product without kernels; ``op(x, weight, bias)`` multiplies."""
        weight = self.dense()
        if not self.form.binary:
            return op(x, weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        trailing = (1 for _ in self.shape[2:])
        signs = x.float() if self.shift is None else x.float() - self.shift.reshape(-1, *trailing)
        sums = op(maps.sign(signs), weight, None)
        if self.form.register_bits:
            sums = cyclic(
                wrap(sums, self.form.register_bits), self.form.register_bits, self.form.slope
            )
        shape = (-1, *(1 for _ in self.shape[2:]))
        sums = sums * self._scales().reshape(shape)
        return (sums if self.bias is None else sums + self.bias.reshape(shape)).to(x.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedLayer:
        """Moved or cast: what was prepared for the old tensors goes."""
        self._forget()
        super()._apply(fn, recurse)
        return self

    def _forget(self) -> None:
        self._kernel, self._dense, self.laid = None, None, None

    def __getstate__(self) -> dict[str, Any]:
        """A kernel points into memory: a copy makes its own."""
        return self.__dict__ | {"_kernel": None, "_dense": None}

    def _arguments(self) -> tuple[Any, ...]:
        """What the operators of torch take, beside the input."""
        kernel = self.kernel
        assert kernel is not None
        return (*kernel.owned, ops.numbers(self.form), self.form.slope)

    def extra_repr(self) -> str:
        """Shape, task and route."""
        return f"{'x'.join(map(str, self.shape))}, {self.task}, {self.route}"


def _takes(x: Tensor, layer: PackedLayer) -> bool:
    """Whether the kernels can have this input."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and layer.kernel is not None


class PackedLinear(PackedLayer):
    """A linear layer in bits."""

    @property
    def in_features(self) -> int:
        """Size of the last dim of the input."""
        return self.shape[1]

    @property
    def out_features(self) -> int:
        """Size of the last dim of the output."""
        return self.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Scale * (signs . x) + bias."""
        if x.dim() == 0 or x.shape[-1] != self.shape[1]:
            raise ValueError(
                f"this layer takes {self.shape[1]} values in the last dimension, "
                f"and the input has the shape {tuple(x.shape)}"
            )
        if not _takes(x, self):
            return self.by_torch(x, functional.linear)
        rows = x.detach().reshape(-1, self.shape[1])
        if torch.compiler.is_compiling():
            out = ops.linear(rows, *self._arguments())
        else:
            kernel = self.kernel
            assert kernel is not None
            out = kernel.linear(rows if rows.stride(1) == 1 else rows.contiguous())
        return out.reshape(*x.shape[:-1], self.shape[0])


class _PackedConv(PackedLayer):
    """A convolution in bits, of any padding mode."""

    def __init__(self, weight: PackedWeight, conv: nn.modules.conv._ConvNd, precision: int) -> None:
        """Take the geometry of ``conv``, and its bias."""
        super().__init__(weight, conv.bias, conv.groups, precision)
        self.border = tuple(conv._reversed_padding_repeated_twice)
        self.mode = conv.padding_mode
        self.stride, self.dilation, self.groups = conv.stride, conv.dilation, conv.groups

    @property
    def window(self) -> Window:
        """The geometry with two dimensions, and the border that the kernel adds."""
        lift = (1,) if len(self.shape) == 3 else ()
        border = self.border if self.mode == "zeros" else tuple(0 for _ in self.border)
        around = (*border[2:], *border[:2]) if len(border) == 4 else (0, 0, *border)
        kernel, stride, dilation = (
            (*lift, *values) for values in (self.shape[2:], self.stride, self.dilation)
        )
        return Window(kernel, stride, dilation, around)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Scale * conv(pad(x), signs) + bias."""
        dims, channels = len(self.shape), self.shape[1] * self.groups
        if x.dim() not in (dims, dims - 1) or x.shape[1 - dims] != channels:
            raise ValueError(
                f"this layer takes images of {channels} channels in {dims} dimensions, "
                f"and the input has the shape {tuple(x.shape)}"
            )
        if x.dim() == dims - 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if self.mode != "zeros":
            x = functional.pad(x, self.border, mode=self.mode)
        if not _takes(x, self):
            return self.by_torch(x, self._torch_convolution)
        image = (x.unsqueeze(2) if dims == 3 else x).detach()
        out = self._convolve(image)
        return out.squeeze(2) if dims == 3 else out

    def _convolve(self, image: Tensor) -> Tensor:
        window = self.window
        top, bottom, left, right = window.padding
        sizes = image.shape[2] + top + bottom, image.shape[3] + left + right
        spans = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel, strict=True)]
        if sizes[0] < spans[0] or sizes[1] < spans[1]:
            raise ValueError(
                f"the window of this layer spans {spans[0]}x{spans[1]} pixels, and the input has "
                f"{sizes[0]}x{sizes[1]} with its border: give larger images"
            )
        if torch.compiler.is_compiling():
            return ops.convolve(image, *self._arguments(), ops.flat(window))
        kernel = self.kernel
        assert kernel is not None
        return kernel.convolve(image, window)

    def _torch_convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.mode == "zeros" and any(self.border):
            x = functional.pad(x, self.border, value=self.pad_value if self.form.binary else 0.0)
        convolve = functional.conv1d if len(self.shape) == 3 else functional.conv2d
        return convolve(x, weight, bias, self.stride, 0, self.dilation, self.groups)


class PackedConv1d(_PackedConv):
    """A 1-d convolution in bits."""


class PackedConv2d(_PackedConv):
    """A 2-d convolution in bits."""
