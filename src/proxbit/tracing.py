"""The graph of a model, as far as torch.fx can see it."""

from __future__ import annotations

import copy

from torch import fx, nn


def trace(model: nn.Module, leaves: tuple[type[nn.Module], ...]) -> fx.Graph | None:
    """The graph down to ``leaves`` and PyTorch's own modules; None where it cannot be traced.

    Tracing runs the user's forward with proxies, which it may store on itself: so trace a copy of
    the modules, sharing the tensors.
    """

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, leaves) or super().is_leaf_module(m, module_qualified_name)

    shared = [*model.parameters(), *model.buffers()]
    try:
        return Tracer().trace(copy.deepcopy(model, {id(t): t for t in shared}))
    except Exception:  # whatever a user's forward raises on a proxy
        return None
