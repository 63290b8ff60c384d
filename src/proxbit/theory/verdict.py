"""The theory's verdict on a pair, and on a method phase by phase."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from proxbit.core.methods import PC, Method
from proxbit.core.pairs import Pair, sharpened
from proxbit.core.schedules import Schedule
from proxbit.theory.axis import REACH, Segment, describe, free_segments
from proxbit.theory.judging import VARIES, judge
from proxbit.theory.layout import lay_out
from proxbit.util.text import percent

Answer = Literal["admitted", "refused", "not resolved", "admitted in part"]

STRENGTHS = 5  # that stand for a range, or for a schedule


@dataclass(frozen=True)
class Verdict:
    """The answer of the theory for a pair, or for a method over its run.

    Attributes:
        name: The pair's or method's name.
        answer: "admitted" by Corollary 1 at every strength looked at; "refused", with reasons;
            "not resolved", with doubts; of a method also "admitted in part", see ``phases``.
        strengths: The strengths looked at.
        reasons: Why it is refused, in words and with the place.
        doubts: What could not be decided, where, and what would decide it.
        otherwise: How the pair decomposes all the same, where only the letter of the corollary
            refuses it; empty where it does not.
        free: Segments where B = 0 and F stands still, so that P is free (at the last strength).
        phases: Of a method: which share of the run trains which pair, and the verdict of each.
        tolerance: The change of B that counted, relative to the largest |B| of its stretch.
    """

    name: str
    answer: Answer
    strengths: tuple[float, ...] = ()
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    otherwise: str = ""
    free: tuple[Segment, ...] = ()
    phases: tuple[Phase, ...] = ()
    tolerance: float = VARIES

    @property
    def admitted(self) -> bool:
        """Whether every step is admitted."""
        return self.answer == "admitted"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: an infinite end of a segment is None."""
        data = asdict(self) | {"admitted": self.admitted}
        data["free"] = [[None if np.isinf(x) else x for x in ends] for ends in self.free]
        data["phases"] = [phase.to_dict() for phase in self.phases]
        return data

    def __str__(self) -> str:
        """The verdict with its reasons."""
        if len(self.phases) > 1:
            return "; ".join(str(phase) for phase in self.phases)
        if self.answer == "admitted":
            text = "admitted: P never falls, and F and B are functions of P"
            return text + (f" (free: {describe(self.free)})" if self.free else "")
        text = f"{self.answer}: {'; '.join(self.reasons or self.doubts)}"
        return f"{text}; {self.otherwise}" if self.otherwise else text


@dataclass(frozen=True)
class Phase:
    """A part of a run in which one pair is trained.

    Attributes:
        share: Its share of the steps.
        what: What is trained: the pair's name, its signs, or nothing.
        verdict: The verdict of that pair at its strengths; None where no binary weight is trained.
    """

    share: float
    what: str
    verdict: Verdict | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {"share": self.share, "what": self.what, "verdict": verdict}

    def __str__(self) -> str:
        """Share, pair and verdict in one clause."""
        if self.verdict is None:
            return f"the last {percent(self.share)} train no binary weight"
        return f"{percent(self.share)} of the steps, {self.what}: {self.verdict}"


def check(
    pair: Pair | Method,
    strength: float | tuple[float, float] | None = None,
    *,
    within: tuple[float, float] = (-REACH, REACH),
    frozen: float = 0.0,
) -> Verdict:
    """Ask Corollary 1 about a pair at one strength, or at five of a range.

    A method is judged along its schedule and phase by phase: where it shows signs to the network
    (``Method.sharp``), what trains is the pair (sign of F, B). Its update rule counts too: PQ, rPC
    and PTB are outside the family, whatever their pair. Raises ValueError for what is not a pair.

    Args:
        pair: A pair, or a method.
        strength: Where to look; 1, or a method's own schedule, if None.
        within: The weights to look at.
        frozen: Of a method's run: the last share of the steps, in which its signs do not change.

    >>> from proxbit.core.methods import METHODS
    >>> print(check(METHODS["bc"]).answer, check(METHODS["bnn+"]).answer)
    admitted refused
    """
    if not isinstance(pair, Pair | Method):
        raise TypeError(f"check takes a Pair or a Method, not {type(pair).__name__}")
    given = None if strength is None else _strengths(strength)
    if isinstance(pair, Pair):
        return _of_pair(pair, pair.name, given or (1.0,), within)
    if pair.rule != PC:
        return Verdict(pair.name, "refused", reasons=(_why_not_of_the_family(pair),))
    if not 0 <= frozen < 1:
        raise ValueError(f"frozen is a share of the steps, from 0 to less than 1, not {frozen}")
    return _of_method(pair, given, within, frozen)


