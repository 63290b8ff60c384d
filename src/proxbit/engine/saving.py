"""save: from a packed model to what a file holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from proxbit._version import __version__
from proxbit.convert import binary_weights
from proxbit.engine.attention import PackedMultiheadAttention
from proxbit.engine.bits import pack_bits
from proxbit.engine.contents import About, Contents, PackedWeight
from proxbit.engine.file import write
from proxbit.engine.fusing import Folded
from proxbit.engine.packed import PackedLayer, packed_layers

# Modules that a file can name in the place of a ReLU.
REPLACEMENTS: dict[str, type[nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        nn.Hardtanh, nn.PReLU, nn.Identity, nn.Tanh, nn.Softsign, nn.GELU, nn.SiLU, nn.Hardswish,
        nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.ReLU, nn.ReLU6,
    )
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
    skip = tuple(own_names(net))
    binary = {w.name for w in weights}
    folded = [f"{name}." for name, module in net.named_modules() if isinstance(module, Folded)]
    floats = {
        _unfolded(name, folded): tensor.detach()
        for name, tensor in net.state_dict().items()
        if not name.startswith(skip) and name not in binary
    }
    for name, layer in packed_layers(net):
        if layer.bias is not None and not inside_attention(net, name):
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
        elif isinstance(module, PackedLayer) and not inside_attention(net, name):
            yield module.packed(f"{prefix}weight")
    for weight in binary_weights(net):  # parametrized ones: float in memory, bits in the file
        if weight.quantizer.hard:
            signs, scale = weight.quantizer.split(weight.latent)
            flat = None if scale is None else scale.float().flatten()
            shape = tuple(signs.shape)
            yield PackedWeight(weight.name, shape, pack_bits(signs), flat)


def own_names(net: nn.Module) -> Iterator[str]:
    """Where packed layers keep their tensors: not a part of the float network's names."""
    for name, module in net.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if isinstance(module, PackedMultiheadAttention):
            yield f"{prefix}projections."
        elif isinstance(module, PackedLayer):
            yield from (f"{prefix}{part}" for part in ("bits", "scale", "shift", "bias"))


def inside_attention(net: nn.Module, name: str) -> bool:
    """Whether a packed layer is one of the three projections of a packed attention."""
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
    if type(module) is not REPLACEMENTS.get(kind) or repr(module) != repr(type(module)()):
        raise ValueError(
            f"binarize put {module} in the place of a ReLU, and a file can only name "
            f"{', '.join(sorted(REPLACEMENTS))} with their usual numbers"
        )
    return kind
