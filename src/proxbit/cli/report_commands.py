"""``proxbit report``: results folders as one page."""

from __future__ import annotations

from typing import Annotated

import typer

from proxbit.cli.errors import mistakes, say


def report(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="Folders that proxbit reproduce wrote.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="FILE.html, .md or .csv; replaced."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="html, markdown or csv.", show_default="by -o, or markdown"),
    ] = None,
) -> None:
    """Show results beside the paper's: tables, curves, sizes, verdicts, and its claims.

    The HTML page is one file that opens offline. Without -o the report is
    printed. Results of several folders, seeds or machines are combined.

    proxbit report results/ -o report.html

    proxbit report results/ other/ --format csv
    """
    from proxbit.experiments.report.assembly import read_folders, render, write_report

    with mistakes():
        if out is None:
            say(render(read_folders(folders), form or "markdown", folders), nl=False)
            return
        written = write_report(folders, out, form)
    say(f"written as {written}: {out}")
