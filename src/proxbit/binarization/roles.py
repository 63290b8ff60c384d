"""The first and the last layers of a model, which stay float: by its graph, or by their roles."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import fx, nn
from torch.nn import functional

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
# What a forward may do by itself with a Parameter: a layer without a module.
_PRODUCTS = (
    functional.linear, functional.conv1d, functional.conv2d, functional.embedding, torch.matmul,
    torch.bmm, torch.einsum, operator.matmul, "matmul", "bmm",
)  # fmt: skip
_HEADS = ("classifier", "head", "logits")  # last words of the names of layers that give the output
_SIBLINGS = (*_HEADS, "projection", "predictor")  # those of layers that come in pairs (CLIP)


def first_layers(
    model: nn.Module, layers: Mapping[str, nn.Module], order: list[str], graph: fx.Graph | None
) -> list[str]:
    """The layers that see the data itself: nothing with weights stands in front of them.

    Args:
        model: The model.
        layers: Its linear layers and convolutions that could become binary, by name.
        order: The names of all modules with weights, embeddings included, as registered.
        graph: The graph of the model, if it could be traced.
    """
    if graph is not None:
        return [name for name in _ends(model, graph, backwards=False) if name in layers]
    # The first convolution, or what is registered first; not one inside a block behind others.
    in_a_block = _blocks(model)
    convolution = [n for n, m in layers.items() if isinstance(m, _CONVOLUTIONS)][:1]
    found = [n for n in convolution if n in order[:1] or not in_a_block(n)]
    found += [n for n in order[:1] if n in layers and not in_a_block(n)]
    return list(dict.fromkeys(found))


def last_layers(
    model: nn.Module, layers: Mapping[str, nn.Module], graph: fx.Graph | None
) -> dict[str, str]:
    """The layers that give the output, with what they are: by the model (timm), graph, or names.

    A layer inside a repeated block is none of them: a model without a head ends with such a one.
    """
    named = _named_by_model(model, layers)
    if named:
        return dict.fromkeys(named, "last classifier")
    in_a_block = _blocks(model)
    if graph is None:
        ends = _last_by_role(layers, in_a_block)
    else:
        ends = [name for name in _ends(model, graph, backwards=True) if name in layers]
    return {
        name: "last convolution" if isinstance(layers[name], _CONVOLUTIONS) else "last classifier"
        for name in ends
        if not in_a_block(name)
    }


def _named_by_model(model: nn.Module, layers: Mapping[str, nn.Module]) -> list[str]:
    getter = getattr(model, "get_classifier", None)
    if not callable(getter):
        return []
    found = getter()
    given = found if isinstance(found, tuple) else (found,)
    heads = {id(part) for m in given if isinstance(m, nn.Module) for part in m.modules()}
    return [name for name, module in layers.items() if id(module) in heads]


def _ends(model: nn.Module, graph: fx.Graph, backwards: bool) -> list[str]:
    """The layers with no other weights between them and the input (or the output)."""
    modules = dict(model.named_modules(remove_duplicate=False))
    nodes = list(reversed(graph.nodes)) if backwards else list(graph.nodes)
    linked: set[fx.Node] = set()  # to the input, or to the output
    behind: set[fx.Node] = set()  # weights, seen from there
    found = []
    for node in nodes:
        near: Iterable[fx.Node] = node.users if backwards else node.all_input_nodes
        if node.op == ("output" if backwards else "placeholder") or any(n in linked for n in near):
            linked.add(node)
        holds = _holds_weights(node, modules)
        covered = any(n in behind for n in near)
        if holds or covered:
            behind.add(node)
        if holds and not covered and node in linked and node.op == "call_module":
            found.append(str(node.target))
    return list(dict.fromkeys(reversed(found) if backwards else found))


def _holds_weights(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        module = modules[str(node.target)]
        norm = isinstance(module, nn.LayerNorm | nn.RMSNorm)
        return not norm and any(p.dim() >= 2 for p in module.parameters())
    if node.op in ("call_function", "call_method") and node.target in _PRODUCTS:
        return any(each.op == "get_attr" for each in node.all_input_nodes)
    return False


def _last_by_role(layers: Mapping[str, nn.Module], in_a_block: Callable[[str], bool]) -> list[str]:
    """Without a graph: the last linear layer, what is named as an output, and siblings of these."""
    free = [name for name in layers if not in_a_block(name) and "pooler" not in name]
    linear = [n for n, m in layers.items() if isinstance(m, nn.Linear) and "pooler" not in n]
    found = [name for name in linear if name in free and _last_word(name) in _HEADS]
    found += [name for name in linear[-1:] if name in free]
    found += [name for name in list(layers)[-1:] if name in free and _named_as_output(name)]
    for name in list(found):
        found += [other for other in free if _are_siblings(name, other, layers)]
    return list(dict.fromkeys(found))


def _named_as_output(name: str) -> bool:
    words = [word for part in name.split(".") for word in part.split("_")]
    return any(word in _HEADS or word.startswith(("out", "final", "pred")) for word in words)


def _last_word(name: str) -> str:
    return name.rpartition(".")[2].rpartition("_")[2]


def _are_siblings(one: str, other: str, layers: Mapping[str, nn.Module]) -> bool:
    """Two layers of one owner, kind and width whose names end alike: image and text projections."""
    same_owner = one.rpartition(".")[0] == other.rpartition(".")[0]
    word = _last_word(one)
    if not same_owner or word != _last_word(other) or word not in _SIBLINGS:
        return False
    widths = {getattr(layers[name], "out_features", None) for name in (one, other)}
    return type(layers[one]) is type(layers[other]) and len(widths) == 1


def _blocks(model: nn.Module) -> Callable[[str], bool]:
    """A test of names: is the nearest parent, containers aside, one of several of its kind?"""
    modules = dict(model.named_modules())
    counts = Counter(type(module) for module in modules.values())

    def in_a_block(name: str) -> bool:
        owner = name.rpartition(".")[0]
        while owner and isinstance(modules[owner], _CONTAINERS):
            owner = owner.rpartition(".")[0]
        kind = type(modules[owner])
        return issubclass(kind, _BLOCKS) or (owner != "" and counts[kind] > 1)

    return in_a_block
