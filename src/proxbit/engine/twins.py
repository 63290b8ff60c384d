"""From one hard layer to its packed twin: which layers have one, and what it takes over."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from proxbit.engine.forms import EXACT
from proxbit.engine.packed import PackedLayer
from proxbit.engine.packed_attention import PackedMultiheadAttention, projection_names
from proxbit.engine.packed_layers import PackedConv1d, PackedConv2d, PackedLinear
from proxbit.nn import BinaryMultiheadAttention, BinaryWeight, Layout, is_conv1d, parametrized
from proxbit.nn.accumulators import WrapAccumulator
from proxbit.nn.binary_layers import LAYERS
from proxbit.nn.product import BinaryProduct
from proxbit.nn.quantizers import InputQuantizer
from proxbit.packfile.bits import pack_bits
from proxbit.packfile.contents import PackedWeight

_CONVS: dict[type[nn.Module], Any] = {nn.Conv1d: PackedConv1d, nn.Conv2d: PackedConv2d}
_FLOAT = (nn.Linear, nn.Conv1d, nn.Conv2d)
# Tensors that become bits, or that a packed layer takes by itself.
_TAKEN = (
    "weight", "bias", "in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight",
    "v_proj_weight", "bias_k", "bias_v",
)  # fmt: skip
# The bits of each Parameter, or of its rows: layers that share the one share the other.
Bits: TypeAlias = dict[tuple[int, str], Tensor]


def packed_twin(name: str, module: nn.Module, precision: int, known: Bits) -> nn.Module | None:
    """The packed layer of a hard one; None for a module that has none."""
    if "forward" in vars(module):  # put there by somebody who wants it called
        return None
    if type(module).forward is BinaryMultiheadAttention.forward:
        return _attention_twin(name, module, precision, known)
    if type(module).forward in [kind.forward for kind in LAYERS]:
        product: Any = module.binary
        weights = list(module.binary_weights(""))  # type: ignore[operator]
    elif is_plain(module) and parametrize.is_parametrized(module):
        product, weights = None, list(parametrized.binary_weights(module, ""))
    else:
        return None
    if len(weights) != 1 or not weights[0].quantizer.method.binary:
        return None
    weight = packed_weight(weights[0], product, getattr(module, "pad_value", 1.0), known)
    return carry_over(name, module, layer_for(module, weight, precision))


def is_plain(module: nn.Module) -> bool:
    """Whether a module computes as PyTorch's linear layer or convolution, and adds nothing.

    So do those of which the weight alone is parametrized, by us, and transformers' ``Conv1D``.
    """
    kind = type(module)
    if parametrize.is_parametrized(module):
        entries: Any = module.parametrizations
        if list(entries) != ["weight"] or len(entries["weight"]) != 1:
            return False
        kind = kind.__mro__[1]
    if is_conv1d(module) or (kind.__name__ == "Conv1D" and _inputs_first(module)):
        return True
    base = next((base for base in _FLOAT if issubclass(kind, base)), None)
    if base is None or kind.forward is not base.forward or "forward" in vars(module):
        return False
    return not adds_methods(kind, base)


def adds_methods(kind: type, base: type) -> bool:
    """Whether a subclass brings anything that taking another class would lose."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    return any(not name.startswith("__") for cls in between for name in vars(cls))


def _inputs_first(module: nn.Module) -> bool:
    """Whether the weight of a parametrized module is one matrix with its inputs first."""
    weights = list(parametrized.binary_weights(module, ""))
    return [weight.layout for weight in weights] == [Layout(transposed=True)]


def _attention_twin(name: str, module: Any, precision: int, known: Bits) -> nn.Module | None:
    if not module.binary[0].weight_quantizer.method.binary:
        return None
    names = [full for full, _ in projection_names(module, "")]
    found = zip(names, module.binary_weights(""), module.binary, strict=True)
    weights = [packed_weight(weight, part, known=known, name=full) for full, weight, part in found]
    twin = PackedMultiheadAttention(module, weights, precision)
    inner = packed_twin(f"{name}.out_proj".lstrip("."), module.out_proj, precision, known)
    if inner is not None:
        twin.out_proj = inner  # type: ignore[assignment]
    return carry_over(name, module, twin)


def packed_weight(
    weight: BinaryWeight,
    product: BinaryProduct | None = None,
    pad_value: float = 1.0,
    known: Bits | None = None,
    name: str | None = None,
) -> PackedWeight:
    """One hard weight in bits; without a product its input is float."""
    signs, scale = weight.quantizer.split(weight.latent)
    inputs = None if product is None else product.input_quantizer
    register = None if product is None else product.accumulator
    wraps = isinstance(register, WrapAccumulator)
    task = "BW" if not isinstance(inputs, InputQuantizer) else "BWAA" if wraps else "BWA"
    shift = getattr(inputs, "shift", None)
    key = (id(weight.parameter), str(weight.rows))
    known = {} if known is None else known
    return PackedWeight(
        name=weight.name if name is None else name,
        shape=tuple(signs.shape),
        bits=known.setdefault(key, pack_bits(signs)),
        scale=None if scale is None else scale.detach().float().flatten(),
        task=task,
        register_bits=register.bits if isinstance(register, WrapAccumulator) else 0,
        slope=register.k if isinstance(register, WrapAccumulator) else 2.0,
        pad_value=pad_value,
        shift=None if shift is None else shift.detach().float().flatten().clone(),
        layout=weight.layout,
    )


def layer_for(module: nn.Module, weight: PackedWeight, precision: int = EXACT) -> PackedLayer:
    """The packed layer with the geometry and the bias of a linear layer or convolution."""
    for kind, packed in _CONVS.items():
        if isinstance(module, kind):
            return packed(weight, module, precision)
    bias: Any = module.bias
    return PackedLinear(weight, bias, precision=precision)


def carry_over(name: str, old: nn.Module, new: nn.Module) -> nn.Module:
    """Give a packed layer everything that other code may look for on the old one.

    That is its mode, its hooks, its public attributes, and tensors and children beside the weight.
    """
    new.train(old.training)
    for key, value in vars(old).items():
        if key.startswith("_forward") and "hooks" in key:
            new.__dict__[key] = copy.copy(value)
        elif not key.startswith("_") and key not in ("training", "float_class"):
            _keep(name, new, key, value)
    for key, child in old.named_children():
        if key not in ("binary", "parametrizations", *dict(new.named_children())):
            new.add_module(key, child)
    for held in ("_parameters", "_buffers"):
        mine, theirs = vars(new)[held], vars(old)[held]
        mine.update({k: t for k, t in theirs.items() if k not in (*_TAKEN, *mine)})
    return new


def _keep(name: str, new: nn.Module, key: str, value: Any) -> None:
    """A public attribute; one that means something else in a packed layer cannot be kept."""
    if not hasattr(new, key):
        new.__dict__[key] = value
        return
    own = getattr(new, key)
    tensors = isinstance(own, Tensor) or isinstance(value, torch.Tensor)
    if own is not value and (tensors or own != value):
        raise ValueError(
            f"{name!r} has an attribute {key!r} of its own, which a packed layer uses for itself: "
            "give it another name before pb.pack"
        )
