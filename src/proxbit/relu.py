"""Inputs that are never negative: their sign is the constant +1, so a binary layer learns nothing.

Found by tracing the model where ``torch.fx`` can, by the order of its modules otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional

from proxbit.methods import Method
from proxbit.tracing import trace

_NEVER_NEGATIVE = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.Hardsigmoid)
_REPLACEABLE = (nn.ReLU, nn.ReLU6)
_PASSING = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Unflatten,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_NEVER_NEGATIVE_CALLS = (
    functional.relu, functional.relu6, functional.sigmoid, functional.softplus,
    functional.softmax, torch.relu, torch.sigmoid, torch.softmax, torch.abs,
    "relu", "relu_", "sigmoid", "softmax", "abs", "square",
)  # fmt: skip
_PASSING_CALLS = (
    functional.dropout, functional.max_pool2d, functional.avg_pool2d,
    functional.adaptive_avg_pool2d, torch.flatten, operator.getitem, "flatten", "view", "reshape",
    "permute", "transpose", "contiguous", "mean",
)  # fmt: skip


@dataclass(frozen=True)
class NeverNegative:
    """A binary layer whose input is never negative.

    Attributes:
        layer: Name of the binary layer.
        source: Name of the module (or function) in front of it.
        replaceable: Whether that is a ReLU module or attribute, which ``relu=`` can replace.
    """

    layer: str
    source: str
    replaceable: bool


def replacement(method: Method) -> type[nn.Module]:
    """What to put in the place of a ReLU in front of binary inputs.

    Nothing, unless the pair passes every gradient on, however large the input: something else must
    end it then.

    >>> from proxbit.methods import METHODS
    >>> [replacement(METHODS[name]).__name__ for name in ("bnn++", "bc")]
    ['Identity', 'Hardtanh']
    """
    pair = method.input_pair or method.pair
    far = pair.backward(torch.tensor([-1e4, 1e4]), torch.tensor(1.0))
    return nn.Hardtanh if far.any() else nn.Identity


def never_negative(model: nn.Module, layers: Iterable[str]) -> list[NeverNegative]:
    """The named layers with a ReLU or the like in front, as far as can be seen."""
    wanted = set(layers)
    graph = trace(model, (nn.Linear, nn.Conv1d, nn.Conv2d))
    found = _in_graph(model, graph, wanted) if graph else _in_order(model, wanted)
    return found + _in_transformer_layers(model, wanted)


def _in_graph(model: nn.Module, graph: fx.Graph, wanted: set[str]) -> list[NeverNegative]:
    modules = dict(model.named_modules(remove_duplicate=False))
    found = []
    for node in graph.nodes:
        if node.op != "call_module" or node.target not in wanted:
            continue
        source = next(iter(node.all_input_nodes), None)
        while source is not None and _passes(source, modules):
            source = next(iter(source.all_input_nodes), None)
        if source is not None and (hit := _hit(str(node.target), source, modules)):
            found.append(hit)
    return found


def _passes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], _PASSING)
    return node.op in ("call_function", "call_method") and node.target in _PASSING_CALLS


def _hit(layer: str, node: fx.Node, modules: dict[str, nn.Module]) -> NeverNegative | None:
    if node.op == "call_module":
        module = modules[str(node.target)]
        if isinstance(module, _NEVER_NEGATIVE):
            return NeverNegative(layer, str(node.target), isinstance(module, _REPLACEABLE))
    elif node.op != "placeholder" and node.target in _NEVER_NEGATIVE_CALLS:
        name = getattr(node.target, "__name__", str(node.target))
        return NeverNegative(layer, f"{name}() in a forward", False)
    return None


def _in_order(model: nn.Module, wanted: set[str]) -> list[NeverNegative]:
    """The guess without a graph: modules run in the order in which they were registered."""
    found, last = [], ("", nn.Module())
    for name, module in model.named_modules():
        if name in wanted and isinstance(last[1], _NEVER_NEGATIVE):
            found.append(NeverNegative(name, last[0], isinstance(last[1], _REPLACEABLE)))
        if not list(module.children()) and not isinstance(module, _PASSING):
            last = (name, module)
    return found


def _in_transformer_layers(model: nn.Module, wanted: set[str]) -> list[NeverNegative]:
    """PyTorch's transformer layers hold their activation as an attribute, not as a module."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    return [
        NeverNegative(f"{name}.linear2".lstrip("."), f"{name}.activation".lstrip("."), True)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and f"{name}.linear2".lstrip(".") in wanted
        and (module.activation is functional.relu or isinstance(module.activation, nn.ReLU))
    ]  # fmt: skip
