"""What ``binarize`` did, as data and as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from proxbit.text import size, table


@dataclass(frozen=True)
class LayerLine:
    """One module that owns weights.

    Attributes:
        name: Name of the module.
        kind: Class of the float module.
        weights: How many weights it owns.
        binary: Whether they are binary now.
        why: Why not, or a remark.
    """

    name: str
    kind: str
    weights: int
    binary: bool
    why: str = ""


@dataclass(frozen=True)
class Report:
    """What became binary, what stayed float and why, and the size when packed.

    Attributes:
        method: Name of the method.
        task: BW, BWA or BWAA.
        layers: One line per module that owns weights.
        bytes_float: Bytes of all parameters and buffers as they are.
        bytes_packed: The same with one bit per binary weight and a float32 scale beside.
        notes: What deserves attention.
    """

    method: str
    task: str
    layers: tuple[LayerLine, ...]
    bytes_float: int
    bytes_packed: int
    notes: tuple[str, ...] = ()

    @property
    def binary(self) -> tuple[LayerLine, ...]:
        """The binary layers."""
        return tuple(line for line in self.layers if line.binary)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A headline, the layers grouped by likeness, the notes."""
        bits = sum(line.weights for line in self.binary)
        every = sum(line.weights for line in self.layers)
        head = (
            f"{self.method}, {self.task}: {len(self.binary)} of {len(self.layers)} layers binary, "
            f"{bits:,} of {every:,} weights\n"
            f"{size(self.bytes_float)} now, {size(self.bytes_packed)} packed: "
            f"{self.bytes_float / max(self.bytes_packed, 1):.1f}x smaller"
        )
        rows = [
            (name, kind, f"{count}x" if count > 1 else "", f"{weights:,}", state)
            for (name, kind, state), (count, weights) in _grouped(self.layers).items()
        ]
        body = table(("layer", "kind", "", "weights", "now"), rows)
        return "\n".join([head, "", body, "", *(f"note: {note}" for note in self.notes)]).rstrip()


def _grouped(lines: tuple[LayerLine, ...]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Lines that differ only by the numbers in their names, counted and summed."""
    groups: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line in lines:
        name = alike([line.name])[0] or "(the model)"
        state = ("binary" if line.binary else "float") + (f": {line.why}" if line.why else "")
        count, weights = groups.get((name, line.kind, state), (0, 0))
        groups[name, line.kind, state] = (count + 1, weights + line.weights)
    return groups


def alike(names: Iterable[str]) -> list[str]:
    """Names that differ only by an index inside them, once each with a star.

    >>> alike(["layer1.0.relu", "layer1.1.relu", "stem"])
    ['layer1.*.relu', 'stem']
    """
    return list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?=\.)", "*", name) for name in names))


def packed_bytes(weights: int, scales: int) -> int:
    """Bytes of one binary weight: its bits, rounded up, and its float32 scales."""
    return math.ceil(weights / 8) + 4 * scales
