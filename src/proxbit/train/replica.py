"""A copy of the network that is evaluated, soft and hard, while the original trains on."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.binarization.conversion import binary_weights, named_quantizers, quantizers
from proxbit.binarization.hardening import harden, recalibrate
from proxbit.core import maps
from proxbit.nn.quantizers import whole
from proxbit.train.checkpoint import beside


def quantizer_states(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Strength, step, unit and hardness of every quantizer, by name."""
    return {name: quantizer.saved() for name, quantizer in named_quantizers(model).items()}


def restore_quantizers(model: nn.Module, states: Any) -> None:
    """Take them back; a state of another model is refused before anything changes."""
    require_states(states, quantizer_states(model))
    for name, quantizer in named_quantizers(model).items():
        quantizer.restored(states[name])
    for weight in binary_weights(model):
        weight.reconcile()


def require_states(given: Any, own: dict[str, dict[str, Any]]) -> None:
    """Refuse states whose names, keys or types of values are not those of our own."""
    if not isinstance(given, dict) or given.keys() != own.keys():
        raise ValueError("its quantizers are those of another model")
    for name, state in given.items():
        kinds = {key: type(value) for key, value in own[name].items()}
        if not isinstance(state, dict) or {k: type(v) for k, v in state.items()} != kinds:
            raise ValueError(f"the state of quantizer {name!r} is {state!r}, not like {own[name]}")
        if not all(0 <= value < math.inf for value in state.values() if value is not None):
            raise ValueError(f"the state of quantizer {name!r} is out of range: {state!r}")


def freeze_hard_shifts(model: nn.Module) -> None:
    """Freeze the shift of a hard weight: it has no effect any more, and DDP waits for gradients."""
    for weight in binary_weights(model):
        if weight.quantizer.shift is not None:
            weight.quantizer.shift.requires_grad_(not weight.quantizer.hard)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model by name, gathered where they are sharded."""
    return {name: whole(value) for name, value in model.state_dict().items()}


class Replica:
    """A whole, unsharded copy of the network, to be brought up to date and measured."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the model before it is wrapped."""
        self.model = copy.deepcopy(model)

    def follow(self, model: nn.Module, average: Average | None = None) -> None:
        """Become a copy of the present network, or of its average if one is kept."""
        state = full_state(model)
        if average is not None:
            state |= average.whole()
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(state[name])
        restore_quantizers(self.model, quantizer_states(model))
        self.model.eval()

    def harden(self, batches: Iterable[Any], count: int) -> None:
        """Become hard, with batch-norm statistics that fit."""
        if all(q.hard for q in quantizers(self.model)):
            return
        harden(self.model)
        self.recalibrate(batches, count)

    def recalibrate(self, batches: Iterable[Any], count: int) -> None:
        """Refresh the running statistics of norms that keep them."""
        kind = nn.modules.batchnorm._BatchNorm
        norms = [m for m in self.model.modules() if isinstance(m, kind) and m.track_running_stats]
        if count and norms:
            recalibrate(self.model, islice(batches, count))


class Average:
    """An exponential average of the parameters; sharded where they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start at the present values."""
        self.decay = decay
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move a small step towards the present values."""
        for name, parameter in model.named_parameters():
            self.values[name].lerp_(parameter.detach(), 1 - self.decay)

    def whole(self) -> dict[str, Tensor]:
        """The average by name, gathered where it is sharded."""
        return {name: whole(value) for name, value in self.values.items()}

    def load(self, values: dict[str, Tensor]) -> None:
        """Take the average back from a checkpoint."""
        self.values = {n: beside(values[n], mine) for n, mine in self.values.items()}

    @torch.no_grad()
    def write_to(self, model: nn.Module) -> None:
        """Let the model have the average."""
        for name, parameter in model.named_parameters():
            parameter.detach().copy_(self.values[name])


@dataclass(frozen=True)
class SignSnapshot:
    """The signs of all binary weights at one moment, for counting flips."""

    values: dict[str, Tensor]

    @staticmethod
    def of(model: nn.Module) -> SignSnapshot:
        """The signs now: of the quantized weight, as ``harden`` would take them."""
        with torch.no_grad():
            return SignSnapshot({n: maps.sign(q).to(torch.int8) for n, q in _quantized(model)})

    def flips(self, other: SignSnapshot) -> float:
        """The share that differs."""
        count = sum(value.numel() for value in self.values.values())
        different = sum(
            int((value != other.values[name]).sum()) for name, value in self.values.items()
        )
        return different / max(count, 1)


def _quantized(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for weight in binary_weights(model):
        yield weight.name, weight.quantizer.proximal(weight.latent)


@torch.inference_mode()
def count_right(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """How many images of these batches the model gets right, and how many there are."""
    right = seen = 0
    for x, y in batches:
        if len(y):
            right += int((model(x).argmax(1) == y).sum())
            seen += len(y)
    return right, seen
