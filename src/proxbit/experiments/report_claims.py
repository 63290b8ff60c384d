"""The claims of the paper, each held against our hard networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from proxbit.experiments.grids import ALL_BLOCKS
from proxbit.experiments.paper import PROTOCOLS
from proxbit.experiments.report_cells import Outcome, without
from proxbit.experiments.report_records import Claim, Evidence, chance, points, signed
from proxbit.experiments.report_statistics import LEVEL, compare, holm

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
SMOKE = "smoke"
_FAMILY = ("BC", "PC", "BNN", "BNN+", "BNN++")
_TABLES = ("cnn", "vit-weights", "vit-tasks", "additional")

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True)
class Statement:
    """A claim, and the pairs of cells that it orders: the first is said to be better."""

    text: str
    pairs: Callable[[Sequence[Outcome]], Iterable[Pair]]


def _beats(*orders: tuple[str, str]) -> Callable[[Sequence[Outcome]], Iterable[Pair]]:
    """Pairs of methods in the same place, trained alike."""

    def pairs(found: Sequence[Outcome]) -> Iterable[Pair]:
        for a in found:
            for b in found:
                if (a.at("method"), b.at("method")) in orders and _alike(a, b, "method"):
                    yield a, b

    return pairs


def _alike(a: Outcome, b: Outcome, axis: str) -> bool:
    """Whether two cells differ in nothing but one axis."""
    same = a.grid == b.grid and a.here == b.here and a.at(axis) != b.at(axis)
    return same and without(a.axes, axis) == without(b.axes, axis)


def _best(found: Sequence[Outcome]) -> Iterable[Pair]:
    for a in found:
        for b in found:
            rivals = a.at("method") == "BNN++" and b.at("method") not in ("FP", "PTB", "BNN++")
            if rivals and a.grid in _TABLES and _alike(a, b, "method"):
                yield a, b


def _protocols(found: Sequence[Outcome]) -> Iterable[Pair]:
    steps = set(zip(PROTOCOLS[1:], PROTOCOLS, strict=False))
    for a in found:
        for b in found:
            if (a.at("protocols"), b.at("protocols")) in steps and _alike(a, b, "protocols"):
                yield a, b


def _ends(found: Sequence[Outcome]) -> Iterable[Pair]:
    """Every block in the middle is said to be better than the first and than the last."""
    binary = [cell for cell in found if cell.at("block") not in ("", ALL_BLOCKS)]
    places = dict.fromkeys((cell.grid, cell.here, without(cell.axes, "block")) for cell in binary)
    for place in places:
        there = [c for c in binary if (c.grid, c.here, without(c.axes, "block")) == place]
        if len(there) > 2:
            first, *middle, last = there  # in the order in which they ran, the network's own
            yield from ((cell, end) for cell in middle for end in (first, last))


STATEMENTS = (
    Statement(
        "The PC family (BC, PC, BNN, BNN+, BNN++) beats PQ and rPC",
        _beats(*((ours, theirs) for ours in _FAMILY for theirs in ("PQ", "rPC"))),
    ),
    Statement("BNN++ is the best one-bit method", _best),
    Statement("BNN++ beats BNN+", _beats(("BNN++", "BNN+"))),
    Statement(
        "Poly+ and EDE+ beat their originals (Bi-Real and R-BNN; EDE)",
        _beats(("Poly+", "Bi-Real"), ("Poly+", "R-BNN"), ("EDE+", "EDE")),
    ),
    Statement("PTB fails: it ends below BNN++", _beats(("BNN++", "PTB"))),
    Statement("Each protocol helps: with it, above without it", _protocols),
    Statement("The first and the last block are the most sensitive", _ends),
)


def claims(found: Sequence[Outcome]) -> list[Claim]:
    """Every claim at every scale that was run; a smoke run decides nothing."""
    scales = list(dict.fromkeys(cell.scale for cell in found if cell.scale != SMOKE))
    if scales:
        return [
            judged(statement, scale, [cell for cell in found if cell.scale == scale])
            for statement in STATEMENTS
            for scale in scales
        ]
    reason = "smoke runs train for seconds and decide nothing" if found else "nothing was run"
    return [Claim(statement.text, SMOKE, OPEN, reason, ()) for statement in STATEMENTS]


def judged(statement: Statement, scale: str, found: Sequence[Outcome]) -> Claim:
    """A claim holds if every comparison is for it, and does not if any is against it."""
    evidence = _raised([_evidence(a, b) for a, b in statement.pairs([c for c in found if c.done])])
    agree = [each for each in evidence if decision(each) == "for"]
    against = [each for each in evidence if decision(each) == "against"]
    if not evidence:
        return Claim(statement.text, scale, OPEN, "no two cells to compare were run", ())
    outcome = FAILS if against else HOLDS if len(agree) == len(evidence) else OPEN
    reason = (
        f"comparisons: {len(agree)} for it, {len(against)} against it, "
        f"{len(evidence) - len(agree) - len(against)} within chance; "
        f"least in its favour: {in_words(min(evidence, key=difference))}"
    )
    return Claim(statement.text, scale, outcome, reason, tuple(evidence))


def _evidence(a: Outcome, b: Outcome) -> Evidence:
    first, second = a.sample, b.sample
    assert first is not None and second is not None  # only finished cells are paired
    axis = next(name for name in ("block", "protocols", "method") if a.at(name) != b.at(name))
    places = [value for name, value in a.axes if name != axis]
    where = f"{', '.join([a.grid, *places])}; here {a.here}"  # the stand-in is what was compared
    comparison = compare(first, second)
    names = a.at(axis), b.at(axis)
    return Evidence(where, names, (first.mean, second.mean), comparison, comparison.p)


def _raised(evidence: list[Evidence]) -> list[Evidence]:
    ps = holm([each.comparison.p for each in evidence])
    return [replace(each, p=p) for each, p in zip(evidence, ps, strict=True)]


def difference(evidence: Evidence) -> float:
    """How far the first is above the second."""
    return evidence.comparison.difference


def decision(evidence: Evidence) -> str:
    """What one comparison says of its claim: for, against, or within chance."""
    if evidence.p >= LEVEL:
        return "within chance"
    return "for" if difference(evidence) > 0 else "against"


def in_words(evidence: Evidence) -> str:
    """One comparison with its figures."""
    (a, b), (x, y) = evidence.names, evidence.means
    gap = signed(100 * difference(evidence))
    return f"{a} {points(x)}, {b} {points(y)} ({gap}, p {chance(evidence.p)}; {evidence.where})"
