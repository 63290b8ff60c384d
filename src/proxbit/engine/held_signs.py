"""The signs of one weight, held once: in the order of a file, or in the order that kernels read.

A kernel reads bits in its own order, and a file has them in row-major order. To hold both
would double the memory of a network; so once a kernel has its order, the other is made from it
again when somebody asks, to save the network or to unpack the weight.
"""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxbit.engine.forms import PackedForm, lay_out, read_out
from proxbit.kernels import inference as kernels


class HeldSigns:
    """The bits of one weight; layers that share the weight share this."""

    def __init__(self, bits: Tensor, shape: tuple[int, ...]) -> None:
        """Take the signs in row-major order, eight to a byte."""
        self.shape = shape
        self._bits: Tensor | None = bits
        self._laid: dict[PackedForm, Tensor] = {}
        self._lent: weakref.ref[Tensor] | None = None
        self._by: Any = None  # the library that laid them out
        self.device = bits.device

    @property
    def bits(self) -> Tensor:
        """The signs as a file has them; the same tensor as long as somebody holds it."""
        held, lent = self._bits, self._lent() if self._lent is not None else None
        if held is not None or lent is not None:
            return held if held is not None else lent  # type: ignore[return-value]
        form, laid = next(iter(self._laid.items()))
        with torch.inference_mode(False):
            bits = stream_of(read_out(laid, form, self._by), self.shape, form)
        self._lent = weakref.ref(bits)
        return bits

    @property
    def identity(self) -> int:
        """The number that weights with one tensor of bits share before they are laid out."""
        return id(self if self._bits is None else self._bits)

    def laid_out(self, form: PackedForm) -> Tensor:
        """The signs in the order in which the kernel of this form reads them."""
        form = in_order(form)
        laid = self._laid.get(form)
        if laid is None:
            with torch.inference_mode(False), torch.no_grad():
                laid = lay_out(rows_from(self.bits, self.shape, form), form)
            self._laid, self._by = self._laid | {form: laid}, kernels.library()
            self._bits = None
        return laid

    def moved(self, bits: Tensor) -> None:
        """Replace the old bits by these."""
        self._bits, self._laid, self._lent, self.device = bits, {}, None, bits.device

    def __deepcopy__(self, memo: dict[int, Any]) -> HeldSigns:
        return HeldSigns(copy.deepcopy(self.bits, memo), self.shape)

    def __reduce__(self) -> Any:
        """Pickle the bits in the order of a file: another process may have other kernels."""
        return _sent, (self.bits.cpu().numpy().tobytes(), str(self.device), self.shape)


def _sent(data: bytes, device: str, shape: tuple[int, ...]) -> HeldSigns:
    return HeldSigns(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), shape)


def in_order(form: PackedForm) -> PackedForm:
    """The form with the numbers alone that the order of the bits depends on."""
    return PackedForm(form.outputs, form.products, form.groups, form.binary, taps=form.taps)


def rows_from(bits: Tensor, shape: tuple[int, ...], form: PackedForm) -> Tensor:
    """Rows of bits, one per output: positions of a window first, then channels.

    With binary inputs, the channels of each position begin with a new byte.
    """
    products, taps = form.products, form.taps
    if taps == 1 and products % 8 == 0:
        return bits.reshape(shape[0], products // 8)
    signs = np.unpackbits(bits.numpy(), bitorder="little")[: math.prod(shape)]
    moved = signs.reshape(shape[0], products // taps, taps).transpose(0, 2, 1)
    flat = moved if form.binary else moved.reshape(shape[0], 1, products)
    packed = np.packbits(flat, axis=-1, bitorder="little")
    return torch.from_numpy(packed.reshape(shape[0], -1))


def stream_of(rows: Tensor, shape: tuple[int, ...], form: PackedForm) -> Tensor:
    """The reverse of :func:`rows_from`."""
    products, taps = form.products, form.taps
    if taps == 1 and products % 8 == 0:
        return rows.reshape(-1)
    channels = products // taps
    parts, each = (taps, channels) if form.binary else (1, products)
    packed = rows.numpy().reshape(shape[0], parts, -1)
    signs = np.unpackbits(packed, axis=-1, count=each, bitorder="little")
    moved = signs.reshape(shape[0], taps, channels).transpose(0, 2, 1)
    return torch.from_numpy(np.packbits(moved.reshape(-1), bitorder="little"))
