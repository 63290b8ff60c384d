"""A report as one HTML page that needs nothing else: style, script and charts are inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from proxbit.experiments.report.claims import FAILS, HOLDS
from proxbit.experiments.report.parts import Claim, Entry, ResultsReport, Section, Table

_BESIDE = Path(__file__)
_KINDS = {HOLDS: "holds", FAILS: "fails"}
# The page may run its own script and use its own style, and may fetch nothing at all.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def to_html(report: ResultsReport) -> str:
    """The whole page."""
    return "\n".join(
        ["<!DOCTYPE html>", '<html lang="en">', *_head(report.title), *_body(report), "</html>"]
    )


def _head(title: str) -> list[str]:
    style = _BESIDE.with_name("report_page.css").read_text(encoding="utf-8")
    return [
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>\n{style}</style>",
        "</head>",
    ]


def _body(report: ResultsReport) -> Iterator[str]:
    yield "<body>"
    yield f"<header><h1>{report.title}</h1>"
    yield from (f'<p class="soft">{escape(fact)}</p>' for fact in report.facts)
    yield "</header>"
    yield _contents(report)
    yield '<main><h2 id="claims">Claims of the paper</h2>'
    yield from _claims(report.claims)
    for i, section in enumerate(report.sections):
        yield from _section(section, f"grid-{i}")
    for i, table in enumerate((*report.tables, report.runs)):
        yield f'<h2 id="list-{i}">{escape(table.title)}</h2>'
        yield from _table(table, f"list-{i}-table")
    yield '<h2 id="reading">How to read this</h2>'
    yield from (f"<p>{escape(text)}</p>" for text in report.reading)
    script = _BESIDE.with_name("report_page.js").read_text(encoding="utf-8")
    yield f"</main>\n<script>\n{script}</script>\n</body>"


def _contents(report: ResultsReport) -> str:
    places = [("claims", "Claims")]
    places += [(f"grid-{i}", each.title) for i, each in enumerate(report.sections)]
    places += [(f"list-{i}", each.title) for i, each in enumerate((*report.tables, report.runs))]
    places.append(("reading", "How to read this"))
    links = [f'<a href="#{place}">{escape(name)}</a>' for place, name in places]
    return "\n".join(["<nav>", *links, "</nav>"])


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    yield '<ul class="claims">'
    for claim in claims:
        kind = _KINDS.get(claim.outcome, "open")
        said = f"{claim.text} (preset {claim.preset}): {claim.outcome}"
        yield f'<li class="{kind}"><b>{escape(said)}</b>{escape(claim.reason)}</li>'
    yield "</ul>"


def _section(section: Section, name: str) -> Iterator[str]:
    yield f'<h2 id="{name}">{escape(section.table.title)}</h2>'
    yield from _table(section.table, f"{name}-table")
    if section.pictures:
        yield '<div class="charts">'
        for picture in section.pictures:
            caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
            yield f"<figure>{caption}{picture.svg}</figure>"
        yield "</div>"


def _table(table: Table, name: str) -> Iterator[str]:
    yield (
        f'<label class="filter">Show rows with <input type="search" data-table="{name}" '
        'placeholder="words"></label>'
    )
    yield f'<div class="scroll" tabindex="0"><table id="{name}"><thead><tr>'
    for column in table.head:
        yield f'<th scope="col"><button type="button">{escape(column)}</button></th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        columns = zip(row, table.head, strict=True)
        cells = (_cell(entry, column in table.wide) for entry, column in columns)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    yield from (f'<p class="soft">{escape(note)}</p>' for note in table.notes)


def _cell(entry: Entry, wide: bool) -> str:
    kinds = [("strong", entry.strong), ("broken", entry.broken), ("wide", wide)]
    classes = " ".join(kind for kind, holds in kinds if holds)
    marked = f' class="{classes}"' if classes else ""
    order = entry.text if entry.sort is None else f"{entry.sort:.10g}"
    small = "".join(f"<small>{escape(line)}</small>" for line in entry.detail)
    return f'<td{marked} data-sort="{escape(order)}">{escape(entry.text)}{small}</td>'
