"""Draw docs/results.svg and fill the table of docs/results.md; ``--check`` compares.

Accuracy comes from cifar_runs.py, time and files from results/speed/, the figures of other codes
from results/published.csv. The longest run counts, after its last epoch: a better one that is
shorter, or a better epoch before the last, does not.
"""

from __future__ import annotations

import csv
import json
import sys
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from cifar_runs import RESULTS, Run, runs
from draw_overview import SPEED, write_or_check
from write_docs import ROOT, fill

from proxbit.util.text import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, PICTURE = ROOT / "docs" / "results.md", ROOT / "docs" / "results.svg"
TASKS = ("BW", "BWA", "BWAA")
COLORS = {"float": "#777777", "BW": "#2a6f4e", "BWA": "#b5541c", "BWAA": "#5b4a9e"}
NETWORKS = {"resnet20": "ResNet-20", "bireal_resnet20": "Bi-Real ResNet-20"}
MARKS = {"resnet20": "o", "bireal_resnet20": "s"}


class Row(NamedTuple):
    """Runs of one network, task and method, all of the same length: one for each seed."""

    runs: tuple[Run, ...]

    @property
    def hard(self) -> float:
        """Mean over the seeds."""
        return fmean(run.hard for run in self.runs)

    @property
    def first(self) -> Run:
        """The run whose options, size and float accuracy stand for all."""
        return self.runs[0]


def rows() -> list[Row]:
    """The methods of the longest runs of each network and task; shorter runs are left out."""
    binary = [run for run in runs() if run.method != "fp" and run.network in NETWORKS]
    most: dict[tuple[str, str], int] = {}
    for run in binary:
        most[run[:2]] = max(run.epochs, most.get(run[:2], 0))
    found: dict[tuple[str, str, str], list[Run]] = {}
    for run in binary:
        if run.epochs == most[run[:2]]:
            found.setdefault(run[:3], []).append(run)
    return sorted((Row(tuple(some)) for some in found.values()), key=_place)


def _place(row: Row) -> tuple[int, int, str]:
    run = row.first
    return list(NETWORKS).index(run.network), TASKS.index(run.task), run.method


def measured(what: str) -> dict[tuple[str, str], Any]:
    """Time or file of each network and contender, on the machine of the README's picture."""
    held = json.loads(SPEED.read_text(encoding="utf-8"))["rows"]
    one = [row for row in held if (row["batch"], row["threads"]) == (1, 1)]
    return {(row["network"], row["contender"]): row[what] for row in one}


def file_bytes(run: Run) -> int:
    """The file of a run's network; lines of early runs leave names and header out."""
    found: int | None = measured("file_bytes").get(run[:2])
    return run.bytes_packed if found is None else found


def table() -> str:
    """The longest runs, beside the float network that they started from."""
    lines = [
        "| network | task | method | epochs | seeds | hard % | float % | file | float file |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows():
        run = row.first
        cells = [
            NETWORKS[run.network], run.task, f"`{run.method}`", run.epochs, len(row.runs),
            f"{row.hard:.2%}"[:-1], "" if run.full is None else f"{run.full:.2%}"[:-1],
            size(file_bytes(run)), size(run.bytes_float),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def published() -> list[dict[str, str]]:
    """Hard figures of others for ResNet-20 on CIFAR-10, as they print them."""
    with (RESULTS / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def others() -> str:
    """The same as a table."""
    lines = ["| code | task | hard % | from |", "|---|---|--:|---|"]
    lines += [f"| {r['code']} | {r['task']} | {r['hard']} | {r['where']} |" for r in published()]
    return "\n".join(lines)


def draw() -> Figure:
    """Accuracy against size, against time, and beside other codes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, 2.7), layout="constrained")
    by_size, by_time, beside = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    ours = [row for row in rows() if row.first.method == "bnn++" or row.first.full is None]
    full, times = ours[0].first, measured("ms")
    assert full.full is not None, "the first one is ResNet-20, fine-tuned"
    _float(by_size, full.bytes_float / 1000, full.full)
    _float(by_time, times["resnet20", "ORT float"], full.full)
    for row in ours:
        _point(by_size, row, file_bytes(row.first) / 1000)
        ms = times.get((row.first.network, f"{row.first.task} in ONNX Runtime"))
        if ms is not None:
            _point(by_time, row, ms)
    _codes(beside, ours)
    by_size.set_xlabel("file, kB")
    by_time.set_xlabel("one image, one thread, ONNX Runtime, ms")
    by_size.set_ylabel("% of the test images")
    beside.set_xlabel("% of the test images")
    titles = {by_size: "Size", by_time: "Time", beside: "Beside other codes"}
    for axes, title in titles.items():
        axes.set_title(title, loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _float(axes: Axes, where: float, full: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.plot(where, 100 * full, "D", color=COLORS["float"])
    _label(axes, "float", where, 100 * full, COLORS["float"])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.35, 0.1)


def _point(axes: Axes, row: Row, where: float) -> None:
    run, high = row.first, 100 * row.hard
    axes.plot(where, high, MARKS[run.network], color=COLORS[run.task])
    name = f"{run.task}, {run.epochs} epochs"
    name += "" if run.network == "resnet20" else f",\n{NETWORKS[run.network]}"
    _label(axes, name, where, high, COLORS[run.task])


def _label(axes: Axes, text: str, where: float, high: float, color: str) -> None:
    near = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (where, high), fontsize=6, color=color, **near)


def _codes(axes: Axes, ours: list[Row]) -> None:
    """One line for each network of ours and each code of others, a mark for each task."""
    marks = [(NETWORKS[row.first.network], row.first.task, 100 * row.hard) for row in ours]
    marks = [(f"proxbit, {name}", task, hard) for name, task, hard in marks]
    marks += [(each["code"], each["task"], float(each["hard"])) for each in published()]
    names = list(dict.fromkeys(name for name, _, _ in marks))
    for name, task, hard in marks:
        axes.plot(hard, -names.index(name), "o", color=COLORS[task])
    for task in TASKS:
        axes.plot([], [], "o", color=COLORS[task], label=task)
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.tick_params(left=False)
    axes.legend(frameon=False, fontsize=6, loc="lower left", handletextpad=0.1)
    axes.margins(0.06, 0.12)


def main(check: bool) -> int:
    """Write page and picture, or say that they are out of date."""
    old = PAGE.read_text(encoding="utf-8")
    new = fill(fill(old, "networks", table()), "others", others())
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        print("docs/results.md is out of date: run python tools/summarize_results.py")
        return 1
    return write_or_check(check, PICTURE, draw, "tools/summarize_results.py")


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
