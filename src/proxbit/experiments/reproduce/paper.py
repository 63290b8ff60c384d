"""The figures that the paper prints, as data, and which of them belongs to which cell."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("paper_tables.csv")

# The tables of the paper behind each grid; of two that print the same cell the later has the std.
TABLES: dict[str, tuple[str, ...]] = {
    "cnn": ("tab2_cnn", "tab7_errorbar_cnn"),
    "vit-weights": ("tab3_vit_bw", "tab8_errorbar_vit"),
    "vit-tasks": ("tab4_deit_t", "tab8_errorbar_vit"),
    "additional": ("tab6_additional",),
    "ptb": ("fig_ptb",),
    "ablation": ("tab5_ablation",),
    "blocks": (),
    "bivit": ("appE_bivit",),
    "accumulators": (),
}
PROTOCOLS = ("none", "scale", "scale+norm", "scale+norm+pretrain", "scale+norm+pretrain+kd")


@dataclass(frozen=True)
class Figure:
    """One number of the paper.

    Attributes:
        table: Where it stands, such as "tab2_cnn".
        model: The model, such as "ResNet20".
        dataset: The images, such as "CIFAR-10".
        pipeline: "FT" (fine-tuned), "E2E" (end to end), or "" where the paper does not say.
        task: "BW", "BWA", "BWAA", or "" where the paper does not say.
        method: The column; in the ablation with its switches, as "PC|scale=1|norm=0|...".
        accuracy: In percent.
        std: Standard deviation over runs; None where the paper has none.
    """

    table: str
    model: str
    dataset: str
    pipeline: str
    task: str
    method: str
    accuracy: float
    std: float | None

    @property
    def protocols(self) -> str:
        """The protocols of an ablation, as in PROTOCOLS; "" for every other figure."""
        _, *switches = self.method.split("|")
        on = [name for name, _, value in (each.partition("=") for each in switches) if value == "1"]
        return ("+".join(on) or "none") if switches else ""

    def shows(self, key: Mapping[str, str]) -> bool:
        """Whether this is the figure of a cell with these axes."""
        free = ("pipeline", "task")
        same = all(getattr(self, axis) in (key.get(axis), "") for axis in free)
        named = (self.model, self.dataset, self.method.split("|")[0], self.protocols)
        axes = ("model", "dataset", "method", "protocols")
        return same and named == tuple(key.get(axis, "") for axis in axes)


@cache
def paper_figures() -> tuple[Figure, ...]:
    """Every figure of the paper, in its order.

    >>> paper_figures()[0].accuracy
    92.01
    """
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_figure(row) for row in csv.DictReader(file))


def _figure(row: dict[str, str]) -> Figure:
    words = {name: value for name, value in row.items() if name not in ("accuracy", "std")}
    std = float(row["std"]) if row["std"] else None
    return Figure(**words, accuracy=float(row["accuracy"]), std=std)


def figures_of(grid: str) -> tuple[Figure, ...]:
    """The figures of a grid's tables, in the paper's order."""
    return tuple(each for each in paper_figures() if each.table in TABLES[grid])


def figure_for(grid: str, key: Mapping[str, str]) -> Figure | None:
    """The paper's figure for a cell, with its std if any table prints one; None where it has none.

    >>> axes = {"model": "ResNet20", "dataset": "CIFAR-10", "pipeline": "FT", "task": "BW"}
    >>> figure_for("cnn", axes | {"method": "BNN++"}).accuracy
    90.4
    """
    found = [each for each in figures_of(grid) if each.shows(key)]
    if not found:
        return None
    stds = [each.std for each in found if each.std is not None]
    return replace(found[0], std=stds[0] if stds else None)
