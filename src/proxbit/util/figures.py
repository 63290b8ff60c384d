"""Figures written whole or not at all, in one look, with the same bytes for the same content."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxbit.util.files import require_place, write_or_say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
LOOK = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "svg.fonttype": "none",  # letters stay letters: a third of the size, and they can be read aloud
    "svg.hashsalt": "proxbit", "font.size": 7.5, "axes.titlesize": 8, "axes.linewidth": 0.6,
    "axes.edgecolor": "#777777", "xtick.color": "#555555", "ytick.color": "#555555",
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "xtick.major.size": 2, "ytick.major.size": 2,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.5,
    "lines.markersize": 3.4, "lines.markeredgewidth": 0.9, "lines.dashed_pattern": (2.6, 1.6),
}  # fmt: skip


def check_place(path: str | Path) -> None:
    """Refuse a picture that could not be written, before any work is done."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture ends in .png or .svg, not {str(path)!r}")
    require_place(target)
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install proxbit[plot]") from error
    return matplotlib


def write_figure(path: str | Path, figure: Callable[[], Figure]) -> None:
    """The whole picture or nothing; the same bytes for the same figure."""
    target, data = Path(path), io.BytesIO()
    suffix = target.suffix.lower().removeprefix(".")
    nothing = {"Software": None} if suffix == "png" else {"Date": None, "Creator": None}
    matplotlib = _matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's own look: the same bytes everywhere
        matplotlib.rcParams.update(LOOK)
        figure().savefig(data, format=suffix, dpi=200, metadata=nothing)
    write_or_say(target, data.getvalue())
