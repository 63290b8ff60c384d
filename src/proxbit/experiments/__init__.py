"""The paper's tables and figures as runnable grids; their results; which method to choose."""

from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grid_planning import CellQuery, plan
from proxbit.experiments.reproduce.grids import GRIDS, Cell
from proxbit.experiments.reproduce.paper import Figure, figure_for, paper_figures
from proxbit.experiments.reproduce.results import ResultLine, read_results
from proxbit.experiments.reproduce.running import Event, run_cell, run_grid
from proxbit.experiments.selection.selecting import resume_select, select

__all__ = [
    "GRIDS", "Cell", "CellQuery", "Event", "Figure", "Options", "ResultLine", "figure_for",
    "paper_figures", "plan", "read_results", "resume_select", "run_cell", "run_grid", "select",
]  # fmt: skip
