"""pack: from a hard model to a packed one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.convert import binary_weights
from proxbit.engine import kernels
from proxbit.engine.attention import PackedMultiheadAttention, projection_names
from proxbit.engine.bits import pack_bits
from proxbit.engine.contents import PackedWeight
from proxbit.engine.forms import EXACT, INPUT8
from proxbit.engine.fusing import fuse
from proxbit.engine.layers import PackedConv1d, PackedConv2d, PackedLinear
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.routes import choose_routes, guess_routes, usual_input
from proxbit.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, BinaryMultiheadAttention
from proxbit.nn.accumulators import WrapAccumulator
from proxbit.nn.product import BinaryProduct
from proxbit.nn.quantizers import InputQuantizer
from proxbit.text import few, unknown

PRECISIONS = {"exact": EXACT, "input8": INPUT8}
_CONVS: dict[type[nn.Module], Any] = {nn.Conv1d: PackedConv1d, nn.Conv2d: PackedConv2d}


def pack(model: nn.Module, example: Any = None, *, precision: str = "exact") -> nn.Module:
    """A network for inference whose hard layers hold one bit per weight.

    The hard model stays as it is; float modules and Parameters are shared with it, so what casts or
    moves the one does it to these modules of both. BWA and BWAA give the hard model's sums bit for
    bit, BW the same up to float32 rounding.

    Args:
        model: A binarized model after :func:`proxbit.harden`.
        example: An input (or tuple of inputs, or dict of keywords). With it each layer is timed
            both ways on this machine and keeps the faster one; a model of
            :func:`proxbit.models.build` that knows its image size is timed on one image without it.
        precision: "exact", or "input8" to round the float inputs of BW layers to 8 bits each, which
            is faster and less exact.
    """
    inputs = find_precision(precision)
    _require_hard(model)
    with torch.no_grad():
        memo: dict[int, Any] = {}
        for module in model.modules():
            packed = packed_twin(module, inputs)
            if packed is not None:
                memo[id(module)] = carry_over(module, packed)
        net = share(model, memo)
    names = dict.fromkeys(w.quantizer.method.name for w in binary_weights(model))
    net._proxbit_method = ", ".join(names)
    finish(net, example)
    return net


def find_precision(name: str) -> int:
    """The number behind a precision's name."""
    if name not in PRECISIONS:
        raise ValueError(unknown("precision", name, PRECISIONS))
    return PRECISIONS[name]


def finish(net: nn.Module, example: Any) -> None:
    """Choose the faster way of each layer, then let binary layers hand bits to each other."""
    example = usual_input(net) if example is None else example
    if example is None:
        guess_routes(net)
    else:
        choose_routes(net, example)
    if kernels.library() is not None:
        fuse(net)
    for _, layer in packed_layers(net):
        layer.prepare()  # now, not in the middle of a trace or of the first forward


def _require_hard(model: nn.Module) -> None:
    weights = [w for w in binary_weights(model) if w.quantizer.method.binary]
    if not weights:
        raise ValueError(
            "this model has no binary layers to pack: call pb.binarize, train, then pb.harden"
        )
    soft = [w.name for w in weights if not w.quantizer.hard]
    if soft:
        raise ValueError(
            f"only hard weights can be packed, and {few(soft)} are not: call pb.harden(model) first"
        )
    broken = [w.name for w in weights if not bool(w.latent.isfinite().all())]
    if broken:
        raise ValueError(
            f"a bit is +1 or -1, and {few(broken)} are not finite: the run diverged, so go back to "
            f"a checkpoint before that"
        )


def share(model: nn.Module, memo: dict[int, Any]) -> Any:
    """A copy of the model's structure that shares its tensors and everything in ``memo``."""
    for tensor in (*model.parameters(), *model.buffers()):
        memo.setdefault(id(tensor), tensor)
    for module in model.modules():
        if id(module) not in memo and not any(True for _ in module.children()):
            memo[id(module)] = module
    return copy.deepcopy(model, memo)


def carry_over(old: nn.Module, new: nn.Module) -> nn.Module:
    """Give a packed layer the hooks of the old one, its mode, and children that are not weights."""
    new.train(old.training)
    for name, value in old.__dict__.items():
        if name.startswith("_forward") and "hooks" in name:
            new.__dict__[name] = copy.copy(value)
    for name, child in old.named_children():
        if name not in ("binary", *dict(new.named_children())):
            new.add_module(name, child)
    return new


def packed_twin(module: nn.Module, precision: int) -> nn.Module | None:
    """The packed layer of a hard one; None for any other module."""
    if isinstance(module, BinaryMultiheadAttention) and _binary(module.binary[0]):
        return _attention_twin(module, precision)
    if not isinstance(module, BinaryLinear | BinaryConv1d | BinaryConv2d):
        return None
    if not _binary(module.binary):
        return None
    weight = packed_weight("", module.binary, module.weight, getattr(module, "pad_value", 1.0))
    return layer_for(module, weight, precision)


def _attention_twin(module: BinaryMultiheadAttention, precision: int) -> nn.Module:
    parameters = dict(module.named_parameters(recurse=False))
    weights = []
    for (name, rows), product in zip(projection_names(module, ""), module.binary, strict=True):
        weight = parameters[name] if rows is None else parameters[name][slice(*rows)]
        assert isinstance(product, BinaryProduct)
        weights.append(packed_weight(name, product, weight))
    twin = PackedMultiheadAttention(module, weights, precision)
    inner = packed_twin(module.out_proj, precision)
    if inner is not None:
        twin.out_proj = carry_over(module.out_proj, inner)  # type: ignore[assignment]
    return twin


def _binary(product: Any) -> bool:
    return bool(product.weight_quantizer.method.binary)


def packed_weight(
    name: str, product: BinaryProduct, weight: Tensor, pad_value: float = 1.0
) -> PackedWeight:
    """One hard weight in bits."""
    signs, scale = product.weight_quantizer.split(weight)
    inputs, register = product.input_quantizer, product.accumulator
    wraps = isinstance(register, WrapAccumulator)
    task = "BW" if not isinstance(inputs, InputQuantizer) else "BWAA" if wraps else "BWA"
    shift = getattr(inputs, "shift", None)
    return PackedWeight(
        name=name,
        shape=tuple(weight.shape),
        bits=pack_bits(signs),
        scale=None if scale is None else scale.detach().float().flatten().cpu(),
        task=task,
        register_bits=register.bits if isinstance(register, WrapAccumulator) else 0,
        slope=register.k if isinstance(register, WrapAccumulator) else 2.0,
        pad_value=pad_value,
        shift=None if shift is None else shift.detach().float().flatten().clone(),
    )


def layer_for(module: nn.Module, weight: PackedWeight, precision: int = EXACT) -> PackedLayer:
    """The packed layer with the geometry and the bias of a linear layer or convolution."""
    if isinstance(module, nn.Linear):
        return PackedLinear(weight, module.bias, precision=precision)
    kind = next(kind for kind in _CONVS if isinstance(module, kind))
    return _CONVS[kind](weight, module, precision)
