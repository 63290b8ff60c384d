"""The processes that train one network together: a thin layer over accelerate.

Without ``accelerate launch`` or ``torchrun`` the team has one member and nothing is wrapped.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Team:
    """Who takes part, on which device, and how gradients and counts come together."""

    def __init__(self, precision: str = "no", cpu: bool = False) -> None:
        """Join the processes that the launcher started."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state()  # a second run in this process may want another precision
        self.accelerator: Any = Accelerator(mixed_precision=precision, cpu=cpu or None)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        """How many processes there are."""
        return int(self.accelerator.num_processes)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device(self.accelerator.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of mixed precision."""
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        """Wrap model and optimizer for the team; alone, without mixed precision, both as given."""
        prepared: tuple[nn.Module, Any] = self.accelerator.prepare(model, optimizer)
        return prepared

    def rewrap(self, wrapped: nn.Module, model: nn.Module) -> nn.Module:
        """Wrap again after some parameters stopped training: DDP counts them when it is made."""
        if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
            return wrapped
        return nn.parallel.DistributedDataParallel(model, device_ids=wrapped.device_ids or None)

    def no_sync(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients of all but the last part of a batch stay in this process."""
        if last or not hasattr(model, "no_sync"):
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.no_sync(model)
        return context

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled where the precision needs it."""
        self.accelerator.backward(loss)

    def clip(self, model: nn.Module, norm: float) -> None:
        """Limit the norm of the whole gradient."""
        self.accelerator.clip_grad_norm_(model.parameters(), norm)

    def total(self, *values: float) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(numbers)
        return [float(value) for value in numbers]

    def agree(self, model: nn.Module) -> None:
        """Give every process the buffers of the first: batch-norm statistics differ by shard."""
        if self.world > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def wait(self) -> None:
        """Go on together."""
        self.accelerator.wait_for_everyone()

    def scaler_state(self) -> dict[str, Any]:
        """What the loss scaling of fp16 remembers: plain numbers."""
        scaler = self.accelerator.scaler
        return {} if scaler is None else dict(scaler.state_dict())

    def load_scaler(self, state: dict[str, Any]) -> None:
        """Take it back."""
        if self.accelerator.scaler is not None and state:
            self.accelerator.scaler.load_state_dict(state)
