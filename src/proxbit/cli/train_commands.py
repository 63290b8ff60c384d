"""``proxbit train``, ``evaluate`` and ``show``: the training loop on the command line."""

from __future__ import annotations

import inspect
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from proxbit.cli.errors import fail, in_options, mistakes, say
from proxbit.train.config import Config, read_config
from proxbit.util.text import visible

INTERRUPTED = 130
DIVERGED = 4
_HINTS = get_type_hints(Config)


def with_options(
    command: Callable[..., None], only: Mapping[str, Mapping[str, str]] | None = None
) -> Callable[..., None]:
    """Give a command one option per field of Config, beside its own.

    ``only`` names the fields, if not all are wanted, each with what its help says otherwise.
    """
    chosen = {each.name: {} for each in fields(Config)} if only is None else only
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "given"
    ]

    def run(**values: Any) -> None:
        mine = {p.name: values.pop(p.name) for p in own}
        command(given={k: v for k, v in values.items() if v is not None}, **mine)

    options = [
        _option(each.name, each.default, {**each.metadata, **chosen[each.name]})
        for each in fields(Config)
        if each.name in chosen
    ]
    run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def _option(name: str, default: Any, metadata: Any) -> inspect.Parameter:
    """A typer option that is None unless the user gives it."""
    kind = _HINTS[name] if default is None else _HINTS[name] | None
    flag = "--" + name.replace("_", "-")
    names = [f"{flag}/--no-{flag[2:]}"] if bool in getattr(kind, "__args__", ()) else [flag]
    words = metadata["help"]
    if metadata["known"]:
        words += f" One of {', '.join(metadata['known'])}."
    panel, shown = metadata["group"], metadata["shown"]
    info = typer.Option(*names, help=words, show_default=shown, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def train(
    given: dict[str, Any],
    out: Annotated[
        str | None, typer.Option(help="Folder of the run.", show_default="runs/N, the next free")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Continue the run in DIR exactly.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Options from a config.json of a run.")
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Resume even if config.json or metrics.jsonl was changed."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Lines only, no bar: for log files.")] = False,
    tensorboard: Annotated[bool, typer.Option(help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a network with one-bit weights, from one command to the hard result.

    Without options: embedded images, a small ResNet, BNN++, two minutes on a laptop.

    proxbit train --model resnet20 --data cifar10 --weights resnet20.safetensors --epochs 10

    proxbit train --resume runs/1   # after a crash, a kill or Ctrl-C

    Exit status: 0 done, 2 a mistake in the call, 4 the loss diverged, 130 interrupted and saved.
    """
    from proxbit.train.events import require_tensorboard
    from proxbit.train.fitting import open_run, resume_run

    with mistakes():
        if tensorboard:
            require_tensorboard()
        if resume is not None:
            if out is not None or config is not None:
                raise ValueError("--resume continues in its own folder: leave out --out, --config")
            refuse_contradictions(resume, given)
            trainer = resume_run(resume, accept_changes=accept_changes)
        else:
            if accept_changes:
                raise ValueError("--accept-changes is for a run that goes on: give --resume DIR")
            wanted = replace(Config() if config is None else read_config(config), **given)
            trainer = open_run(wanted, out or next_folder(), sys.argv)
    _run(trainer, quiet, tensorboard)


def refuse_contradictions(folder: str, given: dict[str, Any]) -> None:
    """Refuse other values in a resumed run: it keeps its options."""
    from proxbit.train.run_folder import RunFolder

    kept = RunFolder(folder).options()
    for name, value in given.items():
        if getattr(kept, name) != value:
            raise ValueError(
                f"the run in {folder!r} has {name} {getattr(kept, name)!r}, not {value!r}: resume "
                "without that option, or begin a new run"
            )


def next_folder() -> str:
    """runs/1, or the first number that is free."""
    number = 1
    while Path(f"runs/{number}").exists():
        number += 1
    return f"runs/{number}"


def _run(trainer: Any, quiet: bool, tensorboard: bool) -> None:
    from proxbit.train.display import Display, final_line
    from proxbit.train.divergence import Diverged, Interrupted
    from proxbit.train.events import Events

    folder, main = trainer.folder.path, trainer.dist.main
    # Names of files are shown as they are, brackets and colons included.
    console = Console(quiet=not main, soft_wrap=True, markup=False, emoji=False, highlight=False)
    events = Events(folder / "events") if tensorboard and main else None
    console.print(visible(f"run in {folder}: {describe(trainer.config)}"))
    for note in trainer.prepared.notes:
        console.print(visible(in_options(note)), style="dim")
    # Outside of the handlers: a launcher that ends us while we explain must not cut us short.
    with stopping() as stop:
        trainer.stop = stop
        try:
            _follow(trainer, Display(console, quiet), events)
        except Interrupted:
            again = f"proxbit train --resume {folder}"
            if main:
                say(f"stopped and saved: continue with  {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Diverged as error:
            fail(f"{error}; the last good checkpoint is in {folder}", DIVERGED)
        except ValueError as error:  # what only shows in training: a batch of 1 for a norm
            fail(str(error))
        except (RuntimeError, OSError) as error:
            fail(_trouble(error, trainer, folder), 1, everyone=True)
    console.print(final_line(trainer.result()), style="bold")


def _follow(trainer: Any, display: Any, events: Any) -> None:
    """Train under the eyes of a person."""
    with advising(), display:
        trainer.watch, trainer.tell = display.watch, display.tell
        display.head()
        for record in trainer:
            display.line(record, trainer.config.epochs)
            if events is not None:
                events.write(record)


def _trouble(error: Exception, trainer: Any, folder: Path) -> str:
    again = f"continue with  proxbit train --resume {folder}"
    if isinstance(error, OSError):
        return f"cannot write into {folder}: {error.strerror or error}; {again}"
    if trainer.dist.world > 1:
        first = str(error).splitlines()[0]
        return f"this process failed, or another one of the run stopped ({first}); {again}"
    raise error


def describe(config: Config) -> str:
    """A run in one line."""
    start = f" from {config.weights}" if config.weights else ""
    return (
        f"{config.model} on {config.data}, {config.method} {config.task}, {config.pipeline}{start},"
        f" {config.epochs} epochs, batch {config.batch_size}, {config.optimizer} {config.lr:g}, "
        f"seed {config.seed}"
    )


@contextmanager
def advising() -> Iterator[None]:
    """Show advice as a sentence, not as a place in our source."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda m, *_, **__: say(f"note: {in_options(str(m))}", err=True)
        yield


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to stop after its step; a second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def evaluate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    part: Annotated[
        str, typer.Option(help="test, or validation if the run has a --val-split.")
    ] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Measure the best hard network of runs on their test images."""
    from proxbit.train.fitting import evaluate as measure

    for run in runs:
        with mistakes():
            found = measure(run, part)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            say(f"{run}: hard {100 * found['hard']:.2f} % of {found['n']:,} {part} images")


def show(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw their curves into FILE.png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Compare runs: options, progress, soft and hard accuracy."""
    from proxbit.train.showing import RunView, compare, draw_runs

    with mistakes():
        views = [RunView.of(run) for run in runs]
        if plot is not None:
            draw_runs(views, plot)
    if as_json:
        for view in views:
            typer.echo(json.dumps(view.to_dict()))
    else:
        say(compare(views))
    if plot is not None:
        say(f"drawn: {plot}")


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Only show that it works.")] = False,
) -> None:
    """Binarize a small ResNet on the embedded images, compare, pack: two to three minutes."""
    from proxbit.cli.demo import demo as run

    run(Console(), quick)
