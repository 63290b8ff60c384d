"""TensorBoard events, where tensorboard is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from proxbit.train.records import Record

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
