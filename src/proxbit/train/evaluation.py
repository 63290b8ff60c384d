"""How good a network is, soft and hard, on images that it does not learn from."""

from __future__ import annotations

from torch import nn

from proxbit.train.distributed import Distributed
from proxbit.train.replica import Average, Replica, count_right
from proxbit.train.setup import PreparedRun


class Evaluator:
    """Measures a copy of the network, so that training goes on undisturbed.

    Attributes:
        replica: The copy, as it was last measured.
    """

    def __init__(self, prepared: PreparedRun, dist: Distributed, model: nn.Module) -> None:
        """Copy the model before it is wrapped."""
        self.dist, self.count, self.replica = dist, prepared.config.recalibrate, Replica(model)
        self.images = prepared.loader(prepared.part, False, dist.device, dist.rank, dist.world)
        # As in training, crops included: on plain images the statistics would be others, and the
        # network points worse. All processes see the same images.
        self.sample = prepared.loader("train", True, dist.device)

    def measure(self, model: nn.Module, average: Average | None) -> float:
        """Accuracy of a network as it is now, or of the average of its weights."""
        self.dist.broadcast_buffers(model)
        self.replica.follow(model, average)
        if average is not None:
            self.replica.recalibrate(self.sample.epoch(0), self.count)
        return self.accuracy(self.replica.model)

    def measure_hard(self) -> float:
        """Accuracy of the network that was just measured, hardened."""
        self.replica.harden(self.sample.epoch(0), self.count)
        return self.accuracy(self.replica.model)

    def accuracy(self, model: nn.Module) -> float:
        """Share of the images that a model gets right; every image counts once."""
        right, seen = self.dist.all_sum(*count_right(model, self.images.epoch(0)))
        return right / max(seen, 1)
