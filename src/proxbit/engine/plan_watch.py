"""Whether anything has changed since a plan was made: asked before each forward, so cheaply.

Whatever a forward of Python could look at is noted once, as three rows of dictionaries, keys and
values; asking again is a walk over these rows in C, without a line of Python per module.
"""

from __future__ import annotations

from operator import is_, itemgetter
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from proxbit.engine.fusing import Folded, activation_code
from proxbit.engine.packed import PackedLayer

_TRAINING, _HOOKS, _PRE_HOOKS = map(
    itemgetter, ("training", "_forward_hooks", "_forward_pre_hooks")
)
Places = tuple[list[dict[str, Any]], list[str], list[Any]]


def is_quiet(net: nn.Module) -> bool:
    """Whether nobody watches the modules, and all are in evaluation."""
    states = [vars(module) for module in net.modules()]
    return _are_quiet(states, states)


def _are_quiet(states: list[dict[str, Any]], inner: list[dict[str, Any]]) -> bool:
    return not (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or any(map(_TRAINING, states))
        or any(map(_HOOKS, inner))
        or any(map(_PRE_HOOKS, inner))
    )


class Watch:
    """A network as it is now: its modules, their switches and tensors, and the kernels."""

    def __init__(self, net: nn.Module) -> None:
        """Note everything."""
        modules = list(net.modules())
        folded = [module.inner for module in modules if isinstance(module, Folded)]
        leaves = {module for module in modules if _is_of_torch(module)} | set(folded)
        self.states = [vars(module) for module in modules]
        self.inner = self.states[1:]  # hooks of the network itself stand around its forward
        places = [place for each in modules for place in _places(each, each in leaves)]
        settings = [setting for each in modules for setting in _settings(each, each in leaves)]
        self.places, self.settings = _in_rows(places), _in_rows(settings)

    def holds(self) -> bool:
        """Whether all is as it was, and quiet."""
        held, names, found = self.places
        if not all(map(is_, map(dict.get, held, names), found)):
            return False
        held, names, found = self.settings
        same = list(map(dict.get, held, names)) == found
        return same and _are_quiet(self.states, self.inner)


def _in_rows(places: list[tuple[dict[str, Any], str, Any]]) -> Places:
    held, names, found = zip(*places, strict=True) if places else ((), (), ())
    return list(held), list(names), list(found)


def _places(module: nn.Module, leaf: bool) -> list[tuple[dict[str, Any], str, Any]]:
    """What must be the very same: children, kernels, tensors that a forward of Python may read."""
    held: list[dict[str, Any]] = [module._modules]
    if not leaf:
        held += [module._parameters, module._buffers]
    places = [(each, name, value) for each in held for name, value in each.items()]
    places.append((vars(module), "forward", vars(module).get("forward")))
    if isinstance(module, PackedLayer):
        places.append((vars(module), "_kernel", module._kernel))
    return places


def _settings(module: nn.Module, leaf: bool) -> list[tuple[dict[str, Any], str, Any]]:
    """The words, numbers and switches that a forward may look at: a trace has them as they were."""
    state = vars(module)
    if isinstance(module, PackedLayer):
        return [(state, "route", module.route)]
    if leaf and not activation_code(module):  # a plan calls it as it is
        return []
    return [
        (state, key, value)
        for key, value in state.items()
        if isinstance(value, bool | int | float | str) and key != "training"
    ]


def _is_of_torch(module: nn.Module) -> bool:
    """Whether a module is a leaf of a trace: its own forward reads its tensors and settings."""
    return isinstance(module, PackedLayer) or type(module).__module__.startswith("torch.")