def _of_pair(pair: Pair, name: str, strengths: tuple[float, ...], within: Segment) -> Verdict:
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    otherwise = ""
    for value in strengths:
        axis = lay_out(pair, value, within)
        found = judge(axis)
        at = f"at strength {value:g}: " if len(strengths) > 1 else ""
        if found.breaches and (not reasons or otherwise):
            reasons, otherwise = _told(at, found.breaches), ""
        elif found.letters and not reasons:
            reasons, otherwise = _told(f"by the letter of Corollary 1, {at}", found.letters), _GAP
        doubts = doubts or _told(at, found.doubts)
    answer: Answer = "refused" if reasons else "not resolved" if doubts else "admitted"
    return Verdict(name, answer, strengths, reasons, doubts, otherwise, free_segments(axis))


_GAP = (
    "yet F = T o P and B = T' o P hold for a P that jumps there, since T is free in its gap: "
    "see repair"
)


def _told(where: str, texts: list[str]) -> tuple[str, ...]:
    return (f"{where}{texts[0]}", *texts[1:]) if texts else ()


def _of_method(
    method: Method, given: tuple[float, ...] | None, within: Segment, frozen: float
) -> Verdict:
    """The phases of a run, each with its pair and its strengths."""
    along = given or _along(method.schedule)
    soft = _of_pair(method.pair, method.name, along, within)
    frozen, sharp = (frozen, method.sharp) if method.binary else (0.0, 0.0)
    signs = sharp * (1 - frozen)
    phases = [Phase(1 - frozen - signs, method.pair.name, soft)] if sharp < 1 else []
    if signs:
        last = given or (float(method.schedule(1.0)),)
        last = last if method.sharp_strength is None else (method.sharp_strength,)
        pair = sharpened(method.pair)
        phases.append(Phase(signs, pair.name, _of_pair(pair, pair.name, last, within)))
    if frozen:
        phases.append(Phase(frozen, "nothing", None))
    return _summed(method.name, tuple(phases))


def _summed(name: str, phases: tuple[Phase, ...]) -> Verdict:
    """One verdict of several phases: all of them must be admitted."""
    verdicts = [phase.verdict for phase in phases if phase.verdict is not None]
    answers = {verdict.answer for verdict in verdicts}
    answer: Answer = "refused" if "refused" in answers else "not resolved"
    if len(answers) == 1:
        answer = verdicts[0].answer
    elif "admitted" in answers:
        answer = "admitted in part"
    strengths = tuple(s for verdict in verdicts for s in verdict.strengths)
    return Verdict(
        name, answer, tuple(dict.fromkeys(strengths)),
        tuple(r for verdict in verdicts for r in verdict.reasons),
        tuple(d for verdict in verdicts for d in verdict.doubts),
        next((v.otherwise for v in verdicts if v.otherwise), ""), verdicts[-1].free, phases,
    )  # fmt: skip


def _strengths(strength: float | tuple[float, float]) -> tuple[float, ...]:
    ends = strength if isinstance(strength, tuple) else (strength, strength)
    low, high = min(ends), max(ends)
    if not (np.isfinite(ends).all() and low >= 0):
        raise ValueError(
            f"a strength is a finite number >= 0, not {':'.join(f'{x:g}' for x in ends)}"
        )
    if low == high:
        return (float(low),)
    spread = np.linspace if low == 0 else np.geomspace
    return tuple(float(x) for x in spread(low, high, STRENGTHS))


def _along(schedule: Schedule) -> tuple[float, ...]:
    """Strengths from the beginning to the end of a schedule, whichever way it runs."""
    values = (float(schedule(progress)) for progress in np.linspace(0, 1, STRENGTHS))
    return tuple(dict.fromkeys(values))


def _why_not_of_the_family(method: Method) -> str:
    rule = method.rule
    if rule.start_from == "latent":
        return "the gradient is taken at the latent weight: plain training, made binary afterwards"
    where = "latent" if rule.gradient_at == "latent" else "quantized"
    return (
        f"the step starts from the quantized weight, the gradient is taken at the {where} one: "
        f"a proximal-gradient step, not dual averaging"
    )
