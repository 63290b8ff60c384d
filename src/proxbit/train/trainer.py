"""One run in one process: steps, phases, evaluation, checkpoints. Prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.binarization.attachment import attach
from proxbit.binarization.diagnosis import diagnose
from proxbit.binarization.hardening import harden
from proxbit.nn.model_weights import binary_weights
from proxbit.train import checkpoint, network_state
from proxbit.train.checkpoint import bound
from proxbit.train.distributed import Distributed
from proxbit.train.divergence import Interrupted, refuse_broken, refuse_divergence
from proxbit.train.evaluation import Evaluator
from proxbit.train.head_fitting import fit_head
from proxbit.train.loss import Loss
from proxbit.train.lr_schedules import lr_at, make_optimizer, set_lr
from proxbit.train.network_state import Average, SignSnapshot
from proxbit.train.precision import use_plain_attention
from proxbit.train.records import Progress, Record, Result, read_progress
from proxbit.train.run_folder import RunFolder
from proxbit.train.setup import PreparedRun, prepare
from proxbit.train.stages import run_stages
from proxbit.util.jsonl import append_line

SAVE_SECONDS = 300.0


class Trainer:
    """A run, ready to go; iterate over it for one record per epoch.

    Attributes:
        stage: The word for its epochs: "epoch", or that of a stage before a run.
        stages: The runs before this one: the float network that it starts from, latent weights.
        keeps_last: Whether the network that is kept is that of the last epoch, not the best one.
        watch: Called after every step with the trainer.
        tell: Called after every epoch of a stage with its trainer and the record.
        stop: Asked now and then; when it says yes, the run is saved and ends.
    """

    def __init__(
        self, prepared: PreparedRun, dist: Distributed, folder: RunFolder | None = None
    ) -> None:
        """Put every part on its device; :meth:`begin` must follow."""
        self.dist, self.folder = dist, folder
        self._place(prepared)
        self.watch: Callable[[Trainer], None] = lambda _: None
        self.tell: Callable[[Trainer, Record], None] = lambda *_: None
        self.stop: Callable[[], bool] = lambda: False
        self.stages: list[Trainer] = []
        self.stage, self.keeps_last = "epoch", False
        self.begun = False

    def _place(self, prepared: PreparedRun) -> None:
        dist = self.dist
        self.prepared, self.config = prepared, prepared.config
        self.core = prepared.model.to(dist.device)
        if dist.dtype == torch.bfloat16 and dist.device.type == "cpu":
            for network in (self.core, prepared.teacher):
                use_plain_attention(network or nn.Module())
        self.binary = any(w.quantizer.method.binary for w in binary_weights(self.core))
        self.evaluator, self.progress = Evaluator(prepared, dist, self.core), Progress()
        self.train = prepared.loader("train", True, dist.device, dist.rank, dist.world)
        self.epoch_steps = min(
            self.train.steps, self.config.max_steps_per_epoch or self.train.steps
        )
        self.steps = self.config.epochs * self.epoch_steps
        frozen = math.ceil((self.config.frozen or 0) * self.steps) if self.binary else 0
        self.soft_steps = self.steps - frozen
        self.last_loss, self.saved_at = math.nan, time.monotonic()

    def begin(self, tensors: dict[str, Tensor] | None = None, state: Any = None) -> None:
        """Make the optimizer and its hooks; with a checkpoint, take up where it was written."""
        if tensors is not None:
            self._take_network(checkpoint.under("model", tensors), state)
        elif self.prepared.start is not None:
            self._measure_start(self.prepared.start.to(self.dist.device).eval())
        network_state.freeze_hard_shifts(self.core)
        self.model = self.dist.wrap(self.core)
        self.optimizer = make_optimizer(self.core, self.config)
        set_lr(self.optimizer, self.lr)
        if binary_weights(self.core):
            attach(self.core, self.optimizer, steps=max(self.soft_steps, 1))
        self.average = Average(self.core, self.config.ema) if self.config.ema else None
        self.signs = SignSnapshot.of(self.core)
        if tensors is not None:
            self._continue(tensors, state)
        self.loss = Loss(self.prepared, self.core, self.dist.device)
        self.begun = True

    def _measure_start(self, start: nn.Module) -> None:
        """The accuracy of the float network, after its classifier was fitted if it is new."""
        if self.prepared.fresh and not self.binary:
            # Without a rank: all processes see the same images, and fit the same.
            images = self.prepared.loader("train", False, self.dist.device)
            fit_head(self.core, self.prepared.fresh, images.epoch(0))
            start.load_state_dict(self.core.state_dict())
        self.progress.start = self.evaluator.accuracy(start)

    def _take_network(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take weights, strengths and progress from a checkpoint that was checked to be ours."""
        checkpoint.require_like(tensors, self.core.state_dict(), "the network")
        self.progress = read_progress(state.get("progress"), self.steps)
        self.core.load_state_dict(tensors)
        network_state.restore_quantizers(self.core, state.get("quantizers"))

    def _continue(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take the rest from a checkpoint, after the optimizer and its hooks were made."""
        checkpoint.load_optimizer(self.core, self.optimizer, checkpoint.under("optimizer", tensors))
        self.dist.load_scaler(state.get("scaler", {}))
        network_state.restore_quantizers(
            self.core, state.get("quantizers")
        )  # the hooks began a schedule
        signs, device = checkpoint.under("signs", tensors), self.dist.device
        checkpoint.require_like(signs, self.signs.values, "the record of signs")
        self.signs = SignSnapshot({name: t.to(device) for name, t in signs.items()})
        if self.average is not None:
            average = checkpoint.under("average", tensors)
            checkpoint.require_like(average, self.average.values, "the average")
            self.average.load(average)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        config = self.config
        share = lr_at(self.progress.step, self.steps, config.warmup, config.lr_schedule)
        return share * (config.lr or 0.0)

    @property
    def phase(self) -> str:
        """Float, soft, sharp (signs are seen, latents train) or frozen (signs stay)."""
        if not self.binary:
            return "float"
        quantizer = binary_weights(self.core)[0].quantizer
        return "frozen" if quantizer.hard else "sharp" if quantizer.sharp else "soft"

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.progress.step // self.epoch_steps

    def __iter__(self) -> Iterator[Record]:
        """Train; one record per epoch, each after it was saved."""
        try:
            if not self.begun:
                run_stages(self)
                self.begin()
                self.save()  # a disk that takes nothing is found now, not after an epoch
            while self.progress.step < self.steps:
                began = time.monotonic() - self.progress.seconds
                self._epoch(began)
                yield self._close_epoch(began)
                if self.progress.step < self.steps:  # an epoch may have one step only
                    self._maybe_save()
            self._finish()
        finally:
            self.close()

    def close(self) -> None:
        """Let other processes into the folder, and into those of the stages."""
        for each in (self, *self.stages):
            if each.folder is not None:
                each.folder.close()

    def start_from(self, float_network: dict[str, Tensor]) -> None:
        """Rebuild the run from the network of a float stage, if it is to start from one."""
        if self.config.float_epochs:
            self._place(prepare(self.config, float_network))

    def _epoch(self, began: float) -> None:
        first = self.progress.step % self.epoch_steps
        batches = self.train.epoch(self.epoch, start=first)
        self.model.train()
        for _, (x, y) in zip(range(first, self.epoch_steps), batches, strict=False):
            self._change_phase()
            self._step(x, y)
            self.progress.seconds = time.monotonic() - began
            self.watch(self)
            if self.progress.step % self.epoch_steps:
                self._maybe_save()

    def _step(self, x: Tensor, y: Tensor) -> None:
        """One optimizer step; the batch may be computed in parts."""
        self.dist.seed_step(self.config.seed, self.progress.step)
        set_lr(self.optimizer, self.lr)
        chunks = (t.chunk(self.config.grad_accum_steps) for t in (x, y))
        parts = list(zip(*chunks, strict=True))
        losses = []
        # Only now: freed after the step, gradients let the heap shrink and grow again each time.
        self.optimizer.zero_grad()
        for i, (part, target) in enumerate(parts):
            with self.dist.no_sync(last=i + 1 == len(parts)):
                with self.dist.autocast():
                    loss = self.loss(self.model, part, target) * (len(part) / len(x))
                losses.append(loss.detach())
                self.dist.backward(loss)
        # The mean over all processes, so that they refuse it together or not at all.
        (self.last_loss,) = self.dist.all_sum(float(sum(losses)) / self.dist.world)
        with self.dist.autocast():
            refuse_divergence(self.last_loss, self.progress.step, self.core, x)
        if self.config.clip_norm is not None:
            self.dist.clip_grad_norm(self.model, self.optimizer, self.config.clip_norm)
        self.dist.step(self.optimizer)
        if self.average is not None:
            self.average.update(self.core)
        self.progress.loss += self.last_loss
        self.progress.step += 1

    def _change_phase(self) -> None:
        """Harden the network when its step has come; it turns sharp by its hooks."""
        if self.progress.step == self.soft_steps and self.phase in ("soft", "sharp"):
            self._freeze()

    def _freeze(self) -> None:
        """Make the network hard: from here on signs stay and the rest trains."""
        if self.average is not None:
            self.average.write_to(self.core)
        self.progress.soft = self.evaluator.measure(self.core, self.average)
        self.progress.hardened = self.evaluator.measure_hard()
        harden(self.core)
        with torch.no_grad():
            fresh = self.evaluator.model.buffers()
            for mine, value in zip(self.core.buffers(), fresh, strict=True):
                mine.copy_(value)  # batch-norm statistics of the hard network
        network_state.freeze_hard_shifts(self.core)
        self.model = self.dist.rewrap(self.core)
        self.model.train()
        if self.average is not None:
            self.average = Average(self.core, self.config.ema)

    def _close_epoch(self, began: float) -> Record:
        """Evaluate, keep the best, write the record and the checkpoint."""
        refuse_broken(self.core, self.progress.step)
        soft, hard = self._measure_epoch()
        best = hard is not None and (self.keeps_last or hard > self.progress.best)
        record = self._record(soft, hard, best, time.monotonic() - began)
        if best and hard is not None:
            self.progress.best = hard
        self.progress.spent += record.seconds
        self.progress.loss = self.progress.seconds = 0.0
        if best:
            self._keep_best(record)
        if self.folder is not None and self.dist.main:
            append_line(self.folder.metrics, record.to_dict())
        self.save()
        return record

    def _measure_epoch(self) -> tuple[float | None, float | None]:
        """Soft and hard accuracy, if this epoch is one of those that are evaluated."""
        if self.epoch % self.config.eval_every and self.progress.step < self.steps:
            return None, None
        soft = hard = self.evaluator.measure(self.core, self.average)
        if self.phase in ("soft", "sharp"):
            hard = self.evaluator.measure_hard()
            self.progress.soft, self.progress.hardened = soft, hard
        return soft, hard

    def _record(self, soft: float | None, hard: float | None, best: bool, seconds: float) -> Record:
        flips = saturated = overflow = strength = None
        if self.binary:
            signs, state = SignSnapshot.of(self.core), diagnose(self.core)
            flips, self.signs = self.signs.flips(signs), signs
            saturated, overflow = state.total.saturated, state.total.overflow
            strength = state.layers[0].strength
        loss = self.progress.loss / self.epoch_steps
        return Record(
            epoch=self.epoch, step=self.progress.step, phase=self.phase, loss=loss,
            lr=float(self.optimizer.param_groups[0]["lr"]), strength=strength, soft=soft, hard=hard,
            flips=flips, saturated=saturated, overflow=overflow, seconds=seconds,
            part=self.prepared.part, best=best,
        )  # fmt: skip

    def _keep_best(self, record: Record) -> None:
        """The best hard network, as an ordinary state_dict."""
        if self.folder is not None and self.dist.main:
            model = self.evaluator.model
            state = {
                "quantizers": network_state.quantizer_states(model),
                "record": record.to_dict(),
            }
            state |= bound(self.config)
            checkpoint.save_checkpoint(self.folder.model, model.state_dict(), state)

    def _finish(self) -> None:
        """The final figures, once."""
        if self.folder is not None and self.dist.main:
            self.folder.write("result.json", self.result())

    def result(self) -> dict[str, Any]:
        """Float, soft and hard accuracy, their gap, sizes and time, as plain values."""
        now, config, prepared = self.progress, self.config, self.prepared
        result = Result(
            method=config.method, task=config.task, seed=config.seed, part=prepared.part,
            n=prepared.data.count(prepared.part), float=now.start, soft=now.soft,
            hardened=now.hardened, hard=now.best,
            gap=None if now.soft is None else now.soft - now.best,
            bytes_float=prepared.sizes[0], bytes_packed=prepared.sizes[1], steps=now.step,
            epochs=config.epochs, seconds=now.spent,
        )  # fmt: skip
        return asdict(result)

    def _maybe_save(self) -> None:
        """Save when it is time, or when the user wants to stop; all processes decide together."""
        asked, due = self.stop(), time.monotonic() - self.saved_at > SAVE_SECONDS
        asked, due = (bool(n) for n in self.dist.all_sum(float(asked), float(due)))
        if asked or due:
            refuse_broken(self.core, self.progress.step)
            self.save()
        if asked:
            raise Interrupted("stopped, and saved" if self.folder else "stopped; nothing is saved")

    def save(self) -> None:
        """Write everything that is needed to continue; sharded tensors are gathered first."""
        self.saved_at = time.monotonic()
        if self.folder is None:
            return
        tensors = checkpoint.prefixed("model", network_state.full_state(self.core))
        tensors |= checkpoint.prefixed(
            "optimizer", checkpoint.optimizer_tensors(self.core, self.optimizer)
        )
        tensors |= checkpoint.prefixed("signs", self.signs.values)
        if self.average is not None:
            tensors |= checkpoint.prefixed("average", self.average.whole())
        state = {
            "progress": asdict(self.progress),
            "quantizers": network_state.quantizer_states(self.core),
            "scaler": self.dist.scaler_state(),
        } | bound(self.config)
        if self.dist.main:
            checkpoint.save_checkpoint(self.folder.last, tensors, state)
        self.dist.barrier()
