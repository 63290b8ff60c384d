"""The tables and figures of the paper as grids of cells: plain data, nothing runs here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from proxbit.experiments.reproduce.paper import PROTOCOLS
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.util.text import require_known, unknown_name_message

AXES = ("model", "dataset", "pipeline", "task", "method", "protocols", "block", "bits")
MAIN = ("FP", "PQ", "rPC", "BC", "PC", "BNN", "BNN+", "BNN++")
MORE = ("FP", "Bi-Real", "R-BNN", "Poly+", "EDE", "EDE+", "ReAct", "BNN++")
ALL_BLOCKS = "none"  # the block of the reference cell: all of them stay float
# Widths of the register; 16 bits never overflow in these networks, so that it stands for BWA.
WIDEST, STATED = "16 bits", "8 bits"
WIDTHS = {"FT": ("4 bits", "5 bits", "6 bits", "7 bits", STATED, WIDEST), "E2E": (STATED, WIDEST)}
FIVE = tuple(range(5))  # the seeds of a cell whose figure is the mean of five runs


@dataclass(frozen=True)
class Cell:
    """One run: a place in a grid, a seed and a preset.

    Attributes:
        grid: Name of the grid, such as "cnn".
        row: Name of its row, such as "cifar10".
        key: Axis and value, in the words of the paper: model, dataset, pipeline, task, method and,
            where the grid has them, protocols, block or bits.
        seed: What every random choice follows from.
        preset: "smoke", "small" or "paper".
    """

    grid: str
    row: str
    key: tuple[tuple[str, str], ...]
    seed: int
    preset: str

    @property
    def axes(self) -> dict[str, str]:
        """The key as a dict."""
        return dict(self.key)

    @property
    def is_float(self) -> bool:
        """Whether it trains no binary network."""
        return self.axes["method"] == "FP"

    @property
    def name(self) -> str:
        """The name of this cell's folder; no two cells share it."""
        words = [self.grid, self.preset, *(value for _, value in self.key), f"seed{self.seed}"]
        return ",".join(re.sub(r"[^\w.+\-]", "_", word) for word in words)


@dataclass(frozen=True)
class Row:
    """One model on one data set.

    Attributes:
        name: What ``--rows`` calls it.
        model: The paper's name of the model.
        dataset: The paper's name of the images.
        runs: Pairs of pipeline and task.
        presets: Where it can run; a model without a stand-in of its own runs in "paper" only.
        five: Pipelines of which the paper prints the mean of five runs.
    """

    name: str
    model: str
    dataset: str
    runs: tuple[tuple[str, str], ...]
    presets: tuple[str, ...] = tuple(PRESETS)
    five: tuple[str, ...] = ("E2E",)

    def seeds(self, pipeline: str, preset: str) -> tuple[int, ...]:
        """As many as in the paper in its preset, one in the others."""
        return FIVE if preset == "paper" and pipeline in self.five else (0,)


@dataclass(frozen=True)
class Grid:
    """One table or figure.

    Attributes:
        name: What the command line calls it.
        title: What it shows, in a few words.
        methods: Its columns, in the paper's names.
        rows: Its rows.
        protocols: Sets of protocols to switch on, where it compares them.
        blocks: Whether it binarizes one block at a time.
        widths: Whether it tries accumulators of several widths.
    """

    name: str
    title: str
    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    protocols: tuple[str, ...] = ()
    blocks: bool = False
    widths: bool = False

    def at(self, preset: str) -> tuple[Row, ...]:
        """The rows that can run in a preset."""
        return tuple(row for row in self.rows if preset in row.presets)


def _slug(name: str) -> str:
    """DeiT-T and CIFAR-10 as deit-t and cifar10."""
    words = name.lower().replace("imagenet-1k", "imagenet")
    return re.sub(r"(cifar)-", r"\1", words)


def _row(model: str, dataset: str, *runs: str, paper_only: bool = False, name: str = "") -> Row:
    """A row from runs such as "FT BW"."""
    pairs = tuple((run.split()[0], run.split()[1]) for run in runs)
    presets = ("paper",) if paper_only else tuple(PRESETS)
    return Row(name or f"{_slug(model)}-{_slug(dataset)}", model, dataset, pairs, presets)


def _vit_rows(models: Sequence[str], smallest: str, five: Sequence[str] = ()) -> Iterator[Row]:
    """Models on the three data sets; only the smallest in all presets.

    ``five`` are pipelines of five runs besides those from random weights.
    """
    for model in models:
        tuned = "FT BW" if model == "ViT-B" else "E2E BW"
        for dataset, run in (("CIFAR-10", "FT BW"), ("CIFAR-100", "FT BW"), ("ImageNet-1K", tuned)):
            row = _row(model, dataset, run, paper_only=model != smallest)
            yield replace(row, five=(*row.five, *five))


_THREE = ("FT BW", "FT BWA", "FT BWAA")
_TWO = ("E2E BW", "E2E BWA")
_TUNED_VIT, _TUNED_RESNET = (_row(m, "CIFAR-10", "FT BW") for m in ("ViT-B", "ResNet20"))

