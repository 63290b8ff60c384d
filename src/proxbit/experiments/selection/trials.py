"""One short run of a selection, in this process: what it reached and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from proxbit.experiments.reproduce.configs import check_alike
from proxbit.experiments.selection.halving import Pace, pace_of
from proxbit.train.config import Config
from proxbit.train.divergence import Diverged, Interrupted
from proxbit.train.fitting import open_run, resume_run
from proxbit.train.run_folder import RunFolder
from proxbit.train.trainer import Trainer
from proxbit.util.text import first_line

Watch = Callable[[Trainer], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Trial:
    """One run that is over. Accuracies are shares of the ``n`` images that were held back.

    Attributes:
        rung: Its rung, from 1 on; 0 only measures time.
        method: What was tried.
        seed: What every random choice followed from, the images held back included.
        steps: Optimizer steps.
        n: Images held back.
        soft: Accuracy before the network was made hard; None if the run failed.
        hard: Accuracy of the hard network; None if the run failed.
        seconds: Wall time, opening and evaluation included.
        step_seconds: Wall time of one step.
        error: Why the run failed, in one sentence; None if it did not.
    """

    rung: int
    method: str
    seed: int
    steps: int
    n: int
    soft: float | None
    hard: float | None
    seconds: float
    step_seconds: float
    error: str | None = None

    def pace(self, epoch_steps: int) -> Pace:
        """How fast it was."""
        return pace_of(self.seconds, self.step_seconds, self.steps, epoch_steps)


class StepTimer:
    """Times the steps of a trainer: their median, which evaluations in between do not move."""

    def __init__(self, trainer: Trainer, watch: Watch) -> None:
        """Look at the trainer's own steps; those of a stage before it are only passed on."""
        self.trainer, self.watch = trainer, watch
        self.gaps: list[float] = []
        self.last = time.monotonic()

    def __call__(self, trainer: Trainer) -> None:
        """After a step."""
        now = time.monotonic()
        if trainer is self.trainer:
            self.gaps.append(now - self.last)
        self.last = now
        self.watch(trainer)

    @property
    def step(self) -> float:
        """Seconds of a step; 0 where none was seen. The first one also warms up."""
        return median(self.gaps[1:] or self.gaps or [0.0])


def open_trial(config: Config, out: Path | None) -> Trainer:
    """A new run, or the one in its folder where it was interrupted."""
    if out is not None and (folder := RunFolder(out)).config.is_file():
        check_alike(config, asdict(folder.options()), f"the run in {str(out)!r}")
        return resume_run(out)
    return open_run(config, out)


def try_method(config: Config, rung: int, out: Path | None, watch: Watch, stop: Stop) -> Trial:
    """One run of a method; its trial says what goes wrong in it.

    Raises ``Interrupted`` when ``stop`` says yes.
    """
    opened = time.monotonic()
    try:
        return run_trial(open_trial(config, out), rung, opened, watch, stop)
    except Interrupted:
        raise
    except (Diverged, ValueError, TypeError, RuntimeError) as error:
        return _failed(config, rung, time.monotonic() - opened, error)


def run_trial(trainer: Trainer, rung: int, opened: float, watch: Watch, stop: Stop) -> Trial:
    """Train to the end; ``opened`` is when the run was opened, on the monotonic clock."""
    earlier = trainer.progress.spent + trainer.progress.seconds
    timer = StepTimer(trainer, watch)
    trainer.watch, trainer.stop = timer, stop
    for _ in trainer:
        pass
    result, config = trainer.result(), trainer.config
    return Trial(
        rung=rung, method=config.method, seed=config.seed, steps=result["steps"], n=result["n"],
        soft=result["soft"], hard=result["hard"], step_seconds=timer.step,
        seconds=time.monotonic() - opened + earlier,
    )  # fmt: skip


def _failed(config: Config, rung: int, seconds: float, error: Exception) -> Trial:
    """The record of a run that did not reach its end."""
    sentence = str(error) if isinstance(error, Diverged | ValueError) else first_line(error)
    return Trial(rung, config.method, config.seed, 0, 0, None, None, seconds, 0.0, sentence)
