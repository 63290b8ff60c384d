"""The command line: all commands come together here."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from proxbit._version import __version__
from proxbit.cli.engine_commands import bench, export, inspect, pack, run
from proxbit.cli.errors import mistakes, say
from proxbit.cli.reproduce_commands import report, reproduce
from proxbit.cli.select_commands import select
from proxbit.cli.theory_commands import check, methods
from proxbit.cli.train_commands import demo, evaluate, show, train
from proxbit.kernels import inference as kernels
from proxbit.kernels.library import choice

COMMANDS = (
    check, methods, train, evaluate, show, pack, inspect, run, bench, export, reproduce, report,
    select, demo,
)  # fmt: skip
app = typer.Typer(
    help="One-bit neural networks: train them, pack them, run them, check their pairs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"proxbit {__version__}, {_kernels()}")
        raise typer.Exit


def _kernels() -> str:
    """The kernels in use: an install without a compiler succeeds, and pip hides its warning."""
    with warnings.catch_warnings(), mistakes():  # PROXBIT_KERNELS may ask for what is not here
        warnings.simplefilter("ignore", kernels.KernelWarning)
        found = kernels.isa()
    if found != "torch":
        return f"kernels: {found}"
    if choice() == "torch":
        return "no kernels: PROXBIT_KERNELS is 'torch'"
    return "no kernels: install proxbit again with a C++ compiler at hand for faster networks"


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and the kernels."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line."""
    app()