_GRIDS = (
    Grid(
        "cnn", "Tables 2 and 7: ResNets, three tasks, fine-tuned and end to end", MAIN,
        (
            _row("ResNet20", "CIFAR-10", *_THREE, *_TWO, name="cifar10"),
            _row("ResNet50", "ImageNet-1K", *_THREE, *_TWO, name="imagenet"),
        ),
    ),
    Grid(
        "vit-weights", "Tables 3 and 8: vision transformers, one-bit weights", MAIN,
        tuple(_vit_rows(("ViT-B", "DeiT-T", "DeiT-S", "DeiT-B"), "DeiT-T")),
    ),
    Grid(
        "vit-tasks", "Tables 4 and 8: DeiT-T, three tasks", MAIN,
        (
            _row("DeiT-T", "CIFAR-10", *_THREE), _row("DeiT-T", "CIFAR-100", *_THREE),
            _row("DeiT-T", "ImageNet-1K", *_TWO),
        ),
    ),
    Grid(
        "additional", "Table 6: more pairs; and the same on ResNet-20, which is not in the paper",
        MORE, (*_vit_rows(("DeiT-T", "DeiT-S"), "DeiT-T", five=("FT",)), _TUNED_RESNET),
    ),
    Grid(
        "ptb", "Figure: binarizing after training instead of while training",
        ("FP", "BNN++", "PTB"),
        tuple(
            _row(model, "CIFAR-10", "FT BW", paper_only=model != "DeiT-T")
            for model in ("ViT-B", "DeiT-T", "DeiT-S", "DeiT-B")
        ),
    ),
    Grid(
        "ablation", "Table 5: scaling, normalization, pre-training, distillation, cumulatively",
        ("PC", "BNN++"), (_TUNED_VIT,), protocols=PROTOCOLS,
    ),
    Grid(
        "blocks", "Figure: one block binary at a time; and the same on ResNet-20",
        ("FP", "BNN++"), (_TUNED_VIT, _TUNED_RESNET), blocks=True,
    ),
    Grid(
        "bivit", "Appendix E: Swin-T and NesT-T (fine-tuned BW is our reading)", ("BNN++",),
        tuple(_row(model, "ImageNet-1K", "FT BW") for model in ("Swin-T", "NesT-T")),
    ),
    Grid(
        "accumulators", "Section 4.2: registers of 4 to 16 bits, and BWAA end to end",
        ("BC", "BNN++"),
        tuple(
            replace(_row(model, dataset, "FT BWAA", "E2E BWAA", name=_slug(dataset)), five=())
            for model, dataset in (("ResNet20", "CIFAR-10"), ("ResNet50", "ImageNet-1K"))
        ), widths=True,
    ),
)  # fmt: skip
GRIDS: dict[str, Grid] = {grid.name: grid for grid in _GRIDS}


def find_grid(name: str) -> Grid:
    """A grid by name."""
    require_known("grid", name, GRIDS)
    return GRIDS[name]


def find_rows(grid: Grid, preset: str, wanted: Iterable[str] = ()) -> tuple[Row, ...]:
    """The rows of a grid in a preset that any of the names or globs matches; without names all."""
    require_known("preset", preset, PRESETS)
    rows, wanted = grid.at(preset), tuple(wanted)
    for name in wanted:
        if not any(fnmatchcase(row.name, name) for row in rows):
            _refuse_row(grid, preset, name)
    return tuple(
        row for row in rows if not wanted or any(fnmatchcase(row.name, name) for name in wanted)
    )


def _refuse_row(grid: Grid, preset: str, name: str) -> None:
    if any(fnmatchcase(row.name, name) for row in grid.rows):
        raise ValueError(
            f"row {name!r} of {grid.name} has no stand-in in the preset {preset}: choose "
            f"--preset paper, or one of {', '.join(row.name for row in grid.at(preset))}"
        )
    raise ValueError(
        unknown_name_message(f"row of {grid.name}", name, [row.name for row in grid.at(preset)])
    )


def cells_of(
    grid: Grid,
    row: Row,
    preset: str,
    seeds: Sequence[int] | None = None,
    blocks: Sequence[str] = (),
) -> list[Cell]:
    """Every cell of a row; ``blocks`` are those of the model, for a grid that needs them.

    Without ``seeds`` a cell has as many as in the paper in its preset, and one in the others.
    """
    place = {"model": row.model, "dataset": row.dataset}
    return [
        Cell(grid.name, row.name, tuple((place | run | extra).items()), seed, preset)
        for pipeline, task in row.runs
        for extra, methods in _columns(grid, blocks, pipeline)
        for method in methods
        for run in ({"pipeline": pipeline, "task": task, "method": method},)
        for seed in (row.seeds(pipeline, preset) if seeds is None else seeds)
    ]


def _columns(
    grid: Grid, blocks: Sequence[str], pipeline: str
) -> list[tuple[dict[str, str], tuple[str, ...]]]:
    """Further axes of a cell, each with the methods that it is tried with."""
    if grid.widths:
        return [({"bits": each}, grid.methods) for each in WIDTHS[pipeline]]
    if grid.blocks:
        one = tuple(method for method in grid.methods if method != "FP")
        return [({"block": ALL_BLOCKS}, ("FP",)), *(({"block": block}, one) for block in blocks)]
    return [({"protocols": each}, grid.methods) for each in grid.protocols] or [({}, grid.methods)]
