"""The claims of the paper, each as contests between accuracies: the first is said to be better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from proxbit.experiments.report.cells import Outcome, without
from proxbit.experiments.report.statistics import Sample
from proxbit.experiments.reproduce.grids import ALL_BLOCKS, STATED, WIDEST
from proxbit.experiments.reproduce.paper import PROTOCOLS, figure_for
from proxbit.train.divergence import CURE
from proxbit.util.text import grouped

_FAMILY = ("BC", "PC", "BNN", "BNN+", "BNN++")
_TABLES = ("cnn", "vit-weights", "vit-tasks", "additional")
_DROP = 0.10  # the most that the paper says is lost against float
_CLASSES = {"CIFAR-10": 10, "CIFAR-100": 100, "ImageNet-1K": 1000}
_VALIDATION = 50_000  # images of ImageNet that others' figures are measured on

Contests = Callable[[Sequence[Outcome]], Iterable["Contest"]]


@dataclass(frozen=True)
class Contest:
    """Two samples, of which a claim puts the first above the second, or at most ``margin`` below.

    Attributes:
        where: The cell that they stand in, in words.
        names: What the two are called.
        first: The accuracies that are said to be better.
        second: The others.
        margin: How far the first may lie below the second.
    """

    where: str
    names: tuple[str, str]
    first: Sample
    second: Sample
    margin: float = 0.0


@dataclass(frozen=True)
class Statement:
    """A claim, the contests that it decides, and the grid whose cells it needs."""

    text: str
    grid: str
    contests: Contests


def _place(cell: Outcome, axis: str) -> str:
    """Everything but one axis; the stand-in is what was compared."""
    values = [value for name, value in cell.axes if name != axis]
    return f"{', '.join([cell.grid, *values])}; here {cell.here}"


def _met(a: Outcome, b: Outcome, axis: str, margin: float = 0.0) -> Contest:
    first, second = a.sample, b.sample
    assert first is not None and second is not None  # only finished cells meet
    return Contest(_place(a, axis), (a.at(axis), b.at(axis)), first, second, margin)


def _ordered(
    axis: str, better: Callable[[Outcome, Outcome], bool], margin: float = 0.0
) -> Contests:
    """Contests of finished cells that differ in one axis only, where one should be better."""

    def contests(found: Sequence[Outcome]) -> Iterator[Contest]:
        done = [cell for cell in found if cell.done]
        for a in done:
            for b in done:
                if better(a, b) and _alike(a, b, axis):
                    yield _met(a, b, axis, margin)

    return contests


def _alike(a: Outcome, b: Outcome, axis: str) -> bool:
    """Whether two cells differ in nothing but one axis."""
    same = a.grid == b.grid and a.here == b.here and a.at(axis) != b.at(axis)
    return same and without(a.axes, axis) == without(b.axes, axis)


def _beats(*orders: tuple[str, str]) -> Contests:
    """Methods in the same place, trained alike."""
    return _ordered("method", lambda a, b: (a.at("method"), b.at("method")) in orders)


def _best(a: Outcome, b: Outcome) -> bool:
    rivals = a.at("method") == "BNN++" and b.at("method") not in ("FP", "PTB")
    return rivals and a.grid in _TABLES


def _one_step(a: Outcome, b: Outcome) -> bool:
    steps = set(zip(PROTOCOLS[1:], PROTOCOLS, strict=False))
    return (a.at("protocols"), b.at("protocols")) in steps


def _near_float(a: Outcome, b: Outcome) -> bool:
    """Of binary weights alone: where the paper names a task with that figure, it is this one."""
    methods = a.at("method"), b.at("method")
    return methods == ("BNN++", "FP") and a.at("task") == "BW" and a.grid in _TABLES


def _ends(found: Sequence[Outcome]) -> Iterator[Contest]:
    """Every block in the middle is said to be better than the first and than the last."""
    binary = [cell for cell in found if cell.done and cell.at("block") not in ("", ALL_BLOCKS)]
    for there in grouped(binary, lambda c: (c.grid, c.here, without(c.axes, "block"))).values():
        if len(there) > 2:
            first, *middle, last = there  # in the order in which they ran, the network's own
            yield from (_met(cell, end, "block") for cell in middle for end in (first, last))


def _over_bivit(found: Sequence[Outcome]) -> Iterator[Contest]:
    """Our BNN++ against the figure of BiViT's paper for the same network and images."""
    for cell in found:
        theirs = figure_for("bivit", dict(cell.axes) | {"method": "BiViT"})
        sample = cell.sample if cell.grid == "bivit" and cell.preset == "paper" else None
        if theirs is not None and sample is not None and cell.at("method") == "BNN++":
            quoted = Sample((theirs.accuracy / 100,), _VALIDATION)
            yield Contest(_place(cell, "method"), ("BNN++", "BiViT, as quoted"), sample, quoted)


