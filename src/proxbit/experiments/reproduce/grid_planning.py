"""From the words of a command to cells: grids, rows and axes by name; and a list of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxbit.experiments.reproduce.blocks import block_names
from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.estimates import duration, seconds_of
from proxbit.experiments.reproduce.grids import (
    GRIDS,
    Cell,
    Grid,
    Row,
    cells_of,
    find_grid,
    find_rows,
)
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.util.text import table, unknown_name_message


@dataclass(frozen=True)
class CellQuery:
    """Which cells of a grid to run; an empty field means all.

    Attributes:
        grid: Name of the grid.
        preset: Name of the preset.
        rows: Names or globs of rows.
        pipelines: FT, E2E.
        tasks: BW, BWA, BWAA.
        methods: The paper's names.
        seeds: One run per cell for each; None for one, or the paper's own in its preset.
    """

    grid: str
    preset: str = "smoke"
    rows: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None


def rows_of(query: CellQuery) -> tuple[Row, ...]:
    """The rows that are wanted."""
    return find_rows(find_grid(query.grid), query.preset, query.rows)


def plan(query: CellQuery, model: str | None = None) -> list[Cell]:
    """List the cells of a query in the order in which they run.

    ``model`` stands for the preset's own, whose blocks a grid may need.
    """
    grid = find_grid(query.grid)
    cells = []
    for row in rows_of(query):
        own = model or PRESETS[query.preset].model(row.model, row.dataset)
        blocks = block_names(own) if grid.blocks else ()
        cells += cells_of(grid, row, query.preset, query.seeds, blocks)
    for axis in ("pipeline", "task", "method"):
        wanted = tuple(each.lower() for each in getattr(query, f"{axis}s"))
        _refuse_unknown(axis, wanted, cells)
        cells = [each for each in cells if not wanted or each.axes[axis].lower() in wanted]
    if not cells:
        raise ValueError(
            f"no cell of {grid.name} in the preset {query.preset} fits all that was asked"
        )
    return cells


def _refuse_unknown(axis: str, wanted: Sequence[str], cells: Sequence[Cell]) -> None:
    known = list(dict.fromkeys(cell.axes[axis] for cell in cells))
    for name in wanted:
        if name not in [each.lower() for each in known]:
            raise ValueError(unknown_name_message(axis, name, known))


def overview() -> str:
    """Every table and figure with its cells, presets and an estimate of the time here."""
    head = ("cells and time here", *PRESETS)
    rows = [(grid.name, *(_size(grid, preset) for preset in PRESETS)) for grid in GRIDS.values()]
    lines = [table(head, rows), ""]
    for grid in GRIDS.values():
        names = ", ".join(row.name + ("" if "small" in row.presets else "*") for row in grid.rows)
        lines.append(f"{grid.name}: {grid.title}\n    rows: {names}")
    lines += ["", *(f"{name}: {preset.text}" for name, preset in PRESETS.items())]
    return "\n".join([*lines, "* in the preset paper only; error bars: --seeds 0,1,2"])


def _size(grid: Grid, preset: str) -> str:
    try:
        cells = plan(CellQuery(grid.name, preset))
    except ValueError:  # its blocks are those of a model of timm
        return "needs timm"
    return f"{len(cells)}, {duration(sum(seconds_of(cell, Options()) for cell in cells))}"
