"""The plain numbers of a packed product, and the kernels bound to its tensors."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxbit.engine import kernels
from proxbit.engine.bits import byte_count

MOST_PRODUCTS = 65_504  # what the kernels of binary inputs can count
EXACT, INPUT8 = 0, 1


class Window(NamedTuple):
    """The geometry of a convolution in two dimensions; a 1-d one has height 1."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, bottom, left, right

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        top, bottom, left, right = self.padding
        sizes = (height + top + bottom, width + left + right)
        found = [
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(sizes, self.kernel, self.stride, self.dilation, strict=True)
        ]
        return found[0], found[1]


class Form(NamedTuple):
    """What one packed product does, beside its tensors.

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

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of bits: with binary inputs, each position begins with a new byte."""
        if self.binary:
            return self.taps * byte_count(self.products // self.taps)
        return byte_count(self.products)

    @property
    def served(self) -> bool:
        """Whether there is a kernel for it."""
        return not self.binary or 8 * self.row_bytes <= MOST_PRODUCTS


def lay_out(rows: Tensor, form: Form) -> Tensor:
    """Rows of bits, [groups * outputs, row_bytes], in the order in which the kernels read them."""
    lib = kernels.library()
    size, make = (
        (lib.pb_panel_bytes(form.outputs, form.row_bytes), lib.pb_make_panels)
        if form.binary
        else (lib.pb_weight_bytes(form.outputs, form.products), lib.pb_make_weights)
    )
    laid = torch.empty(form.groups, size, dtype=torch.uint8)
    length = form.row_bytes if form.binary else form.products
    for group, out in zip(rows.chunk(form.groups), laid, strict=True):
        own = group.contiguous()
        kernels.check(make(own.data_ptr(), form.outputs, length, out.data_ptr()))
    return laid


class Kernel:
    """One packed product, ready to be called: it owns what the C structure points to."""

    def __init__(
        self, form: Form, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> None:
        """Fill the structure; every tensor is float32 (``laid``: uint8), contiguous, on the CPU."""
        self.form, self.lib = form, kernels.library()
        self.owned = laid, scale, bias, shift
        self.width = form.outputs * form.groups
        pointers = laid.data_ptr(), scale.data_ptr(), None if bias is None else bias.data_ptr()
        self.shift = None if shift is None else shift.data_ptr()
        self.layer: Any
        if form.binary:
            self.layer = kernels.Binary(
                form.outputs, form.row_bytes, form.products, form.groups, *pointers,
                form.register_bits, form.slope,
            )  # fmt: skip
        else:
            self.layer = kernels.Weight(
                form.outputs, form.products, form.groups, *pointers, 0, form.precision
            )
        self.pointer = ctypes.byref(self.layer)

    def linear(self, x: Tensor) -> Tensor:
        """The product with rows of floats, [rows, products]."""
        out = torch.empty(x.shape[0], self.width)
        threads = torch.get_num_threads()
        if self.form.binary:
            code = self.lib.pb_binary_linear(
                self.pointer, x.data_ptr(), x.stride(0), self.shift, None, x.shape[0],
                out.data_ptr(), None, threads,
            )  # fmt: skip
        else:
            code = self.lib.pb_weight_linear(
                self.pointer, x.data_ptr(), x.stride(0), x.shape[0], out.data_ptr(), threads
            )
        if code:
            kernels.check(code)
        return out

    def convolve(self, x: Tensor, window: Window) -> Tensor:
        """The convolution of images [batch, channels, height, width]; channels last in memory."""
        batch, channels, height, width = x.shape
        out = torch.empty(batch, *window.out_size(height, width), self.width)
        seen = kernels.Window(
            batch, channels, height, width, *x.stride(), *window.kernel, *window.stride,
            *window.dilation, *window.padding, self.form.pad_bit,
        )  # fmt: skip
        place, threads = ctypes.byref(seen), torch.get_num_threads()
        if self.form.binary:
            code = self.lib.pb_binary_conv(
                self.pointer, place, x.data_ptr(), self.shift, None, out.data_ptr(), None, threads
            )
        else:
            code = self.lib.pb_weight_conv(
                self.pointer, place, x.data_ptr(), out.data_ptr(), threads
            )
        kernels.check(code)
        return out.permute(0, 3, 1, 2)
