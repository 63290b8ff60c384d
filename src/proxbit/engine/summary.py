"""The size of a packed network, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.saving import contents
from proxbit.nn.probing import run
from proxbit.packfile.contents import Contents, PackedWeight
from proxbit.packfile.sizes import bytes_of, file_bytes
from proxbit.util.modes import hooked
from proxbit.util.text import alike, grouped, pattern, size, smaller, table


@dataclass(frozen=True)
class Part:
    """One weight or float module of a packed network.

    Attributes:
        name: Name of the module.
        kind: Its class.
        values: How many numbers it holds.
        bits: Bits per number in the file.
        bytes: Its bytes in the file, scales included.
        route: How it computes: "bits", "float" (unpacked, because that is faster here), or "".
        operations: Binary operations for the example; None without one.
    """

    name: str
    kind: str
    values: int
    bits: float
    bytes: int
    route: str = ""
    operations: int | None = None


@dataclass(frozen=True)
class Summary:
    """The whole network.

    Attributes:
        parts: One per module that holds numbers.
        bytes_packed: Bytes of the file that ``save`` makes of it.
        bytes_float: Bytes of the float network.
        bytes_header: Bytes of the file that are names and header, beside the parts.
        operations: Binary operations (products of two bits, or of a bit and a float) for the
            example; None without one.
    """

    parts: tuple[Part, ...]
    bytes_packed: int
    bytes_float: int
    operations: int | None = None
    bytes_header: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller than float."""
        return self.bytes_float / max(1, self.bytes_packed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self) | {"ratio": self.ratio}

    def __str__(self) -> str:
        """The parts, alike ones together, and the sums."""
        rows = [self._row(group) for group in grouped(self.parts, _likeness).values()]
        heads = ("layer", "kind", "", "values", "bits", "bytes", "share", "computes on")
        text = table(heads, rows)
        text += (
            f"\n\n{size(self.bytes_packed)} packed ({size(self.bytes_header)} of them names and "
            f"header), {size(self.bytes_float)} as float32: {smaller(self.ratio)}"
        )
        if self.operations is not None:
            text += f"\n{self.operations:,} binary multiply-adds for the example"
        slow = [part.name for part in self.parts if part.route == "float"]
        if slow:
            text += (
                f"\nnote: {', '.join(alike(slow))} compute unpacked, because that is faster here "
                "or no kernel fits; the file still holds one bit per weight"
            )
        return text

    def _row(self, group: list[Part]) -> tuple[str, ...]:
        """One row of parts that are alike."""
        name, kind, bits, route = _likeness(group[0])
        count = f"{len(group)}x" if len(group) > 1 else ""
        values, held = sum(part.values for part in group), sum(part.bytes for part in group)
        share = f"{held / max(1, self.bytes_packed):.1%}"
        return name, kind, count, f"{values:,}", f"{bits:g}", size(held), share, route


def _likeness(part: Part) -> tuple[str, str, float, str]:
    return pattern(part.name) or "(the model)", part.kind, round(part.bits, 1), part.route


def summary(
    net: nn.Module, example: Any = None, *, float_rest: str = "float32", tables: str = "float"
) -> Summary:
    """Summarize a packed network: bits, bytes and share of each layer, size and operations in all.

    Args:
        net: What :func:`pack` or :func:`load` returned.
        example: An input, to count the operations of one forward.
        float_rest: As for :func:`save`, whose file it describes.
        tables: The same.
    """
    held = contents(net)
    sizes = bytes_of(held, float_rest, tables)
    counts = {} if example is None else _operations(net, example)
    layers = dict(packed_layers(net))
    parts = [_binary_part(weight, net, layers, counts) for weight in held.weights]
    for part in float_parts(held, sizes):
        kind = type(net.get_submodule(part.name)).__name__
        label = f"{part.name}.bias" if part.name in layers else part.name
        parts.append(replace(part, name=label, kind=kind))
    packed = file_bytes(held, float_rest=float_rest, tables=tables)
    header = packed - sum(part.bytes for part in parts)
    binary = sum(4 * math.prod(w.shape) for w in held.weights)
    whole = None if example is None else sum(part.operations or 0 for part in parts)
    return Summary(tuple(parts), packed, binary + held.bytes_rest, whole, header)


def _binary_part(
    weight: PackedWeight, net: nn.Module, layers: dict[str, PackedLayer], counts: dict[str, int]
) -> Part:
    owner = weight.name.rpartition(".")[0]
    at = owner
    if weight.rows is not None or owner not in layers:
        which = 0 if weight.rows is None else weight.rows[0] // weight.shape[0]
        at = f"{owner}.projections.{which}"
    layer = layers.get(at)
    kind = type(layer if layer is not None else net.get_submodule(owner)).__name__
    route = "float" if layer is None else layer.route
    name = weight.label.removesuffix(".weight")
    return Part(name, kind, math.prod(weight.shape), 1, weight.nbytes, route, counts.get(at))


def float_parts(held: Contents, sizes: Mapping[str, int]) -> list[Part]:
    """The tensors that are not binary, those of one module as one part."""
    parts = []
    for owner, names in grouped(held.floats, lambda name: name.rpartition(".")[0]).items():
        values = sum(held.floats[name].numel() for name in names)
        stored = sum(sizes[name] for name in names)
        parts.append(Part(owner, "float", values, 8 * stored / max(1, values), stored))
    return parts


def _operations(net: nn.Module, example: Any) -> dict[str, int]:
    """Products of each packed layer in one forward."""
    counts: dict[str, int] = {}

    def count(name: str, layer: PackedLayer, _: Any, out: torch.Tensor) -> None:
        handed_on = out.dtype == torch.uint8  # bits: the last dim holds the outputs
        outputs = out.numel() // out.shape[-1] * layer.shape[0] if handed_on else out.numel()
        counts[name] = counts.get(name, 0) + outputs * layer.form.products

    hooks = ((layer, partial(count, name)) for name, layer in packed_layers(net))
    with torch.no_grad(), hooked(layer.register_forward_hook(hook) for layer, hook in hooks):
        run(net, example)
    return counts
