"""The training loss: cross entropy or distillation, and the overflows of BWAA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.data.recipes import smoothed
from proxbit.nn import BinaryProduct, overflow_penalty
from proxbit.train.distillation import Distiller
from proxbit.train.setup import PreparedRun


class Loss:
    """The loss of one network on a batch."""

    def __init__(self, prepared: PreparedRun, model: nn.Module, device: torch.device) -> None:
        """Put hooks on the network and its teacher, if it has one."""
        self.model, self.config, self.distiller = model, prepared.config, None
        self.classes = len(prepared.data.classes)
        if prepared.teacher is not None:
            self.distiller = Distiller(model, prepared.teacher.to(device), prepared.terms)

    def __call__(self, run: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of ``run``: the network as it is wrapped to be called."""
        penalized = self.config.penalty > 0 and self.config.task == "BWAA" and self._sums()
        with overflow_penalty(self.model) if penalized else nullcontext(lambda: 0.0) as penalty:
            if self.distiller is not None:
                loss = self.distiller(x, self._smoothed(y), run=run)[0]
            else:
                loss = functional.cross_entropy(
                    run(x), y, label_smoothing=self.config.label_smoothing
                )
            return loss + self.config.penalty * penalty()

    def _smoothed(self, y: Tensor) -> Tensor:
        """The targets with label smoothing; soft ones were smoothed with the images."""
        if not self.config.label_smoothing or y.is_floating_point():
            return y
        return smoothed(y, self.classes, self.config.label_smoothing)

    def _sums(self) -> bool:
        """Whether there are sums of bits now: PTB has none while it trains, FP never."""
        return any(isinstance(m, BinaryProduct) and not m.float_input for m in self.model.modules())
