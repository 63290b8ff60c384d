"""The graph of a model, as far as torch.fx can see it, without a trace left in the process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn


def trace(
    model: nn.Module,
    leaves: tuple[type[nn.Module], ...],
    forwards: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> fx.Graph | None:
    """The graph down to ``leaves`` and PyTorch's own modules; None where it cannot be traced.

    Tracing runs the user's forward with proxies, which it may store on itself: so trace a copy of
    the modules, sharing the tensors.

    Args:
        model: What to trace.
        leaves: Modules that are one node each, besides those of PyTorch.
        forwards: By the name of a module, what is recorded in place of its forward; it is given the
            tracer, the module and the inputs.
    """
    shared = [*model.parameters(), *model.buffers()]
    try:
        twin = copy.deepcopy(model, {id(t): t for t in shared})
        with torch.random.fork_rng(devices=[]):  # a forward may draw numbers even on proxies
            return _Tracer(leaves).record(twin, forwards)
    except Exception:  # whatever a user's forward raises on a proxy
        return None


class _Tracer(fx.Tracer):
    """Records the calls of leaves by standing in for them in this one model.

    ``fx.Tracer.trace`` patches ``nn.Module`` for the whole process, and meanwhile every forward of
    another thread fails, whatever its model: a server could not load a network while it serves.
    """

    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one node of the graph."""
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def record(self, root: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> fx.Graph:
        """The graph of a model that is ours to change."""
        self.root, self.graph = root, fx.Graph(tracer_cls=type(self))
        self.tensor_attrs: dict[Any, str] = {}
        forward, arguments = self.create_args_for_root(type(root).forward, True)
        for name, module in root.named_modules():
            if name in forwards:
                module.forward = partial(forwards[name], self, module)
            elif name and self.is_leaf_module(module, name):
                self._stand_in_for(name, module)
            else:
                self._stand_in_for_parameters(name, module)
        out = self.create_arg(forward(*arguments))
        self.create_node("output", "output", (out,), {})
        return self.graph

    def _stand_in_for(self, name: str, module: nn.Module) -> None:
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            hooks.clear()
        module.forward = partial(self._called, name)

    def _stand_in_for_parameters(self, name: str, module: nn.Module) -> None:
        """A method of a tensor takes no proxies, that of a proxy does: ``token.expand(batch)``."""
        held: dict[str, Any] = module._parameters
        for key in [key for key, value in held.items() if value is not None]:
            held[key] = self.create_proxy("get_attr", f"{name}.{key}" if name else key, (), {})

    def _called(self, name: str, *args: Any, **kwargs: Any) -> fx.Proxy:
        return self.create_proxy("call_module", name, args, kwargs)
