"""When a run goes wrong: say where, and keep the last good checkpoint."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.nn.quantizers import whole

HUGE = 1e6
CURE = "try a lower --rate, or --clip-norm 1"


class Diverged(RuntimeError):
    """The loss is no longer a sensible number."""


class Interrupted(RuntimeError):
    """The user stopped the run; it was saved."""


def refuse_divergence(loss: float, step: int, model: nn.Module, x: Tensor) -> None:
    """Stop before a bad step is taken: the parameters are still those of the step before."""
    if not (math.isfinite(loss) and abs(loss) < HUGE):
        raise Diverged(f"the loss became {loss:.3g} at step {step}, {blame(model, x)}: {CURE}")


def refuse_broken(model: nn.Module, step: int) -> None:
    """Stop before a checkpoint is written that a run could not continue from."""
    name = _broken(model)
    if name is not None:
        raise Diverged(f"{name} was no longer finite after step {step}: {CURE}")


def blame(model: nn.Module, x: Tensor) -> str:
    """Where it began, in words: what is not finite, or else the layer with the largest output."""
    name = _broken(model)
    if name is not None:
        return f"where {name} is not finite"
    sizes = _output_sizes(model, x)
    for layer, size in sizes.items():
        if not math.isfinite(size):
            return f"where the output of {layer} is not finite"
    if not sizes:
        return "in a network whose layers give no tensors"
    largest = max(sizes, key=lambda layer: sizes[layer])
    return f"where the output of {largest} reaches {sizes[largest]:.3g}"


def _broken(model: nn.Module) -> str | None:
    """The first tensor of a network that is not finite."""
    for name, value in model.state_dict().items():
        if not bool(torch.isfinite(whole(value)).all()):
            return name
    return None


def _output_sizes(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The largest number that each layer gives, in the order in which the layers are called."""
    sizes: dict[str, float] = {}
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            sizes[names[module]] = float(output.abs().amax())

    handles = [m.register_forward_hook(look) for m in names if not any(m.children())]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return sizes
