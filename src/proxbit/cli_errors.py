"""How commands speak: text that a terminal does not obey, mistakes in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from proxbit.text import visible

MISTAKE = 2


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print lines that may hold words of a file."""
    typer.echo("\n".join(visible(line) for line in str(text).split("\n")), err=err, nl=nl)


def fail(message: str, status: int = MISTAKE, everyone: bool = False) -> NoReturn:
    """Say what is wrong and leave; of several processes the first speaks, or ``everyone``."""
    if everyone or os.environ.get("RANK", "0") == "0":
        say(f"proxbit: {' '.join(message.split())}", err=True)
    raise typer.Exit(status)


@contextmanager
def mistakes() -> Iterator[None]:
    """Turn the errors that a user's input causes into one sentence."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(str(error))
