"""The state of a network that trains: its quantizers, its tensors, their average, its signs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.core import maps
from proxbit.nn.model_weights import binary_weights, named_quantizers, restore_states, saved_states
from proxbit.nn.quantizers import whole
from proxbit.train.checkpoint import beside


def quantizer_states(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Strength, step, unit and hardness of every quantizer, by name."""
    return saved_states(named_quantizers(model))


def restore_quantizers(model: nn.Module, states: Any) -> None:
    """Take them back; a state of another model is refused before anything changes."""
    require_states(states, quantizer_states(model))
    restore_states(named_quantizers(model), binary_weights(model), states)


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


def load_fitting(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Take over the tensors that the model has too, of the same shape."""
    mine = model.state_dict()
    fitting = {n: t for n, t in found.items() if n in mine and t.shape == mine[n].shape}
    model.load_state_dict(mine | fitting)


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
            seen = {w.name: w.quantizer.proximal(w.latent) for w in binary_weights(model)}
            return SignSnapshot({name: maps.sign(q).to(torch.int8) for name, q in seen.items()})

    def flips(self, other: SignSnapshot) -> float:
        """The share that differs."""
        count = sum(value.numel() for value in self.values.values())
        pairs = [(value, other.values[name]) for name, value in self.values.items()]
        different = sum(int((mine != theirs).sum()) for mine, theirs in pairs)
        return different / max(count, 1)
