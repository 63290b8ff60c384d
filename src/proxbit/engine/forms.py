"""The plain numbers of a packed product, and the kernels bound to its tensors."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxbit.engine.tails import follow
from proxbit.kernels import inference as kernels
from proxbit.packfile.bits import byte_count

MOST_PRODUCTS = 65_504  # what the kernels of binary inputs can count
MOST_TAPS = 127  # what the kernel of depthwise convolutions can count
EXACT, INPUT8 = 0, 1


class ConvGeometry(NamedTuple):
    """The geometry of a convolution in two dimensions; a 1-d one has height 1."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, bottom, left, right

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        top, bottom, left, right = self.padding
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        high, wide = height + top + bottom, width + left + right
        if high < spans[0] or wide < spans[1]:
            raise ValueError(
                f"the window of this layer spans {spans[0]}x{spans[1]} pixels, and the input has "
                f"{high}x{wide} with its border: give larger images"
            )
        return (high - spans[0]) // self.stride[0] + 1, (wide - spans[1]) // self.stride[1] + 1


class PackedForm(NamedTuple):
    """The plain numbers of one packed product, without its tensors.

    Attributes:
        outputs: Outputs of one group.
        products: Products per output.
        groups: Groups of a convolution.
        binary: Whether the inputs become signs (BWA, BWAA).
        register_bits: Width of the register that wraps sums; 0 for exact sums.
        slope: Slope of the cyclic function behind the register.
        pad_bit: What lies outside a binary image: 1 for +1, 0 for -1.
        precision: EXACT, or INPUT8 for float inputs rounded to 8 bits.
        taps: Positions of the window, 1 for a linear layer.
        activation: What follows scale and bias: 0 nothing, 1 ReLU, 2 GELU, 3 Hardtanh.
    """

    outputs: int
    products: int
    groups: int = 1
    binary: bool = False
    register_bits: int = 0
    slope: float = 2.0
    pad_bit: int = 1
    precision: int = EXACT
    taps: int = 1
    activation: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of bits: with binary inputs, each position begins with a new byte."""
        if self.binary:
            return self.taps * byte_count(self.products // self.taps)
        return byte_count(self.products)

    @property
    def depthwise(self) -> bool:
        """Whether binary inputs meet one window per channel, which has a kernel of its own."""
        alone = self.groups > 1 and self.outputs == 1 and self.products == self.taps
        return self.binary and alone and self.taps <= MOST_TAPS

    @property
    def takes_bits(self) -> bool:
        """Whether its kernel takes inputs and gives outputs as bits."""
        return self.binary and (self.groups == 1 or self.depthwise)

    @property
    def served(self) -> bool:
        """Whether there is a kernel for it."""
        return not self.binary or 8 * self.row_bytes <= MOST_PRODUCTS


def lay_out(rows: Tensor, form: PackedForm) -> Tensor:
    """Rows of bits, [groups * outputs, row_bytes], in the order in which the kernels read them."""
    if form.depthwise:  # from [channels, taps], a byte each, to a bit each, [taps, channels]
        signs = np.ascontiguousarray(rows.numpy().reshape(form.groups, form.taps).T)
        return torch.from_numpy(np.packbits(signs, axis=1, bitorder="little"))
    lib = kernels.library()
    make = lib.pb_make_panels if form.binary else lib.pb_make_weights
    laid = torch.empty(form.groups, _panel_bytes(form), dtype=torch.uint8)
    for group, out in zip(rows.chunk(form.groups), laid, strict=True):
        own = group.contiguous()
        kernels.check(make(own.data_ptr(), form.outputs, _length(form), out.data_ptr()))
    return laid


def read_out(laid: Tensor, form: PackedForm, lib: Any) -> Tensor:
    """The reverse of :func:`lay_out`, by the library that laid them out."""
    if form.depthwise:
        signs = np.unpackbits(laid.numpy(), axis=1, count=form.groups, bitorder="little")
        return torch.from_numpy(np.ascontiguousarray(signs.T))
    read = lib.pb_read_panels if form.binary else lib.pb_read_weights
    rows = torch.empty(form.groups, form.outputs, form.row_bytes, dtype=torch.uint8)
    for group, out in zip(laid, rows, strict=True):
        kernels.check(read(group.data_ptr(), form.outputs, _length(form), out.data_ptr()))
    return rows.flatten(0, 1)


def _length(form: PackedForm) -> int:
    """The length of a row: in bytes with binary inputs, in bits with float ones."""
    return form.row_bytes if form.binary else form.products


def _panel_bytes(form: PackedForm) -> int:
    """Bytes of one group's weights as the kernels read them."""
    lib = kernels.library()
    count = lib.pb_panel_bytes if form.binary else lib.pb_weight_bytes
    return int(count(form.outputs, _length(form)))


