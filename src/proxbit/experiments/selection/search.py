"""A selection in progress: what it tries next, and when the time is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from proxbit.experiments.selection import halving
from proxbit.experiments.selection.candidates import Candidate
from proxbit.experiments.selection.choosing import Recommendation, choose, ranking, seeds_over
from proxbit.experiments.selection.halving import LEAST_STEPS, Pace, Rung
from proxbit.experiments.selection.selection_log import Request, SelectionLog
from proxbit.experiments.selection.trials import Stop, Trial, run_trial, try_method
from proxbit.train.divergence import Interrupted
from proxbit.train.fitting import open_run
from proxbit.train.trainer import Trainer
from proxbit.util.text import first_line

PROBE_STEPS = 6
CAUTION = 0.9  # of the time left is planned with: runs differ
WARM_UP = 0.2  # of the time: a first probe shorter than that is repeated
READY = 0.5  # of the time is charged for getting ready, at most: on a busy machine it takes long

Look = Callable[[str, float], None]


class Search:
    """A selection in progress: the rungs and trials so far, and the clock."""

    def __init__(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        log: SelectionLog | None,
        began: float,
    ) -> None:
        """Nothing is tried yet; ``began`` is when the clock started."""
        self.request, self.candidates, self.log = request, candidates, log
        self.began, self.opened = began, began
        self.before = self.forgiven = 0.0
        self.rungs: list[Rung] = []
        self.trials: list[Trial] = []
        self.pace: Pace | None = None
        self.paused: float | None = None
        self.probe: Trainer | None = None
        self.asked = False
        self.watch: Look = lambda *_: None
        self.stop: Stop = lambda: False

    def take_up(self, records: list[Any]) -> None:
        """Go to where a log ends."""
        self.rungs = [each for each in records if isinstance(each, Rung)]
        self.trials = [each for each in records if isinstance(each, Trial)]
        self.pace = next((each for each in records if isinstance(each, Pace)), None)
        pauses = [each for each in records if isinstance(each, float)]
        self.before = max([sum(each.seconds for each in self.trials), *pauses])

    @property
    def spent(self) -> float:
        """Seconds used, those before an interruption included."""
        return self.before + time.monotonic() - self.began

    @property
    def budget(self) -> float:
        """Seconds for everything."""
        return 60 * self.request.minutes + self.forgiven

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget - self.spent

    def follow(self, watch: Look | None, stop: Stop | None) -> Iterator[Trial | Recommendation]:
        """Everything from here to the recommendation."""
        self.watch, self.stop = watch or self.watch, stop or self.stop
        self._start_again()
        try:
            yield from self.trials
            if self.pace is None:
                yield from self._measure_pace()
            early = yield from self._climb()
            yield choose(
                self.request.config, self.candidates, self.rungs, self.trials, early, self.spent
            )
        except Interrupted:
            self._write("pause", self.spent - self.forgiven)
            raise
        finally:
            if self.log is not None:
                self.log.close()

    def pause(self) -> None:
        """Let no time pass until the first record is asked for."""
        self.before, self.paused = self.spent, time.monotonic()

    def _start_again(self) -> None:
        now = time.monotonic()
        if self.paused is not None:
            self.opened += now - self.paused
            self.began, self.paused = now, None

    def open_probe(self, candidate: Candidate) -> Trainer:
        """A run of a few steps that shows what is wrong with the configuration, and the time."""
        self.opened = time.monotonic()
        short = replace(
            self.request.config, epochs=1, max_steps_per_epoch=PROBE_STEPS, method=candidate.method
        )
        return open_run(short)

    def _measure_pace(self) -> Iterator[Trial]:
        """How fast runs are, from the first method that survives a few steps."""
        for candidate in self.candidates:
            try:
                trial = self._run_probe(candidate)
                yield trial
                # The first also paid for starting up, and for what else the machine did.
                if trial.seconds < WARM_UP * self.budget or not self._fits_first_rung():
                    yield self._run_probe(candidate)
                break
            except Interrupted:
                raise
            except (RuntimeError, TypeError) as error:  # the loss diverged, or a pair broke
                trouble = first_line(error)
        else:
            raise ValueError(f"every method fails within {PROBE_STEPS} steps: {trouble}")
        assert self.pace is not None
        self.forgiven = max(self.spent - READY * self.budget, 0.0)
        self._write("pace", self.pace)

    def _run_probe(self, candidate: Candidate) -> Trial:
        trainer = self.probe or self.open_probe(candidate)
        self.probe = None
        trial = run_trial(trainer, 0, self.opened, self._looking("timing"), self._was_asked)
        paces = [trial.pace(trainer.train.steps), *([self.pace] if self.pace else [])]
        self.pace = min(paces, key=lambda pace: pace.seconds(LEAST_STEPS))
        return trial

    def _fits_first_rung(self) -> bool:
        """Whether the shortest runs fit into their share, if half of the time is charged."""
        assert self.pace is not None
        share = CAUTION * halving.rung_share(len(halving.rung_sizes(len(self.candidates))))
        needed = len(self.candidates) * self.pace.seconds(LEAST_STEPS)
        return needed <= share * max(self.left, READY * self.budget)

    def _climb(self) -> Generator[Trial, None, str | None]:
        """Rung after rung; returns why it ended early, or None."""
        sizes = halving.rung_sizes(len(self.candidates))
        for number, size in enumerate(sizes, 1):
            if number > len(self.rungs):
                early = self._plan(number, size, len(sizes) - number + 1)
                if early is not None:
                    return early
            early = yield from self._runs(self.rungs[number - 1])
            if early is not None:
                self._settle_for_fewer_seeds()
                return early
        return None

    def _plan(self, number: int, size: int, rungs_left: int) -> str | None:
        """Set up the next rung; return the reason if there is no time for one."""
        last = self.rungs[-1] if self.rungs else None
        names = ranking(self.trials, last) if last else [each.method for each in self.candidates]
        names, time_left = names[:size], CAUTION * halving.rung_share(rungs_left) * self.left
        if not names:
            return f"every run of rung {number - 1} failed"
        paces = [self._pace(name) for name in names]
        most = self.request.config.epochs * paces[0].epoch_steps
        least = min(LEAST_STEPS, most)
        # Where there is no time for several seeds, one has to do.
        for seeds in (halving.SEEDS, 1) if rungs_left == 1 else (1,):
            steps = halving.affordable(paces * seeds, time_left, most)
            if steps >= least:
                break
        else:
            needed = sum(pace.seconds(least) for pace in paces)
            enough = needed / (CAUTION * READY * halving.rung_share(rungs_left)) / 60
            return (
                f"rung {number} needs {needed:.0f} s for {len(paces)} runs of {least} steps, and "
                f"{max(time_left, 0.0):.0f} s are left for it: give more --minutes "
                f"({math.ceil(10 * enough) / 10:g} will do), or name fewer --methods"
            )
        rung = Rung(number, tuple(names), steps, seeds)
        self._write("rung", rung)
        self.rungs.append(rung)
        return None

    def _pace(self, method: str) -> Pace:
        """The pace of a method: its own last one, or that of the first steps of all."""
        assert self.pace is not None
        mine = [each for each in self.trials if each.method == method and each.error is None]
        return mine[-1].pace(self.pace.epoch_steps) if mine else self.pace

    def _runs(self, rung: Rung) -> Generator[Trial, None, str | None]:
        """The runs of a rung that are still missing; returns why it ended early, or None."""
        done = {(each.method, each.seed) for each in self.trials if each.rung == rung.number}
        first = self.request.config.seed
        for seed in range(first, first + rung.seeds):
            for method in rung.methods:
                if (method, seed) in done:
                    continue
                trial = self._run(rung, method, seed)
                if trial is None:
                    return f"the time ran out in rung {rung.number}"
                yield trial
        return None

    def _settle_for_fewer_seeds(self) -> None:
        """Let a rung that was cut off count with the seeds that all of its methods have run."""
        rung = self.rungs[-1]
        seeds = seeds_over(self.trials, rung)
        if seeds:
            self.rungs[-1] = replace(rung, seeds=seeds)

    def _run(self, rung: Rung, method: str, seed: int) -> Trial | None:
        """One run; None if there is no time for it, or if the time is over before it is."""
        if self._pace(method).seconds(rung.steps) > self.left:
            return None
        epochs, limit = halving.epochs_of(rung.steps, self._pace(method).epoch_steps)
        changes = {"method": method, "seed": seed, "epochs": epochs, "max_steps_per_epoch": limit}
        config = replace(self.request.config, **changes)  # type: ignore[arg-type]
        place = [each.method for each in self.candidates].index(method)
        out = None if self.log is None else self.log.run_folder(rung.number, place, seed)
        looking = self._looking(f"rung {rung.number}, {method}")
        try:
            trial = try_method(config, rung.number, out, looking, self._must_stop)
        except Interrupted:
            if self.asked:
                raise
            trial = None
        if trial is not None:
            self._write("trial", trial)
            self.trials.append(trial)
        if self.log is not None:
            self.log.forget_runs()
        return trial

    def _looking(self, words: str) -> Callable[[Trainer], None]:
        return lambda _: self.watch(words, min(self.spent / self.budget, 1.0))

    def _was_asked(self) -> bool:
        """Whether the user wants to stop."""
        self.asked = self.asked or self.stop()
        return self.asked

    def _must_stop(self) -> bool:
        """Whether the user wants to stop, or the time is over."""
        return self._was_asked() or self.left <= 0

    def _write(self, kind: str, value: Any) -> None:
        if self.log is not None:
            self.log.append(kind, value)
