"""How commands speak and stop: text that a terminal does not obey, mistakes in one sentence."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from proxbit.util.text import visible

MISTAKE, INTERRUPTED = 2, 130
# Arguments of functions that are options of commands too. What only Python has stays as it is.
_OPTIONS = (
    "batch_size", "bits", "download", "float_rest", "image_size", "input_schedule", "largest_side",
    "only", "relu", "scale", "schedule", "seed", "settings", "sharp", "sharp_strength", "skip",
    "tables", "unit", "within", "workers",
)  # fmt: skip
_OTHERWISE = {"schedule": "strength", "input_schedule": "input-strength"}
_ARGUMENT = re.compile(rf"(?<![-\w])({'|'.join(_OPTIONS)})=(nn\.\w+|'[^']*'|\([^()]*\)|[\w.+-]+)?")


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print lines that may hold words of a file."""
    typer.echo("\n".join(visible(line) for line in str(text).split("\n")), err=err, nl=nl)


def in_options(text: str) -> str:
    """Turn a sentence about arguments in Python into one about options of a command.

    >>> in_options("pass only='*', or relu=nn.Hardtanh: sharp= is a share")
    "pass --only '*', or --relu hardtanh: --sharp is a share"
    """
    return _ARGUMENT.sub(_option, text)


def _option(found: re.Match[str]) -> str:
    name, value = found[1], found[2] or ""
    flag = "--" + _OTHERWISE.get(name, name).replace("_", "-")
    if value.startswith("nn."):
        value = value[3:].lower()
    elif value.startswith("("):  # a pair of numbers is LOW:HIGH
        value = ":".join(part.strip() for part in value[1:-1].split(","))
    elif "*" not in value:  # a glob would be the shell's
        value = "" if value == "True" else value.strip("'")
    return f"{flag} {value}" if value else flag


def fail(message: str, status: int = MISTAKE, everyone: bool = False) -> NoReturn:
    """Say what is wrong and exit; of several processes only the first speaks, or ``everyone``."""
    if everyone or os.environ.get("RANK", "0") == "0":
        say(f"proxbit: {' '.join(in_options(message).split())}", err=True)
    raise typer.Exit(status)


@contextmanager
def mistakes() -> Iterator[None]:
    """Turn the errors that a user's input causes into one sentence."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(str(error))


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
