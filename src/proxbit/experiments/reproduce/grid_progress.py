"""The display of a running grid: a table like the paper's that fills, and the time left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grid_planning import duration, seconds_of
from proxbit.experiments.reproduce.grids import Cell
from proxbit.experiments.reproduce.running import Event
from proxbit.util.text import grouped, visible

MARKS = {"running": "...", "broken": "broken", "refused": "-"}
HIDDEN = ("model", "dataset", "method")


class GridProgress:
    """Watches a grid; on a terminal as a table, in a log file as one line per cell."""

    def __init__(self, cells: Sequence[Cell], options: Options, console: Console) -> None:
        """Nothing is shown before ``with``."""
        self.cells, self.console = tuple(cells), console
        self.events: dict[Cell, Event] = {}
        self.expected = {cell: seconds_of(cell, options) for cell in self.cells}
        self.began: dict[Cell, float] = {}
        self.live = Live(console=console, refresh_per_second=4, get_renderable=self.picture)

    def __enter__(self) -> GridProgress:
        """Begin to show."""
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture where it is."""
        if self.console.is_terminal:
            self.live.stop()

    def watch(self, event: Event) -> None:
        """Take in what happened."""
        self.events[event.cell] = event
        if event.state == "running":
            self.began.setdefault(event.cell, time.monotonic())
        elif not self.console.is_terminal and event.state in ("done", "broken"):
            self.console.print(f"{self.count()}  {visible(line_of(event))}", soft_wrap=True)

    def count(self) -> str:
        """How many cells have ended."""
        ended = sum(event.state != "running" for event in self.events.values())
        return f"{ended} of {len(self.cells)}"

    def left(self) -> float:
        """Seconds left: the estimates, corrected by how long the cells so far took."""
        done = [(c, e.line.seconds) for c, e in self.events.items() if e.state == "done" and e.line]
        guess, taken = sum(self.expected[cell] for cell, _ in done), sum(s for _, s in done)
        ratio = taken / guess if done else 1.0
        return sum(self._left_of(cell, ratio) for cell in self.cells)

    def _left_of(self, cell: Cell, ratio: float) -> float:
        event = self.events.get(cell)
        if event is not None and event.state != "running":
            return 0.0
        spent = time.monotonic() - self.began[cell] if cell in self.began else 0.0
        return max(0.0, ratio * self.expected[cell] - spent)

    def picture(self) -> Any:
        """The table and the line below it."""
        return Group(self.table(), Text(self.footer()))

    def table(self) -> Table:
        """Methods across, everything else down, hard accuracy in percent inside."""
        methods = list(dict.fromkeys(cell.axes["method"] for cell in self.cells))
        shown = Table("hard %", *methods, box=None, pad_edge=False)
        for name, cells in grouped(self.cells, label).items():
            row = grouped(cells, lambda cell: cell.axes["method"])
            texts = [inside([self.events.get(c) for c in row.get(m, [])]) for m in methods]
            shown.add_row(Text(name), *(Text(text, justify="right") for text in texts))
        return shown

    def footer(self) -> str:
        """The running cells, and for how long."""
        running = [event for event in self.events.values() if event.state == "running"]
        notes = (f"{describe(e.cell)}: {e.note} {100 * e.share:.0f} %" for e in running)
        now = visible("; ".join(notes))
        rest = f", about {duration(self.left())} left" if len(self.events) else ""
        return f"{self.count()} cells{rest}" + (f"\n{now}" if now else "")


def label(cell: Cell) -> str:
    """A cell without its method and its seed."""
    return " ".join([cell.row, *(value for axis, value in cell.key if axis not in HIDDEN)])


def describe(cell: Cell) -> str:
    """A cell in words."""
    return f"{label(cell)} {cell.axes['method']} seed {cell.seed}"


def inside(events: Sequence[Event | None]) -> str:
    """The text at one place of the table: the mean of its seeds, or how far they are."""
    hard = [100 * e.line.result["hard"] for e in events if e and e.line and e.line.result]
    open_ = [MARKS[event.state] for event in events if event and event.state in MARKS]
    if hard:
        return f"{statistics.mean(hard):.2f}" + (" ..." if "..." in open_ else "")
    return open_[0] if open_ else ""


def line_of(event: Event) -> str:
    """A cell that ended, in one line."""
    name = describe(event.cell)
    if event.line is None or event.line.result is None:
        return f"{name}: {event.state}: {event.note}"
    result = event.line.result
    return f"{name}: hard {100 * result['hard']:.2f} %, {duration(event.line.seconds)}"
