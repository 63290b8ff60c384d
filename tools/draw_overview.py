"""Draw docs/overview.svg, the picture of the README, from committed results; ``--check`` compares.

Size and time come from results/speed/, which benchmarks/network.py writes; accuracy from
cifar_runs.py. Bars of other runtimes appear where a file has them.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cifar_runs import runs
from write_docs import ROOT
from write_pair_pages import pinned

from proxbit.util.figures import write_figure
from proxbit.util.text import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = ROOT / "docs" / "overview.svg"
SPEED = ROOT / "results" / "speed" / "amd-epyc-avx512.json"  # the machine that the picture shows
NETWORK = "vit_base"
GREY, BLUE, GREEN = "#b9bec7", "#7d93c9", "#2a6f4e"


class Bar(NamedTuple):
    """One bar: what stands left of it, its length, what stands at its end."""

    label: str
    value: float
    text: str
    color: str


# Contenders of benchmarks/network.py, from top to bottom; those that a file lacks are left out.
CONTENDERS = {
    "float": ("float32, torch", GREY),
    "ORT float": ("float32, ONNX Runtime", GREY),
    "ORT int8": ("8 bits, ONNX Runtime", BLUE),
    "ORT int8 dynamic": ("8 bits, ONNX Runtime", BLUE),
    "OpenVINO int8": ("8 bits, OpenVINO", BLUE),
    "BW": ("1-bit weights,\nproxbit", GREEN),
    "BW input8": ("the same with 8-bit\ninputs, proxbit", GREEN),
    "BWA": ("1-bit weights and\ninputs, proxbit", GREEN),
    "BWA in ONNX Runtime": ("the same in\nONNX Runtime", GREEN),
}


# Network and task of the runs on CIFAR-10 that are shown, where there are such.
ONE_BIT = {
    "1-bit weights": ("resnet20", "BW"),
    "1-bit weights and\ninputs, Bi-Real": ("bireal_resnet20", "BWA"),
}


def measured(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of the network at batch 1 on one thread, by contender."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    here = [r for r in rows if (r["network"], r["batch"], r["threads"]) == (NETWORK, 1, 1)]
    return {row["contender"]: row for row in here}


def times(rows: dict[str, dict[str, Any]]) -> list[Bar]:
    """Milliseconds of one image."""
    bars: dict[str, Bar] = {}
    for name, (label, color) in CONTENDERS.items():
        if name in rows:  # of two ways of one runtime the faster one counts
            ms = min(rows[name]["ms"], bars[label].value if label in bars else math.inf)
            bars[label] = Bar(label, ms, f"{ms:.0f} ms", color)
    return list(bars.values())


def sizes(rows: dict[str, dict[str, Any]]) -> list[Bar]:
    """Bytes of the file: float, 8 bits where measured, and one bit."""
    eight = next((name for name in ("ORT int8", "OpenVINO int8") if name in rows), None)
    kinds = {"float32": ("float", GREY), "8 bits": (eight, BLUE), "1-bit weights": ("BW", GREEN)}
    held = {label: (rows[name]["file_bytes"], c) for label, (name, c) in kinds.items() if name}
    return [Bar(label, b, size(b), color) for label, (b, color) in held.items() if b]


def accuracies() -> list[Bar]:
    """ResNet-20 on CIFAR-10: float, and hard after the last epoch of the longest one-bit runs."""
    full = max(run.full for run in runs() if run.network == "resnet20" and run.full is not None)
    bars = [Bar("float32", full, f"{full:.1%}", GREY)]
    for label, place in ONE_BIT.items():
        binary = [run for run in runs() if run[:2] == place and run.method != "fp"]
        longest = max((run.epochs for run in binary), default=0)
        hard = max((run.hard for run in binary if run.epochs == longest), default=None)
        if hard is not None:
            bars.append(Bar(label, hard, f"{hard:.1%}", GREEN))
    return bars


def panel(axes: Axes, title: str, bars: list[Bar], rows: int) -> None:
    """Horizontal bars that begin at zero, the first on top, in a panel with room for ``rows``."""
    places = range(len(bars), 0, -1)
    axes.barh(places, [bar.value for bar in bars], 0.62, color=[bar.color for bar in bars])
    axes.set_yticks(places, [bar.label for bar in bars])
    for place, bar in zip(places, bars, strict=True):
        axes.annotate(bar.text, (bar.value, place), (3, 0), textcoords="offset points", va="center")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlim(0, 1.25 * max(bar.value for bar in bars))
    axes.set_ylim(len(bars) - rows + 0.4, len(bars) + 0.6)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False, bottom=False, labelbottom=False, labelsize=7.5, labelcolor="#222")


def draw() -> Figure:
    """Three panels side by side."""
    from matplotlib.figure import Figure

    rows = measured(SPEED)
    panels = {
        "ViT-B: size of the file": sizes(rows),
        "ViT-B: one image, one CPU thread": times(rows),
        "ResNet-20 on CIFAR-10": accuracies(),
    }
    most = max(map(len, panels.values()))
    figure = Figure(figsize=(7.8, 0.45 + 0.36 * most), layout="constrained")
    for axes, (title, bars) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        panel(axes, title, bars, most)
    return figure


def write_or_check(check: bool, picture: Path, figure: Callable[[], Figure], tool: str) -> int:
    """Write the picture, or say that it is out of date and which tool draws it."""
    if not check:
        write_figure(picture, figure)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, picture.name)
        write_figure(new, figure)
        same = new.read_bytes() == picture.read_bytes() or not pinned()
    if not same:
        print(f"{picture.relative_to(ROOT)} is out of date: run python {tool}")
    return 0 if same else 1


if __name__ == "__main__":
    checks = "--check" in sys.argv[1:]
    raise SystemExit(write_or_check(checks, PICTURE, draw, "tools/draw_overview.py"))
