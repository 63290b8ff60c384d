"""``proxbit report``: results folders as one page."""

from __future__ import annotations

from typing import Annotated

import typer

from proxbit.cli.errors import mistakes, say
from proxbit.cli.options import Name, option


def report(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="Folders that proxbit reproduce wrote.")
    ],
    out: Annotated[
        Name, option("FILE.html, .md or .csv; replaced.", "--out", "-o", metavar="FILE")
    ] = None,
    form: Annotated[
        Name, option("html, markdown or csv.", "--format", shown="by -o, or markdown")
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
