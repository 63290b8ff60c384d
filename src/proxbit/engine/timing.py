"""Contenders timed in turns, all equally warm."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

LEAST_ROUNDS = 3


def race(
    contenders: dict[Any, Callable[[], object]],
    seconds: float,
    watch: Callable[[float], object] = lambda share: None,
) -> dict[Any, list[float]]:
    """Seconds of each call, round after round: shuffled order, each warmed by a call just before.

    Cold weights of one beside warm ones of the other would fake a factor of up to three.
    """
    times: dict[Any, list[float]] = {name: [] for name in contenders}
    shuffled, order = random.Random(0), list(contenders)
    began, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - began < seconds:
        shuffled.shuffle(order)
        for name in order:
            contenders[name]()
            start = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - start)
        rounds += 1
        spent = (time.perf_counter() - began) / max(seconds, 1e-9)
        watch(min(1.0, spent, rounds / LEAST_ROUNDS))
    watch(1.0)
    return times
