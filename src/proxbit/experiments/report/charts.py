"""Three charts of a report, as SVG text with everything escaped: curves, bars, and a heat map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

Points: TypeAlias = Sequence[tuple[float, float]]
Place: TypeAlias = Callable[[float, float], tuple[float, float]]  # of an epoch and a % in a picture

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


def stroke(points: Points, ink: str, width: float = 1.5, dash: str = "") -> str:
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


_LEFT, _RIGHT, _TOP, _FLOOR, _HEIGHT = 36.0, 104.0, 10.0, 34.0, 250.0
_LINE, _MOST_POINTS, _GRID = 13.0, 120, "#dddddd"
_COLD, _WARM = (255, 247, 236), (179, 0, 0)


@dataclass(frozen=True)
class ChartCurve:
    """A line of a chart with its name: (epoch, %) when hard, and when soft."""

    name: str
    hard: tuple[tuple[float, float], ...]
    soft: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Bar:
    """One bar: the group it stands in, its name, our % (None: not run) and the paper's."""

    group: str
    name: str
    value: float | None
    paper: float | None


def curves_chart(title: str, curves: Sequence[ChartCurve]) -> str:
    """Hard accuracy over epochs, a full line each, with the soft one dotted; names at the ends."""
    points = [point for curve in curves for point in (*curve.hard, *curve.soft)]
    low, high = min(y for _, y in points), max(y for _, y in points)
    heights = ticks(low, max(high, low + 1))
    last = max(max(x for x, _ in points), 1.0)
    place = _placing(last, heights)
    shapes = _axes(place, heights, last)
    for i, curve in enumerate(curves):
        ink = colour(curve.name, i)
        if curve.soft:
            shapes.append(stroke([place(x, y) for x, y in _thinned(curve.soft)], ink, 1, "2 3"))
        shapes.append(stroke([place(x, y) for x, y in _thinned(curve.hard)], ink, 1.8))
    return drawing(_HEIGHT, title, [*shapes, *_end_names(place, curves)])


def _placing(last: float, heights: Sequence[float]) -> Place:
    """From epoch and % to a place in the picture."""
    low, high, room = heights[0], heights[-1], _HEIGHT - _TOP - _FLOOR

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (WIDTH - _LEFT - _RIGHT) * x / last
        return across, _TOP + room * (high - y) / (high - low)

    return place


def _axes(place: Place, heights: Sequence[float], last: float) -> list[str]:
    shapes = []
    for height in heights:
        (x, y), (end, _) = place(0, height), place(last, height)
        shapes.append(stroke([(x, y), (end, y)], _GRID, 1))
        shapes.append(words(x - 5, y + 4, f"{height:g}", "end"))
    epochs = [each for each in ticks(0, last) if each <= last and each == int(each)]
    for epoch in epochs:
        x, y = place(epoch, heights[0])
        shapes.append(words(x, y + 15, f"{epoch:g}", "middle"))
    middle, floor = place(last / 2, heights[0])
    return [*shapes, words(middle, floor + 29, "epoch", "middle")]


def _thinned(points: Points) -> Points:
    """At most so many of the points, the last among them."""
    every = -(-len(points) // _MOST_POINTS) or 1
    return list(reversed(list(reversed(points))[::every]))


def _end_names(place: Place, curves: Sequence[ChartCurve]) -> list[str]:
    """The name and last figure of each curve beside its end, none above another."""
    ends = [place(*curve.hard[-1]) for curve in curves]
    heights = spread([y for _, y in ends], _LINE, _TOP, _HEIGHT - _FLOOR)
    shapes = []
    for i, (curve, (x, y), height) in enumerate(zip(curves, ends, heights, strict=True)):
        ink, left = colour(curve.name, i), WIDTH - _RIGHT + 14
        shapes.append(stroke([(x, y), (left - 2, height)], ink, 0.6))
        shapes.append(words(left, height + 4, f"{curve.name} {curve.hard[-1][1]:.1f}", fill=ink))
    return shapes


def bars_chart(title: str, bars: Sequence[Bar]) -> str:
    """Bars that lie, in groups, with the figure beside each; a black mark is the paper's figure."""
    left, room = 60.0, WIDTH - 60.0 - 56.0
    shapes, y, group = [], 4.0, ""
    for i, bar in enumerate(bars):
        if bar.group != group:
            group, y = bar.group, y + 18
            shapes.append(words(4, y - 4, group, fill="#000000"))
        value, mark = bar.value or 0.0, bar.paper
        hint = f"{bar.group} {bar.name}"
        shapes.append(box(left, y, room, 15, "#f3f3f3", hint))
        shapes.append(box(left, y, room * value / 100, 15, colour(bar.name, i), hint))
        shapes.append(words(left - 5, y + 12, bar.name, "end"))
        shown = "not run" if bar.value is None else f"{bar.value:.2f}"
        shapes.append(words(left + room + 4, y + 12, shown))
        if mark is not None:
            at = left + room * mark / 100
            shapes.append(box(at - 1, y - 1, 2, 17, "#000000", f"paper {mark:.2f}"))
        y += 18
    return drawing(y + 4, title, shapes)


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], drops: Sequence[Sequence[float | None]]
) -> str:
    """A row per block, a column per series: the warmer, the more accuracy was lost."""
    known = [drop for line in drops for drop in line if drop is not None]
    most = max([*known, 1e-9])
    left, height = 110.0, 20.0
    width = min(110.0, (WIDTH - left) / max(len(columns), 1))
    shapes = [words(left + (i + 0.5) * width, 14, name, "middle") for i, name in enumerate(columns)]
    for j, (row, line) in enumerate(zip(rows, drops, strict=True)):
        y = 20 + j * height
        shapes.append(words(left - 6, y + 14, row, "end"))
        for i, drop in enumerate(line):
            shapes += _warm_cell(left + i * width, y, width, height, drop, most)
    return drawing(24 + len(rows) * height, title, shapes)


def _warm_cell(
    x: float, y: float, width: float, height: float, drop: float | None, most: float
) -> list[str]:
    if drop is None:
        return [box(x, y, width - 1, height - 1, "#f3f3f3", "not run")]
    share = min(max(drop / most, 0.0), 1.0)
    mixed = (round(cold + share * (warm - cold)) for cold, warm in zip(_COLD, _WARM, strict=True))
    fill = "#" + "".join(f"{part:02x}" for part in mixed)
    ink = "#ffffff" if share > 0.5 else "#000000"
    middle = words(x + width / 2, y + 14, f"{drop:.2f}", "middle", ink)
    return [box(x, y, width - 1, height - 1, fill, f"lost {drop:.2f}"), middle]
