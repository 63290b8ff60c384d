"""Cells, run one after another: each in its own process, each result one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from proxbit.experiments.reproduce import configs, results
from proxbit.experiments.reproduce.configs import Options
from proxbit.experiments.reproduce.grids import STATED, Cell
from proxbit.experiments.reproduce.measuring import packed_figures, verdict_of
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.experiments.reproduce.process import Broken, log_of, train
from proxbit.experiments.reproduce.results import ResultLine
from proxbit.train.config import Config
from proxbit.train.fitting import read_result
from proxbit.train.records import Record, read_records
from proxbit.train.run_folder import RunFolder, about
from proxbit.util.files import lock_file, open_lock
from proxbit.util.schema import read_json
from proxbit.util.text import first_line


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell.

    Attributes:
        cell: The cell.
        state: "skipped" (done before), "running", "done", "broken" (a line with its error), or
            "refused" (not begun: something must be provided; no line).
        line: The line of a cell that is skipped, done or broken.
        note: Why it is broken or refused, or what it does now.
        share: How much of a running cell is done, from 0 to 1.
    """

    cell: Cell
    state: str
    line: ResultLine | None = None
    note: str = ""
    share: float = 0.0


Watch = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""


def run_folder(cell: Cell, folder: str | Path) -> Path:
    """The folder of a cell's run."""
    return Path(folder) / "runs" / cell.name


def run_cell(cell: Cell, options: Options, folder: str | Path, watch: Watch = ignore) -> ResultLine:
    """Run one cell to its end, or continue it; nothing is appended to the results.

    A cell that fails twice gives a line with its error. Raises ValueError, and runs nothing, where
    the user must provide something (Missing, Refused).
    """
    began, config = time.monotonic(), configs.config_of(cell, options, folder)
    run = run_folder(cell, folder)
    try:
        if configs.needs_float(cell, options):
            _train_float(cell, options, folder, watch)
        train(config, run, lambda records: watch(_running(cell, config, records)))
        line = _line(cell, RunFolder(run).options(), run, time.monotonic() - began)
    except Broken as error:
        told = str(error).replace(f"{Path(folder)}/", "")
        return _line(cell, config, run, time.monotonic() - began, told)
    wanted = PRESETS[cell.preset].measure if options.measure is None else options.measure
    return replace(line, packed=_packed(run)) if wanted and not cell.is_float else line


def _running(cell: Cell, config: Config, records: list[Record]) -> Event:
    done = records[-1].epoch if records else 0
    return Event(cell, "running", note="training", share=done / config.epochs)


def _train_float(cell: Cell, options: Options, folder: str | Path, watch: Watch) -> None:
    """Train the float network that cells are fine-tuned from, once for all of them."""
    config, run = configs.float_config(cell, options), configs.float_folder(cell, folder)
    run.parent.mkdir(parents=True, exist_ok=True)
    note = f"first the float network, {config.epochs} epochs"
    with open_lock(run.parent / ".float.lock") as lock:
        lock_file(lock)  # several cells of one machine may want it at once
        train(config, run, lambda _: watch(Event(cell, "running", note=note)))


def _packed(run: Path) -> dict[str, Any] | None:
    """The figures of the packed network; where it cannot be packed, the reason is in the log."""
    try:
        return packed_figures(run)
    except (ValueError, TypeError, RuntimeError) as error:
        with log_of(run).open("a", encoding="utf-8") as log:
            log.write(f"not packed: {first_line(error)}\n")
        return None


def _line(
    cell: Cell, config: Config, run: Path, seconds: float, error: str | None = None
) -> ResultLine:
    """The line of a run that ended, or broke; one that was interrupted took longer than this."""
    file = run / "about.json"
    known = read_json(file) if file.is_file() else about([])
    result = None if error else read_result(run)
    records = [] if error else read_records(run / "metrics.jsonl")
    names = ("proxbit", "torch", "numpy", "python", "cores", "threads")
    return ResultLine(
        grid=cell.grid, row=cell.row, preset=cell.preset, key=cell.axes, seed=cell.seed,
        config=configs.as_published(config), result=result, error=error, packed=None,
        curve=[record.to_dict() for record in records], verdict=verdict_of(config),
        versions={name: known[name] for name in names}, commit=known["commit"],
        device=known["device"], started=known["started"],
        seconds=round(max(seconds, result["seconds"] if result else 0.0), 3),
    )  # fmt: skip


