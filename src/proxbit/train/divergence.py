"""When a run goes wrong: say where, and keep the last good checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from proxbit.util.modes import hooked

HUGE = 1e6
CURE = "try a lower --lr, or --clip-norm 1"


class Diverged(RuntimeError):
    """The loss is no longer a sensible number."""


class Interrupted(RuntimeError):
    """The user stopped the run; it was saved."""


def refuse_divergence(loss: float, step: int, model: nn.Module, x: Tensor) -> None:
    """Stop before a bad step is taken: the parameters are still those of the step before.

    All processes come here with the same loss; each looks into its own network, on its own images.
    """
    if not (math.isfinite(loss) and abs(loss) < HUGE):
        where = _worst(*blame(model, x))
        raise Diverged(f"the loss became {loss:.3g} at step {step}, {where}: {CURE}")


def refuse_broken(model: nn.Module, step: int) -> None:
    """Stop before a checkpoint is written that a run could not continue from; all together."""
    name = _broken(model.state_dict().items())
    name = _worst(0.0 if name is None else math.inf, name)
    if name is not None:
        raise Diverged(f"{name} was no longer finite after step {step}: {CURE}")


def blame(model: nn.Module, x: Tensor) -> tuple[float, str]:
    """How bad it is and where it began: what is not finite, or else the largest output."""
    # Both are asked for always: where the network is sharded, its processes compute together.
    # Of parameters only: what this step did to the statistics of a norm began elsewhere.
    name, sizes = _broken(model.named_parameters()), _output_sizes(model, x)
    if name is not None:
        return math.inf, f"where {name} is not finite"
    for layer, size in sizes.items():
        if not math.isfinite(size):
            return math.inf, f"where the output of {layer} is not finite"
    if not sizes:
        return 0.0, "in a network whose layers give no tensors"
    largest = max(sizes, key=lambda layer: sizes[layer])
    return sizes[largest], f"where the output of {largest} reaches {sizes[largest]:.3g}"


def _worst(size: float, words: str | None) -> str | None:
    """The words of the process with the largest size, in all of them; its rank if they differ."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return words
    seen: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(seen, (size, words))
    rank = max(range(len(seen)), key=lambda rank: float(seen[rank][0]))
    worst: str | None = seen[rank][1]
    return worst if all(each == worst for _, each in seen) else f"{worst} on rank {rank}"


def _broken(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The first tensor that is not finite; a sharded one is judged by our own shard."""
    for name, value in tensors:
        own = value.to_local() if hasattr(value, "to_local") else value
        if not bool(torch.isfinite(own).all()):
            return name
    return None


def _output_sizes(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The largest number that each layer gives, in the order in which the layers are called."""
    sizes: dict[str, float] = {}
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            sizes[names[module]] = float(output.abs().amax())

    handles = (m.register_forward_hook(look) for m in names if not any(m.children()))
    with torch.no_grad(), hooked(handles):
        model(x)
    return sizes
