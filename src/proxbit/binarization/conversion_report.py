"""The report of ``binarize``, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from proxbit.util.text import alike, pattern, size, smaller, table

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
    groups: dict[tuple[str, str, str], list[LayerLine]] = {}
    for line in lines:
        state = ("binary" if line.binary else "float") + (f": {line.why}" if line.why else "")
        groups.setdefault((pattern(line.name), line.kind, state), []).append(line)
    return [
        (
            alike(line.name for line in group)[0] or "(the model)",
            kind,
            f"{len(group)}x" if len(group) > 1 else "",
            f"{sum(line.weights for line in group):,}",
            state,
        )
        for (_, kind, state), group in groups.items()
    ]
