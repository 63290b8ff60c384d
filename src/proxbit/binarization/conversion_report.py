"""The report of ``binarize``, as data and as text, and the bytes that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from torch import Tensor, nn

from proxbit.binarization.layer_choice import is_lazy
from proxbit.engine.planning import planned_bytes
from proxbit.nn import BinaryWeight
from proxbit.nn.model_weights import binary_weights, once
from proxbit.packfile.bits import byte_count, is_table
from proxbit.util.text import alike, grouped, pattern, percent, size, smaller, table

_COLUMNS = ("layer", "kind", "", "weights", "now")


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

    @property
    def state(self) -> str:
        """Binary, or float and why."""
        return ("binary" if self.binary else "float") + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class Report:
    """The layers that became binary, those that stayed float and why, and the size when packed.

    Attributes:
        method: Name of the method.
        task: BW, BWA or BWAA.
        layers: One line per module that owns weights.
        bytes_float: Bytes of all parameters and buffers as they are.
        bytes_packed: Bytes of the file that ``save`` will make of the packed network.
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
        body = table(_COLUMNS, _rows(self.layers))
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([*self._head(), "", body, "", *notes]).rstrip()

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        head = "<br>".join(escape(line) for line in self._head())
        rows = [_html_row("th", _COLUMNS), *(_html_row("td", row) for row in _rows(self.layers))]
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        return f"<p>{head}</p><table>{''.join(rows)}</table>{notes}"

    def _head(self) -> tuple[str, str]:
        bits = sum(line.weights for line in self.binary)
        every = sum(line.weights for line in self.layers)
        return (
            f"{self.method}, {self.task}: {len(self.binary)} of {len(self.layers)} layers binary, "
            f"{bits:,} of {every:,} weights",
            f"{size(self.bytes_float)} now, {size(self.bytes_packed)} packed: "
            f"{smaller(self.bytes_float / max(self.bytes_packed, 1))}",
        )


def _html_row(tag: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"


def _rows(lines: tuple[LayerLine, ...]) -> list[tuple[str, ...]]:
    """Lines that differ only by the numbers in their names, counted and summed."""
    groups = grouped(lines, lambda line: (pattern(line.name), line.kind, line.state))
    rows: list[tuple[str, ...]] = []
    for (_, kind, state), group in groups.items():
        name = alike(line.name for line in group)[0] or "(the model)"
        weights = sum(line.weights for line in group)
        count = f"{len(group)}x" if len(group) > 1 else ""
        rows.append((name, kind, count, f"{weights:,}", state))
    return rows


_WORTH = 0.8  # of the packed size: what a hint must save


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    return sum(t.nbytes for t in _tensors(model).values())


def packed_size(model: nn.Module, bytes_float: int) -> tuple[int, list[str]]:
    """Bytes of the file to come, and a hint where float tables are most of them."""
    weights = [w for w in once(binary_weights(model)) if w.quantizer.method.binary]
    total = _file_bytes(model, weights, bytes_float)
    binary = {id(weight.parameter) for weight in weights}
    rest = {n: t for n, t in _tensors(model).items() if id(t) not in binary}
    smaller = total - sum(t.nbytes - _smaller(t) for t in rest.values())
    tables = {name: t for name, t in rest.items() if is_table(t)}
    if not weights or not tables or smaller > _WORTH * total:
        return total, []
    name, most = max(tables.items(), key=lambda item: item[1].nbytes)
    return total, [
        f"{percent(most.nbytes / total)} of the packed size is {name!r}, which stays float: saved "
        f"with float_rest 'float16' and tables 'int8' the file has about {size(smaller)}"
    ]


def _file_bytes(model: nn.Module, weights: list[BinaryWeight], bytes_float: int) -> int:
    """Bytes of the file, exact; an estimate where no file can be made of this model."""
    try:
        return planned_bytes(model) if weights else bytes_float
    except Exception:  # a size must not keep anybody from training
        return bytes_float - sum(_saving(weight) for weight in weights)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a state_dict would hold, each once, by the first of its names."""
    every = [*model.named_parameters(), *model.named_buffers()]
    return {name: t for name, t in every if not is_lazy(t)}


def _smaller(t: Tensor) -> int:
    if not t.is_floating_point():
        return t.nbytes
    if is_table(t):
        return t.numel() + 4 * t.shape[0]
    return min(t.nbytes, 2 * t.numel())


def _saving(weight: BinaryWeight) -> int:
    """Bytes that packing one weight saves: its bits, rounded up, and float32 scales are left."""
    w, method = weight.latent, weight.quantizer.method
    scales = {"none": 0, "layer": 1, "channel": w.shape[0]}
    count = scales["none" if method.scale.kind == "none" else method.scale.per]
    return w.nbytes - byte_count(w.numel()) - 4 * count
