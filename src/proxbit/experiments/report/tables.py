"""Tables as the paper prints them: our hard accuracy, the paper's below it, the best in bold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxbit.experiments.report.cells import Axes, Outcome, ordered, without
from proxbit.experiments.report.parts import Entry, Table, points, signed
from proxbit.experiments.report.statistics import LEVEL, compare
from proxbit.experiments.reproduce.grids import GRIDS, cells_of
from proxbit.experiments.reproduce.paper import TABLES, Figure, figure_for, figures_of
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.util.text import grouped, last_part

LABELS = ("model", "dataset", "pipeline", "task", "block", "bits")
SWITCHES = {
    "scale": "scaling", "norm": "normalization", "pretrain": "pre-training", "kd": "distillation",
}  # fmt: skip
FLOAT = "FP"
_DOWN = "protocols"  # a grid that has them lists its methods in rows, as the paper does


@dataclass(frozen=True)
class TableRow:
    """One row: its place in the grid, what was trained here, and its cells by column."""

    place: Axes
    here: str
    cells: dict[str, Outcome]

    @property
    def words(self) -> dict[str, str]:
        """The place by axis, with what was trained instead of the paper's network and images."""
        place = dict(self.place)
        runs = [cell.trained for cell in self.cells.values() if cell.here == self.here]
        for axis, name in (runs[0] if runs else {}).items():
            if axis in place and not _is_papers(axis, name, place):
                place[axis] = f"{name} for {place[axis]}"
        return place


def _is_papers(axis: str, name: str, place: dict[str, str]) -> bool:
    """Whether a network or a file of images goes by the paper's name, or is the paper's own."""
    if axis == "dataset":
        plain = _plain(place[axis]).removesuffix("1k")  # imagenet, imagenet1k
        return re.search(rf"{plain}(?!\d)", _plain(name)) is not None
    own = PRESETS["paper"].model(place["model"], place.get("dataset", ""))
    return _plain(name) in (_plain(place["model"]), _plain(last_part(own).split(".")[0]))


def _plain(name: str) -> str:
    """Letters and digits of a name before its first dot: resnet50 for ResNet-50.a1_in1k."""
    return re.sub(r"[^a-z0-9]", "", name.split(".")[0].lower())


def paper_figure(grid: str, axes: Axes) -> Figure | None:
    """The paper's figure for a cell, if it prints one."""
    return figure_for(grid, dict(axes)) if grid in TABLES else None


def grid_table(grid: str, preset: str, found: Sequence[Outcome]) -> Table:
    """The table of a grid in a preset, from its cells in that preset."""
    columns = _columns(grid, found)
    rows = rows_of(grid, found)
    varying = [axis for axis in LABELS if len({dict(row.place).get(axis, "") for row in rows}) > 1]
    down = any(dict(row.place).get(_DOWN) for row in rows)
    head = [*(["row"] if varying else []), *(("method", *SWITCHES.values()) if down else ())]
    entries = tuple(
        (*_labels(row, varying, down), *_cells(grid, row, columns), Entry(row.here)) for row in rows
    )
    names = ("accuracy",) if down else tuple(columns)
    notes = (*_constants(rows), *_broken(found))
    name = f"{grid}: {GRIDS[grid].title}" if grid in GRIDS else grid
    return Table(
        f"{name} (preset {preset})", (*head, *names, "here"), entries, notes, frozenset({"here"})
    )


def _columns(grid: str, found: Sequence[Outcome]) -> list[str]:
    """The methods in the paper's order, and after them any others."""
    ours = GRIDS[grid].methods if grid in GRIDS else ()
    first = TABLES.get(grid, ())[:1]
    figures = figures_of(grid) if first else ()
    papers = [each.method.split("|")[0] for each in figures if each.table in first]
    others = [outcome.at("method") for outcome in found]
    return list(dict.fromkeys([*ours, *papers, *others]))


def rows_of(grid: str, found: Sequence[Outcome]) -> list[TableRow]:
    """The rows of the paper, run or not, and after them any others that were run."""
    cells: dict[Axes, list[Outcome]] = {place: [] for place in _planned(grid)}
    for outcome in found:
        cells.setdefault(_place(outcome.axes), []).append(outcome)
    if len({bool(dict(place).get(_DOWN)) for place in cells}) > 1:
        raise ValueError(f"some cells of {grid!r} name protocols and others none: not one table")
    return [row for place, there in cells.items() for row in _variants(place, there)]


def _place(axes: Axes) -> Axes:
    """Everything that says which row a cell stands in."""
    return axes if dict(axes).get(_DOWN) else without(axes, "method")


