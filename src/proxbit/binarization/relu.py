"""Inputs that are never negative: their sign is the constant +1, so a binary layer learns nothing.

Found in the graph of the model where ``torch.fx`` can trace it, by the order of its modules
otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx, nn
from torch.nn import functional

from proxbit.core.methods import Method
from proxbit.util.text import alike, few

Maker: TypeAlias = Callable[[], nn.Module]

_NEVER_NEGATIVE = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.Hardsigmoid)
_REPLACEABLE = (nn.ReLU, nn.ReLU6)
_PASSING = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Unflatten,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample,
    nn.PixelShuffle,
)  # fmt: skip
_NEVER_NEGATIVE_CALLS = (
    functional.relu, functional.relu6, functional.sigmoid, functional.softplus,
    functional.softmax, torch.relu, torch.sigmoid, torch.softmax, torch.abs,
    "relu", "relu_", "sigmoid", "softmax", "abs", "square",
)  # fmt: skip
_PASSING_CALLS = (
    functional.dropout, functional.max_pool2d, functional.avg_pool2d,
    functional.adaptive_avg_pool2d, functional.interpolate, torch.flatten, operator.getitem,
    "flatten", "view", "reshape", "permute", "transpose", "contiguous", "mean",
)  # fmt: skip
_JOINING_CALLS = (torch.cat, torch.concat)
UNTRACED = (
    "this model cannot be traced: pass example= to find binary inputs whose sign is constant, as "
    "behind a ReLU inside a forward"
)


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
    """The class of module to use in place of a ReLU in front of binary inputs.

    Identity, unless the pair passes every gradient on, however large the input: a Hardtanh must
    stop it then. A method may name its own.

    >>> from proxbit.core.methods import METHODS
    >>> [replacement(METHODS[name]).__name__ for name in ("bnn++", "bc")]
    ['Identity', 'Hardtanh']
    """
    if method.relu is not None:
        return method.relu
    pair = method.input_pair or method.pair
    far = pair.backward(torch.tensor([-1e4, 1e4]), torch.tensor(1.0))
    return nn.Hardtanh if far.any() else nn.Identity


def find_relu(relu: Maker | str | None, method: Method) -> Maker | None:
    """The function that makes the replacements of ReLUs; None to keep them."""
    if relu is None:
        return replacement(method)
    if relu == "keep":
        return None
    if isinstance(relu, str | nn.Module) or not callable(relu):
        raise TypeError(f"relu= is 'keep', or makes modules as nn.Hardtanh does; it is {relu!r}")
    return relu


def never_negative(
    model: nn.Module, layers: Iterable[str], graph: fx.Graph | None
) -> list[NeverNegative]:
    """The named layers with a ReLU or the like in front, as far as can be seen."""
    wanted = set(layers)
    found = _in_graph(model, graph, wanted) if graph else _in_order(model, wanted)
    return list(dict.fromkeys(found + _in_transformer_layers(model, wanted)))


def _in_graph(model: nn.Module, graph: fx.Graph, wanted: set[str]) -> list[NeverNegative]:
    modules = dict(model.named_modules(remove_duplicate=False))
    return [
        hit
        for node in graph.nodes
        if node.op == "call_module" and node.target in wanted
        for source in _sources(next(iter(node.all_input_nodes), None), modules)
        if (hit := _hit(str(node.target), source, modules))
    ]


def _sources(node: fx.Node | None, modules: dict[str, nn.Module]) -> Iterator[fx.Node]:
    """Where an input comes from, through what keeps signs; from several places if joined."""
    while node is not None and _passes(node, modules):
        node = next(iter(node.all_input_nodes), None)
    if node is not None and node.op == "call_function" and node.target in _JOINING_CALLS:
        for each in node.all_input_nodes:
            yield from _sources(each, modules)
    elif node is not None:
        yield node


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
    """Guess without a graph: modules run in the order in which they were registered."""
    found, last = [], ("", nn.Module())
    for name, module in model.named_modules():
        if name in wanted and isinstance(last[1], _NEVER_NEGATIVE):
            found.append(NeverNegative(name, last[0], isinstance(last[1], _REPLACEABLE)))
        if not list(module.children()) and not isinstance(module, _PASSING):
            last = (name, module)
    return found


def _in_transformer_layers(model: nn.Module, wanted: set[str]) -> list[NeverNegative]:
    """ReLUs of PyTorch's transformer layers, which hold them as an attribute, not as a module."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    return [
        NeverNegative(f"{name}.linear2".lstrip("."), f"{name}.activation".lstrip("."), True)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and f"{name}.linear2".lstrip(".") in wanted
        and (module.activation is functional.relu or isinstance(module.activation, nn.ReLU))
    ]  # fmt: skip


def constant_signs(
    constant: list[NeverNegative], new: Maker | None, method: Method
) -> tuple[list[str], list[str]]:
    """Warnings about what no replacement fixes, and notes about what was kept on request."""
    fixed = [hit for hit in constant if not hit.replaceable]
    kept = [hit for hit in constant if hit.replaceable and new is None]
    react = "or method 'react' (learned threshold)"
    other = f"use a module that can be negative (nn.ReLU would be replaced), {react}"
    drop = f"without relu 'keep' it becomes nn.{replacement(method).__name__}, {react}"
    return [sentence(fixed, other)] * bool(fixed), [sentence(kept, drop)] * bool(kept)


def sentence(hits: list[NeverNegative], fix: str) -> str:
    """One sentence about what is wrong with some layers, however many, and how to fix it."""
    layers = list(dict.fromkeys(hit.layer for hit in hits))
    names, sources = alike(layers), alike(hit.source for hit in hits)
    shown = few([repr(name) for name in names])
    if len(layers) == 1:
        subject = f"the input of {shown} comes from {few(sources)} and is"
        signs = "its sign is"
    else:
        subject = f"the inputs of {len(layers)} layers ({shown}) come from {few(sources)} and are"
        signs = "their signs are"
    return f"{subject} never negative, so {signs} constant: {fix}"
