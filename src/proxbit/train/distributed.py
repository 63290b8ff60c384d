"""The processes that train one network together: a thin layer over accelerate.

Without ``accelerate launch`` or ``torchrun`` the team has one member and nothing is shared out. The
launcher says how many there are, on how many machines, and whether their tensors are whole (DDP) or
sharded (FSDP2); nothing here depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from proxbit.util.text import few

T = TypeVar("T")


class Team:
    """Who takes part, on which device, and how gradients and counts come together."""

    def __init__(self, precision: str = "no", cpu: bool = False) -> None:
        """Join the processes that the launcher started."""
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import GradientAccumulationPlugin

        AcceleratorState._reset_state(True)  # a second run in this process may want other settings
        sharding = _sharding()
        self.accelerator: Any = Accelerator(
            mixed_precision=precision,
            cpu=cpu or not torch.accelerator.is_available(),
            fsdp_plugin=sharding,
            # The trainer cuts its batches itself; the launcher's number would scale the loss.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        if sharding is not None:
            _shard_on_cpu(self.accelerator, sharding)
        self._require_all()
        self._wrapped: nn.Module | None = None

    def _require_all(self) -> None:
        """Refuse processes that do not know of each other: each would train alone."""
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started != self.world:
            raise ValueError(
                f"the launcher started {started} processes, and this device lets {self.world} work "
                "together: use --cpu, or start one"
            )

    @property
    def rank(self) -> int:
        """The number of this process over all machines, from 0."""
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        """How many processes there are on all machines."""
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
        """Wrap model and optimizer for the team; the model keeps its identity inside."""
        if self._wrapped is not None:  # an earlier stage of the run, not needed any more
            self.accelerator.free_memory()
        if self.accelerator.is_fsdp2:
            for parameter in model.parameters():  # channels_last cannot be sharded
                parameter.data = parameter.data.contiguous()
        prepared: tuple[nn.Module, Any] = self.accelerator.prepare(model, optimizer)
        self._wrapped = prepared[0]
        return prepared

    def rewrap(self, wrapped: nn.Module, model: nn.Module) -> nn.Module:
        """Wrap again after some parameters stopped training: DDP counts them when it is made."""
        if not isinstance(wrapped, DistributedDataParallel):
            return wrapped
        self._wrapped = DistributedDataParallel(model, device_ids=wrapped.device_ids or None)
        return self._wrapped

    def no_sync(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients of all but the last part of a batch stay in this process."""
        if last:
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.no_sync(model)
        return context

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled where the precision needs it."""
        self.accelerator.backward(loss)
        self._require_gradients()

    def _require_gradients(self) -> None:
        """Refuse what DDP would wait for: it gathers gradients when it has those of all."""
        wrapped = self._wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            return
        if not wrapped.require_backward_grad_sync:  # a part of a batch: the last one counts
            return
        trained = [(n, p) for n, p in wrapped.module.named_parameters() if p.requires_grad]
        idle = [name for name, parameter in trained if parameter.grad is None]
        if idle:
            raise ValueError(
                f"{len(idle)} of {len(trained)} parameters take no part in the loss ({few(idle)}), "
                "and several processes would wait for their gradients: take them out of the model "
                "or call requires_grad_(False) on them"
            )

    def clip(self, model: nn.Module, norm: float) -> None:
        """Limit the norm of the whole gradient."""
        self.accelerator.unscale_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), norm)

    def total(self, *values: float) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(numbers)
        return [float(value) for value in numbers]

    def share(self, value: T) -> T:
        """The main process's value, in every process."""
        if self.world == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, 0, device=self.device)
        return values[0]

    def first(self, work: Callable[[], object]) -> None:
        """Let the main process do something; a mistake that it meets is raised in all of them."""
        mistake = None
        if self.main:
            try:
                work()
            except ValueError as error:
                mistake = error
        mistake = self.share(mistake)
        if mistake is not None:
            raise mistake

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


def _sharding() -> Any:
    """The options of FSDP2 as the launcher gives them in the environment; None without it."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise ValueError(f"networks are sharded by FSDP2, not {version}: pass --fsdp_version 2")
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    # Latent weights stay in float32, and autocast lowers the precision behind the quantizer: else
    # a sharded run would be another one than the same run on one device.
    return FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy())


def _shard_on_cpu(accelerator: Any, sharding: Any) -> None:
    """Accelerate takes FSDP2 for GPUs only, though all that it calls runs on CPUs as well."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.fsdp_plugin = sharding
        accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
