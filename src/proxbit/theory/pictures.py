"""The picture of a pair: F, which the network sees; B, which scales its gradient; its objective.

Breaks stay breaks: a dot is the value taken, a ring the value approached. Dashed means free: where
the pair does not decide P, T or r, the picture shows our choice.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from proxbit.core.pairs import Pair
from proxbit.theory.axis import Axis, Segment
from proxbit.theory.curves import Array
from proxbit.theory.layout import lay_out
from proxbit.theory.recovery import Recovered, Refused, recover
from proxbit.theory.verdict import check
from proxbit.util.figures import check_place, write_figure

Drawable: TypeAlias = Callable[[Array], Array]

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

FORWARD, BACKWARD, INK = "#D55E00", "#0072B2", "#222222"  # two of Okabe and Ito's, and near black
PALE, FAINT = "#EFEFEF", "#BBBBBB"
SPAN = 2.0  # how far the axis is drawn, unless a pair breaks further out
POINTS = 241


def draw(pair: Pair, strength: float, path: str | Path, smoothing: float = 1.0) -> None:
    """Draw a pair in six panels: F, B, P, T, r and the Moreau envelope of r.

    A refused pair has F, B and the reason. The suffix decides between PNG and SVG.

    Args:
        pair: Any pair.
        strength: The strength at which it is drawn.
        path: Where the picture goes, ``.png`` or ``.svg``.
        smoothing: The mu of the prox.
    """
    check_place(path)
    try:
        found = recover(pair, strength, smoothing)
    except Refused:
        write_figure(path, lambda: _of_refused(pair, strength))
        return
    low, high = found.domain
    if low == high:
        raise ValueError(f"F of {pair.name} is constant at strength {strength:g}: nothing to draw")
    write_figure(path, lambda: _of_admitted(found))


# One pair ----------------------------------------------------------------------------------------


def _of_admitted(found: Recovered) -> Figure:
    figure, panels = _sheet(f"{found.pair.name} at strength {found.strength:.3g}: admitted", 2)
    span = _span(found.axis)
    in_w = _pieces(span, _breaks(found.axis), found.free)
    far = float(np.abs(found.prox(np.array([-span, span]))).max())
    z_span = span if far <= 1.05 * span else 2 * float(np.ceil(far / 2))
    in_z = _pieces(z_span, [], [*found.gaps, *_images(found)], *found.domain)
    note = f"µ = {found.smoothing:g}"
    if not all(decided for *_, decided in [*in_w, *in_z]):
        note += "; dashed: not decided by the pair"
    figure.text(
        1 - 0.08 / SHEET, 1 - 0.09 / _height(2), note, ha="right", va="top", color="#555555"
    )
    forward_and_backward(panels, found.axis)
    frame(panels[2], span, "P(w), prox", "w")
    _plot(panels[2], found.prox, in_w, INK)
    _of_z(panels[3], found, found.transform, in_z, "T(z), transform")
    _of_z(panels[4], found, found.regularizer, in_z, "r(z), regularizer")
    frame(panels[5], span, "Moreau envelope of r", "w")
    _plot(panels[5], found.envelope, in_w, INK)
    for panel in panels:
        room(panel)
    return figure


def _of_refused(pair: Pair, strength: float) -> Figure:
    """F, B, and the reason in words where P would stand."""
    figure, panels = _sheet(f"{pair.name} at strength {strength:.3g}: refused", 1)
    forward_and_backward(panels, lay_out(pair, strength))
    for panel in panels[:2]:
        room(panel)
    panels[2].set_axis_off()
    panels[2].set_title("no P(w)", loc="left", color=INK, pad=4)
    words = "\n\n".join(textwrap.fill(reason, 34) for reason in check(pair, strength).reasons)
    panels[2].text(0, 1, words, transform=panels[2].transAxes, va="top", color=INK, linespacing=1.4)
    return figure


SHEET = 6.4  # width in inches


def _height(rows: int) -> float:
    return 0.3 + 1.75 * rows


def _sheet(title: str, rows: int) -> tuple[Figure, list[Axes]]:
    """Panels at fixed places, so that pages of several pairs line up."""
    figure = blank(SHEET, _height(rows))
    figure.text(
        0.08 / SHEET, 1 - 0.08 / _height(rows), title,
        va="top", fontsize=9, fontweight="bold", color=INK,
    )  # fmt: skip
    corners = [
        (0.36 + 2.1 * i, 0.38 + 1.75 * (rows - 1 - j)) for j in range(rows) for i in range(3)
    ]
    return figure, [place(figure, x, y, 1.74, 1.15) for x, y in corners]


def blank(width: float, height: float) -> Figure:
    """A figure without panels, measured in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def place(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """A panel, measured in inches."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, y / high, width / wide, height / high))


def forward_and_backward(panels: Sequence[Axes], axis: Axis, span: float | None = None) -> None:
    """F on the first panel, B on the second."""
    span = span or _span(axis)
    pieces = _pieces(span, _breaks(axis))
    frame(panels[0], span, "F(w), forward", "w")
    _plot(panels[0], axis.forward, pieces, FORWARD)
    frame(panels[1], span, "B(w), backward", "w")
    _plot(panels[1], axis.backward, pieces, BACKWARD)


def _of_z(panel: Axes, found: Recovered, curve: Drawable, pieces: list[Piece], title: str) -> None:
    """A function of z = P(w), on the hull of P's range; r is infinite in the grey."""
    low, high = pieces[0][0], pieces[-1][1]
    span = max(-low, high, SPAN)
    frame(panel, span, title, "z")
    _plot(panel, curve, pieces, INK)
    # P arrives at both sides of a gap, and at a finite end of its range: there T and r are decided.
    ends = [z for gap in (*found.gaps, found.domain) for z in gap if abs(z) < span]
    _dots(panel, np.array(ends), curve(np.clip(ends, *found.domain)), INK)
    for a, b in ((-span, low), (high, span)):
        if b > a:
            panel.axvspan(a, b, color=PALE, lw=0, zorder=0)
            panel.text(
                (a + b) / 2, 0.2, "r = ∞", transform=panel.get_xaxis_transform(),
                ha="center", va="center", color="#777777",
            )  # fmt: skip


def _images(found: Recovered) -> list[Segment]:
    """Where P sends the free segments."""

    def image(w: float) -> float:
        return w if np.isinf(w) else float(found.prox(w))

    return [(image(low), image(high)) for low, high in found.free]


# Panels and curves -------------------------------------------------------------------------------


def frame(panel: Axes, span: float, title: str, below: str) -> None:
    """The axes of a panel, with a title above and a letter below."""
    panel.set_title(title, loc="left", color=INK, pad=4)
    panel.set_xlabel(below, color=INK, labelpad=1)
    panel.set_xlim(-span, span)
    panel.set_xticks([-span, -span / 2, 0, span / 2, span])
    panel.tick_params(pad=1.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel.axhline(0, color=FAINT, lw=0.5, zorder=0.5)
    panel.axvline(0, color=FAINT, lw=0.5, zorder=0.5)


def room(panel: Axes) -> None:
    """At least a height of 0.6, with air above and below, and few ticks."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(panel.dataLim.y0, 0.0), max(panel.dataLim.y1, 0.0)
    if high - low < 0.6:
        low, high = (low + high) / 2 - 0.3, (low + high) / 2 + 0.3
    air = 0.12 * (high - low)
    panel.set_ylim(low - air, high + air)
    panel.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}".replace("-", "\N{MINUS SIGN}"))


Piece = tuple[float, float, bool]  # from, to, whether it is decided


def _pieces(
    span: float,
    breaks: Iterable[float],
    undecided: Iterable[Segment] = (),
    low: float = -np.inf,
    high: float = np.inf,
) -> list[Piece]:
    """The drawn axis cut at breaks and where what is undecided begins or ends."""
    low, high = max(low, -span), min(high, span)
    undecided = list(undecided)
    inner = [*breaks, *(end for segment in undecided for end in segment)]
    cuts = np.unique([low, *(x for x in inner if low < x < high), high])
    cuts = cuts[np.diff(cuts, prepend=-np.inf) > 1e-6]
    middles = (cuts[1:] + cuts[:-1]) / 2
    decided = [not any(a < m < b for a, b in undecided) for m in middles]
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), decided, strict=True))


def _plot(panel: Axes, curve: Drawable, pieces: list[Piece], color: str) -> None:
    for a, b, decided in pieces:
        edge = 1e-7 * max(1.0, b - a)
        x = np.linspace(a + edge, b - edge, max(3, int(POINTS * (b - a) / 4)))
        y = curve(x)
        bends = np.abs(np.diff(y, 2)) > 1e-9  # a straight line needs no more than its ends
        keep = np.concatenate([[True], bends, [True]])
        style = "-" if decided else "--"
        panel.plot(_round(x[keep]), _round(y[keep]), style, color=color, solid_capstyle="butt")
    inner = np.array([b for _, b, _ in pieces[:-1]])
    if len(inner):
        _ends(panel, curve, inner, color)


def _ends(panel: Axes, curve: Drawable, x: Array, color: str) -> None:
    """At every break a dot for the value taken and a ring for a value only approached."""
    at, before, after = (_round(curve(x + step)) for step in (0.0, -1e-7, 1e-7))
    broken = np.abs(after - before) > 1e-3
    _dots(panel, x[broken], at[broken], color)
    for side in (before, after):
        away = broken & (np.abs(side - at) > 1e-3)
        _dots(panel, x[away], side[away], color, ring=True)


def _dots(panel: Axes, x: Array, y: Array, color: str, ring: bool = False) -> None:
    if len(x):
        face = "white" if ring else color
        panel.plot(_round(x), _round(y), "o", color=color, markerfacecolor=face, zorder=3)


def _round(y: Array) -> Array:
    """The same picture on a machine whose tanh differs in the last bit; and no negative zero."""
    return np.round(y, 5) + 0.0


def _breaks(axis: Axis) -> Array:
    return np.round(axis.left[axis.jump], 9)


def _span(axis: Axis) -> float:
    """As far as the outermost break, with a margin, in round numbers."""
    breaks = np.abs(axis.left[axis.jump])
    far = float(breaks.max(initial=0.0))
    return SPAN if far < 0.9 * SPAN else float(2 * np.ceil(0.75 * far))
