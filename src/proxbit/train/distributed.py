"""The processes that train one network together, by torch.distributed: DDP, or FSDP2 with --fsdp.

A launcher (``torchrun``, ``accelerate launch``) starts them and says in the environment how many
there are; without one there is a single process and nothing is shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from proxbit.train.precision import choose_precision
from proxbit.util.text import few

T = TypeVar("T")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Distributed:
    """Who takes part, on which device, and how gradients and counts come together.

    Attributes:
        rank: The number of this process over all machines, from 0.
        world: How many processes there are on all machines.
        device: Where this process computes.
        precision: "no", "bf16" or "fp16": what was asked for, or what "auto" means here.
        scaler: The loss scaling of fp16, which does nothing in any other precision.
    """

    def __init__(self, precision: str = "no", cpu: bool = False, fsdp: bool = False) -> None:
        """Join the processes that the launcher started."""
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.world > 1 else 0
        self.device = _device(cpu, self.world)
        self.sharded = _sharded(fsdp) and self.world > 1
        self._wrapped: nn.Module | None = None
        if self.world > 1 and not distributed.is_initialized():
            backend = distributed.get_default_backend_for_device(self.device)
            distributed.init_process_group(backend, rank=self.rank, world_size=self.world)
        # That of the main process: machines may differ.
        self.precision = self.broadcast(choose_precision(precision, cpu))
        self.dtype = DTYPES.get(self.precision)
        fp16 = self.precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=fp16)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def seed_step(self, seed: int, step: int) -> None:
        """Seed what a step may use; ``torch.manual_seed`` spends half a millisecond on the rest.

        Dropout must not depend on how often the run was interrupted, nor repeat in each process:
        odd factors keep neighbours apart.
        """
        mixed = seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9
        mixed = (mixed + self.rank * 0x94D049BB133111EB) % 2**63
        torch.default_generator.manual_seed(mixed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(mixed)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of mixed precision."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is called in training; inside it keeps its identity.

        Sharding replaces its parameters: make the optimizer afterwards.
        """
        if self.sharded:
            _shard(model, self.device, self.world)
        elif self.world > 1:
            own = None if self.device.type == "cpu" else [self.device]
            model = DistributedDataParallel(model, device_ids=own)
        self._wrapped = model
        return model

    def rewrap(self, model: nn.Module) -> nn.Module:
        """Wrap again after some parameters stopped training: DDP counts them when it is made."""
        return self._wrapped if self.sharded and self._wrapped is not None else self.wrap(model)

    @contextmanager
    def no_sync(self, last: bool) -> Iterator[None]:
        """Keep the gradients of all but the last part of a batch in this process."""
        wrapped: Any = self._wrapped
        if last or self.world == 1:
            yield
        elif self.sharded:
            wrapped.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                wrapped.set_requires_gradient_sync(True)
        else:
            with wrapped.no_sync():
                yield

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled where the precision needs it."""
        self.scaler.scale(loss).backward()
        self._require_gradients()

    def _require_gradients(self) -> None:
        """Refuse parameters without a gradient: DDP waits until it has one for each."""
        wrapped: Any = self._wrapped
        alone = not isinstance(wrapped, DistributedDataParallel)
        if alone or not wrapped.require_backward_grad_sync:  # a part of a batch: the last counts
            return
        trained = [(n, p) for n, p in wrapped.module.named_parameters() if p.requires_grad]
        idle = [name for name, parameter in trained if parameter.grad is None]
        if idle:
            raise ValueError(
                f"{len(idle)} of {len(trained)} parameters take no part in the loss ({few(idle)}), "
                "and several processes would wait for their gradients: take them out of the model "
                "or call requires_grad_(False) on them"
            )

    def clip_grad_norm(self, model: nn.Module, optimizer: Optimizer, norm: float) -> None:
        """Limit the norm of the whole gradient."""
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), norm)

    def step(self, optimizer: Optimizer) -> None:
        """One step, unless fp16 overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def all_sum(self, *values: float) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(numbers)
        return [float(value) for value in numbers]

    def broadcast(self, value: T) -> T:
        """The main process's value, in every process."""
        if self.world == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, 0, device=self.device)
        return values[0]

    def on_main(self, work: Callable[[], object]) -> None:
        """Let the main process do something; a mistake that it meets is raised in all of them."""
        mistake = None
        if self.main:
            try:
                work()
            except ValueError as error:
                mistake = error
        mistake = self.broadcast(mistake)
        if mistake is not None:
            raise mistake

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every process the buffers of the first: batch-norm statistics differ by shard."""
        if self.world > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, 0)

    def barrier(self) -> None:
        """Go on together."""
        if self.world > 1:
            distributed.barrier()

    def scaler_state(self) -> dict[str, Any]:
        """The state of fp16's loss scaling, as plain numbers."""
        return dict(self.scaler.state_dict())

    def load_scaler(self, state: dict[str, Any]) -> None:
        """Take it back."""
        if state:
            self.scaler.load_state_dict(state)


def _device(cpu: bool, world: int) -> torch.device:
    """The device of this process; raises where some processes would have no device of their own."""
    if cpu or not torch.accelerator.is_available():
        return torch.device("cpu")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    count = torch.accelerator.device_count()
    if here > count:
        raise ValueError(
            f"the launcher started {here} processes on this machine, which has "
            f"{count} accelerators: use --cpu, or start fewer"
        )
    place = int(os.environ.get("LOCAL_RANK", "0")) if world > 1 else None
    if place is not None:
        torch.accelerator.set_device_index(place)
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return kind if place is None else torch.device(kind.type, place)


def _sharded(fsdp: bool) -> bool:
    """Whether --fsdp asks for sharding, or ``accelerate launch --use_fsdp`` in the environment."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return fsdp
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise ValueError(f"networks are sharded by FSDP2, not {version}: pass --fsdp_version 2")
    return True


def _shard(model: nn.Module, device: torch.device, world: int) -> None:
    """FSDP2 in place, without its mixed precision.

    Latent weights stay in float32, and autocast lowers the precision behind the quantizer: else a
    sharded run would be another one than the same run on one device.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for parameter in model.parameters():  # channels_last cannot be sharded
        parameter.data = parameter.data.contiguous()
    fully_shard(model, mesh=init_device_mesh(device.type, (world,)))
