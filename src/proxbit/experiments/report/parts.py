"""The parts of a report, before it becomes HTML, Markdown or CSV."""

from __future__ import annotations

from dataclasses import dataclass

from proxbit.experiments.report.statistics import Comparison


@dataclass(frozen=True)
class Entry:
    """One place of a table: its text, small lines below, and what sorts it (None: the text)."""

    text: str = ""
    detail: tuple[str, ...] = ()
    sort: float | None = None
    strong: bool = False
    broken: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a head; ``notes`` are sentences below it, ``wide`` columns may break lines."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A chart with its caption."""

    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """One grid in one preset: its table and its charts."""

    title: str
    table: Table
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Evidence:
    """Two accuracies; the claim puts the first above the second. p is Holm's within the claim."""

    where: str
    names: tuple[str, str]
    means: tuple[float, float]
    comparison: Comparison
    p: float


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in one preset and why: holds, does not hold, not decided, not run."""

    text: str
    preset: str
    outcome: str
    reason: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class ResultsReport:
    """Everything on the page; ``facts`` are the lines under its title, ``runs`` is for HTML."""

    facts: tuple[str, ...]
    claims: tuple[Claim, ...]
    sections: tuple[Section, ...]
    tables: tuple[Table, ...]
    runs: Table


def points(share: float | None) -> str:
    """A share in percent with two digits; nothing for None.

    >>> points(0.9040), points(None)
    ('90.40', '')
    """
    return "" if share is None else f"{100 * share:.2f}"


def chance(p: float) -> str:
    """A p value in a few digits.

    >>> chance(0.0312), chance(1e-9)
    ('0.031', '< 0.0001')
    """
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def signed(difference: float) -> str:
    """A difference in percentage points with its sign.

    >>> signed(-5.421)
    '-5.42'
    """
    return f"{difference:+.2f}"
