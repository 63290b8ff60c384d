"""save and load: between packed models and what files hold."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit._version import __version__
from proxbit.convert import FUSED_PATHS, binary_weights
from proxbit.engine.attention import PackedMultiheadAttention, projection_names
from proxbit.engine.bits import pack_bits, unpack_bits
from proxbit.engine.contents import About, Contents, PackedWeight, label
from proxbit.engine.file import read, write
from proxbit.engine.fusing import Folded
from proxbit.engine.packed import PackedLayer
from proxbit.engine.packing import carry_over, finish, layer_for, packed_layers
from proxbit.models import build

_REPLACEMENTS: dict[str, type[nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        nn.Hardtanh, nn.PReLU, nn.Identity, nn.Tanh, nn.Softsign, nn.GELU, nn.SiLU, nn.Hardswish,
        nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.ReLU, nn.ReLU6,
    )
}  # fmt: skip
# What a file may say of its network, with the largest number that is believed.
_LARGEST = {
    "classes": 200_000, "channels": 4096, "image_size": 4096, "patch_size": 512, "width": 4096,
    "drop_path": 1, "embed_dim": 8192, "depth": 256, "num_heads": 256, "mlp_ratio": 64,
}  # fmt: skip


def save(
    net: nn.Module,
    path: str | Path,
    *,
    float_rest: str = "float32",
    tables: str = "float",
    labels: Sequence[str] | None = None,
    input: dict[str, Any] | None = None,
) -> None:
    """Write a packed network to one safetensors file, whole or not at all.

    Args:
        net: What :func:`pack` or :func:`load` returned.
        path: Where to write; an older file is replaced in one step.
        float_rest: "float32", or "float16" to store what is not binary in half of the space.
        tables: "float", or "int8" to store embeddings and classifiers in a quarter of it.
        labels: Names of the classes.
        input: What an input looks like: ``{"shape": [3, 32, 32], "mean": [...], "std": [...]}``.
    """
    held = contents(net)
    about = replace(
        held.about,
        labels=held.about.labels if labels is None else tuple(labels),
        input=held.about.input if input is None else input,
    )
    write(replace(held, about=about), path, float_rest=float_rest, tables=tables)


def contents(net: nn.Module) -> Contents:
    """What a file of this packed network holds."""
    if not any(True for _ in packed_layers(net)):
        raise ValueError("this network is not packed: call pb.pack(pb.harden(model)) first")
    weights = tuple(_weights(net))
    skip = tuple(_own_names(net))
    binary = {w.name for w in weights}
    folded = [f"{name}." for name, module in net.named_modules() if isinstance(module, Folded)]
    floats = {
        _unfolded(name, folded): tensor.detach()
        for name, tensor in net.state_dict().items()
        if not name.startswith(skip) and name not in binary
    }
    for name, layer in packed_layers(net):
        if layer.bias is not None and not _inside_attention(net, name):
            floats[f"{name}.bias"] = layer.bias.detach()
    return Contents(weights, floats, _about(net, weights))


def _unfolded(name: str, folded: list[str]) -> str:
    """The name of a tensor without the wrapper that fusing put around its module."""
    for prefix in folded:
        if name.startswith(prefix):
            return prefix + name.removeprefix(f"{prefix}inner.")
    return name


def _weights(net: nn.Module) -> Iterator[PackedWeight]:
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, PackedMultiheadAttention):
            yield from module.packed(prefix)
        elif isinstance(module, PackedLayer) and not _inside_attention(net, name):
            yield module.packed(f"{prefix}weight")
    for weight in binary_weights(net):  # parametrized ones: float in memory, bits in the file
        if weight.quantizer.hard:
            signs, scale = weight.quantizer.split(weight.latent)
            flat = None if scale is None else scale.float().flatten()
            shape = tuple(signs.shape)
            yield PackedWeight(weight.name, shape, pack_bits(signs), flat)


def _own_names(net: nn.Module) -> Iterator[str]:
    """Where packed layers keep their tensors: not a part of the float network's names."""
    for name, module in net.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if isinstance(module, PackedMultiheadAttention):
            yield f"{prefix}projections."
        elif isinstance(module, PackedLayer):
            yield from (f"{prefix}{part}" for part in ("bits", "scale", "shift", "bias"))


