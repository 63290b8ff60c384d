"""Networks of packed files: a file's own description, and the packed or float network in it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.engine.loading import LARGEST_SIDE, rebuild
from proxbit.engine.packing import find_precision
from proxbit.engine.summary import Part, Summary, float_parts
from proxbit.models import build
from proxbit.packfile.container import read_container
from proxbit.packfile.contents import About, Contents, PackedWeight
from proxbit.packfile.file import read
from proxbit.packfile.header import VERSION
from proxbit.util.text import few, grouped, saying, smaller, visible

_KINDS = {2: "linear", 3: "conv1d", 4: "conv2d"}


@dataclass(frozen=True)
class Inspection:
    """The description that a packed file gives of itself, without its network.

    Attributes:
        path: Where it lies.
        bytes: Its size, names and header included.
        about: Architecture, method, task, labels, input and the program that made it.
        accumulator: Width and slope of the register of BWAA; None for exact sums.
        summary: Its tensors as they are stored.
    """

    path: str
    bytes: int
    about: About
    accumulator: tuple[int, float] | None
    summary: Summary

    @property
    def ratio(self) -> float:
        """How many times smaller the whole file is than the float32 network."""
        return self.summary.bytes_float / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        sizes = {"format": VERSION, "bytes": self.bytes, "ratio": self.ratio}
        kept = ("name", "kind", "values", "bits", "bytes")
        layers = [{name: getattr(part, name) for name in kept} for part in self.summary.parts]
        tensors = {"bytes_float": self.summary.bytes_float, "layers": layers}
        register = {"accumulator": self.accumulator}
        return {"file": self.path} | sizes | asdict(self.about) | register | tensors

    def __str__(self) -> str:
        """One line per fact, the tensors, the size."""
        about, none = self.about, "not in the file"
        register = "exact sums"
        if self.accumulator is not None:
            register = f"{self.accumulator[0]} bits, slope {self.accumulator[1]:g}"
        labels = none if about.labels is None else f"{len(about.labels)}: {few(about.labels, 5)}"
        facts = {
            "file": f"{self.path}, format {VERSION}, {about.made_by or 'maker unknown'}",
            "architecture": _plain(about.architecture) or none,
            "replaced": _plain(about.replaced),
            "method": f"{about.method or none}, {about.task or none}",
            "accumulator": register,
            "labels": labels,
            "input": _plain(about.input) or none,
        }
        lines = [f"{name:<13}{visible(fact)}" for name, fact in facts.items() if fact]
        return "\n".join([*lines, "", str(self.summary), self.size_line])

    @property
    def size_line(self) -> str:
        """The true size beside the float one."""
        held = self.summary.bytes_float
        return f"the file: {self.bytes:,} bytes, {held:,} as float32: {smaller(self.ratio)}"


def _plain(given: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in (given or {}).items())


def _short(value: Any) -> str:
    """A value of a header as people read it, numbers to four digits."""
    if isinstance(value, list):
        return f"({', '.join(_short(each) for each in value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def inspect_file(path: str | Path) -> Inspection:
    """Look into a packed file; its network is not built, so it may be an unknown one."""
    held = read(path)
    places = read_container(Path(path)).places
    stored = {name: place.stop - place.start for name, place in places.items()}
    sizes = {name: _stored_bytes(name, stored) for name in held.floats}
    parts = [*map(_binary_part, held.weights), *float_parts(held, sizes)]
    length = Path(path).stat().st_size
    binary = sum(4 * math.prod(w.shape) for w in held.weights)
    header = length - sum(part.bytes for part in parts)
    summary = Summary(tuple(parts), length, binary + held.bytes_rest, bytes_header=header)
    registers = [(w.register_bits, w.slope) for w in held.weights if w.register_bits]
    return Inspection(str(path), length, held.about, next(iter(registers), None), summary)


def _binary_part(w: PackedWeight) -> Part:
    kind = _KINDS.get(len(w.shape), "other")
    return Part(w.label.removesuffix(".weight"), kind, math.prod(w.shape), 1, w.nbytes)


def _stored_bytes(name: str, stored: dict[str, int]) -> int:
    if name in stored:
        return stored[name]
    return stored[f"{name}.int8"] + stored[f"{name}.scale"]


def packed_network(
    path: str | Path,
    held: Contents,
    skeleton: str | None = None,
    precision: str = "exact",
    largest_side: int = LARGEST_SIDE,
) -> nn.Module:
    """The packed network of a file, its architecture from the file or from ``skeleton``.

    It is left for :func:`proxbit.engine.packing.finish`, which makes it fast for an example.

    Args:
        path: Where it lies, for messages.
        held: What it holds.
        skeleton: FILE.py:FUNCTION or a model's name; needed where the file has no architecture.
        precision: As for :func:`proxbit.load`.
        largest_side: As for :func:`proxbit.load`.
    """
    find_precision(precision)
    with saying(f"cannot load '{path}'"):  # it can fail to build in many ways
        return rebuild(held, _skeleton(held.about, skeleton), precision, largest_side)


def float_network(
    path: str | Path,
    held: Contents,
    skeleton: str | None = None,
    largest_side: int = LARGEST_SIDE,
) -> nn.Module:
    """The float architecture of a file with its hard weights, as plain torch computes it."""
    pieces = grouped(held.weights, lambda weight: weight.name)
    dense = {name: _dense(found) for name, found in pieces.items()}
    with saying(f"cannot load '{path}'"):
        plain = replace(held, weights=(), floats=held.floats | dense)
        return rebuild(plain, _skeleton(held.about, skeleton), largest_side=largest_side)


def _dense(pieces: list[PackedWeight]) -> Tensor:
    """The whole float tensor of the binary weights that are its rows."""
    return torch.cat([w.dense() for w in sorted(pieces, key=lambda w: w.rows or (0, 0))])


def _skeleton(about: About, spec: str | None) -> nn.Module | None:
    """The float model that was named; None where the file knows how to build its own."""
    known = dict(about.architecture or {})
    name = str(known.pop("name", ""))
    if spec is None:
        if not name or ".py" in name:
            source = f"its network comes from {name}" if name else "it has no architecture"
            raise ValueError(f"{source}: give the float model as --skeleton FILE.py:FUNCTION")
        return None
    if ".py" in name:
        return build(spec, **known)
    return build(spec, classes=len(about.labels)) if about.labels else build(spec)


def refusing_shape(shape: tuple[int, ...]) -> AbstractContextManager[None]:
    """Say in one sentence that a network does not take an input: a transformer asserts its size."""
    return saying(f"the network does not take an input of shape {tuple(shape)}")
