"""How good a network is, soft and hard, on images that it does not learn from."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor, nn

from proxbit.binarization.hardening import harden, recalibrate
from proxbit.nn.model_weights import quantizers
from proxbit.train.distributed import Distributed
from proxbit.train.network_state import Average, full_state, quantizer_states, restore_quantizers
from proxbit.train.setup import PreparedRun


class Evaluator:
    """Measures a whole, unsharded copy of the network, so that training goes on undisturbed.

    Attributes:
        model: The copy, as it was last measured.
    """

    def __init__(self, prepared: PreparedRun, dist: Distributed, model: nn.Module) -> None:
        """Copy the model before it is wrapped."""
        self.dist, self.count, self.model = dist, prepared.config.recalibrate, copy.deepcopy(model)
        self.images = prepared.loader(prepared.part, False, dist.device, dist.rank, dist.world)
        # As in training, crops included: on plain images the statistics would be others, and the
        # network points worse. All processes see the same images.
        self.sample = prepared.loader("train", True, dist.device)

    def measure(self, model: nn.Module, average: Average | None) -> float:
        """Accuracy of a network as it is now, or of the average of its weights."""
        self.dist.broadcast_buffers(model)
        state = full_state(model) | ({} if average is None else average.whole())
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(state[name])
        restore_quantizers(self.model, quantizer_states(model))
        self.model.eval()
        if average is not None:
            self._recalibrate()
        return self.accuracy(self.model)

    def measure_hard(self) -> float:
        """Accuracy of the network that was just measured, hardened."""
        if not all(quantizer.hard for quantizer in quantizers(self.model)):
            harden(self.model)
            self._recalibrate()
        return self.accuracy(self.model)

    def _recalibrate(self) -> None:
        """Refresh the running statistics of norms that keep them."""
        kind = nn.modules.batchnorm._BatchNorm
        norms = [m for m in self.model.modules() if isinstance(m, kind) and m.track_running_stats]
        if self.count and norms:
            recalibrate(self.model, islice(self.sample.epoch(0), self.count))

    def accuracy(self, model: nn.Module) -> float:
        """Share of the images that a model gets right; every image counts once."""
        right, seen = self.dist.all_sum(*count_right(model, self.images.epoch(0)))
        return right / max(seen, 1)


@torch.inference_mode()
def count_right(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """How many images of these batches the model gets right, and how many there are."""
    right = seen = 0
    for x, y in batches:
        if len(y):
            right += int((model(x).argmax(1) == y).sum())
            seen += len(y)
    return right, seen