def _inside_attention(net: nn.Module, name: str) -> bool:
    owner, found, _ = f".{name}".rpartition(".projections.")
    return bool(found) and isinstance(net.get_submodule(owner[1:]), PackedMultiheadAttention)


def _about(net: nn.Module, weights: tuple[PackedWeight, ...]) -> About:
    known: About = getattr(net, "_proxbit_about", About())
    tasks = {w.task for w in weights}
    architecture = getattr(net, "_proxbit_architecture", known.architecture)
    return replace(
        known,
        architecture=architecture,
        replaced=known.replaced | dict(_replaced(net)),
        method=getattr(net, "_proxbit_method", known.method),
        task=max(tasks, key=len),
        made_by=f"proxbit {__version__}",
    )


def _replaced(net: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules that binarize exchanged, and are exchanged still."""
    for name, module in net.named_modules():
        for attribute in module.__dict__.get("_proxbit_undo", {}):
            now = getattr(module, attribute)
            now = now.inner if isinstance(now, Folded) else now
            if isinstance(now, nn.Module):
                yield f"{name}.{attribute}".lstrip("."), _kind(now)


def _kind(module: nn.Module) -> str:
    """The word for a module that a file can name."""
    kind = type(module).__name__.lower()
    if type(module) is nn.PReLU:
        return kind
    if type(module) is not _REPLACEMENTS.get(kind) or repr(module) != repr(type(module)()):
        raise ValueError(
            f"binarize put {module} in the place of a ReLU, and a file can only name "
            f"{', '.join(sorted(_REPLACEMENTS))} with their usual numbers"
        )
    return kind


def load(path: str | Path, skeleton: nn.Module | None = None, example: Any = None) -> nn.Module:
    """A packed network from a file, in eval mode.

    Args:
        path: What :func:`save` wrote.
        skeleton: The float architecture, with any weights; it stays as it is. Not needed where the
            file knows how to build it: models of :func:`proxbit.models.build`, timm's included.
        example: As for :func:`pack`: each layer keeps the way that is faster on this machine.
    """
    held = read(path)
    try:
        net = rebuild(held, skeleton)
    except ValueError as error:
        raise ValueError(f"cannot load '{path}': {error}") from None
    finish(net, example)
    return net


def rebuild(held: Contents, skeleton: nn.Module | None = None) -> nn.Module:
    """The packed network that these contents describe."""
    model = _skeleton(held) if skeleton is None else copy.deepcopy(skeleton)
    with torch.no_grad():
        _replace_modules(model, held)
        _add_norms(model, held)
        floats = dict(held.floats)
        model = _with_layers(model, held.weights, floats)
        _load_floats(model, floats)
    model._proxbit_about = held.about  # type: ignore[assignment]
    return model.eval()


def _skeleton(held: Contents) -> nn.Module:
    """The network that the file names; what it says is checked before anything is built."""
    if held.about.architecture is None:
        raise ValueError(
            "it does not say how to build its network: give the float model, skeleton="
        )
    options = dict(held.about.architecture)
    name = options.pop("name", None)
    if not isinstance(name, str) or ".py" in name:
        raise ValueError(f"its network is {name!r}, which is not run: give skeleton=")
    for key, value in options.items():
        most = _LARGEST.get(key)
        if most is None or type(value) not in (int, float) or not 0 <= value <= most:
            raise ValueError(f"it asks for {key}={value!r} of its network: give skeleton= instead")
    values = sum(t.numel() for t in held.floats.values())
    values += sum(math.prod(w.shape) for w in held.weights)
    wanted = _values_of(name, options)
    if wanted is not None and wanted > 2 * values:
        raise ValueError(f"its network {name!r} has {wanted:,} numbers, and it holds {values:,}")
    return build(name, **options)


def _values_of(name: str, options: dict[str, Any]) -> int | None:
    """How many numbers a network holds, without making them; None where that cannot be told."""
    try:
        with torch.device("meta"):
            model = build(name, **options)
    except Exception:  # not every network can be made without memory
        return None
    return sum(t.numel() for t in (*model.parameters(), *model.buffers()))


def _add_norms(model: nn.Module, held: Contents) -> None:
    """The extra norms behind attentions, where the file has them and the skeleton does not."""
    from proxbit.train.attention_norm import NAME, add_attention_norms  # train brings accelerate

    missing = held.floats.keys() - model.state_dict().keys()
    if any(name.endswith(f".{NAME}.weight") for name in missing):
        add_attention_norms(model)


def _replace_modules(model: nn.Module, held: Contents) -> None:
    for name, kind in held.about.replaced.items():
        owner, _, attribute = name.rpartition(".")
        if kind not in _REPLACEMENTS:
            raise ValueError(f"{name!r} is a {kind!r} there, which this proxbit does not know")
        try:
            parent = model.get_submodule(owner)
            if not callable(getattr(parent, attribute)):
                raise AttributeError
        except AttributeError:
            raise ValueError(f"it has a module {name!r}, and the skeleton has none") from None
        slopes = held.floats.get(f"{name}.weight")
        arguments = (slopes.numel(),) if kind == "prelu" and slopes is not None else ()
        setattr(parent, attribute, _REPLACEMENTS[kind](*arguments))


def _with_layers(
    model: nn.Module, weights: tuple[PackedWeight, ...], floats: dict[str, Tensor]
) -> nn.Module:
    """The model with packed layers; weights without a layer of their own go to the floats."""
    left = {w.label: w for w in weights}
    memo: dict[int, Any] = {}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.MultiheadAttention):
            parts = [label(*part) for part in projection_names(module, prefix)]
            if all(part in left for part in parts):
                found = [_fitting(model, left.pop(part)) for part in parts]
                memo[id(module)] = carry_over(module, PackedMultiheadAttention(module, found, 0))
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and f"{prefix}weight" in left:
            weight = _fitting(model, left.pop(f"{prefix}weight"))
            memo[id(module)] = carry_over(module, layer_for(module, weight))
    for weight in left.values():
        _fitting(model, weight)
        floats[weight.name] = _dense(weight)
    for made in memo.values():  # the output projection inside a packed attention
        inner = getattr(made, "out_proj", None)
        if isinstance(made, PackedMultiheadAttention) and id(inner) in memo:
            made.out_proj = memo[id(inner)]
    net: nn.Module = copy.deepcopy(model, memo)
    for module in net.modules():
        for kind, (name, value) in FUSED_PATHS.items():
            if isinstance(module, kind) and any(True for _ in packed_layers(module)):
                setattr(module, name, value)
    return net


def _fitting(model: nn.Module, weight: PackedWeight) -> PackedWeight:
    """The weight, if the skeleton has a tensor of its name and shape."""
    owner, _, attribute = weight.name.rpartition(".")
    try:
        there = getattr(model.get_submodule(owner), attribute)
        shape = tuple(there.shape)
    except AttributeError:
        raise ValueError(f"it has a weight {weight.name!r}, and the skeleton has none") from None
    rows = weight.rows or (0, weight.shape[0])
    if (
        shape[1:] != weight.shape[1:]
        or (weight.rows is None and shape[0] != weight.shape[0])
        or (shape[0] < rows[1])
    ):
        raise ValueError(
            f"its weight {weight.label!r} has the shape {weight.shape}, and that of the skeleton "
            f"{shape}"
        )
    return weight


def _dense(weight: PackedWeight) -> Tensor:
    signs = unpack_bits(weight.bits, weight.shape)
    if weight.scale is None:
        return signs
    return signs * weight.scale.reshape(-1, *(1 for _ in weight.shape[1:]))


def _load_floats(net: nn.Module, floats: dict[str, Tensor]) -> None:
    """Fill in all other tensors; the first that does not fit is named."""
    own = tuple(_own_names(net))
    wanted = {name: t for name, t in net.state_dict().items() if not name.startswith(own)}
    for name, layer in packed_layers(net):
        if layer.bias is not None and not _inside_attention(net, name):
            wanted[f"{name}.bias"] = layer.bias
    for name, tensor in floats.items():
        if name not in wanted:
            raise ValueError(f"it has a tensor {name!r}, and the skeleton has none")
        if wanted[name].shape != tensor.shape:
            raise ValueError(
                f"its tensor {name!r} has the shape {tuple(tensor.shape)}, and that of the "
                f"skeleton {tuple(wanted[name].shape)}"
            )
    missing = [name for name in wanted if name not in floats]
    if missing:
        raise ValueError(f"the skeleton has a tensor {missing[0]!r}, and it has none")
    for name, tensor in floats.items():
        wanted[name].copy_(tensor)
