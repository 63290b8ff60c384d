"""``proxbit select``: which method suits a model and its data, on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn

from proxbit.cli.errors import INTERRUPTED, advising, fail, mistakes, say, stopping
from proxbit.cli.options import JSON, Name, next_folder, option, progress_bar
from proxbit.cli.train_commands import with_options
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
    minutes: Annotated[float | None, option("Time for everything.", shown="10")] = None,
    methods: Annotated[
        Name,
        option(
            "Methods to try, with commas, whatever their verdict.",
            shown="all that the theory admits",
        ),
    ] = None,
    own: Annotated[
        list[str] | None,
        option(
            "A Pair or Method of yours; the file is executed. May be repeated.",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    config: Annotated[
        Name, option("All other options of train, from a config.json.", metavar="FILE")
    ] = None,
    out: Annotated[
        Name,
        option(
            "New folder for the trials, the log and the choice; --resume continues one.",
            shown="runs/select-N",
        ),
    ] = None,
    resume: Annotated[Name, option("Continue the selection in DIR.", metavar="DIR")] = None,
    as_json: JSON = False,
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
        choice = _follow(wanted, _there(asked), resume, out or next_folder("runs/select-"), as_json)
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


def _follow(
    config: Config, asked: dict[str, Any], resume: str | None, out: str, quiet: bool
) -> Any:
    """Select under the eyes of a person, with a line for each run; the recommendation."""
    from proxbit.experiments.selection.selecting import resume_select, select
    from proxbit.train.divergence import Interrupted

    console = Console(soft_wrap=True, markup=False, emoji=False, highlight=False, quiet=quiet)
    columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("of the time")
    with stopping() as stop, advising(), progress_bar(*columns) as update:

        def watch(words: str, share: float) -> None:
            update(description=words, completed=share)

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
