"""Two ways to compute the same thing, timed in turns; rows, aims and tables of what came out.

A turn first runs its calls untimed, so both contenders find the caches as they themselves left
them, and then for at least a millisecond. Who begins changes every round.
"""

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from training_step import line, middle

Call = Callable[[], Any]
Calls = Sequence[Call]  # one per copy of a layer; a pass goes through all of them

BURST = 3e-3  # seconds of a timed turn, at least, and of the untimed passes before it
LONG = 0.05  # seconds: what takes longer warms the caches by itself
# Threads of the one before still spin for work when its turn is over.
PAUSE = 2e-3


@dataclass(frozen=True)
class Timing:
    """Beside float: ``ratio`` says how many times faster, as the median over ``rounds``.

    ``spread`` is half the interquartile range of the ratio, ``best`` the ratio of the two minima,
    which other work on the machine disturbs least; ``us`` and ``least_us`` are median and minimum
    of one call.
    """

    ratio: float
    spread: float
    best: float
    us: float
    least_us: float
    rounds: int


@dataclass(frozen=True)
class Row:
    """One contender in one case; ``error`` is its deviation from what it must give.

    ``bytes`` is the size of its file and ``on_bits`` how many layers compute on bits: whole
    networks have them.
    """

    case: Any
    threads: int
    contender: str
    error: float
    timing: Timing
    bytes: int | None = None
    on_bits: str = ""


def compare(mine: Calls, base: Calls, rounds: int) -> Timing:
    """Neighbours in time: what else the machine does falls on both alike."""
    passes = {id(calls): passes_of(calls) for calls in (mine, base)}
    gc.collect()  # not in the middle of a turn
    pairs = []
    for round_number in range(rounds):
        order = (mine, base) if round_number % 2 else (base, mine)
        seconds = {id(calls): turn(calls, passes[id(calls)]) for calls in order}
        pairs.append((seconds[id(mine)], seconds[id(base)]))
    ratio, spread = middle([b / m for m, b in pairs])
    own = [m for m, _ in pairs]
    best = min(b for _, b in pairs) / min(own)
    return Timing(ratio, spread, best, 1e6 * statistics.median(own), 1e6 * min(own), rounds)


def turn(calls: Calls, passes: tuple[int, int]) -> float:
    """Seconds of one call; ``passes`` counts untimed and timed ones."""
    time.sleep(PAUSE)
    warm, timed = passes
    run(calls, warm)
    return run(calls, timed) / (timed * len(calls))


def run(calls: Calls, passes: int) -> float:
    start = time.perf_counter()
    for _ in range(passes):
        for call in calls:
            call()
    return time.perf_counter() - start


def passes_of(calls: Calls) -> tuple[int, int]:
    """How many passes of each sort a turn needs."""
    run(calls, 1)  # the very first allocates and prepares
    passes = math.ceil(BURST / run(calls, 1))
    return (0 if passes == 1 and run(calls, 1) > LONG else passes), passes


def fastest(ways: Sequence[Calls]) -> Calls:
    """The quickest of several ways (layouts) to compute the same."""
    if len(ways) == 1:
        return ways[0]
    passes = [passes_of(calls) for calls in ways]
    seconds = [min(turn(c, n) for _ in range(3)) for c, n in zip(ways, passes, strict=True)]
    return ways[seconds.index(min(seconds))]


# --- aims -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """``who`` is to be ``times`` as fast as ``over``, on one thread, in the cases of ``where``."""

    who: str
    times: float
    over: str
    at: str
    where: Callable[[Any], bool]


def judged(rows: Sequence[Row], aims: Iterable[Aim]) -> str:
    """One line for each aim that these rows can judge."""
    ratios = {(r.case, r.contender): r.timing.ratio for r in rows if r.threads == 1}
    ratios |= {(case, "float"): 1.0 for case, _ in ratios}  # not that of the second float: noise
    lines = []
    for aim in aims:
        found = {
            case: ratio / ratios[case, aim.over]
            for (case, who), ratio in ratios.items()
            if who == aim.who and aim.where(case) and (case, aim.over) in ratios
        }
        if found:
            lines.append(verdict(aim, found))
    return "\n".join(lines)


def verdict(aim: Aim, found: dict[Any, float]) -> str:
    missed = [f"{case} {times:.2f}x" for case, times in found.items() if times < aim.times]
    reached = f"reached in {len(found) - len(missed)} of {len(found)}"
    text = f"- {aim.who} {aim.times:g}x {aim.over} at {aim.at}: {reached}"
    return f"{text}; missed: {', '.join(missed)}" if missed else text


# --- tables and options ---------------------------------------------------------------------


def times(timing: Timing) -> str:
    return f"{timing.ratio:.2f} ±{timing.spread:.2f} ({timing.best:.2f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown, the first column to the left and all others to the right."""
    marks = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join([line(head), line(marks), *(line(row) for row in rows)])


def facts(about: dict[str, str | int]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in about.items())


def counts(text: str) -> list[int]:
    """A parser of comma-separated whole numbers from 1."""
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: give whole numbers from 1, such as 1,2")
    return [int(part) for part in text.split(",")]
