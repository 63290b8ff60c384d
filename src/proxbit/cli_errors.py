"""How commands answer mistakes: one sentence, an exit status, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

MISTAKE = 2


def fail(message: str, status: int = MISTAKE, everyone: bool = False) -> NoReturn:
    """Say what is wrong and leave; of several processes the first speaks, or ``everyone``."""
    if everyone or os.environ.get("RANK", "0") == "0":
        typer.echo(f"proxbit: {' '.join(message.split())}", err=True)
    raise typer.Exit(status)


@contextmanager
def mistakes() -> Iterator[None]:
    """Turn the errors that a user's input causes into one sentence."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(str(error))
