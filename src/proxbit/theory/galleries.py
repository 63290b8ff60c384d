"""Many pairs in one figure, F above B: the paper's figures 1, 4 and 5, and the whole catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxbit.core import pairs
from proxbit.core.pairs import Pair
from proxbit.theory.layout import lay_out
from proxbit.theory.lines import RHO, SHIFTS, VARRHO
from proxbit.theory.pictures import (
    BACKWARD,
    FORWARD,
    INK,
    SPAN,
    blank,
    forward_and_backward,
    place,
    room,
)
from proxbit.theory.verdict import check
from proxbit.util.figures import check_place, write_figure

if TYPE_CHECKING:
    from proxbit.theory.pictures import Axes, Figure


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


def _line(rho: float, varrho: float) -> Shown:
    return Shown("LQ", pairs.prox_connect(varrho), rho, f"{RHO} = {rho:g}, {VARRHO} = {varrho:g}")


FIGURE_1 = (
    Shown("FP", pairs.full_precision),
    Shown("BC", pairs.binary_connect),
    Shown("PC", pairs.prox_connect(), 0.3, f"{RHO} = 0.3"),
    Shown("BNN", pairs.bnn),
    Shown("BNN+", pairs.bnn_plus, 5.0, "µ = 5"),
    Shown("BNN++", pairs.bnn_plus_plus, 5.0, "µ = 5"),
)
FIGURE_4 = tuple(_line(*shifts) for shifts in SHIFTS)
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
    figure = blank(0.3 + 1.3 * columns, 2.35 * blocks)
    for i, (one, verdict) in enumerate(zip(shown, verdicts, strict=True)):
        x = 0.5 + 1.3 * (i % columns)
        y = 2.35 * (blocks - 1 - i // columns)
        forward = place(figure, x, y + 1.27, 1.02, 0.83)
        backward = place(figure, x, y + 0.33, 1.02, 0.83)
        _one_of_many(forward, backward, one, verdict)
        if i % columns == 0:
            for panel, name, color in ((forward, "F", FORWARD), (backward, "B", BACKWARD)):
                panel.set_ylabel(name, color=color, fontweight="bold", fontsize=9, rotation=0)
                panel.yaxis.set_label_coords(-0.38, 0.43)
    return figure


def _one_of_many(forward: Axes, backward: Axes, one: Shown, verdict: str) -> None:
    axis = lay_out(one.pair, one.strength)
    forward_and_backward((forward, backward), axis, SPAN)
    forward.set_title(one.label, loc="left", color=INK, pad=4)
    forward.set_title(one.detail, loc="right", color="#555555", pad=4, fontsize=6.5)
    forward.set_ylim(-1.6, 1.6)
    forward.set_yticks([-1, 0, 1])
    forward.tick_params(labelbottom=False)
    forward.set_xlabel("")
    backward.set_title("", loc="left")
    backward.set_xlabel(verdict, fontweight="normal" if verdict == "admitted" else "bold")
    room(backward)
