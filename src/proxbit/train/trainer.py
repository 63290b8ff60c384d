"""One run in one process: steps, phases, evaluation, checkpoints. Prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.convert import binary_weights
from proxbit.diagnosis import diagnose
from proxbit.hardening import harden
from proxbit.hooks import Attachment, attach
from proxbit.nn import overflow_penalty
from proxbit.train.checkpoint import (
    load_optimizer,
    optimizer_tensors,
    prefixed,
    save_checkpoint,
    under,
)
from proxbit.train.distillation import Distiller
from proxbit.train.folder import RunFolder
from proxbit.train.rates import make_optimizer, rate_at, set_rate
from proxbit.train.records import Record, append_record
from proxbit.train.replica import (
    Average,
    Replica,
    Signs,
    count_right,
    full_state,
    quantizer_states,
    restore_quantizers,
)
from proxbit.train.setup import Job, terms_of
from proxbit.train.team import Team
from proxbit.train.trouble import Interrupted, refuse_divergence

SAVE_SECONDS = 300.0
ASK_EVERY = 10  # steps between two questions to the other processes


@dataclass
class Progress:
    """Where a run is: all that changes besides tensors, as a checkpoint holds it.

    Attributes:
        step: Optimizer steps done.
        loss: Sum of the losses of this epoch.
        seconds: Time that this epoch has taken.
        spent: Time that all epochs before it have taken.
        best: The best hard accuracy so far, -1 before the first.
        start: Accuracy of the float network that the run began with; None from random weights.
        soft: Accuracy of the soft network just before it was hardened.
        hardened: Accuracy just after.
    """

    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    spent: float = 0.0
    best: float = -1.0
    start: float | None = None
    soft: float | None = None
    hardened: float | None = None


class Trainer:
    """A run, ready to go; iterate over it for one record per epoch.

    Attributes:
        stage: The word for its epochs: "epoch", or "pre-training".
        before: A run of binary pre-training whose weights this one starts from.
        watch: Called after every step with the trainer.
        stop: Asked now and then; when it says yes, the run is saved and ends.
    """

    def __init__(self, job: Job, team: Team, folder: RunFolder | None = None) -> None:
        """Put every part on its device; :meth:`begin` must follow."""
        self.job, self.config, self.team, self.folder = job, job.config, team, folder
        self.core = job.model.to(team.device)
        self.binary = any(w.quantizer.method.binary for w in binary_weights(self.core))
        self.replica, self.progress = Replica(self.core), Progress()
        self.train = job.loader("train", True, team.device, team.rank, team.world)
        self.judge = job.loader(job.part, False, team.device, team.rank, team.world)
        self.plain = job.loader("train", False, team.device)
        self.epoch_steps = min(self.train.steps, self.config.limit or self.train.steps)
        self.steps = self.config.epochs * self.epoch_steps
        frozen = math.ceil(self.config.frozen * self.steps) if self.binary else 0
        self.soft_steps = self.steps - frozen
        self.last_loss, self.saved_at = math.nan, time.monotonic()
        self.watch: Callable[[Trainer], None] = lambda _: None
        self.stop: Callable[[], bool] = lambda: False
        self.before: Trainer | None = None
        self.stage = "epoch"
        self.begun, self.best = False, dict[str, Tensor]()

    def begin(self, tensors: dict[str, Tensor] | None = None, state: Any = None) -> None:
        """Make the optimizer and its hooks; with a checkpoint, take up where it was written."""
        if tensors is not None:
            self.core.load_state_dict(under("model", tensors))
            restore_quantizers(self.core, state["quantizers"])
            self.progress = Progress(**state["progress"])
        elif self.job.start is not None:
            self.progress.start = self.accuracy(self.job.start.to(self.team.device).eval())
        optimizer = make_optimizer(self.core, self.config)
        set_rate(optimizer, self.rate)
        self.model, self.optimizer = self.team.prepare(self.core, optimizer)
        self.core = getattr(self.model, "module", self.model)
        self.handle: Attachment | None = None
        if binary_weights(self.core):
            self.handle = attach(self.core, self.raw, steps=max(self.soft_steps, 1))
        self.average = Average(self.core, self.config.ema) if self.config.ema else None
        self.signs = Signs.of(self.core)
        if tensors is not None:
            self._continue(tensors, state)
        self.distiller = self._distiller()
        self.begun = True

    def _continue(self, tensors: dict[str, Tensor], state: Any) -> None:
        load_optimizer(self.core, self.raw, under("optimizer", tensors))
        self.team.load_scaler(state["scaler"])
        if self.handle is not None:
            self.handle.load_state_dict(state["quantizers"])
        device = self.team.device
        self.signs = Signs({name: t.to(device) for name, t in under("signs", tensors).items()})
        if self.average is not None:
            self.average.load(under("average", tensors))

    def _distiller(self) -> Distiller | None:
        if self.job.teacher is None:
            return None
        teacher = self.job.teacher.to(self.team.device)
        return Distiller(self.core, teacher, terms=terms_of(self.config, self.core))

    @property
    def raw(self) -> torch.optim.Optimizer:
        """The optimizer inside whatever accelerate has put around it."""
        inner: torch.optim.Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return inner

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        config = self.config
        share = rate_at(self.progress.step, self.steps, config.warmup, config.decay)
        return share * (config.rate or 0.0)

    @property
    def phase(self) -> str:
        """Float, soft or frozen."""
        if not self.binary:
            return "float"
        return "frozen" if binary_weights(self.core)[0].quantizer.hard else "soft"

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.progress.step // self.epoch_steps

    def __iter__(self) -> Iterator[Record]:
        """Train; one record per epoch, each after it was saved."""
        if not self.begun:
            self._pretrain()
            self.begin()
        while self.progress.step < self.steps:
            began = time.monotonic() - self.progress.seconds
            self._epoch(began)
            yield self._close_epoch(began)
        self._finish()

    def _pretrain(self) -> None:
        """Run the stage before, and start from its latent weights as far as they fit."""
        if self.before is None:
            return
        self.before.watch, self.before.stop = self.watch, self.stop
        for _ in self.before:
            pass
        mine, found = self.core.state_dict(), full_state(self.before.core)
        fitting = {n: t for n, t in found.items() if n in mine and t.shape == mine[n].shape}
        self.core.load_state_dict(mine | fitting)

    def _epoch(self, began: float) -> None:
        first = self.progress.step % self.epoch_steps
        batches = self.train.epoch(self.epoch, start=first)
        self.model.train()
        for _, (x, y) in zip(range(first, self.epoch_steps), batches, strict=False):
            if self.progress.step == self.soft_steps and self.phase == "soft":
                self._freeze()
            self._step(x, y)
            self.progress.seconds = time.monotonic() - began
            self.watch(self)
            if self.progress.step % self.epoch_steps:
                self._maybe_save()

    def _step(self, x: Tensor, y: Tensor) -> None:
        """One optimizer step; the batch may be computed in parts."""
        # Dropout must not depend on how often the run was interrupted, nor by how many processes.
        torch.manual_seed(_mixed(self.config.seed, self.progress.step, self.team.rank))
        set_rate(self.raw, self.rate)
        parts = list(
            zip(x.chunk(self.config.accumulate), y.chunk(self.config.accumulate), strict=True)
        )
        losses = []
        for i, (part, target) in enumerate(parts):
            with self.team.no_sync(self.model, last=i + 1 == len(parts)):
                with self.team.autocast():
                    loss = self._loss(part, target) * (len(part) / len(x))
                losses.append(float(loss.detach()))
                self._refuse_divergence(losses[-1], part)
                self.team.backward(loss)
        if self.config.clip_norm is not None:
            self.team.clip(self.model, self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.core)
        self.last_loss = sum(losses)
        self.progress.loss += self.last_loss
        self.progress.step += 1

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        penalized = self.config.penalty > 0 and self.config.task == "BWAA"
        with overflow_penalty(self.core) if penalized else nullcontext(lambda: 0.0) as penalty:
            if self.distiller is not None:
                loss = self.distiller(x, y, run=self.model)[0]
            else:
                smoothing = self.config.smoothing
                loss = functional.cross_entropy(self.model(x), y, label_smoothing=smoothing)
            return loss + self.config.penalty * penalty()

    def _refuse_divergence(self, loss: float, x: Tensor) -> None:
        with self.team.autocast():
            refuse_divergence(loss, self.progress.step, self.core, x)

    def _freeze(self) -> None:
        """Make the network hard: from here on signs stay and the rest trains."""
        if self.average is not None:
            self.average.write_to(self.core)
        self._bring_replica()
        self.progress.soft = self.accuracy(self.replica.model)
        self._harden_replica()
        self.progress.hardened = self.accuracy(self.replica.model)
        harden(self.core, tell=None)
        with torch.no_grad():
            for mine, fresh in zip(self.core.buffers(), self.replica.model.buffers(), strict=True):
                mine.copy_(fresh)  # batch-norm statistics of the hard network
        self.model = self.team.rewrap(self.model, self.core)
        self.model.train()
        if self.average is not None:
            self.average = Average(self.core, self.config.ema)

    def _bring_replica(self) -> None:
        self.team.agree(self.core)
        self.replica.follow(self.core, self.average)
        if self.average is not None:
            self.replica.recalibrate(self.plain.epoch(0), self.config.recalibrate)

    def _harden_replica(self) -> None:
        self.replica.harden(self.plain.epoch(0), self.config.recalibrate)

    def accuracy(self, model: nn.Module) -> float:
        """Share of the judging images that a model gets right; every image counts once."""
        with self.team.autocast():
            right, seen = self.team.total(*count_right(model, self.judge.epoch(0)))
        return right / max(seen, 1)

    def _close_epoch(self, began: float) -> Record:
        """Evaluate, keep the best, write the record and the checkpoint."""
        self._bring_replica()
        soft = hard = self.accuracy(self.replica.model)
        if self.phase == "soft":
            self._harden_replica()
            hard = self.accuracy(self.replica.model)
        best = hard > self.progress.best
        record = self._record(soft, hard, best, time.monotonic() - began)
        self.progress.best = max(hard, self.progress.best)
        self.progress.spent += record.seconds
        self.progress.loss = self.progress.seconds = 0.0
        if best:
            self._keep_best(record)
        if self.folder is not None and self.team.main:
            append_record(self.folder.metrics, record)
        self.save()
        return record

    def _record(self, soft: float, hard: float, best: bool, seconds: float) -> Record:
        flips = saturated = overflow = strength = None
        if self.binary:
            signs, state = Signs.of(self.core), diagnose(self.core)
            flips, self.signs = self.signs.flips(signs), signs
            saturated, overflow = state.total.saturated, state.total.overflow
            strength = state.layers[0].strength
        (loss,) = self.team.total(self.progress.loss / self.team.world)
        step = self.progress.step
        return Record(
            epoch=self.epoch, step=step, phase=self.phase, loss=loss / self.epoch_steps,
            rate=float(self.raw.param_groups[0]["lr"]), strength=strength, soft=soft, hard=hard,
            flips=flips, saturated=saturated, overflow=overflow, seconds=seconds,
            part=self.job.part, best=best,
        )  # fmt: skip

    def _keep_best(self, record: Record) -> None:
        """The best hard network, as an ordinary state_dict."""
        model = self.replica.model
        self.best = {
            name: value.detach().cpu().clone() for name, value in model.state_dict().items()
        }
        if self.folder is not None and self.team.main:
            state = {"quantizers": quantizer_states(model), "record": record.to_dict()}
            save_checkpoint(self.folder.model, self.best, state)

    def _finish(self) -> None:
        """The final figures, once."""
        if self.folder is not None and self.team.main:
            self.folder.write("result.json", self.result())

    def result(self) -> dict[str, Any]:
        """Float, soft and hard accuracy, their gap, sizes and time, as plain values."""
        now = self.progress
        return {
            "method": self.config.method, "task": self.config.task, "seed": self.config.seed,
            "part": self.job.part, "n": self.job.data.count(self.job.part), "float": now.start,
            "soft": now.soft, "hardened": now.hardened, "hard": now.best,
            "gap": None if now.soft is None else now.soft - now.best,
            "bytes_float": self.job.sizes[0], "bytes_packed": self.job.sizes[1],
            "steps": now.step, "epochs": self.config.epochs, "seconds": now.spent,
        }  # fmt: skip

    def _maybe_save(self) -> None:
        """Save when it is time, or when the user wants to stop; all processes decide together."""
        asked, due = self.stop(), time.monotonic() - self.saved_at > SAVE_SECONDS
        if self.team.world > 1:
            if self.progress.step % ASK_EVERY:
                return
            asked, due = (bool(n) for n in self.team.total(float(asked), float(due)))
        if asked or due:
            self.save()
        if asked:
            raise Interrupted("stopped, and saved" if self.folder else "stopped; nothing is saved")

    def save(self) -> None:
        """Write everything that is needed to continue; sharded tensors are gathered first."""
        self.saved_at = time.monotonic()
        if self.folder is None:
            return
        tensors = prefixed("model", full_state(self.core))
        tensors |= prefixed("optimizer", optimizer_tensors(self.core, self.raw))
        tensors |= prefixed("signs", self.signs.values)
        if self.average is not None:
            tensors |= prefixed("average", self.average.whole())
        state = {
            "progress": asdict(self.progress),
            "quantizers": quantizer_states(self.core),
            "scaler": self.team.scaler_state(),
        }
        if self.team.main:
            save_checkpoint(self.folder.last, tensors, state)
        self.team.wait()


def _mixed(seed: int, step: int, rank: int) -> int:
    """One seed from three numbers; odd factors keep neighbours apart."""
    return (
        seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB
    ) % 2**63