def done_lines(folder: str | Path) -> dict[Cell, ResultLine]:
    """The cells of a folder that have a result."""
    if not (Path(folder) / results.FILE).is_file():
        return {}
    return {line.cell: line for line in results.read_results(folder) if line.done}


def to_do(
    cells: Iterable[Cell], options: Options, folder: str | Path, watch: Watch = ignore
) -> list[Cell]:
    """The cells without a result; those that have one are watched as skipped.

    One that stands in another grid too, and was run there, gets that result as its own, and so does
    the float network of another task: the same run twice says nothing new. Raises ValueError where
    a result was obtained with other options.
    """
    done, left = done_lines(folder), []
    for cell in cells:
        line = done.get(cell)
        if line is not None:
            if (wanted := _wanted(cell, options, folder)) is not None:
                where = f"{cell.name} in {str(folder)!r}"
                configs.check_alike(wanted, line.config, where, line=True)
        elif (line := _run_elsewhere(cell, options, folder, done.values())) is not None:
            results.append_result(folder, line)
        else:
            left.append(cell)
            continue
        watch(Event(cell, "skipped", line))
    return left


def _wanted(cell: Cell, options: Options, folder: str | Path) -> Config | None:
    """The options of a cell; None where nothing was given for it, so that nothing contradicts."""
    try:
        return configs.config_of(cell, options, folder)
    except ValueError:
        return None


def _run_elsewhere(
    cell: Cell, options: Options, folder: str | Path, done: Iterable[ResultLine]
) -> ResultLine | None:
    """The line of a cell that was run elsewhere: the same place, seed, preset and options."""
    twins = [line for line in done if _place(line.cell) == _place(cell)]
    wanted = _wanted(cell, options, folder) if twins else None
    for line in twins:
        if wanted is not None and not configs.differences(wanted, line.config, line=True):
            return replace(line, grid=cell.grid, row=cell.row, key=cell.axes)
    return None


def _place(cell: Cell) -> tuple[Any, ...]:
    """Everything that a run depends on besides its options: a float network has no task.

    A register has 8 bits unless its grid says otherwise.
    """
    axes = {"bits": STATED} | cell.axes | ({"task": "any"} if cell.is_float else {})
    return axes, cell.seed, cell.preset


def run_grid(
    cells: Iterable[Cell], options: Options, folder: str | Path, watch: Watch = ignore
) -> list[Event]:
    """Run the cells that are not done yet, append each result at once, and yield how each ended."""
    with results.sole_writer(folder):
        ended, tell = keep_endings(watch)
        for cell in to_do(cells, options, folder, tell):
            if not to_do([cell], options, folder, tell):
                continue  # what just ran here is a result of this cell too
            watch(Event(cell, "running", note="starting"))
            tell(finish_cell(cell, partial(run_cell, cell, options, folder, watch), folder))
        return ended


def keep_endings(watch: Watch) -> tuple[list[Event], Watch]:
    """A list of how cells end, and a watch that fills it before it passes an event on."""
    ended: list[Event] = []

    def tell(event: Event) -> None:
        if event.state != "running":
            ended.append(event)
        watch(event)

    return ended, tell


def finish_cell(cell: Cell, run: Callable[[], ResultLine], folder: str | Path) -> Event:
    """Run a cell and append its line; how it ended."""
    try:
        line = run()
    except ValueError as error:
        return Event(cell, "refused", note=str(error))
    results.append_result(folder, line)
    return Event(cell, "done" if line.done else "broken", line, line.error or "", 1.0)
