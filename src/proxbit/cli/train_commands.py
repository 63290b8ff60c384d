"""``proxbit train``, ``evaluate`` and ``show``: the training loop on the command line."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from proxbit.cli.errors import INTERRUPTED, advising, fail, in_options, mistakes, say, stopping
from proxbit.cli.options import JSON_LINES, RUNS, SKELETON, Name, next_folder, option
from proxbit.train.config import Config, read_config
from proxbit.util.text import visible

DIVERGED = 4
_HINTS = get_type_hints(Config)


def with_options(
    command: Callable[..., None], only: Mapping[str, Mapping[str, str]] | None = None
) -> Callable[..., None]:
    """Give a command one option per field of Config, beside its own.

    ``only`` names the fields, if not all are wanted, each with what its help says otherwise.
    """
    chosen = {each.name: {} for each in fields(Config)} if only is None else only
    parameters = inspect.signature(command, eval_str=True).parameters
    own = [p for name, p in parameters.items() if name != "given"]

    def run(**values: Any) -> None:
        mine = {p.name: values.pop(p.name) for p in own}
        command(given={k: v for k, v in values.items() if v is not None}, **mine)

    known = [each for each in fields(Config) if each.name in chosen]
    options = [_option(f.name, f.default, {**f.metadata, **chosen[f.name]}) for f in known]
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


@with_options
def train(
    given: dict[str, Any],
    out: Annotated[Name, option("Folder of the run.", shown="runs/N, the next free")] = None,
    resume: Annotated[Name, option("Continue the run in DIR exactly.", metavar="DIR")] = None,
    config: Annotated[Name, option("Options from a config.json of a run.", metavar="FILE")] = None,
    accept_changes: Annotated[
        bool, option("Resume even if config.json or metrics.jsonl was changed.", "--accept-changes")
    ] = False,
    quiet: Annotated[bool, option("Lines only, no bar: for log files.")] = False,
    tensorboard: Annotated[bool, option("Also write TensorBoard events.")] = False,
) -> None:
    """Train a network with one-bit weights, from one command to the hard result.

    Without options: embedded images, a small ResNet, BNN++, two minutes on a laptop.

    proxbit train --model resnet20 --data cifar10 --weights resnet20.safetensors --epochs 10

    proxbit train --resume runs/1   # after a crash, a kill or Ctrl-C

    Exit status: 0 done, 2 a mistake in the call, 4 the loss diverged, 130 interrupted and saved.
    """
    from proxbit.train.display import require_tensorboard
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
            trainer = open_run(wanted, out or next_folder("runs/"), sys.argv)
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


def _run(trainer: Any, quiet: bool, tensorboard: bool) -> None:
    from proxbit.train.display import Display, Events, final_line
    from proxbit.train.divergence import Diverged, Interrupted

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


def evaluate(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of runs, or packed files.")
    ],
    part: Annotated[str, option("test, or validation if the run has a --val-split.")] = "test",
    data: Annotated[
        Name, option("Images for packed files: fashion, cifar10, npz:FILE or folder:PATH.")
    ] = None,
    skeleton: SKELETON = None,
    as_json: JSON_LINES = False,
) -> None:
    """Measure the best hard network of runs, or packed files, on test images.

    proxbit evaluate runs/1

    proxbit evaluate net.safetensors --data npz:cifar10.npz
    """
    for run in runs:
        with mistakes(), advising():
            found = _evaluate(run, part, data, skeleton)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            say(f"{run}: hard {100 * found['hard']:.2f} % of {found['n']:,} {part} images")


def _evaluate(run: str, part: str, data: Name, skeleton: Name) -> dict[str, Any]:
    """The accuracy of a run, or of a file if it is one."""
    if Path(run).is_file():
        from proxbit.deploy.image_inputs import evaluate_file

        if data is None or part != "test":
            raise ValueError(
                f"'{run}' is not the folder of a run: if it is a packed file, give its test images "
                "as --data, without --part"
            )
        return evaluate_file(run, data, skeleton)
    if data is not None:
        raise ValueError(f"'{run}' is no packed file, and a run has its own data: leave out --data")
    from proxbit.train.fitting import evaluate as measure

    return measure(run, part)


def show(
    runs: RUNS,
    plot: Annotated[
        Name, option("Draw their curves into FILE.png or .svg.", metavar="FILE")
    ] = None,
    as_json: JSON_LINES = False,
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


def demo(quick: Annotated[bool, option("Only show that it works.", "--quick")] = False) -> None:
    """Binarize a small ResNet on the embedded images, compare, pack: two to three minutes."""
    from proxbit.cli.demo import demo as run

    run(Console(), quick)
