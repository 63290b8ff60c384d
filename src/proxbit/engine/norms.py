"""Batch norms that carry an activation with them, as timm's, seen as the two modules that they are.

Tracing them gives a call of ``batch_norm`` and checks around it, which no packed layer can take
over. So the norm inside becomes a node of its own; whether the module really is its norm and then
its activation, it is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from proxbit.util.tracing import trace

NORM = "#norm"  # behind the name of such a module: the norm inside it
_CHILDREN = {"drop", "act"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def traced(
    net: nn.Module, leaves: tuple[type[nn.Module], ...]
) -> tuple[fx.Graph, dict[str, nn.Module]] | None:
    """The graph of a network and the modules that it names; None where it cannot be traced."""
    modules: dict[str, nn.Module] = dict(net.named_modules(remove_duplicate=False))
    views = {name: norm_inside(module) for name, module in modules.items() if is_split(module)}
    graph = trace(net, leaves, {name: _split(name) for name in views})
    if graph is None:
        return None
    return graph, modules | {f"{name}{NORM}": view for name, view in views.items()}


def _split(name: str) -> Callable[..., Any]:
    def forward(tracer: fx.Tracer, module: Any, x: Any) -> Any:
        norm = tracer.create_proxy("call_module", f"{name}{NORM}", (x,), {})
        return module.act(module.drop(norm))

    return forward


def norm_inside(module: Any) -> nn.BatchNorm2d:
    """The norm alone; it has the tensors of the module, whatever becomes of them."""
    norm = nn.BatchNorm2d.__new__(nn.BatchNorm2d)
    apart: dict[str, Any] = {"_modules": {}} | {hooks: OrderedDict() for hooks in _HOOKS}
    norm.__dict__.update(vars(module) | apart)
    return norm


def is_split(module: nn.Module) -> bool:
    """Whether a module is a batch norm with fixed statistics, and then an activation."""
    if not isinstance(module, nn.BatchNorm2d) or set(module._modules) != _CHILDREN:
        return False
    watched = any(getattr(module, hooks) for hooks in _HOOKS)
    weight = module.running_mean
    if watched or module.training or weight is None or weight.is_meta:
        return False
    x = torch.linspace(-3, 3, 10 * module.num_features, dtype=weight.dtype, device=weight.device)
    image = x.reshape(1, module.num_features, 5, 2)
    layouts = (torch.contiguous_format, torch.channels_last)
    return all(_is_both(module, image.contiguous(memory_format=layout)) for layout in layouts)


@torch.no_grad()
def _is_both(module: Any, image: Tensor) -> bool:
    try:
        parts = module.act(module.drop(norm_inside(module)(image.clone())))
        return torch.equal(module(image.clone()), parts)
    except Exception:  # whatever a user's module may ask of its input
        return False
