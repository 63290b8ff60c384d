"""``proxbit select``: which method suits a model and its data, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from proxbit.cli.errors import fail, mistakes, say
from proxbit.cli.train_commands import INTERRUPTED, advising, stopping, with_options
from proxbit.train.config import Config, read_config
from proxbit.util.text import visible

LINE = "{:>4}  {:<14}  {:>4}  {:>6}  {:>8}  {:>8}  {}"


# The options of ``train`` that count here too, and what is different about them.
_OF_TRAIN: dict[str, dict[str, str]] = {
    "model": {}, "data": {}, "weights": {}, "task": {}, "batch_size": {}, "cpu": {},
    "epochs": {"help": "The longest that a run may be."},
    "val_split": {"help": "Share of the training images held out to judge by.", "shown": "0.1"},
    "seed": {"help": "Seed of the first runs."},
}  # fmt: skip


@partial(with_options, only=_OF_TRAIN)
def select(
    given: dict[str, Any],
    minutes: Annotated[
        float | None, typer.Option(help="Time for everything.", show_default="10")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to try, with commas, whatever their verdict.",
            show_default="all that the theory admits",
        ),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="A Pair or Method of yours; the file is executed. May be repeated.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="All other options of train, from a config.json."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder to resume from.", show_default="runs/select-N")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Continue the selection in DIR.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Try the methods on your model and data, and recommend one, within a time budget.

    Every method gets a short but whole run, judged by its hard network on held-out
    images. The better half goes on to longer runs, the last two with three seeds each.

    proxbit select --model net.py:build --data npz:images.npz --weights net.safetensors --minutes 10

    proxbit select --own my_pairs.py:soft_sign --methods bnn++,bc

    Exit status: 0 done, 2 a mistake in the call, 130 interrupted and saved.
    """
    asked = {"minutes": minutes, "methods": methods and _names(methods), "own": own}
    with mistakes():
        if resume is not None:
            _refuse_others(given | asked | {"out": out, "config": config})
        wanted = replace(Config() if config is None else read_config(config), **given)
        choice = _follow(wanted, _there(asked), resume, out or next_folder(), as_json)
    typer.echo(json.dumps(choice.to_dict())) if as_json else say(f"\n{choice}")


def _there(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        fail(f"--methods names methods with commas between them, not {text!r}")
    return names


def _refuse_others(options: dict[str, Any]) -> None:
    """Refuse options beside --resume: a resumed selection keeps its request."""
    names = ", ".join("--" + name.replace("_", "-") for name in _there(options))
    if names:
        raise ValueError(f"--resume continues what was asked: leave out {names}")


def next_folder() -> str:
    """runs/select-1, or the first number that is free."""
    number = 1
    while Path(f"runs/select-{number}").exists():
        number += 1
    return f"runs/select-{number}"


def _follow(
    config: Config, asked: dict[str, Any], resume: str | None, out: str, quiet: bool
) -> Any:
    """Select under the eyes of a person, with a line for each run; the recommendation."""
    from proxbit.experiments.selection.selecting import resume_select, select
    from proxbit.train.divergence import Interrupted

    console = Console(soft_wrap=True, markup=False, emoji=False, highlight=False, quiet=quiet)
    with stopping() as stop, advising(), _bar() as watch:
        if resume is not None:
            records = resume_select(resume, watch, stop)
        else:
            records = select(config, **asked, out=out, watch=watch, stop=stop)
        folder = resume or out
        console.print(f"selecting in {folder}")
        try:
            return _show(records, console)
        except Interrupted:
            again = f"proxbit select --resume {folder}"
            say(f"stopped and saved: continue with  {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None


def _show(records: Iterator[Any], console: Console) -> Any:
    """Print each run as it ends; the last record is the recommendation."""
    from proxbit.experiments.selection.choosing import TRIAL_HEAD, Recommendation, trial_row

    console.print(LINE.format(*TRIAL_HEAD), style="bold")
    for record in records:
        if isinstance(record, Recommendation):
            return record
        console.print(LINE.format(*map(visible, trial_row(record))))
    raise AssertionError("a selection ends with a choice")


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """Show on a terminal what is tried, and how much of the time is used."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("of the time")
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda words, share: bar.update(task, description=words, completed=share)
