"""A report as Markdown: claims and tables; charts and the list of runs are for the HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from proxbit.experiments.report.parts import Entry, ResultsReport, Table


def to_markdown(report: ResultsReport) -> str:
    """The whole text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ResultsReport) -> Iterator[str]:
    yield f"# {report.title}\n"
    yield from (f"- {plain(fact)}" for fact in report.facts)
    yield "\n## Claims of the paper\n"
    for claim in report.claims:
        said = f"{plain(claim.text)} (preset {plain(claim.preset)})"
        yield f"- **{claim.outcome}**: {said}: {plain(claim.reason)}"
    for table in [*(section.table for section in report.sections), *report.tables]:
        yield from _table(table)
    yield "\n## How to read this\n"
    yield "\n\n".join(plain(text) for text in report.reading)


def _table(table: Table) -> Iterator[str]:
    yield f"\n## {plain(table.title)}\n"
    yield f"| {' | '.join(plain(column) for column in table.head)} |"
    yield f"| {' | '.join('---' for _ in table.head)} |"
    yield from (f"| {' | '.join(_cell(entry) for entry in row)} |" for row in table.rows)
    yield from (f"\n{plain(note)}" for note in table.notes)


def _cell(entry: Entry) -> str:
    text = f"**{plain(entry.text)}**" if entry.strong else plain(entry.text)
    return "<br>".join(part for part in (text, *map(plain, entry.detail)) if part)


def plain(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> plain("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line)
