"""Runs side by side: a table, and their curves in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from proxbit.train.config import Config
from proxbit.train.fitting import read_result
from proxbit.train.records import Record, read_records
from proxbit.train.run_folder import RunFolder
from proxbit.util.figures import check_place, write_figure
from proxbit.util.text import last_part, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("hard", "accuracy (hard), %", 100.0),
    ("gap", "soft minus hard, points", 100.0),
    ("flips", "signs flipped per epoch, %", 100.0),
    ("saturated", "within 5 % of ±scale, %", 100.0),
    ("strength", "strength", 1.0),
    ("loss", "training loss", 1.0),
)


@dataclass(frozen=True)
class RunView:
    """The run in one folder, as far as it has come."""

    name: str
    config: Config
    records: tuple[Record, ...]
    result: dict[str, Any] | None

    @staticmethod
    def of(path: str) -> RunView:
        """Read a folder; a run in progress is shown as far as it is."""
        folder = RunFolder(path)
        config, records = folder.options(), tuple(read_records(folder.metrics))
        return RunView(path, config, records, read_result(path))

    @property
    def best(self) -> Record | None:
        """The epoch with the best hard accuracy."""
        evaluated = [(r.hard, -r.epoch, r) for r in self.records if r.hard is not None]
        return max(evaluated)[2] if evaluated else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: options that matter, the best epoch, the result."""
        best = None if self.best is None else self.best.to_dict()
        options = {k: getattr(self.config, k) for k in ("model", "data", "method", "task", "seed")}
        done = len(self.records)
        return {"run": self.name, **options, "epochs": done, "best": best, "result": self.result}


def compare(views: list[RunView]) -> str:
    """One row per run."""
    head = ("run", "method", "task", "model", "data", "seed", "epochs", "soft %", "hard %", "state")
    return table(head, [_row(view) for view in views])


def _row(view: RunView) -> tuple[str, ...]:
    config, best, result = view.config, view.best, view.result
    soft = result["soft"] if result else None
    for record in view.records:
        if result is None and record.phase != "frozen" and record.soft is not None:
            soft = record.soft
    return (
        view.name, config.method, config.task, config.model, config.data, str(config.seed),
        f"{len(view.records)}/{config.epochs}", "-" if soft is None else f"{100 * soft:.2f}",
        f"{100 * best.hard:.2f}" if best and best.hard is not None else "-",
        "done" if result else "open",
    )  # fmt: skip


def draw_runs(views: list[RunView], path: str) -> None:
    """Accuracy, gap, flips, saturation, strength and loss over the epochs, all runs in each."""
    check_place(path)
    empty = [view.name for view in views if not view.records]
    if empty:
        raise ValueError(f"{empty[0]!r} has no finished epoch yet: nothing to draw")
    write_figure(path, lambda: _figure(views))


def labels(views: list[RunView]) -> list[str]:
    """A name for each curve: method and task, what else sets the runs apart, and the folder."""
    options: list[tuple[str, ...]] = [(v.config.method, v.config.task) for v in views]
    for name in ("model", "data", "seed", "epochs"):
        values = [getattr(view.config, name) for view in views]
        if len(set(values)) > 1:
            words = [f"{name} {v}" if isinstance(v, int) else last_part(v) for v in values]
            options = [(*option, word) for option, word in zip(options, words, strict=True)]
    folders = [PurePath(view.name).name or view.name for view in views]
    if len(set(folders)) < len(folders):
        folders = [view.name for view in views]
    return [f"{', '.join(o)} ({f})" for o, f in zip(options, folders, strict=True)]


def _figure(views: list[RunView]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure, names = Figure(figsize=(11, 6.2), layout="constrained"), labels(views)
    for axes, (name, title, factor) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for view, label in zip(views, names, strict=True):
            points = [(r.epoch, getattr(r, name)) for r in view.records]
            known = [(x, factor * y) for x, y in points if y is not None]
            axes.plot(*zip(*known, strict=True) if known else ([], []), marker=".", label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
    lines = figure.axes[0].get_lines()
    figure.legend(lines, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure
