"""The paper's tables and figures as runnable grids; their results; which method to choose."""

from proxbit.experiments.configs import Options
from proxbit.experiments.grids import GRIDS, Cell
from proxbit.experiments.paper import Figure, figure_for, paper_figures
from proxbit.experiments.planning import Wish, plan
from proxbit.experiments.results import ResultLine, read_results
from proxbit.experiments.running import Event, run_cell, run_grid
from proxbit.experiments.selecting import resume_select, select

__all__ = [
    "GRIDS",
    "Cell",
    "Event",
    "Figure",
    "Options",
    "ResultLine",
    "Wish",
    "figure_for",
    "paper_figures",
    "plan",
    "read_results",
    "resume_select",
    "run_cell",
    "run_grid",
    "select",
]
