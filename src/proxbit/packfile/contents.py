"""The contents of a packed file: binary weights, float tensors, and facts about both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from proxbit.core.weight_layout import Layout
from proxbit.packfile.bits import byte_count, unpack_bits
from proxbit.util.text import grouped, unknown_name_message

TASKS = ("BW", "BWA", "BWAA")
PARTS = ("bits", "scale", "shift")


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """One binary weight: its bits, and what a layer needs to multiply by them.

    Attributes:
        name: Full name of the float tensor in the model, as "layer1.0.conv1.weight".
        shape: Shape of this weight, outputs first; of the covered rows alone where ``rows`` is
            given.
        bits: The signs in row-major order, as :func:`proxbit.packfile.bits.pack_bits` makes them.
        scale: One float32, or one per output channel (shape[0]), in one dimension; None for 1.
        rows: The rows (begin, end) that it covers of the tensor; None for all.
        task: "BW", "BWA" or "BWAA".
        register_bits: Width of the accumulator of BWAA; 0 for exact sums.
        slope: Slope of the cyclic function behind that accumulator.
        pad_value: What a convolution pads its binary input with: 1, -1 or 0.
        shift: Float32 threshold of the binary input per channel (ReAct); None for 0.
        layout: Where the tensor has its outputs; None if they come first.
    """

    name: str
    shape: tuple[int, ...]
    bits: Tensor
    scale: Tensor | None
    rows: tuple[int, int] | None = None
    task: str = "BW"
    register_bits: int = 0
    slope: float = 2.0
    pad_value: float = 1.0
    shift: Tensor | None = None
    layout: Layout | None = None

    @property
    def label(self) -> str:
        """The name with the rows, which no two weights of a model share.

        >>> PackedWeight("in_proj_weight", (2, 4), torch.zeros(1), None, rows=(2, 4)).label
        'in_proj_weight[2:4]'
        """
        return label(self.name, self.rows)

    @property
    def stored(self) -> dict[str, Tensor]:
        """Its tensors, each by its name in a file."""
        parts = ((part, getattr(self, part)) for part in PARTS)
        return {f"{self.label}.{part}": t for part, t in parts if t is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of bits, scale and shift."""
        return sum(t.nbytes for t in self.stored.values())

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of this weight as the model's tensor holds it."""
        return tuple(self.in_place(torch.empty(self.shape, device="meta")).shape)

    def in_place(self, weight: Tensor) -> Tensor:
        """A tensor of this weight's shape, turned to the place of its outputs in the model."""
        return weight if self.layout is None else self.layout.back(weight)

    def dense(self) -> Tensor:
        """The float weight, +-scale, as the model's tensor holds it.

        >>> PackedWeight("w", (1, 2), torch.tensor([1], dtype=torch.uint8), torch.ones(1)).dense()
        tensor([[ 1., -1.]])
        """
        signs = unpack_bits(self.bits, self.shape)
        if self.scale is not None:
            signs = signs * self.scale.reshape(-1, *(1 for _ in self.shape[1:]))
        return self.in_place(signs)


def label(name: str, rows: tuple[int, int] | None) -> str:
    """The name of a weight, with the rows that it covers of its tensor."""
    return name if rows is None else f"{name}[{rows[0]}:{rows[1]}]"


@dataclass(frozen=True)
class About:
    """The facts that a file holds besides its tensors; every value is plain JSON.

    Attributes:
        architecture: How to build the float network; None where only its owner knows.
        replaced: Modules that binarization exchanged, as {"layer1.0.relu": "hardtanh"}.
        method: The method's name, as "BNN++".
        task: "BW", "BWA" or "BWAA".
        labels: Names of the classes, in the order of the outputs.
        input: Shape, mean and std of an input image.
        made_by: The program that wrote the file.
    """

    architecture: dict[str, Any] | None = None
    replaced: dict[str, str] = field(default_factory=dict)
    method: str = ""
    task: str = ""
    labels: tuple[str, ...] | None = None
    input: dict[str, Any] | None = None
    made_by: str = ""

    def told(self, labels: Sequence[str] | None, input: dict[str, Any] | None) -> About:
        """The same facts, with labels and input where they are given."""
        kept = self.labels if labels is None else tuple(labels)
        return replace(self, labels=kept, input=self.input if input is None else input)


@dataclass(frozen=True, eq=False)
class Contents:
    """The whole content of a packed file.

    Attributes:
        weights: The binary weights.
        floats: Every other tensor of the model by name, buffers included.
        about: What is known beside the tensors.
        tied: Other names of these tensors, as {"head.weight": "embedding.weight"}; a binary weight
            goes by its label.
    """

    weights: tuple[PackedWeight, ...]
    floats: dict[str, Tensor]
    about: About = field(default_factory=About)
    tied: dict[str, str] = field(default_factory=dict)

    @property
    def bytes_binary(self) -> int:
        """Bytes of the binary weights: bits, scales and shifts."""
        return sum(w.nbytes for w in self.weights)

    @property
    def bytes_rest(self) -> int:
        """Bytes of all other tensors as they are here; a file may store them smaller."""
        return sum(tensor.nbytes for tensor in self.floats.values())


