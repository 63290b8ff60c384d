"""When a run goes wrong: say where, and keep the last good checkpoint."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.nn.quantizers import whole

HUGE = 1e6


class Diverged(RuntimeError):
    """The loss is no longer a sensible number."""


class Interrupted(RuntimeError):
    """The user stopped the run; it was saved."""


def refuse_divergence(loss: float, step: int, model: nn.Module, x: Tensor) -> None:
    """Stop before a bad step is taken: the parameters are still those of the step before."""
    if math.isfinite(loss) and abs(loss) < HUGE:
        return
    raise Diverged(
        f"the loss became {loss:.3g} at step {step}, {blame(model, x)}: try a lower --rate, or "
        "--clip-norm 1"
    )


def blame(model: nn.Module, x: Tensor) -> str:
    """The first place where something is not finite, in words."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(whole(parameter.detach())).all()):
            return f"where the parameter {name} is not finite"
    found: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(names[module])

    leaves = [m for m in model.modules() if not any(m.children())]
    handles = [module.register_forward_hook(look) for module in leaves]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"where the output of {found[0]} is not finite"
    return "with every layer's output still finite"
