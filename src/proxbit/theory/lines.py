"""The linear quantizer in panels, one per choice of its two shifts: the paper's figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from proxbit.core.prox import linear_quantizer
from proxbit.theory.pictures import BACKWARD, FORWARD, INK, blank, frame, place
from proxbit.util.figures import check_place, write_figure

if TYPE_CHECKING:
    from proxbit.theory.pictures import Axes, Figure

RHO, VARRHO = "\N{GREEK SMALL LETTER RHO}", "\N{GREEK RHO SYMBOL}"
SHIFTS = ((0.0, 0.2), (0.2, 0.2), (0.2, 0.0))
_SPAN = 1.5
_TINY = 1e-6  # a step to either side of the jump


def draw_linear_quantizer(path: str | Path, panels: Sequence[tuple[float, float]] = SHIFTS) -> None:
    """Draw the linear quantizer for several (rho, varrho) side by side; the paper's by default.

    Squares are the two values that it quantizes to, triangles are where it reaches them, and at 0 a
    dot is the value taken and a ring the value approached: they lie 2 varrho apart.

    Args:
        path: Where the picture goes, ``.png`` or ``.svg``.
        panels: The two shifts of each panel: how far from +-1 it is flat, how far from 0 it starts.
    """
    check_place(path)
    wrong = [pair for pair in panels if not all(0 <= shift <= 1 for shift in pair)]
    if not panels or wrong:
        raise ValueError(f"a panel is two shifts from 0 to 1, not {wrong[0] if wrong else panels}")
    write_figure(path, lambda: _side_by_side(panels))


def _side_by_side(panels: Sequence[tuple[float, float]]) -> Figure:
    figure = blank(0.25 + 2.05 * len(panels), 2.15)
    for i, (rho, varrho) in enumerate(panels):
        panel = place(figure, 0.35 + 2.05 * i, 0.3, 1.75, 1.55)
        frame(panel, _SPAN, f"{RHO} = {rho:g}, {VARRHO} = {varrho:g}", "w")
        panel.set_ylim(-1.3, 1.3)
        panel.set_xticks([-1, 0, 1])
        panel.set_yticks([-1, 0, 1])
        _line(panel, rho, varrho)
        _marks(panel, rho, varrho)
    return figure


def _values(rho: float, varrho: float, *w: float) -> list[float]:
    """L at some weights, as training computes it."""
    found = linear_quantizer(torch.tensor(w, dtype=torch.float64), rho, varrho)
    return [round(value, 5) + 0.0 for value in found.tolist()]


def _line(panel: Axes, rho: float, varrho: float) -> None:
    """Two halves, each of two straight lines."""
    for side in (-1, 1):
        w = [side * each for each in (_TINY, max(1 - rho, _TINY), _SPAN)]
        panel.plot(w, _values(rho, varrho, *w), color=FORWARD, solid_capstyle="butt")


def _marks(panel: Axes, rho: float, varrho: float) -> None:
    below, above = _values(rho, varrho, -_TINY, 0.0)
    if above - below > 1e-3:
        panel.plot([0], [below], "o", color=FORWARD, markerfacecolor="white", zorder=3)
        panel.plot([0], [above], "o", color=FORWARD, zorder=3)
        panel.text(0.12, below, "p₂⁻", color=INK, va="center")
        panel.text(-0.12, above, "p₂⁺", color=INK, va="center", ha="right")
    if rho:
        panel.plot([rho - 1, 1 - rho], [-1, 1], "^", color=FORWARD, zorder=3)
    panel.plot([-1, 1], [-1, 1], "s", color=BACKWARD, zorder=3)
