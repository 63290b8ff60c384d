"""The premises of the convergence theorem on a model and its optimizer, in a sentence each."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from proxbit.core.methods import PC
from proxbit.nn import BinaryWeight, InputQuantizer
from proxbit.nn.model_weights import quantizers, require_binarized


def check_premises(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse, with the way out, a run that the theorem says nothing about."""
    weights = require_binarized(model)
    if any(isinstance(quantizer, InputQuantizer) for quantizer in quantizers(model)):
        raise ValueError(
            "the theorem is about quantized weights, and this model quantizes inputs too: "
            "binarize with task='BW'"
        )
    for weight in weights:
        _check_weight(weight)
    _check_steps(optimizer)
    _check_owned(model, optimizer, weights)


def _check_weight(weight: BinaryWeight) -> None:
    """One rule, one fixed T, the step of that T."""
    quantizer, method = weight.quantizer, weight.quantizer.method
    if quantizer.hard:
        raise ValueError(f"{weight.name!r} is hard and does not train: follow before harden")
    if method.rule != PC:
        raise ValueError(
            f"the theorem is about the rule PC, and {weight.name!r} follows {method.name}'s: "
            f"pass rule=pb.Rule() to binarize"
        )
    if quantizer.sharp:
        raise ValueError(
            f"{weight.name!r} is seen as its sign, not through its pair: follow before that, or "
            f"binarize with sharp=0"
        )
    if quantizer.shift is not None:
        raise ValueError(f"{weight.name!r} learns a shift, so T moves: the theorem needs a fixed T")
    raw = method.scale.kind == "none" and method.unit == "one"
    if not raw and (method.scale.kind != "unit" or method.unit == "current"):
        raise ValueError(
            f"{weight.name!r} has the scale {str(method.scale)!r} and the unit {method.unit!r}, "
            f"and the theorem needs a fixed T: binarize with scale='none', unit='one', or with "
            f"scale=pb.Scale('unit'), unit='initial'"
        )


def _check_owned(model: nn.Module, optimizer: Optimizer, weights: list[BinaryWeight]) -> None:
    """The optimizer moves some of the binary weights, and nothing beside the model."""
    own = {id(parameter) for parameter in model.parameters()}
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not moved <= own:
        raise ValueError(
            "the optimizer owns parameters that are not the model's, on which the loss depends "
            "too: follow the whole model"
        )
    if not moved & {id(weight.parameter) for weight in weights}:
        raise ValueError(
            "the optimizer owns none of the latent parameters: build it from model.parameters()"
        )


def _check_steps(optimizer: Optimizer) -> None:
    """Refuse any step but eta times the gradient: the theorem covers no other."""
    extras = ("momentum", "weight_decay", "maximize")
    found = [f"{key}={group[key]}" for group in optimizer.param_groups for key in extras
             if group.get(key)]  # fmt: skip
    if isinstance(optimizer, torch.optim.SGD) and not found:
        return
    given = type(optimizer).__name__ + (f" with {found[0]}" if found else "")
    raise ValueError(
        f"the theorem is about steps of eta times the gradient, and this is {given}: "
        f"follow a run of torch.optim.SGD(model.parameters(), lr=...)"
    )
