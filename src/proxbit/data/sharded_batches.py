"""The share of each rank: an epoch cut into batches, and each batch over the ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShardedBatches:
    """An epoch of ``count`` places, cut into batches and each batch over the ranks.

    In training a batch has ``batch`` images and a last partial one is dropped, unless it is the
    only one. Otherwise every image occurs exactly once over all ranks: batches, and the ranks'
    shares of them, are as equal as can be, and none is empty.

    >>> [ShardedBatches(10, 4, rank=0, world=2, training=True).rows(step) for step in (0, 1)]
    [slice(0, 2, None), slice(4, 6, None)]
    >>> test = [ShardedBatches(10, 4, rank, world=2, training=False) for rank in (0, 1)]
    >>> [(one.rows(step).start, one.rows(step).stop) for step in range(3) for one in test]
    [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 10)]
    """

    count: int
    batch: int
    rank: int
    world: int
    training: bool

    @property
    def steps(self) -> int:
        """Batches of an epoch, the same number on every rank."""
        if self.training:
            return max(1, self.count // self.batch)
        return max(1, min(-(-self.count // self.batch), self.count // self.world))

    def rows(self, step: int) -> slice:
        """The places of this rank's part of a batch."""
        if self.training:
            begin, end = step * self.batch, min((step + 1) * self.batch, self.count)
        else:
            begin, end = (self.count * i // self.steps for i in (step, step + 1))
        first, last = ((end - begin) * i // self.world for i in (self.rank, self.rank + 1))
        return slice(begin + first, begin + last)
