"""The display of a run: a bar while it trains, lines, and TensorBoard events."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from proxbit.train.records import Record
from proxbit.train.trainer import Trainer
from proxbit.util.text import percent, size

HEAD = "    epoch  phase      loss     soft     hard    flips  strength  time"


class Display:
    """Watches a trainer; on a terminal with a bar, in a log file with lines only."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        """``quiet`` leaves out the bar."""
        self.console = console
        columns = (
            TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(),
        )  # fmt: skip
        shown = console.is_terminal and not quiet
        self.bar = Progress(*columns, console=console, transient=True, disable=not shown)
        self.tasks: dict[int, Any] = {}

    def __enter__(self) -> Display:
        """Start the bar."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.bar.stop()

    def watch(self, trainer: Trainer) -> None:
        """After a step: move the bar, if there is one."""
        if self.bar.disable:
            return
        if id(trainer) not in self.tasks:
            self.tasks[id(trainer)] = self.bar.add_task("", total=trainer.steps, note="")
        note = f"{trainer.phase}, loss {trainer.last_loss:.3f}"
        self.bar.update(
            self.tasks[id(trainer)], completed=trainer.progress.step, note=note,
            description=f"{trainer.stage} {trainer.epoch + 1}/{trainer.config.epochs}",
        )  # fmt: skip

    def head(self) -> None:
        """The names of the columns."""
        self.console.print(HEAD, style="bold")

    def tell(self, stage: Trainer, record: Record) -> None:
        """One epoch of a stage before the run."""
        self.line(record, stage.config.epochs, f"  {stage.stage}")

    def line(self, record: Record, epochs: int, remark: str = "") -> None:
        """One epoch."""
        flips = "-" if record.flips is None else percent(record.flips)
        soft, hard = (
            "-" if share is None else f"{100 * share:.2f}%" for share in (record.soft, record.hard)
        )
        strength = "-" if record.strength is None else f"{record.strength:.3g}"
        text = (
            f"{record.epoch:>4}/{epochs:<4}  {record.phase:<6}  {record.loss:>7.4f}  "
            f"{soft:>7}  {hard:>7}  {flips:>7}  {strength:>8}  "
            f"{record.seconds:.0f} s{remark or ('  best' if record.best else '')}"
        )
        self.console.print(text)


def final_line(result: dict[str, Any]) -> str:
    """Float, soft, hard and the gap, with what they were measured on."""
    names = ("float", "soft", "hardened", "hard")
    last = "after training" if result["soft"] is None else "hard"
    words = {"float": "float", "soft": "soft", "hardened": "hard at once", "hard": last}
    shares = [f"{words[n]} {100 * result[n]:.2f} %" for n in names if result[n] is not None]
    gap = "" if result["gap"] is None else f", gap {100 * result['gap']:+.2f} points"
    sizes = f"{size(result['bytes_packed'])} packed, {size(result['bytes_float'])} float"
    return (
        f"{', '.join(shares)}{gap} ({result['n']:,} {result['part']} images, seed "
        f"{result['seed']}); {sizes}; {result['seconds']:.0f} s"
    )


CURVES = ("loss", "lr", "strength", "soft", "hard", "flips", "saturated", "overflow")


def require_tensorboard() -> None:
    """One sentence where tensorboard is missing."""
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs tensorboard: pip install tensorboard")


class Events:
    """One curve per number of a record."""

    def __init__(self, folder: Path) -> None:
        """Open the folder."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))

    def write(self, record: Record) -> None:
        """One epoch."""
        for name in CURVES:
            value = getattr(record, name)
            if value is not None:
                self.writer.add_scalar(name, value, record.step)
        self.writer.flush()
