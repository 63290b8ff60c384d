"""The training loss: cross entropy or distillation, and the overflows of BWAA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.data.recipes import smoothed
from proxbit.nn import BinaryProduct, overflow_penalty
from proxbit.nn.model_weights import quantizers
from proxbit.train.distillation import Distiller
from proxbit.train.patch_drop import PatchDrop
from proxbit.train.setup import PreparedRun


class Loss:
    """The loss of one network on a batch."""

    def __init__(self, prepared: PreparedRun, model: nn.Module, device: torch.device) -> None:
        """Put hooks on the network and its teacher, if it has one."""
        self.model, self.config = model, prepared.config
        self.classes = len(prepared.data.classes)
        teacher = None if prepared.teacher is None else prepared.teacher.to(device)
        self.distiller = None if teacher is None else Distiller(model, teacher, prepared.terms)
        networks = [model] if teacher is None else [model, teacher]
        share = self.config.patch_drop
        self.patches = PatchDrop(share, *networks) if share else None

    def __call__(self, run: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of ``run``: the network as it is wrapped to be called."""
        penalized = self.config.penalty > 0 and self.config.task == "BWAA" and self._sums()
        with (
            overflow_penalty(self.model) if penalized else nullcontext(lambda: 0.0) as penalty,
            self._some_patches(),
        ):
            if self.distiller is not None:
                loss = self.distiller(x, self._smoothed(y), run=run)[0]
            else:
                loss = functional.cross_entropy(
                    run(x), y, label_smoothing=self.config.label_smoothing
                )
            return loss + self.config.penalty * penalty()

    def _some_patches(self) -> AbstractContextManager[None]:
        """Fewer patches where that was asked for; a network that is hard sees them all."""
        if self.patches is None or any(each.hard for each in quantizers(self.model)):
            return nullcontext()
        return self.patches.dropping()

    def _smoothed(self, y: Tensor) -> Tensor:
        """The targets with label smoothing; soft ones were smoothed with the images."""
        if not self.config.label_smoothing or y.is_floating_point():
            return y
        return smoothed(y, self.classes, self.config.label_smoothing)

    def _sums(self) -> bool:
        """Whether there are sums of bits now: PTB has none while it trains, FP never."""
        return any(isinstance(m, BinaryProduct) and not m.float_input for m in self.model.modules())
