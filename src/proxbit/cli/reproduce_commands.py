"""``proxbit reproduce`` and ``report``: the paper's tables and figures on the command line."""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from proxbit.cli.errors import INTERRUPTED, MISTAKE, mistakes, say
from proxbit.cli.options import Name, option
from proxbit.util.text import grouped

BROKEN = 1


_by_preset = partial(option, shown="by preset")
_count = partial(_by_preset, min=1)
Several: TypeAlias = list[str] | None
Count: TypeAlias = int | None
Grid = Annotated[Name, typer.Argument(metavar="GRID", help="cnn, ptb, ...; none lists them all.")]
Data = Annotated[
    Several, option("Images, as in train; one ROW=DATA for each row.", metavar="[ROW=]DATA")
]
Weights = Annotated[
    Several, option("Float weights that fine-tuning starts from.", metavar="[ROW=]FILE")
]
Teacher = Annotated[
    Several, option("Float networks to learn from (distillation).", metavar="[ROW=]FILE")
]
Seeds = Annotated[
    Name,
    option("Seeds with commas, one run for each: 0,1,2.", shown="0; the paper's own with paper"),
]
FloatEpochs = Annotated[Count, _count("Epochs of the float network, without --weights.")]
Measure = Annotated[bool | None, option("Pack and time each network.", "--measure/--no-measure")]


def reproduce(
    grid: Grid = None,
    rows: Annotated[Name, option("Rows or globs of rows, with commas.", shown="all")] = None,
    preset: Annotated[str, option("Size of runs: smoke, small or paper.")] = "smoke",
    data: Data = None,
    weights: Weights = None,
    teacher: Teacher = None,
    seeds: Seeds = None,
    methods: Annotated[Name, option("Columns, with commas.", shown="all")] = None,
    tasks: Annotated[Name, option("Tasks with commas: BW,BWA,BWAA.", shown="all")] = None,
    pipelines: Annotated[Name, option("Pipelines with commas: FT,E2E.", shown="both")] = None,
    model: Annotated[Name, _by_preset("Model to train instead of the preset's.")] = None,
    epochs: Annotated[Count, _count("Epochs of each run.")] = None,
    float_epochs: FloatEpochs = None,
    max_steps_per_epoch: Annotated[Count, _count("Largest number of steps per epoch.")] = None,
    image_size: Annotated[Count, _count("Side of the images that the model gets.")] = None,
    settings: Annotated[Name, _by_preset("default or paper strengths and scales.")] = None,
    data_root: Annotated[str, option("Folder that holds CIFAR.")] = "data",
    measure: Measure = None,
    cpu: Annotated[bool, option("Stay on the CPU.", "--cpu")] = False,
    on: Annotated[Name, option("Run the cells on a Ray cluster.", metavar="ADDRESS")] = None,
    cpus: Annotated[float, option("Cores of each cell on the cluster.")] = 1.0,
    gpus: Annotated[float, option("GPUs of each cell, or its share of one.")] = 0.0,
    out: Annotated[str, option("Folder of the results.")] = "results",
) -> None:
    """Run a table or figure of the paper; without arguments, list them all.

    Each cell is a training run of its own. Done cells are skipped, interrupted
    ones continued, broken ones tried again: give the same command once more.

    proxbit reproduce ptb

    proxbit reproduce cnn --rows cifar10 --preset small --data npz:c10.npz --weights r20.safetensors

    Exit status: 0 done, 1 a cell is broken, 2 a mistake or something missing, 130 interrupted.
    """
    from proxbit.experiments.reproduce.configs import Options, parse_given
    from proxbit.experiments.reproduce.grid_planning import CellQuery, overview, plan, rows_of

    with mistakes():
        if grid is None:
            say(overview())
            return
        query = CellQuery(
            grid, preset, _words(rows), _words(pipelines), _words(tasks), _words(methods),
            None if seeds is None else _seeds(seeds),
        )  # fmt: skip
        given = {"data": data, "weights": weights, "teacher": teacher}
        by_row = {what: parse_given(v or (), rows_of(query), what) for what, v in given.items()}
        options = Options(
            **by_row, model=model, epochs=epochs, float_epochs=float_epochs,
            max_steps_per_epoch=max_steps_per_epoch, image_size=image_size, settings=settings,
            data_root=data_root, measure=measure, cpu=cpu,
        )  # fmt: skip
        cells = plan(query, model)
    _run(cells, options, out, _runner(on, cpus, gpus))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,\s]+", text or "") if word)


def _seeds(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f"--seeds are whole numbers with commas, such as 0,1,2, not {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))


def _run(cells: Any, options: Any, out: str, run_grid: Any) -> None:
    from proxbit.experiments.reproduce.grid_progress import GridProgress

    console = Console(markup=False, emoji=False, highlight=False)
    with mistakes(), GridProgress(cells, options, console) as progress:
        try:
            ended = run_grid(cells, options, out, progress.watch)
        except KeyboardInterrupt:
            again = shlex.join(["proxbit", *sys.argv[1:]])
            say(f"stopped, nothing is lost: continue with  {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(_conclude(ended, out))


def _runner(on: str | None, cpus: float, gpus: float) -> Any:
    """The runner of the cells: this machine, or a cluster."""
    if on is None:
        from proxbit.experiments.reproduce.running import run_grid

        return run_grid
    from proxbit.experiments.reproduce.on_ray import run_grid as run_on_ray

    return partial(run_on_ray, address=on, cpus=cpus, gpus=gpus)


def _conclude(ended: Any, out: str) -> int:
    """Say how it ended, and return the exit status."""
    by_state = grouped(ended, lambda event: event.state)
    counts = ", ".join(f"{len(events)} {state}" for state, events in by_state.items())
    say(f"{counts}; see  proxbit report {out}")
    odd = [*by_state.get("refused", []), *by_state.get("broken", [])]
    for note, events in grouped(odd, lambda event: " ".join(event.note.split())).items():
        say(f"proxbit: {note} ({_cells(events)})", err=True)
    if "refused" in by_state:
        return MISTAKE
    return BROKEN if "broken" in by_state else 0


def _cells(events: list[Any]) -> str:
    from proxbit.experiments.reproduce.grid_progress import describe

    return describe(events[0].cell) if len(events) == 1 else f"{len(events)} cells"


def report(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="Folders that proxbit reproduce wrote.")
    ],
    out: Annotated[
        Name, option("FILE.html, .md or .csv; replaced.", "--out", "-o", metavar="FILE")
    ] = None,
    form: Annotated[
        Name, option("html, markdown or csv.", "--format", shown="by -o, or markdown")
    ] = None,
) -> None:
    """Show results beside the paper's: tables, curves, sizes, verdicts, and its claims.

    The HTML page is one file that opens offline. Without -o the report is
    printed. Results of several folders, seeds or machines are combined.

    proxbit report results/ -o report.html

    proxbit report results/ other/ --format csv
    """
    from proxbit.experiments.report.assembly import read_folders, render, write_report

    with mistakes():
        if out is None:
            say(render(read_folders(folders), form or "markdown", folders), nl=False)
            return
        written = write_report(folders, out, form)
    say(f"written as {written}: {out}")
