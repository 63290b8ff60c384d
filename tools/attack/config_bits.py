"""Single bits of config.json are changed, and the run is resumed: none with other values unseen."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from common import Clock, Outcome, make_place

from proxbit.train import Config, open_run, resume_run
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.divergence import Interrupted

CHANGES = 3000


def attack(random: Random, clock: Clock) -> Outcome:
    """Of 3,000 changes, those that are refused, told, without effect, or unseen."""
    with tempfile.TemporaryDirectory() as folder:
        run = _stopped(Path(folder))
        good = (run / "config.json").read_bytes()
        kept = Config.from_dict(load_checkpoint(run / "last.safetensors")[1]["config"])
        outcome = Outcome()
        while outcome.counts["changes"] < CHANGES and not clock.over():
            changed, bit = bytearray(good), random.randrange(8 * len(good))
            changed[bit // 8] ^= 1 << bit % 8
            (run / "config.json").write_bytes(bytes(changed))
            what = _resumed(run, kept)
            expected = what in ("refused", "told", "without effect")
            outcome.counts.update(["changes", what if expected else "failed"])
            if not expected:
                outcome.failures.append(f"bit {bit}: {what}")
        return outcome


def _stopped(folder: Path) -> Path:
    """A run that was stopped in its second epoch."""
    model, data = make_place(folder)
    trainer = open_run(
        Config(model=model, data=data, epochs=3, batch_size=16, recalibrate=1, cpu=True),
        folder / "run",
    )
    trainer.stop = lambda: trainer.progress.step == 3
    try:
        list(trainer)
    except Interrupted:
        return folder / "run"
    raise AssertionError("the run was not stopped")


def _resumed(run: Path, kept: Config) -> str:
    """What became of a run whose configuration was changed."""
    try:
        trainer = resume_run(run)
    except (ValueError, OSError):  # what the command line answers with one sentence
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    trainer.close()
    if trainer.config == kept:
        return "without effect"
    told = any(note.startswith("config.json now has") for note in trainer.prepared.notes)
    return "told" if told else "unseen"
