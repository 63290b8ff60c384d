"""From the words of a command to cells, a list of them all, and how long they take here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from proxbit.experiments.reproduce import grids
from proxbit.experiments.reproduce.blocks import block_names
from proxbit.experiments.reproduce.configs import Missing, Options, config_of
from proxbit.experiments.reproduce.grids import GRIDS, Cell, Grid, Row
from proxbit.experiments.reproduce.presets import PRESETS
from proxbit.train.config import Config
from proxbit.train.settings import BATCH_SIZE
from proxbit.util.text import table, unknown_name_message

# Million multiply-adds of one forward, at the size of images that the preset has.
_MACS: dict[str, float] = {
    "resnet8": 10, "resnet20": 41, "tiny_vit": 30, "timm/resnet50": 4_100,
    "timm/vit_base_patch16_224": 17_600, "timm/deit_tiny_patch16_224": 1_260,
    "timm/deit_small_patch16_224": 4_600, "timm/deit_base_patch16_224": 17_600,
    "timm/swin_tiny_patch4_window7_224": 4_500, "timm/nest_tiny_jx": 5_800,
}  # fmt: skip
_OTHER = 10.0
_IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet-1K": 1_281_167, "fashion": 8_000}
_TRAINING = 3 * 2  # forward and twice as much backward, two operations per multiply-add
_SHARE = 0.35  # of a large product's speed that training reaches (ResNet-20 on two cores)
START = 8.0  # seconds to start a process, open images and evaluate


@cache
def speed(seconds: float = 0.1) -> float:
    """Operations per second of a matrix product here."""
    a = torch.randn(512, 512)
    a @ a
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        a @ a
        count += 1
    return count * 2 * 512**3 / (time.perf_counter() - began)


def seconds_of(cell: Cell, options: Options) -> float:
    """Seconds of a cell, up to a factor of two or so; without the float network of its row."""
    try:
        config = config_of(cell, options, "")
    except Missing:  # nothing given yet: as if it were
        given = replace(options, data=(("*", "npz:"),), weights=(("*", "pretrained"),))
        config = config_of(cell, given, "")
    images = _IMAGES["fashion" if config.data == "fashion" else cell.axes["dataset"]]
    batch_size = config.batch_size or BATCH_SIZE
    steps = -(-images // batch_size)
    steps = min(steps, config.max_steps_per_epoch or steps)
    epochs = config.epochs + (config.pretrain or 0)
    work = epochs * steps * batch_size * _work(config)
    return START + work / (_SHARE * speed())


def _work(config: Config) -> float:
    """Operations to train on one image."""
    macs = _MACS.get(config.model.partition(".")[0], _OTHER)  # whatever its weights
    if config.model.startswith("timm/") and config.image_size:
        macs *= (config.image_size / 224) ** 2
    return 1e6 * macs * _TRAINING


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(45), duration(3000), duration(3.2e8)
    ('45 s', '50 min', '10 years')
    """
    units = (("years", 365.25 * 86400), ("days", 86400), ("h", 3600), ("min", 60))
    for name, size in units:
        if seconds >= 1.5 * size:
            digits = 0 if seconds >= 10 * size else 1
            return f"{seconds / size:.{digits}f} {name}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True)
class CellQuery:
    """Which cells of a grid to run; an empty field means all.

    Attributes:
        grid: Name of the grid.
        preset: Name of the preset.
        rows: Names or globs of rows.
        pipelines: FT, E2E.
        tasks: BW, BWA, BWAA.
        methods: The paper's names.
        seeds: One run per cell for each; None for one, or the paper's own in its preset.
    """

    grid: str
    preset: str = "smoke"
    rows: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None


def rows_of(query: CellQuery) -> tuple[Row, ...]:
    """The rows that are wanted."""
    return grids.find_rows(grids.find_grid(query.grid), query.preset, query.rows)


def plan(query: CellQuery, model: str | None = None) -> list[Cell]:
    """List the cells of a query in the order in which they run.

    ``model`` stands for the preset's own, whose blocks a grid may need.
    """
    grid = grids.find_grid(query.grid)
    cells = []
    for row in rows_of(query):
        own = model or PRESETS[query.preset].model(row.model, row.dataset)
        blocks = block_names(own) if grid.blocks else ()
        cells += grids.cells_of(grid, row, query.preset, query.seeds, blocks)
    for axis in ("pipeline", "task", "method"):
        wanted = tuple(each.lower() for each in getattr(query, f"{axis}s"))
        _refuse_unknown(axis, wanted, cells)
        cells = [each for each in cells if not wanted or each.axes[axis].lower() in wanted]
    if not cells:
        raise ValueError(
            f"no cell of {grid.name} in the preset {query.preset} fits all that was asked"
        )
    return cells


def _refuse_unknown(axis: str, wanted: Sequence[str], cells: Sequence[Cell]) -> None:
    known = list(dict.fromkeys(cell.axes[axis] for cell in cells))
    for name in wanted:
        if name not in [each.lower() for each in known]:
            raise ValueError(unknown_name_message(axis, name, known))


def overview() -> str:
    """Every table and figure with its cells, presets and an estimate of the time here."""
    head = ("cells and time here", *PRESETS)
    rows = [(grid.name, *(_size(grid, preset) for preset in PRESETS)) for grid in GRIDS.values()]
    lines = [table(head, rows), ""]
    for grid in GRIDS.values():
        names = ", ".join(row.name + ("" if "small" in row.presets else "*") for row in grid.rows)
        lines.append(f"{grid.name}: {grid.title}\n    rows: {names}")
    lines += ["", *(f"{name}: {preset.text}" for name, preset in PRESETS.items())]
    return "\n".join([*lines, "* in the preset paper only; error bars: --seeds 0,1,2"])


def _size(grid: Grid, preset: str) -> str:
    try:
        cells = plan(CellQuery(grid.name, preset))
    except ValueError:  # its blocks are those of a model of timm
        return "needs timm"
    return f"{len(cells)}, {duration(sum(seconds_of(cell, Options()) for cell in cells))}"
