"""From trials to a recommendation: who won, by how much, and whether that is more than noise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

from proxbit.experiments.selection.candidates import Candidate
from proxbit.experiments.selection.halving import Rung, noise
from proxbit.experiments.selection.trials import Trial
from proxbit.train.config import Config

TRIAL_HEAD = ("rung", "method", "seed", "steps", "soft", "hard", "seconds")


@dataclass(frozen=True)
class Rival:
    """How another method compares with the recommended one, in the last rung of both.

    Attributes:
        method: The other method.
        rung: That rung.
        behind: Accuracy of the recommended method minus its own; None if its run failed.
        noise: Half the width of a 95 % interval around that difference.
        error: Why its run failed.
    """

    method: str
    rung: int
    behind: float | None
    noise: float | None
    error: str | None = None

    @property
    def tied(self) -> bool:
        """Whether the difference is within noise."""
        return self.behind is not None and self.noise is not None and self.behind <= self.noise


@dataclass(frozen=True)
class Recommendation:
    """The recommendation of a selection.

    Attributes:
        method: The recommended method.
        verdict: What the theory says of it.
        hard: Its mean hard accuracy in the last rung that counts.
        rung: That rung.
        runs: Its runs in it.
        n: Images held back in each.
        steps: Steps of each.
        rivals: Every other method that was tried, the nearest first.
        untried: Methods that the time did not reach.
        early: Why the selection ended before its last rung; None if it did not.
        seconds: Time used.
        command: The ``proxbit train`` command to go on with.
        trials: The evidence: every run.
    """

    method: str
    verdict: str
    hard: float
    rung: int
    runs: int
    n: int
    steps: int
    rivals: tuple[Rival, ...]
    untried: tuple[str, ...]
    early: str | None
    seconds: float
    command: str
    trials: tuple[Trial, ...]

    @property
    def tied(self) -> tuple[str, ...]:
        """The methods that cannot be told apart from the recommended one."""
        return tuple(rival.method for rival in self.rivals if rival.tied)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"tied": list(self.tied)}

    def __str__(self) -> str:
        """The recommendation in words."""
        runs = f"{self.runs} runs" if self.runs > 1 else "1 run"
        lines = [
            f"recommended: {self.method}, hard {100 * self.hard:.2f} % of {self.n:,} held-back "
            f"images, {runs} of {self.steps} steps",
            f"  {self.verdict}",
            *(f"  {_in_words(rival)}" for rival in self.rivals),
            *(f"  {method}: not tried, the time ran out" for method in self.untried),
        ]
        if self.tied:
            lines.append(f"within noise of it: {', '.join(self.tied)}; more minutes may tell")
        if self.early is not None:
            lines.append(f"ended early: {self.early}")
        return "\n".join([*lines, f"train it:  {self.command}"])


def _in_words(rival: Rival) -> str:
    if rival.behind is None or rival.noise is None:
        return f"{rival.method}: failed in rung {rival.rung}: {rival.error}"
    size = "within noise" if rival.tied else "more than noise"
    return (
        f"{rival.method}: {100 * rival.behind:.2f} points behind in rung {rival.rung}, "
        f"{size} (+-{100 * rival.noise:.2f})"
    )


def scores(trials: Sequence[Trial], rung: Rung) -> dict[str, list[float]]:
    """The hard accuracies of every method whose runs in a rung are all there and none failed."""
    failed = _failed(trials, rung)
    found = {m: _hard(trials, rung, m)[: rung.seeds] for m in rung.methods if m not in failed}
    return {method: hard for method, hard in found.items() if len(hard) == rung.seeds}


def _failed(trials: Sequence[Trial], rung: Rung) -> set[str]:
    return {t.method for t in trials if t.rung == rung.number and t.error is not None}


def _hard(trials: Sequence[Trial], rung: Rung, method: str) -> list[float]:
    """The hard accuracies of a method in a rung, seed after seed."""
    mine = [each for each in trials if each.rung == rung.number and each.method == method]
    return [each.hard for each in mine if each.hard is not None]


def seeds_over(trials: Sequence[Trial], rung: Rung) -> int:
    """The number of seeds with which every method of a rung has run, failed methods aside."""
    going = [method for method in rung.methods if method not in _failed(trials, rung)]
    return min((len(_hard(trials, rung, method)) for method in going), default=0)


def ranking(trials: Sequence[Trial], rung: Rung) -> list[str]:
    """The methods of a rung that have a score, the best first."""
    found = scores(trials, rung)
    return sorted(found, key=lambda method: -fmean(found[method]))


def is_over(trials: Sequence[Trial], rung: Rung) -> bool:
    """Whether every method of a rung has its score or has failed."""
    return set(rung.methods) <= _failed(trials, rung) | set(scores(trials, rung))


def choose(
    config: Config,
    candidates: Sequence[Candidate],
    rungs: Sequence[Rung],
    trials: Sequence[Trial],
    early: str | None,
    seconds: float,
) -> Recommendation:
    """The best of the last rung that is over; of the first rung, if none is."""
    scored = [rung for rung in rungs if scores(trials, rung)]
    if not scored:
        errors = [f"{each.method}: {each.error}" for each in trials if each.error is not None]
        raise ValueError("; ".join(errors) or f"nothing could be tried: {early}")
    rung = [each for each in scored if is_over(trials, each)][-1:] or scored[:1]
    best = ranking(trials, rung[0])[0]
    winner = next(each for each in candidates if each.method == best)
    found = [_rival(best, c.method, scored, trials) for c in candidates if c.method != best]
    rivals = [each for each in found if each is not None]
    met = {rival.method for rival in rivals} | {best}
    mine = [t for t in trials if t.rung == rung[0].number and t.method == best][: rung[0].seeds]
    return Recommendation(
        method=best, verdict=winner.verdict, hard=fmean(scores(trials, rung[0])[best]),
        rung=rung[0].number, runs=len(mine), n=mine[0].n, steps=mine[0].steps,
        rivals=tuple(sorted(rivals, key=_nearness)),
        untried=tuple(each.method for each in candidates if each.method not in met),
        early=early, seconds=seconds, command=train_command(config, best),
        trials=tuple(trials),
    )  # fmt: skip


def _rival(best: str, other: str, rungs: Sequence[Rung], trials: Sequence[Trial]) -> Rival | None:
    """Compare the other with the best in the last rung of both; None where they never met."""
    for rung in reversed(rungs):
        found = scores(trials, rung)
        if best in found and other in found:
            images = next(t.n for t in trials if t.rung == rung.number and t.method == best)
            gap = fmean(found[best]) - fmean(found[other])
            return Rival(other, rung.number, gap, noise(found[best], found[other], images))
    for trial in trials:
        if trial.method == other and trial.error is not None:
            return Rival(other, trial.rung, None, None, trial.error)
    return None


def _nearness(rival: Rival) -> tuple[int, float]:
    return -rival.rung, float("inf") if rival.behind is None else rival.behind


def train_command(config: Config, method: str) -> str:
    """The command that trains a method with this configuration at full length."""
    words = ["proxbit", "train", "--method", method]
    for each in fields(Config):
        value, flag = getattr(config, each.name), "--" + each.name.replace("_", "-")
        if each.name == "method" or value == each.default:
            continue
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def trial_row(trial: Trial) -> tuple[str, ...]:
    """One run, for a person; rung 0 only measures time."""
    shares = (trial.soft, trial.hard)
    soft, hard = ("-" if share is None else f"{100 * share:.2f} %" for share in shares)
    rung = str(trial.rung or "time")
    seconds = f"{trial.seconds:.1f}" + (f"  {trial.error}" if trial.error else "")
    return rung, trial.method, str(trial.seed), str(trial.steps), soft, hard, seconds
