"""The few shapes that the charts of a report are made of, as SVG text with everything escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 420  # of every chart: its letters stay readable on a phone
_COLOURS = {
    "FP": "#555555", "PQ": "#cc79a7", "rPC": "#e69f00", "BC": "#56b4e9", "PC": "#0072b2",
    "BNN": "#009e73", "BNN+": "#8c6d31", "BNN++": "#d55e00", "PTB": "#7f3fbf",
    "Bi-Real": "#56b4e9", "R-BNN": "#0072b2", "Poly+": "#009e73", "EDE": "#cc79a7",
    "EDE+": "#8c6d31", "ReAct": "#e69f00",
}  # fmt: skip
_OTHERS = ("#0072b2", "#009e73", "#cc79a7", "#8c6d31", "#e69f00", "#56b4e9")


def colour(name: str, index: int = 0) -> str:
    """The colour of a method, the same in every chart; another name gets one by its place."""
    return _COLOURS.get(name, _OTHERS[index % len(_OTHERS)])


def drawing(height: float, title: str, shapes: Sequence[str]) -> str:
    """A whole picture with a title for those who cannot see it."""
    head = f'<svg viewBox="0 0 {WIDTH} {_number(height)}" role="img" aria-label="{escape(title)}">'
    return "\n".join([head, *shapes, "</svg>"])


def words(x: float, y: float, text: str, anchor: str = "start", fill: str = "#333333") -> str:
    """Text at a place; ``anchor`` says which end of it is there."""
    at = f'x="{_number(x)}" y="{_number(y)}"'
    return f'<text {at} text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, hint: str = "") -> str:
    """A filled rectangle with words that show when it is pointed at."""
    at = f'x="{_number(x)}" y="{_number(y)}"'
    size = f'width="{_number(max(width, 0))}" height="{_number(height)}"'
    return f'<rect {at} {size} fill="{fill}"><title>{escape(hint)}</title></rect>'


def stroke(
    points: Sequence[tuple[float, float]], ink: str, width: float = 1.5, dash: str = ""
) -> str:
    """A line through points; one point alone is a dot."""
    if len(points) == 1:
        ((x, y),) = points
        return f'<circle cx="{_number(x)}" cy="{_number(y)}" r="2.5" fill="{ink}"/>'
    through = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'fill="none" stroke="{ink}" stroke-width="{width:g}"{dashed}'
    return f'<polyline points="{through}" {style}/>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that cover a range, the ends included.

    >>> ticks(71.2, 88.9)
    [70, 75, 80, 85, 90]
    """
    span = max(high - low, 1e-9)
    size = 10 ** math.floor(math.log10(span / (most - 1)))
    for step in (size, 2 * size, 5 * size, 10 * size, 20 * size):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first < most:
            break
    numbers = [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]
    return [int(number) if number == int(number) else number for number in numbers]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least ``apart`` and within the ends if able.

    >>> spread([10, 11, 30], 8, 0, 40)
    [10, 18, 30]
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = list(wanted)
    for before, i in zip([None, *order], order, strict=False):
        placed[i] = max(placed[i], low if before is None else placed[before] + apart)
    limit = high
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - apart
    return placed


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
