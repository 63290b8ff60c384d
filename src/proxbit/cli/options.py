"""Options that several commands have, the next free folder, and a bar beside what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn

Name: TypeAlias = str | None


def option(text: str, *flags: str, shown: str | bool = True, **more: Any) -> Any:
    """An option with its help; ``shown`` stands for its default."""
    return typer.Option(*flags, help=text, show_default=shown, **more)


JSON = Annotated[bool, option("Print JSON.", "--json")]
JSON_LINES = Annotated[bool, option("Print JSON lines.", "--json")]
FORCE = Annotated[bool, option("Replace the file if it exists.", "--force")]
RUNS = Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")]
SKELETON = Annotated[
    Name,
    option(
        "Function that builds the float model, if the file does not say how; it is executed.",
        metavar="FILE.py:FUNCTION",
    ),
]
SIDE = Annotated[
    int, option("Largest side, in pixels, of the images that the file may ask for.", min=1)
]


def next_folder(start: str) -> str:
    """The start with the first number behind it that is free: runs/1."""
    return next(name for n in count(1) if not Path(name := f"{start}{n}").exists())


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar on a terminal; call what this yields with ``completed`` and ``description``."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield partial(bar.update, bar.add_task("", total=1.0))
