"""Binary weights by parametrization: for modules whose weight other code reads directly.

A swapped layer is bypassed by whoever takes ``layer.weight`` without calling the layer. A
parametrization changes what reading the attribute gives, so nobody can bypass it. The state_dict
keeps the float model's keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from proxbit.nn import BinaryWeight, Form, WeightQuantizer


def apply(module: nn.Module, names: tuple[str, ...], form: Form) -> None:
    """Put a weight quantizer on each of the named weights."""
    module._proxbit_order = list(module._parameters)  # type: ignore[assignment]
    for name in names:
        quantizer = WeightQuantizer(form.method, getattr(module, name))
        quantizer.train(module.training)
        parametrize.register_parametrization(module, name, quantizer)
    module.register_state_dict_post_hook(_hide_original)
    module.register_load_state_dict_pre_hook(_find_original)


def undo(module: nn.Module) -> None:
    """Take our parametrizations off; the Parameter keeps its identity and latent values."""
    for name in _names(module):
        parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    for name in module.__dict__.pop("_proxbit_order", []):  # an optimizer's state goes by order
        module._parameters[name] = module._parameters.pop(name)


def binary_weights(module: nn.Module, prefix: str) -> Iterator[BinaryWeight]:
    """The parametrized binary weights of this module alone."""
    for name in _names(module):
        entry: Any = module.parametrizations[name]  # type: ignore[index]
        yield BinaryWeight(prefix + name, entry.original, entry[0])


def _names(module: nn.Module) -> list[str]:
    if not parametrize.is_parametrized(module):
        return []
    return [
        name
        for name, entry in module.parametrizations.items()  # type: ignore[union-attr,operator]
        if isinstance(entry[0], WeightQuantizer)
    ]


def _hide_original(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """In the state_dict a parametrized weight has the name it had as float."""
    for name in _names(module):
        inner = f"{prefix}parametrizations.{name}.original"
        if inner in state:
            state[prefix + name] = state.pop(inner)


def _find_original(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The reverse, on loading."""
    for name in _names(module):
        if prefix + name in state:
            state[f"{prefix}parametrizations.{name}.original"] = state.pop(prefix + name)
