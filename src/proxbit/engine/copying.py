"""Copies of a model with packed layers, which share nothing with it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxbit.engine.forms import EXACT
from proxbit.engine.twins import Bits, packed_twin, packed_weight
from proxbit.engine.unpacked import keep_facts, take_note
from proxbit.nn import parametrized
from proxbit.nn.model_weights import binary_weights
from proxbit.packfile.contents import About


def packed_copy(model: nn.Module, precision: int = EXACT) -> nn.Module:
    """A copy with packed layers, which shares nothing with the model; not finished yet."""
    known: Bits = {}
    with torch.no_grad():
        memo: dict[int, Any] = {}
        for name, module in model.named_modules():
            twin = packed_twin(name, module, precision, known)
            if twin is not None:
                memo[id(module)] = twin
        net: nn.Module = copy.deepcopy(_share(model, memo), _computed(model))
        _unwrap(net)
    names = dict.fromkeys(w.quantizer.method.name for w in binary_weights(model))
    return keep_facts(net, About(method=", ".join(names)))


def _share(model: nn.Module, memo: dict[int, Any]) -> Any:
    """A copy of the model's structure that shares its tensors and everything in ``memo``."""
    leaves = [module for module in model.modules() if not list(module.children())]
    shared = {id(each): each for each in (*model.parameters(), *model.buffers(), *leaves)}
    return copy.deepcopy(model, shared | memo | _computed(model))


def _computed(model: nn.Module) -> dict[int, Any]:
    """Copies of tensors that a forward left on a module, which deepcopy refuses.

    An LSTM keeps its weights as its parametrization last gave them, and others keep attentions.
    """
    found = (leaf for module in model.modules() for leaf in pytree.tree_leaves(vars(module)))
    tensors = [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return {id(t): t.detach().clone() for t in tensors}


def _unwrap(net: nn.Module) -> None:
    """Turn the remaining parametrized weights into plain tensors, with a note of what they hold."""
    for name, module in net.named_modules():
        weights = list(parametrized.binary_weights(module, f"{name}." if name else ""))
        if not weights or not all(weight.quantizer.hard for weight in weights):
            continue
        parametrized.undo(module)
        for weight in weights:
            take_note(net, packed_weight(weight))


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy whose tensors have shapes but no values, for results that depend on shapes alone."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    memo: dict[int, Any] = {key: t.detach().to("meta") for key, t in tensors.items()}
    for key, t in tensors.items():
        if isinstance(t, nn.Parameter):
            memo[key] = nn.Parameter(memo[key], t.requires_grad)
    return copy.deepcopy(model, _computed(model) | memo)