def _laid_bytes(form: PackedForm) -> int:
    """Bytes of all groups' weights as the kernels read them."""
    if form.depthwise:
        return form.taps * byte_count(form.groups)
    return form.groups * _panel_bytes(form)


def _require_lengths(
    form: PackedForm, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
    bounds: tuple[Tensor, ...],
) -> None:  # fmt: skip
    """Refuse tensors that a kernel would read past the end of, and name the wrong one.

    The kernels check the same lengths once more, but can only say that something does not fit.
    """
    width, channels = form.outputs * form.groups, form.products // form.taps * form.groups
    lengths = {"scales": (scale, width), "biases": (bias, width), "thresholds": (shift, channels)}
    lengths |= {f"bounds {i}": (each, width) for i, each in enumerate(bounds)}
    lengths["panels"] = (laid, _laid_bytes(form))
    for what, (tensor, length) in lengths.items():
        if tensor is not None and tensor.numel() != length:
            raise ValueError(f"this layer has {length} {what}, not {tensor.numel()}")


def _given(tensor: Tensor | None) -> tuple[int | None, int]:
    """Address and length, as C takes them; None and 0 for an absent tensor."""
    return (None, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())


class Kernel:
    """One packed product, ready to be called: it owns what the C structure points to."""

    def __init__(
        self,
        form: PackedForm,
        laid: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        shift: Tensor | None,
        bounds: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """Fill the structure; every tensor is contiguous and on the CPU.

        ``laid`` is uint8, scale, bias and shift are float32. With ``bounds`` (int32, int32, uint8)
        the outputs are bits: ``(low <= sum < high) != flip``.
        """
        _require_lengths(form, laid, scale, bias, shift, bounds or ())
        self.form, self.lib = form, kernels.library()
        self.owned, self.bounds = (laid, scale, bias, shift), bounds
        self.width = form.outputs * form.groups
        tensors = *_given(laid), *_given(scale), *_given(bias)
        self.layer: Any
        if form.binary:
            low, high, flip = (t.data_ptr() for t in bounds) if bounds else (None, None, None)
            self.layer = kernels.Binary(
                form.outputs, form.row_bytes, form.products, form.groups, *tensors, *_given(shift),
                form.register_bits, form.slope, 0, low, high, flip, self.width if bounds else 0,
            )  # fmt: skip
        else:
            self.layer = kernels.Weight(
                form.outputs, form.products, form.groups, *tensors, form.activation, form.precision
            )
        self.pointer = ctypes.byref(self.layer)
        self.convolve_bits = (
            self.lib.pb_depthwise_conv if form.depthwise else self.lib.pb_binary_conv
        )
        self._seen: tuple[Any, Any, tuple[int, ...]] = (None, None, ())

    def linear(self, x: Tensor, then: kernels.Following | None = None) -> Tensor:
        """The product with rows of floats, [rows, products], or of bits, [rows, row_bytes]."""
        rows = x.shape[0]
        if not rows:
            return self._empty(0)
        if self.bounds is not None or x.dtype == torch.uint8:
            return self._linear_bits(x, rows, then)
        # Written out: a small layer takes microseconds, and so does every call on the way to it.
        out = torch.empty((rows, self.width))
        if self.form.binary:
            code = self.lib.pb_binary_linear(
                self.pointer, x.data_ptr(), x.stride(0), None, rows, x.shape[1], out.data_ptr(),
                None, rows * self.width, then, torch.get_num_threads(),
            )  # fmt: skip
        else:
            code = self.lib.pb_weight_linear(
                self.pointer, x.data_ptr(), x.stride(0), rows, x.shape[1], out.data_ptr(),
                rows * self.width, torch.get_num_threads(),
            )  # fmt: skip
        if code:
            kernels.check(code)
        if then is not None and not self.form.binary:
            follow(out, then)
        return out

    def _linear_bits(self, x: Tensor, rows: int, then: kernels.Following | None) -> Tensor:
        out = self._empty(rows)
        code = self.lib.pb_binary_linear(
            self.pointer, *self._taken(x, x.stride(0)), rows, x.shape[1], *self._taking(out),
            out.numel(), then, torch.get_num_threads(),
        )  # fmt: skip
        kernels.check(code)
        return out

    def convolve(
        self, x: Tensor, window: ConvGeometry, then: kernels.Following | None = None
    ) -> Tensor:
        """The convolution of images, and what follows; the result has its channels last in memory.

        Images are floats [batch, channels, height, width], or bits [batch, height, width, bytes].
        """
        x = x.contiguous() if x.dtype == torch.uint8 else x
        place, sizes = self._window(x, window)
        threads = torch.get_num_threads()
        out = self._image(*sizes)
        if not x.shape[0]:
            code = 0
        elif not self.form.binary:
            code = self.lib.pb_weight_conv(
                self.pointer, place, x.data_ptr(), out.data_ptr(), threads
            )
        else:
            code = self.convolve_bits(
                self.pointer, place, *self._taken(x), *self._taking(out), then, threads
            )
        if code:
            kernels.check(code)
        if then is not None and not self.form.binary:
            follow(out.permute(0, 2, 3, 1), then)
        return out

    def out_sizes(self, x: Tensor, window: ConvGeometry) -> tuple[int, ...]:
        """Batch, height and width of the convolution."""
        return self._window(x, window)[1]

    def _image(self, batch: int, height: int, width: int) -> Tensor:
        """Memory for an image of bits, or of floats with the channels last, by one call."""
        if self.bounds is not None:
            return self._empty(batch, height, width)
        line = width * self.width
        return torch.empty_strided(
            (batch, self.width, height, width), (height * line, 1, line, self.width)
        )

    def _empty(self, *sizes: int) -> Tensor:
        if self.bounds is None:
            return torch.empty(*sizes, self.width)
        return torch.empty(*sizes, byte_count(self.width), dtype=torch.uint8)

    def _taken(self, x: Tensor, *stride: int) -> tuple[int | None, ...]:
        """Floats and their stride, or bits."""
        if x.dtype == torch.uint8:
            return None, *(0 for _ in stride), x.data_ptr()
        return x.data_ptr(), *stride, None

    def _taking(self, out: Tensor) -> tuple[int | None, int | None]:
        return (None, out.data_ptr()) if self.bounds is not None else (out.data_ptr(), None)

    def _window(self, x: Tensor, window: ConvGeometry) -> tuple[Any, tuple[int, ...]]:
        """The C structure and the sizes of the output; those of the last call, if it was alike."""
        known, place, sizes = self._seen
        asked = (x.shape, x.stride(), window)
        if asked == known:
            return place, sizes
        if x.dtype == torch.uint8:
            batch, height, width, _ = x.shape
            channels = self.form.products // self.form.taps * self.form.groups
        else:
            batch, channels, height, width = x.shape
        sizes = (batch, *window.out_size(height, width))
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        wide = self.width if self.bounds is None else byte_count(self.width)
        seen = kernels.Window(
            batch, channels, height, width, *x.stride(), *window.kernel, *window.stride,
            *window.dilation, *window.padding, self.form.pad_bit, last + 1, math.prod(sizes) * wide,
        )  # fmt: skip
        place = ctypes.byref(seen)
        self._seen = asked, place, sizes  # one store: other threads see all of it or nothing
        return place, sizes
