"""From result lines to cells: what every seed of one cell gave, or why it broke."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxbit.experiments.report.statistics import Sample
from proxbit.experiments.reproduce.results import ResultLine
from proxbit.util.text import last_part

Axes = tuple[tuple[str, str], ...]
ORDER = ("model", "dataset", "pipeline", "task", "protocols", "block", "bits", "method")


@dataclass(frozen=True)
class Outcome:
    """One cell over its seeds: the same grid, preset, place in the grid, and way to train.

    Attributes:
        grid: Name of the grid.
        preset: "smoke", "small" or "paper".
        axes: Axis and value, in one order for all cells.
        here: What was trained here, and for how long.
        done: The finished lines, one per seed.
        broken: The lines of seeds that only broke.
    """

    grid: str
    preset: str
    axes: Axes
    here: str
    done: tuple[ResultLine, ...]
    broken: tuple[ResultLine, ...]

    def at(self, axis: str) -> str:
        """Where the cell lies on an axis; empty where its grid has none of that name."""
        return dict(self.axes).get(axis, "")

    @property
    def trained(self) -> dict[str, str]:
        """The network and the images of the runs, by axis; empty if none had a configuration."""
        configs = [line.config for line in (*self.done, *self.broken) if self.here]
        places = {"model": "model", "dataset": "data"}
        return {a: last_part(str(configs[0].get(n))) for a, n in places.items()} if configs else {}

    @property
    def sample(self) -> Sample | None:
        """Hard accuracies with the number of images; None for a broken cell."""
        if not self.done:
            return None
        results = [figures(line) for line in self.done]
        shares = tuple(float(result["hard"]) for result in results)
        return Sample(shares, min(int(result["n"]) for result in results))

    def mean(self, name: str) -> float | None:
        """The mean of another figure of the result, over the seeds that have it."""
        return _mean([figures(line).get(name) for line in self.done])

    def packed(self, name: str) -> float | None:
        """The mean of a figure of the packed network, over the seeds that have it."""
        return _mean([(line.packed or {}).get(name) for line in self.done])


def _mean(values: list[Any]) -> float | None:
    known = [float(value) for value in values if is_number(value)]
    return math.fsum(known) / len(known) if known else None


def is_number(value: object) -> bool:
    """Whether a value read from JSON is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def figures(line: ResultLine) -> dict[str, Any]:
    """The result of a line; empty for a broken one."""
    return line.result or {}


def ordered(key: Mapping[str, str]) -> Axes:
    """The axes of a cell in one order, whoever wrote them."""
    return tuple((axis, key[axis]) for axis in ORDER if axis in key)


def without(axes: Axes, *names: str) -> Axes:
    """The other axes."""
    return tuple(pair for pair in axes if pair[0] not in names)


def outcomes(lines: Iterable[ResultLine]) -> list[Outcome]:
    """Cells in the order in which they were first begun.

    Of several lines of one cell and seed the last finished one counts: the same seed twice is no
    second measurement.
    """
    groups: dict[tuple[str, str, Axes, str], dict[int, ResultLine]] = {}
    for line in sorted(lines, key=lambda line: line.started):
        _require_figures(line)
        where = line.grid, line.preset, ordered(line.key), how_trained(line)
        seeds = groups.setdefault(where, {})
        if line.done or line.seed not in seeds or not seeds[line.seed].done:
            seeds[line.seed] = line
    return [_outcome(where, seeds) for where, seeds in groups.items()]


def _outcome(where: tuple[str, str, Axes, str], seeds: dict[int, ResultLine]) -> Outcome:
    lines = [seeds[seed] for seed in sorted(seeds)]
    done = tuple(line for line in lines if line.done)
    return Outcome(*where, done, tuple(line for line in lines if not line.done))


def _require_figures(line: ResultLine) -> None:
    """Require an accuracy and the number of images that it was measured on."""
    if not line.done:
        return
    hard, images = figures(line).get("hard"), figures(line).get("n")
    if not is_number(hard) or not 0 <= float(str(hard)) <= 1:
        raise ValueError(f"{cell_name(line)}: hard must be a share from 0 to 1, not {hard!r}")
    if type(images) is not int or images < 1:
        raise ValueError(f"{cell_name(line)}: n must be a number of images, not {images!r}")


def cell_name(line: ResultLine) -> str:
    """A cell in words: cnn, small, ResNet20, CIFAR-10, FT, BW, BC, seed 0."""
    return ", ".join([line.grid, line.preset, *line.key.values(), f"seed {line.seed}"])


def how_trained(line: ResultLine) -> str:
    """Network, data and length of a run, in a few words: resnet20, cifar10.npz, 5 epochs."""
    epochs, limit = line.config.get("epochs"), line.config.get("max_steps_per_epoch")
    if epochs is None:  # broken before it had a configuration
        return ""
    steps = "" if limit is None else f" of at most {limit} steps"
    length = f"{epochs} epoch{'' if epochs == 1 else 's'}{steps}"
    places = (last_part(str(line.config.get(name))) for name in ("model", "data"))
    return ", ".join([*places, length])
