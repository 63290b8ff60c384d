"""Binary weights by parametrization: for modules whose weight other code reads directly.

A swapped layer is bypassed by whoever takes ``layer.weight`` without calling the layer. A
parametrization changes what reading the attribute gives, so nobody can bypass it. The state_dict
keeps the float model's keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from proxbit.nn import BinaryWeight, Form, Layout, WeightQuantizer, layout_of


def apply(module: nn.Module, names: tuple[str, ...], form: Form) -> None:
    """Put a weight quantizer on each of the named weights."""
    # torch puts a parametrized Parameter last; an optimizer's state goes by order, so keep it here.
    module._proxbit_order = list(module._parameters)  # type: ignore[assignment]
    for name in names:
        weight = getattr(module, name)
        quantizer = _quantizer(form, weight, layout_of(module, weight))
        quantizer.train(module.training)
        parametrize.register_parametrization(module, name, quantizer)
    module.register_state_dict_post_hook(_hide_original)
    module.register_load_state_dict_pre_hook(_find_original)


def _quantizer(form: Form, weight: Tensor, layout: Layout | None) -> WeightQuantizer:
    if layout is None:
        return WeightQuantizer(form.method, weight, form.counter)
    return TurnedQuantizer(form, layout.rows(weight.detach()), layout)


class TurnedQuantizer(WeightQuantizer):
    """The quantizer of a weight whose output channels do not come first."""

    def __init__(self, form: Form, rows: Tensor, layout: Layout) -> None:
        """Measure the initial weight, given with its output channels first."""
        super().__init__(form.method, rows, form.counter)
        self.layout = layout

    def forward(self, w: Tensor) -> Tensor:
        """The quantized weight in the shape of its Parameter."""
        return self.layout.back(super().forward(self.layout.rows(w)))


def undo(module: nn.Module) -> None:
    """Take our parametrizations off; the Parameter keeps its identity and latent values."""
    names = _names(module)
    if names:
        _take_a_class_of_its_own(module)
    for name in names:
        parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    for name in module.__dict__.pop("_proxbit_order", []):  # an optimizer's state goes by order
        module._parameters[name] = module._parameters.pop(name)


def _take_a_class_of_its_own(module: nn.Module) -> None:
    """Give a copy its own class: PyTorch removes a property from the class, for all copies."""
    kind = type(module)
    held = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
    module.__class__ = type(kind.__name__, kind.__bases__, held)


def binary_weights(module: nn.Module, prefix: str) -> Iterator[BinaryWeight]:
    """The parametrized binary weights of this module alone."""
    for name in _names(module):
        entry: Any = module.parametrizations[name]  # type: ignore[index]
        layout = getattr(entry[0], "layout", None)
        yield BinaryWeight(prefix + name, entry.original, entry[0], layout=layout)


def _names(module: nn.Module) -> list[str]:
    if not parametrize.is_parametrized(module):
        return []
    held: Any = module.parametrizations
    return [name for name, entry in held.items() if isinstance(entry[0], WeightQuantizer)]


def _hide_original(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Give a parametrized weight the name in the state_dict that it has in the float model."""
    for name in _names(module):
        inner = f"{prefix}parametrizations.{name}.original"
        if inner in state:
            state[prefix + name] = state.pop(inner)


def _find_original(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The reverse, on loading."""
    for name in _names(module):
        if prefix + name in state:
            state[f"{prefix}parametrizations.{name}.original"] = state.pop(prefix + name)
