"""The claims of the paper, each held against our hard networks."""

from __future__ import annotations

from collections.abc import Sequence

from proxbit.experiments.report.cells import Outcome
from proxbit.experiments.report.parts import Claim, Evidence, chance, points, signed
from proxbit.experiments.report.statements import STATEMENTS, Contest, Statement
from proxbit.experiments.report.statistics import LEVEL, compare, holm

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "not decided", "not run"
SMOKE, AT_LEAST = "smoke", "small"  # the smallest preset that decides anything
MEMORY = "Binary weights take about 30 times less memory (the paper: ViT-B from 450 MB to 15 MB)"
ABOUT_THIRTY = 25.0  # rounded to tens, this and more is at least 30


def claims(found: Sequence[Outcome]) -> list[Claim]:
    """Every claim in every preset that was run; a smoke run decides nothing."""
    presets = list(dict.fromkeys(cell.preset for cell in found if cell.preset != SMOKE))
    by_preset = {s: [cell for cell in found if cell.preset == s] for s in presets or [SMOKE]}
    judged_ = [judged(each, s, there) for each in STATEMENTS for s, there in by_preset.items()]
    return judged_ + [memory(s, there) for s, there in by_preset.items()]


def judged(statement: Statement, preset: str, found: Sequence[Outcome]) -> Claim:
    """Judge a claim: it holds if every comparison is for it, and does not if any is against it."""
    evidence = _evidence(list(statement.contests(found)))
    agree = [each for each in evidence if decision(each) == "for"]
    against = [each for each in evidence if decision(each) == "against"]
    if not evidence:
        return _not_run(statement.text, statement.grid, preset)
    if preset == SMOKE:
        return _too_short(statement.text)
    outcome = FAILS if against else HOLDS if len(agree) == len(evidence) else OPEN
    reason = (
        f"comparisons: {len(agree)} for it, {len(against)} against it, "
        f"{len(evidence) - len(agree) - len(against)} within chance; "
        f"least in its favour: {in_words(min(evidence, key=difference))}"
    )
    return Claim(statement.text, preset, outcome, reason, tuple(evidence))


def _not_run(text: str, grid: str, preset: str) -> Claim:
    """A claim without results, and what would give them."""
    needed = "paper" if grid == "bivit" else AT_LEAST if preset == SMOKE else preset
    command = f"proxbit reproduce {grid} --preset {needed} --data DATA"
    return Claim(text, preset, NOT_RUN, f"run it with  {command}", ())


def _too_short(text: str) -> Claim:
    return Claim(text, SMOKE, OPEN, "smoke runs train for seconds and decide nothing", ())


def memory(preset: str, found: Sequence[Outcome]) -> Claim:
    """Whole networks, packed and in float32: bytes, not chance."""
    sizes = [
        (before / after, cell)
        for cell in found
        if cell.at("task") == "BW" and cell.at("method") != "FP" and not cell.at("block")
        and (before := cell.mean("bytes_float")) and (after := cell.packed("bytes"))
    ]  # fmt: skip
    if not sizes:
        return _not_run(MEMORY, "cnn", preset)
    if preset == SMOKE:
        return _too_short(MEMORY)
    ends = [f(sizes, key=lambda each: each[0]) for f in (min, max)]
    least, most = (f"{times:.3g} times ({cell.here}, {cell.at('method')})" for times, cell in ends)
    outcome = HOLDS if ends[0][0] >= ABOUT_THIRTY else FAILS
    reason = f"packed networks, all that stays float included: {least} to {most}"
    return Claim(MEMORY, preset, outcome, reason, ())


def _evidence(contests: list[Contest]) -> list[Evidence]:
    compared = [compare(each.first, each.second, each.margin) for each in contests]
    raised = holm([comparison.p for comparison in compared])
    return [
        Evidence(each.where, each.names, (each.first.mean, each.second.mean), comparison, p)
        for each, comparison, p in zip(contests, compared, raised, strict=True)
    ]


def difference(evidence: Evidence) -> float:
    """How far the first is above the second."""
    return evidence.comparison.difference


def decision(evidence: Evidence) -> str:
    """The vote of one comparison on its claim: for, against, or within chance."""
    if evidence.p >= LEVEL:
        return "within chance"
    return "for" if difference(evidence) + evidence.comparison.margin > 0 else "against"


def in_words(evidence: Evidence) -> str:
    """One comparison with its figures."""
    (a, b), (x, y) = evidence.names, evidence.means
    gap = signed(100 * difference(evidence))
    return f"{a} {points(x)}, {b} {points(y)} ({gap}, p {chance(evidence.p)}; {evidence.where})"
