"""The arithmetic of successive halving under a time budget: rungs, steps, noise.

A rung gives every remaining method its own short run, whole from the first strength to the
hard network, because a run cut off halfway would show a soft method before it is hard. The better
half goes on to runs of about twice the length; the last two are told apart with several seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance

from proxbit.experiments.report.statistics import t_bound

SEEDS = 3  # of each run in the last rung
LEAST_STEPS = 10
NORMAL = NormalDist().inv_cdf(0.975)  # 95 % lie within so many deviations


@dataclass(frozen=True)
class Rung:
    """One round of runs.

    Attributes:
        number: From 1 on.
        methods: Who takes part.
        steps: Length of each run.
        seeds: Runs of each method.
    """

    number: int
    methods: tuple[str, ...]
    steps: int
    seeds: int


@dataclass(frozen=True)
class Pace:
    """How fast runs are.

    Attributes:
        step: Seconds of a step.
        rest: Seconds of an epoch besides its steps: opening, evaluating, saving.
        epoch_steps: Steps of a whole epoch.
    """

    step: float
    rest: float
    epoch_steps: int

    def seconds(self, steps: int) -> float:
        """Seconds of a run of so many steps."""
        return self.step * steps + self.rest * epochs_of(steps, self.epoch_steps)[0]


def pace_of(seconds: float, step: float, steps: int, epoch_steps: int) -> Pace:
    """The pace of a run that was measured."""
    epochs = epochs_of(steps, epoch_steps)[0]
    return Pace(step, max(seconds - step * steps, 0.0) / epochs, epoch_steps)


def epochs_of(steps: int, epoch_steps: int) -> tuple[int, int]:
    """Epochs and steps in each, of a run of at most so many steps.

    >>> epochs_of(10, 60), epochs_of(125, 60)
    ((1, 10), (3, 41))
    """
    epochs = math.ceil(steps / epoch_steps)
    return epochs, steps // epochs


def rung_sizes(count: int) -> list[int]:
    """How many methods take part in each rung: half as many in each, two in the last.

    >>> rung_sizes(7), rung_sizes(2), rung_sizes(1)
    ([7, 4, 2], [2], [1])
    """
    sizes = [count]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    return sizes


def rung_share(rungs_left: int) -> float:
    """The share of the time left that the next of so many rungs may use.

    The last one gets as much for each seed as every other gets in all.

    >>> [rung_share(left) for left in (3, 2, 1)]
    [0.2, 0.25, 1.0]
    """
    return 1.0 if rungs_left == 1 else 1 / (rungs_left - 1 + SEEDS)


def affordable(paces: Sequence[Pace], seconds: float, most: int) -> int:
    """The most steps, up to ``most``, with which one run of each pace fits into the seconds."""
    return bisect_right(
        range(1, most + 1), seconds, key=lambda steps: sum(p.seconds(steps) for p in paces)
    )


def noise(first: Sequence[float], second: Sequence[float], images: int) -> float:
    """Half the width of a 95 % interval for the difference of two mean accuracies.

    The wider of two: of drawing so many images per run, and, with several runs of each, of the
    spread between their seeds. Runs of one seed cannot know the latter.
    """
    runs = len(first)
    middle = (sum(first) + sum(second)) / (2 * runs)
    share = (middle * images + 1) / (images + 2)  # never 0 or 1, where no noise would be left
    drawing = NORMAL * math.sqrt(2 * share * (1 - share) / (images * runs))
    if runs == 1:
        return drawing
    spread = math.sqrt((variance(first) + variance(second)) / runs)
    return max(drawing, t_bound(2 * runs - 2) * spread)
