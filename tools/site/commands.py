"""The command line as a page: every command with its help, arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

HEAD = """# Command line

`proxbit COMMAND --help` prints the same text. A mistake in a call is answered by one sentence and
exit status 2.
"""


def to_markdown() -> str:
    """One section for each command, in the order of ``proxbit --help``."""
    from proxbit.cli.root import app

    root: Any = typer.main.get_command(app)
    return "\n".join([HEAD, *(section(name, command) for name, command in root.commands.items())])


def section(name: str, command: Any) -> str:
    """A command: its usage and help, then a table for each group of options."""
    needed = [word(each) for each in command.params if not is_option(each)]
    usage = " ".join(["proxbit", name, *needed, "[OPTIONS]"])
    parts = [f"## {name}", console(usage), *map(paragraph, (command.help or "").split("\n\n"))]
    return "\n\n".join([*parts, *tables(command.params)]) + "\n"


def paragraph(text: str) -> str:
    """A paragraph of help; one that is a call becomes a block."""
    text = inspect.cleandoc(text)
    return console(text) if text.startswith("proxbit ") else text


def console(call: str) -> str:
    """A call as one types it."""
    return f"```console\n$ {call}\n```"


def tables(params: list[Any]) -> Iterator[str]:
    """Arguments and options in the groups that ``--help`` has."""
    groups: dict[str, list[Any]] = {}
    for each in sorted((each for each in params if not each.hidden), key=is_option):
        groups.setdefault(each.rich_help_panel or kind(each), []).append(each)
    for group, members in groups.items():
        yield "\n".join([f"| {group} | | default |", "|---|---|---|", *map(row, members)])


def row(param: Any) -> str:
    """One argument or option."""
    cells = [f"`{name(param)}`", param.help or "", default(param)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def name(param: Any) -> str:
    """The option as one types it, with what must follow it."""
    if not is_option(param):
        return word(param)
    both = "/".join([", ".join(param.opts), *param.secondary_opts])
    return both if param.is_flag else f"{both} {word(param)}"


def word(param: Any) -> str:
    """What stands for the value in a usage line."""
    return param.metavar or param.name.upper()


def default(param: Any) -> str:
    """The value without the option, where there is one worth showing."""
    if isinstance(param.show_default, str):
        return {"False": "off", "True": "on"}.get(param.show_default, param.show_default)
    bare = param.default is None or param.default is False
    return "" if bare or not param.show_default else str(param.default)


def kind(param: Any) -> str:
    """The group of a parameter that names none."""
    return "Options" if is_option(param) else "Arguments"


def is_option(param: Any) -> bool:
    """Whether it begins with a dash."""
    return bool(param.opts[0].startswith("-"))
