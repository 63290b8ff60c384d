"""A report as CSV: one line per cell, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from proxbit.experiments.report.cells import ORDER, Outcome
from proxbit.experiments.report.tables import best, paper_figure, rows_of
from proxbit.util.text import grouped


def to_csv(found: Sequence[Outcome]) -> str:
    """Accuracies in percent; empty where something was not measured."""
    file, lines = io.StringIO(), list[dict[str, Any]]()
    for (grid, _), there in grouped(found, lambda cell: (cell.grid, cell.preset)).items():
        winners = [best(row) for row in rows_of(grid, there)]
        lines += [_line(cell, winners) for cell in there]
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in line.items()} for line in lines)
    return file.getvalue()


def _line(cell: Outcome, winners: Sequence[Outcome | None]) -> dict[str, Any]:
    sample, figure = cell.sample, paper_figure(cell.grid, cell.axes)
    ours = None if sample is None else 100 * sample.mean
    paper = None if figure is None else figure.accuracy
    return {
        "grid": cell.grid,
        "preset": cell.preset,
        **{axis: cell.at(axis) for axis in ORDER},
        "here": cell.here,
        "seeds": len(cell.done),
        "images": None if sample is None else sample.images,
        "hard": _rounded(ours),
        "std": None if sample is None or sample.std is None else _rounded(100 * sample.std),
        "soft": _percent(cell.mean("soft")),
        "float": _percent(cell.mean("float")),
        "paper": paper,
        "paper_std": None if figure is None else figure.std,
        "difference": None if ours is None or paper is None else _rounded(ours - paper),
        "best": "yes" if any(cell is winner for winner in winners) else "",
        "bytes_float": cell.mean("bytes_float"),
        "bytes_packed": cell.packed("bytes") or cell.mean("bytes_packed"),
        "packed_ms": cell.packed("ms"),
        "float_ms": cell.packed("float_ms"),
        "seconds": _rounded(cell.mean("seconds")),
        "error": "; ".join(line.error or "" for line in cell.broken),
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else _rounded(100 * share)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _safe(value: object) -> object:
    """Words that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
