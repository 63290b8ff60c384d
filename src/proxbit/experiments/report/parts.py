"""The parts of a report, before it becomes HTML, Markdown or CSV, and its standing sentences."""

from __future__ import annotations

from dataclasses import dataclass

from proxbit.experiments.report.statistics import LEVEL, Comparison

TITLE = "One-bit networks beside the paper's"
HOW_TO_READ = (
    "Accuracies are percentages of right answers of the hard network, whose binary weights are "
    "exactly ±scale: the mean over seeds ± their standard deviation; n is the number of seeds. "
    "Below stand the paper's figure and ours minus the paper's. In smaller presets than `paper` "
    "the networks, images and epochs are smaller (column 'here'), so that difference is no "
    "failure.",
    "Soft: the network as it trained. Hard at once: the same, made hard at that moment. Hard: the "
    "best hard network of the run. An empty cell was not run.",
    "Bold: the best one-bit method of a row, if its difference to the second is significant "
    f"(p < {LEVEL:g}). With two or more seeds on both sides that is Welch's t-test over the seeds; "
    "with fewer, the two-proportion test over the images, which knows nothing of the spread "
    "between seeds and is therefore too sure of itself.",
    "A claim holds if all its comparisons are significantly for it, does not hold if any is "
    "significantly against it, is not run without any, and is not decided otherwise. The p of its "
    "comparisons are raised by Holm's method, because among many tests some look significant by "
    "chance. Only cells that were trained alike are compared.",
)


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
    title: str = TITLE
    reading: tuple[str, ...] = HOW_TO_READ


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
