"""The charts of a grid: training curves, the bars of post-training binarization, the heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from proxbit.experiments.report.cells import Axes, Outcome, is_number, without
from proxbit.experiments.report.charts import Bar, ChartCurve, bars_chart, curves_chart, heat_map
from proxbit.experiments.report.parts import Picture
from proxbit.experiments.report.tables import FLOAT, paper_figure, rows_of
from proxbit.experiments.reproduce.grids import ALL_BLOCKS
from proxbit.experiments.reproduce.results import ResultLine
from proxbit.util.text import grouped

Points = tuple[tuple[float, float], ...]


def pictures_of(grid: str, found: Sequence[Outcome]) -> list[Picture]:
    """The charts that the cells of a grid allow."""
    done = [cell for cell in found if cell.done]
    special = {"ptb": _bars, "blocks": _heat}
    drawn = list(special[grid](done)) if grid in special else []
    return drawn if grid == "blocks" else [*drawn, *_curves(done)]


def _curves(done: Sequence[Outcome]) -> Iterator[Picture]:
    """One chart per row: the curves of its methods, or of its protocols, or of its registers."""
    for (place, here), cells in grouped(done, _shared).items():
        curves = [_curve(cell) for cell in cells]
        known = [curve for curve in curves if curve.hard]
        if known:
            caption = f"{', '.join(value for _, value in place)}; here {here}"
            yield Picture(caption, curves_chart(f"Accuracy over epochs: {caption}", known))


def _shared(cell: Outcome) -> tuple[Axes, str]:
    """Everything that the curves of a chart have in common."""
    varied = next((axis for axis in ("protocols", "bits") if cell.at(axis)), "method")
    return without(cell.axes, varied), cell.here


def _curve(cell: Outcome) -> ChartCurve:
    """The mean over seeds of the hard and soft accuracy of each epoch."""
    protocols = cell.at("protocols")
    name = protocols if protocols in ("", "none") else f"+ {protocols.split('+')[-1]}"
    hard, soft = (_course(cell.done, which) for which in ("hard", "soft"))
    shown = name or cell.at("bits") or cell.at("method")
    return ChartCurve(shown, hard, soft if soft != hard else ())


def _course(lines: Sequence[ResultLine], name: str) -> Points:
    """(epoch, %) for the epochs that every seed reached."""
    courses = []
    for line in lines:
        known = [r for r in line.curve if is_number(r.get("epoch")) and is_number(r.get(name))]
        courses.append({float(r["epoch"]): 100 * float(r[name]) for r in known})
    shared = sorted(set.intersection(*(set(course) for course in courses)))
    return tuple((epoch, math.fsum(c[epoch] for c in courses) / len(courses)) for epoch in shared)


def _bars(done: Sequence[Outcome]) -> Iterator[Picture]:
    """Float, trained and post-training binarization side by side, a group per model."""
    bars = []
    for row in rows_of("ptb", done):
        group = ", ".join(row.words.values())
        for method in ("FP", "BNN++", "PTB") if row.cells else ():
            cell = row.cells.get(method)
            sample = None if cell is None else cell.sample
            figure = paper_figure("ptb", (*row.place, ("method", method)))
            ours = None if sample is None else 100 * sample.mean
            bars.append(Bar(group, method, ours, None if figure is None else figure.accuracy))
    caption = "Hard accuracy in %; the black mark is the paper's figure"
    yield Picture(caption, bars_chart(caption, bars))


def _heat(done: Sequence[Outcome]) -> Iterator[Picture]:
    """Points lost when one block alone is binary, a map per model."""
    binary = [cell for cell in done if cell.at("block") != ALL_BLOCKS]
    places = dict.fromkeys((without(cell.axes, "method", "block"), cell.here) for cell in binary)
    for place, here in places:
        there = [c for c in done if (without(c.axes, "method", "block"), c.here) == (place, here)]
        blocks = list(dict.fromkeys(c.at("block") for c in there if c in binary))
        methods = list(dict.fromkeys(c.at("method") for c in there if c in binary))
        lost = {(c.at("block"), c.at("method")): _lost(c, there) for c in there if c in binary}
        drops = [[lost.get((block, method)) for method in methods] for block in blocks]
        caption = f"{', '.join(value for _, value in place)}; here {here}"
        title = f"Points of accuracy lost when one block is binary: {caption}"
        yield Picture(title, heat_map(title, blocks, methods, drops))


def _lost(cell: Outcome, there: Sequence[Outcome]) -> float | None:
    """Points between float (the cell with no binary block, else before the run) and hard."""
    whole = [c.sample for c in there if c.at("method") == FLOAT and c.at("block") == ALL_BLOCKS]
    before = whole[0].mean if whole and whole[0] is not None else cell.mean("float")
    sample = cell.sample
    return None if before is None or sample is None else 100 * (before - sample.mean)