def _planned(grid: str) -> list[Axes]:
    """The rows for which the paper prints a figure, in its order."""
    if grid not in GRIDS:
        return []
    plan = GRIDS[grid]
    cells = [cell for row in plan.rows for cell in cells_of(plan, row, "paper", seeds=(0,))]
    cells.sort(key=lambda cell: plan.methods.index(cell.axes["method"]))
    places = [ordered(cell.axes) for cell in cells]
    printed = [axes for axes in places if paper_figure(grid, axes) is not None]
    return list(dict.fromkeys(_place(axes) for axes in printed))


def _variants(place: Axes, there: Sequence[Outcome]) -> list[TableRow]:
    """One row; several where a cell was run in more than one way, which are never mixed."""
    ways = [outcome.here for outcome in there if outcome.here]
    main = max(ways, key=ways.count, default="")
    methods = [outcome.at("method") for outcome in there if outcome.here]
    if len(methods) == len(set(methods)):
        # Cells without a configuration first, so that those with one take their place.
        order = sorted(there, key=lambda outcome: bool(outcome.here))
        return [TableRow(place, main, {outcome.at("method"): outcome for outcome in order})]
    return [
        TableRow(place, way, {each.at("method"): each for each in there if each.here == way})
        for way in dict.fromkeys(ways)
    ]


def _labels(row: TableRow, varying: Sequence[str], down: bool) -> list[Entry]:
    place = row.words
    others = ", ".join(place.get(axis, "") for axis in varying if axis in LABELS[2:])
    parts = [place.get(axis, "") for axis in varying if axis in LABELS[:2]]
    first, *more = [part for part in (*parts, others) if part] or [""]
    labels = [Entry(first, tuple(more))] if varying else []
    if down:
        on = place.get(_DOWN, "").split("+")
        labels.append(Entry(place.get("method", "")))
        labels += [Entry("✓" if switch in on else "-") for switch in SWITCHES]
    return labels


def _cells(grid: str, row: TableRow, columns: Sequence[str]) -> list[Entry]:
    down = dict(row.place).get("method")
    winner = None if down else best(row)
    entries = []
    for method in [down] if down else columns:
        axes = row.place if down else ordered(dict(row.place) | {"method": method})
        cell = row.cells.get(method)
        entries.append(_entry(cell, paper_figure(grid, axes), row, winner))
    return entries


def best(row: TableRow) -> Outcome | None:
    """The best one-bit cell of a row, if the second is worse by more than chance."""
    known = [(cell.sample, cell) for name, cell in row.cells.items() if name != FLOAT]
    fair = [(s, cell) for s, cell in known if s is not None and cell.here == row.here]
    order = sorted(fair, key=lambda pair: pair[0].mean, reverse=True)
    if len(order) < 2:
        return None
    (first, cell), (second, _) = order[:2]
    return cell if compare(first, second).p < LEVEL else None


def _entry(
    cell: Outcome | None, figure: Figure | None, row: TableRow, winner: Outcome | None
) -> Entry:
    paper = [] if figure is None else [_printed(figure)]
    sample = None if cell is None else cell.sample
    if cell is None or sample is None:
        return Entry("" if cell is None else "broken", tuple(paper), broken=cell is not None)
    mean = 100 * sample.mean
    apart = "" if figure is None else f"{signed(mean - figure.accuracy)}, "
    text = points(sample.mean) + ("" if sample.std is None else f" ± {points(sample.std)}")
    other = [cell.here] if cell.here != row.here else []
    detail = (*paper, f"{apart}n {len(sample.values)}", *other)
    return Entry(text, detail, mean, strong=cell is winner)


def _printed(figure: Figure) -> str:
    spread = "" if figure.std is None else f" ± {figure.std:.2f}"
    return f"paper {figure.accuracy:.2f}{spread}"


def _constants(rows: Sequence[TableRow]) -> list[str]:
    """Facts that are the same in all rows, said once."""
    if not rows:
        return []
    shared = [axis for axis in LABELS if len({dict(row.place).get(axis, "") for row in rows}) == 1]
    words = [", ".join(dict.fromkeys(_run_first(rows, axis))) for axis in shared]
    return [f"All rows: {', '.join(filter(None, words))}."] if any(words) else []


def _run_first(rows: Sequence[TableRow], axis: str) -> list[str]:
    """The words of the rows that were run; the paper's words alone where none was."""
    run = [row.words.get(axis, "") for row in rows if row.here]
    return run or [row.words.get(axis, "") for row in rows]


def _broken(found: Sequence[Outcome]) -> list[str]:
    """One sentence for each broken cell, with all seeds that broke alike."""
    broken = [(cell.axes, line.error or "", line.seed) for cell in found for line in cell.broken]
    return [
        f"Broken: {', '.join(value for _, value in axes)}, "
        f"seed {', '.join(str(seed) for *_, seed in alike)}: {error}"
        for (axes, error), alike in grouped(broken, lambda each: each[:2]).items()
    ]
