"""Results folders as one report: HTML, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from proxbit.experiments.report import lists
from proxbit.experiments.report.cells import Outcome, outcomes
from proxbit.experiments.report.claims import claims
from proxbit.experiments.report.csv_file import to_csv
from proxbit.experiments.report.grid_charts import pictures_of
from proxbit.experiments.report.html_page import to_html
from proxbit.experiments.report.markdown_page import to_markdown
from proxbit.experiments.report.parts import ResultsReport, Section
from proxbit.experiments.report.tables import grid_table
from proxbit.experiments.reproduce.results import ResultLine, read_results
from proxbit.util.files import write_or_say
from proxbit.util.text import few, grouped, require_known

FORMATS = ("html", "markdown", "csv")
_ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv"}


def read_folders(folders: Sequence[str | Path]) -> list[ResultLine]:
    """The lines of all folders; a line that several of them hold counts once."""
    found = [line for folder in folders for line in read_results(folder)]
    if not found:
        names = few([repr(str(folder)) for folder in folders])
        raise ValueError(f"no cell has run yet in {names}: begin with 'proxbit reproduce'")
    return list({str(line): line for line in found}.values())


def build_report(lines: Sequence[ResultLine], folders: Sequence[str | Path] = ()) -> ResultsReport:
    """Claims, tables and charts of results."""
    found = outcomes(lines)
    judged = claims(found)
    places = grouped(found, lambda cell: (cell.grid, cell.preset))
    sections = tuple(_section(*place, there) for place, there in places.items())
    plain = lists.evidence_table(judged), lists.packed_table(found), lists.verdicts_table(lines)
    tables = tuple(table for table in plain if table.rows)
    facts = _facts(lines, found, folders)
    return ResultsReport(facts, tuple(judged), sections, tables, lists.runs_table(lines))


def _section(grid: str, preset: str, there: Sequence[Outcome]) -> Section:
    pictures = tuple(pictures_of(grid, there))
    return Section(f"{grid}, {preset}", grid_table(grid, preset, there), pictures)


def _facts(
    lines: Sequence[ResultLine], found: Sequence[Outcome], folders: Sequence[str | Path]
) -> tuple[str, ...]:
    # A cell of two grids is one run with two lines.
    done = len({(line.started, str(line.config)) for line in lines if line.done})
    broken = sum(len(cell.broken) for cell in found)
    known = [line.versions.items() for line in lines]
    versions = [", ".join(f"{name} {value}" for name, value in each) for each in known]
    began = sorted(line.started for line in lines)
    facts = {
        "From": ", ".join(str(folder) for folder in folders),
        "Runs": f"{done} finished, {broken} broken, in {len(found)} cells",
        "Begun": " to ".join(dict.fromkeys([began[0], began[-1]])),
        "Commits": _several((line.commit or "unknown")[:12] for line in lines),
        "Versions": _several(versions, "; "),
        "Devices": _several(line.device for line in lines),
    }
    return tuple(f"{name}: {text}" for name, text in facts.items() if text)


def _several(values: Iterable[str], between: str = ", ") -> str:
    return between.join(dict.fromkeys(values))


def render(lines: Sequence[ResultLine], form: str, folders: Sequence[str | Path] = ()) -> str:
    """The text of a report in one of FORMATS."""
    require_known("format", form, FORMATS)
    if form == "csv":
        return to_csv(outcomes(lines))
    return {"html": to_html, "markdown": to_markdown}[form](build_report(lines, folders))


def format_of(out: str | Path, given: str | None = None) -> str:
    """The format that was given, or else that of a file's ending."""
    form = _ENDINGS.get(Path(out).suffix.lower()) if given is None else given
    if form is None:
        raise ValueError(
            f"no format is known for {str(out)!r}: end it in .html, .md or .csv, or give --format"
        )
    return form


def write_report(folders: Sequence[str | Path], out: str | Path, form: str | None = None) -> str:
    """Write the report of some folders into one file; answers the format that it has."""
    form = format_of(out, form)
    text = render(read_folders(folders), form, folders)
    write_or_say(Path(out), text.encode(errors="replace"))
    return form
