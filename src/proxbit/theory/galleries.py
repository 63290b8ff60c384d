"""Many pairs in one figure: the paper's figures 1, 4 and 5, the catalogue, the linear quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from proxbit.core import pairs
from proxbit.core.pairs import Pair
from proxbit.core.prox import linear_quantizer
from proxbit.theory import pictures
from proxbit.theory.layout import lay_out
from proxbit.theory.verdict import check
from proxbit.util.figures import check_place, write_figure

if TYPE_CHECKING:
    from proxbit.theory.pictures import Axes, Figure


RHO, VARRHO = "\N{GREEK SMALL LETTER RHO}", "\N{GREEK RHO SYMBOL}"
SHIFTS = ((0.0, 0.2), (0.2, 0.2), (0.2, 0.0))
_LINE_SPAN = 1.5
_TINY = 1e-6  # a step to either side of the jump


@dataclass(frozen=True)
class Shown:
    """One pair of a gallery, at one strength.

    Attributes:
        label: What stands above it.
        pair: The pair.
        strength: Its strength.
        detail: Its settings, beside the label.
    """

    label: str
    pair: Pair
    strength: float = 1.0
    detail: str = ""


def _shown_line(rho: float, varrho: float) -> Shown:
    return Shown("LQ", pairs.prox_connect(varrho), rho, f"{RHO} = {rho:g}, {VARRHO} = {varrho:g}")


FIGURE_1 = (
    Shown("FP", pairs.full_precision),
    Shown("BC", pairs.binary_connect),
    Shown("PC", pairs.prox_connect(), 0.3, f"{RHO} = 0.3"),
    Shown("BNN", pairs.bnn),
    Shown("BNN+", pairs.bnn_plus, 5.0, "µ = 5"),
    Shown("BNN++", pairs.bnn_plus_plus, 5.0, "µ = 5"),
)
FIGURE_4 = tuple(_shown_line(*shifts) for shifts in SHIFTS)
FIGURE_5 = (
    Shown("Bi-Real", pairs.bi_real),
    Shown("R-BNN", pairs.r_bnn, 2.0, "s = 2"),
    Shown("Poly+", pairs.poly_plus, 2.0, "s = 2"),
    Shown("EDE", pairs.ede, 2.0, "s = 2"),
    Shown("EDE+", pairs.ede_plus, 2.0, "s = 2"),
    Shown("ReAct", pairs.shifted(pairs.bnn, 0.5), detail="a = 0.5"),
)
OURS = (Shown("BNN++", pairs.monotone_bnn_plus_plus, 5.0, "monotone"),)
CATALOGUE = (*FIGURE_1, *FIGURE_5, *FIGURE_4, *OURS)


def gallery(path: str | Path, shown: Sequence[Shown] = CATALOGUE, columns: int = 6) -> None:
    """Draw many pairs in one figure, F above B; by default those of the paper's figures 1, 5 and 4.

    Args:
        path: Where the picture goes, ``.png`` or ``.svg``.
        shown: The pairs, such as ``FIGURE_1`` or your own.
        columns: How many stand side by side.
    """
    check_place(path)
    if not shown or columns < 1:
        raise ValueError("a gallery needs at least one pair and one column")
    verdicts = [check(one.pair, one.strength).answer for one in shown]
    write_figure(path, lambda: _of_many(shown, verdicts, columns))


def _of_many(shown: Sequence[Shown], verdicts: Sequence[str], columns: int) -> Figure:
    columns = min(columns, len(shown))
    blocks = -(-len(shown) // columns)
    figure = pictures.blank(0.3 + 1.3 * columns, 2.35 * blocks)
    for i, (one, verdict) in enumerate(zip(shown, verdicts, strict=True)):
        x = 0.5 + 1.3 * (i % columns)
        y = 2.35 * (blocks - 1 - i // columns)
        forward = pictures.place(figure, x, y + 1.27, 1.02, 0.83)
        backward = pictures.place(figure, x, y + 0.33, 1.02, 0.83)
        _one_of_many(forward, backward, one, verdict)
        if i % columns == 0:
            for panel, name, color in (
                (forward, "F", pictures.FORWARD),
                (backward, "B", pictures.BACKWARD),
            ):
                panel.set_ylabel(name, color=color, fontweight="bold", fontsize=9, rotation=0)
                panel.yaxis.set_label_coords(-0.38, 0.43)
    return figure


def _one_of_many(forward: Axes, backward: Axes, one: Shown, verdict: str) -> None:
    axis = lay_out(one.pair, one.strength)
    pictures.forward_and_backward((forward, backward), axis, pictures.SPAN)
    forward.set_title(one.label, loc="left", color=pictures.INK, pad=4)
    forward.set_title(one.detail, loc="right", color="#555555", pad=4, fontsize=6.5)
    forward.set_ylim(-1.6, 1.6)
    forward.set_yticks([-1, 0, 1])
    forward.tick_params(labelbottom=False)
    forward.set_xlabel("")
    backward.set_title("", loc="left")
    backward.set_xlabel(verdict, fontweight="normal" if verdict == "admitted" else "bold")
    pictures.room(backward)


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
    figure = pictures.blank(0.25 + 2.05 * len(panels), 2.15)
    for i, (rho, varrho) in enumerate(panels):
        panel = pictures.place(figure, 0.35 + 2.05 * i, 0.3, 1.75, 1.55)
        pictures.frame(panel, _LINE_SPAN, f"{RHO} = {rho:g}, {VARRHO} = {varrho:g}", "w")
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
        w = [side * each for each in (_TINY, max(1 - rho, _TINY), _LINE_SPAN)]
        panel.plot(w, _values(rho, varrho, *w), color=pictures.FORWARD, solid_capstyle="butt")


def _marks(panel: Axes, rho: float, varrho: float) -> None:
    below, above = _values(rho, varrho, -_TINY, 0.0)
    if above - below > 1e-3:
        panel.plot([0], [below], "o", color=pictures.FORWARD, markerfacecolor="white", zorder=3)
        panel.plot([0], [above], "o", color=pictures.FORWARD, zorder=3)
        panel.text(0.12, below, "p₂⁻", color=pictures.INK, va="center")
        panel.text(-0.12, above, "p₂⁺", color=pictures.INK, va="center", ha="right")
    if rho:
        panel.plot([rho - 1, 1 - rho], [-1, 1], "^", color=pictures.FORWARD, zorder=3)
    panel.plot([-1, 1], [-1, 1], "s", color=pictures.BACKWARD, zorder=3)