# Registers: a width works if it keeps at least half of what 16 bits keep above chance.


def _widths(found: Sequence[Outcome], pipeline: str) -> Iterator[tuple[Outcome, Sample, Sample]]:
    """Cells of every width with what they reached and the bar of their place."""
    cells = [c for c in found if c.at("bits") and c.at("pipeline") == pipeline]
    for wide in cells:
        if wide.at("bits") == WIDEST and wide.sample is not None:
            bar = _half(wide.sample, _chance(wide))
            for cell in cells:
                reached = _reached(cell, wide.sample)
                if reached is not None and _alike(cell, wide, "bits"):
                    yield cell, reached, bar


def _chance(cell: Outcome) -> float:
    return 1 / _CLASSES.get(cell.at("dataset"), 10)


def _half(wide: Sample, chance: float) -> Sample:
    return replace(wide, values=tuple(chance + (value - chance) / 2 for value in wide.values))


def _reached(cell: Outcome, like: Sample) -> Sample | None:
    """The accuracies of a cell; chance where every seed diverged; None where it broke otherwise."""
    if cell.sample is not None:
        return cell.sample
    diverged = all(CURE in (line.error or "") for line in cell.broken)
    return Sample((_chance(cell),) * len(cell.broken), like.images) if diverged else None


def _contest(cell: Outcome, reached: Sample, bar: Sample, works: bool) -> Contest:
    """The width above the bar if it should work, below it if it should not."""
    sides = [(cell.at("bits"), reached), (f"half of {WIDEST}", bar)]
    (name, first), (other, second) = sides if works else reversed(sides)
    return Contest(_place(cell, "bits"), (name, other), first, second)


def _eight_bits(found: Sequence[Outcome]) -> Iterator[Contest]:
    for cell, reached, bar in _widths(found, "FT"):
        width, stated = (int(each.split()[0]) for each in (cell.at("bits"), STATED))
        if width <= stated:
            yield _contest(cell, reached, bar, works=width == stated)


def _no_start(found: Sequence[Outcome]) -> Iterator[Contest]:
    for cell, reached, bar in _widths(found, "E2E"):
        if cell.at("bits") == STATED:
            yield _contest(cell, reached, bar, works=False)


STATEMENTS = (
    Statement(
        "The PC family (BC, PC, BNN, BNN+, BNN++) beats PQ and rPC", "cnn",
        _beats(*((ours, theirs) for ours in _FAMILY for theirs in ("PQ", "rPC"))),
    ),
    Statement("BNN++ is the best one-bit method", "cnn", _ordered("method", _best)),
    Statement("BNN++ beats BNN+", "cnn", _beats(("BNN++", "BNN+"))),
    Statement(
        "BNN++ loses a modest 5 to 10 points against float (judged: at most 10, in BW)", "cnn",
        _ordered("method", _near_float, _DROP),
    ),
    Statement(
        "Poly+ and EDE+ beat their originals (Bi-Real and R-BNN; EDE)", "additional",
        _beats(("Poly+", "Bi-Real"), ("Poly+", "R-BNN"), ("EDE+", "EDE")),
    ),
    Statement("BNN++ beats BiViT on Swin-T and NesT-T", "bivit", _over_bivit),
    Statement("PTB fails: it ends below BNN++", "ptb", _beats(("BNN++", "PTB"))),
    Statement(
        "Each protocol helps: with it, above without it", "ablation",
        _ordered("protocols", _one_step),
    ),
    Statement("The first and the last block are the most sensitive", "blocks", _ends),
    Statement(
        "8 bits is the least accumulator that works; with fewer the network diverges",
        "accumulators", _eight_bits,
    ),
    Statement("BWAA cannot be trained end to end: it diverges", "accumulators", _no_start),
)  # fmt: skip