def check_contents(contents: Contents) -> None:
    """Raise a ValueError with one sentence where weights contradict themselves or each other."""
    for w in contents.weights:
        check_weight(w)
    for name, pieces in grouped(contents.weights, lambda w: w.name).items():
        if name in contents.floats:
            raise ValueError(f"{name!r} is both a binary weight and a float tensor: keep one")
        _require_whole(name, pieces)
    _require_tied(contents)


def _require_tied(contents: Contents) -> None:
    """Require that every other name is new, and stands for a tensor that is there."""
    known = contents.floats.keys() | {w.label for w in contents.weights}
    for name, source in contents.tied.items():
        if name in known or source not in known:
            raise ValueError(
                f"{name[:80]!r} cannot be another name of {source[:80]!r}: it must be new, and "
                "name a tensor that is there"
            )


def _require_whole(name: str, pieces: list[PackedWeight]) -> None:
    """Require that the pieces of one tensor follow each other from row 0 without a gap."""
    at = 0
    for w in sorted(pieces, key=lambda w: w.rows or (0, w.shape[0])):
        begin, end = w.rows or (0, w.shape[0])
        if begin != at or (w.rows is None and len(pieces) > 1):
            raise ValueError(f"the rows of the binary weight {name!r} overlap or leave a gap")
        if w.shape[1:] != pieces[0].shape[1:]:
            raise ValueError(f"the rows of the binary weight {name!r} differ in length")
        at = end


def check_weight(w: PackedWeight) -> None:
    """Raise a ValueError with one sentence where a weight contradicts itself."""
    for problem in chain(_numbers(w), _stream(w), _turned(w), _scale_and_shift(w)):
        raise ValueError(f"the binary weight {w.label!r} {problem}")


def _numbers(w: PackedWeight) -> Iterator[str]:
    if w.task not in TASKS:
        yield f"has an {unknown_name_message('task', w.task, TASKS)}"
    if w.task == "BWAA" and not 2 <= w.register_bits <= 24:
        yield f"has a register of {w.register_bits} bits, not 2 to 24"
    if w.task != "BWAA" and w.register_bits != 0:
        yield f"has a register of {w.register_bits} bits, which {w.task} does not use: give 0"
    if not 0 < w.slope < math.inf:
        yield f"has the slope {w.slope}, not a positive one"
    if w.pad_value not in (-1, 0, 1):
        yield f"has the pad value {w.pad_value}, not 1, -1 or 0"


def _stream(w: PackedWeight) -> Iterator[str]:
    if len(w.shape) < 2 or min(w.shape) < 1:
        yield f"has the shape {w.shape}, not two or more sizes above 0"
    count = math.prod(w.shape)
    if w.bits.dtype != torch.uint8 or tuple(w.bits.shape) != (byte_count(count),):
        given = f"{w.bits.dtype} of shape {tuple(w.bits.shape)}"
        yield f"has bits of {given}, not {byte_count(count)} bytes in one dimension"
    if count % 8 and int(w.bits[-1]) >> count % 8:
        yield f"has ones behind the last of its {count} bits"


def _turned(w: PackedWeight) -> Iterator[str]:
    begin, end = w.rows or (0, w.shape[0])
    if begin < 0 or end - begin != w.shape[0]:
        yield f"covers the rows {begin} to {end}, but has {w.shape[0]} rows"
    layout = w.layout or Layout()
    if (w.layout and w.rows) or layout.groups < 1 or w.shape[0] % layout.groups:
        yield f"has {w.shape[0]} outputs in the layout {w.layout}, which does not fit"


def _scale_and_shift(w: PackedWeight) -> Iterator[str]:
    if w.scale is not None:
        yield from _floats("scale", w.scale, sorted({1, w.shape[0]}))
    if w.shift is not None:
        if w.task == "BW":
            yield "has a shift of its input, but BW has float inputs: give None"
        groups = w.shift.numel() // w.shape[1]  # an input has shape[1] channels in each group
        fits = groups >= 1 and w.shape[0] % groups == 0
        yield from _floats("shift", w.shift, [w.shape[1] * groups if fits else w.shape[1]])


def _floats(what: str, given: Tensor, sizes: list[int]) -> Iterator[str]:
    if given.dtype != torch.float32 or given.dim() != 1 or given.numel() not in sizes:
        wanted = " or ".join(map(str, sizes))
        found = f"{given.dtype} of shape {tuple(given.shape)}"
        yield f"has a {what} of {found}, not {wanted} float32 in one dimension"
    if not bool(given.isfinite().all()):
        yield f"has a {what} that is not finite"
