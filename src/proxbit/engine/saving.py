"""save: from a packed model to what a file holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from proxbit._version import __version__
from proxbit.engine.fusing import Folded
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.packed_attention import PackedMultiheadAttention
from proxbit.engine.twins import packed_weight
from proxbit.engine.unpacked import facts_of, in_bits, is_packed, unpacked_weights
from proxbit.nn.model_weights import own
from proxbit.nn.product import BinaryProduct
from proxbit.packfile.contents import About, Contents, PackedWeight
from proxbit.packfile.file import write

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
    held = replace(held, about=held.about.told(labels, input))
    write(held, path, float_rest=float_rest, tables=tables)


def contents(net: nn.Module) -> Contents:
    """The contents of a file of this packed network."""
    _require_packed(net)
    weights, floats = dict(_weights(net)), dict(float_tensors(net))
    whole = {id(t): name for name, t, _ in unpacked_weights(net)}
    tied = _other_names({name: _identity(weight) for name, weight in weights.items()})
    tied |= _other_names({name: id(t) for name, t in floats.items()}, whole)
    kept = tuple(weight for name, weight in weights.items() if name not in tied)
    binary = {weight.name for weight in kept}
    rest = {n: t.detach() for n, t in floats.items() if n not in tied and n not in binary}
    return Contents(kept, rest, _about(net, kept), tied)


def _require_packed(net: nn.Module) -> None:
    packed = packed_layers(net) or any(True for _ in unpacked_weights(net))
    if not packed and not is_packed(net):
        raise ValueError("this network is not packed: call pb.pack(pb.harden(model)) first")


def _identity(w: PackedWeight) -> Any:
    """The key that two layers must share for one weight in the file to serve both."""
    shift = None if w.shift is None else id(w.shift)
    return id(w.bits), shift, w.task, w.register_bits, w.slope, w.pad_value


def _other_names(held: dict[str, Any], known: dict[Any, str] | None = None) -> dict[str, str]:
    """From the second name of a tensor on, the first one."""
    first = {tensor: name for name, tensor in reversed(held.items())} | (known or {})
    return {name: first[tensor] for name, tensor in held.items() if first[tensor] != name}


def _weights(net: nn.Module) -> Iterator[tuple[str, PackedWeight]]:
    """Every binary weight by its label; at a second place of its layer under a second one."""
    for name, module in net.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if isinstance(module, PackedMultiheadAttention):
            found = module.packed(prefix)
        elif isinstance(module, PackedLayer) and not _inside_attention(net, name):
            found = iter([module.packed(f"{prefix}weight")])
        else:
            found = _hard_weights(name, module)
        yield from ((weight.label, weight) for weight in found)
    for name, tensor, note in unpacked_weights(net):
        yield name, in_bits(name, tensor, note)


def _hard_weights(name: str, module: nn.Module) -> Iterator[PackedWeight]:
    """The weights of a user's own binary layer, which has no packed twin."""
    for weight in own(name, module):
        if not weight.quantizer.method.binary:
            continue
        product = next((m for m in module.children() if isinstance(m, BinaryProduct)), None)
        packed = packed_weight(weight, product)
        if packed.task != "BW":
            raise ValueError(
                f"a file cannot hold {weight.name!r}: {type(module).__name__} has binary inputs "
                "and a forward of its own, which no skeleton knows; keep it float, or in task BW"
            )
        yield packed


def float_tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every other tensor under the name that the float network has for it, tied ones repeatedly."""
    skip, folded = _own_names(net), _folded(net)
    for name, tensor in net.state_dict(keep_vars=True).items():
        if name not in skip:
            yield _unfolded(name, folded), tensor
    for name, module in net.named_modules(remove_duplicate=False):
        packed = isinstance(module, PackedLayer) and not _inside_attention(net, name)
        if packed and module.bias is not None:
            yield f"{name}.bias".lstrip("."), module.bias


def _folded(net: nn.Module) -> list[str]:
    """The beginnings of names inside the wrappers of fusing, the innermost first."""
    found = [f"{name}." for name, module in net.named_modules() if isinstance(module, Folded)]
    return found[::-1]


def _unfolded(name: str, folded: list[str]) -> str:
    """The name of a tensor without the wrappers that fusing put around its module."""
    for prefix in folded:
        if name.startswith(prefix):
            name = prefix + name.removeprefix(f"{prefix}inner.")
    return name


def _own_names(net: nn.Module) -> set[str]:
    """Where packed layers keep their tensors: not a part of the float network's names."""
    return {
        f"{name}.{part}".lstrip(".")
        for name, module in net.named_modules(remove_duplicate=False)
        if isinstance(module, PackedLayer)
        for part in ("bits", "scale", "shift", "bias")
    }


def _inside_attention(net: nn.Module, name: str) -> bool:
    """Whether a packed layer is one of the three projections of a packed attention."""
    owner, found, _ = f".{name}".rpartition(".projections.")
    return bool(found) and isinstance(net.get_submodule(owner[1:]), PackedMultiheadAttention)


def _about(net: nn.Module, weights: tuple[PackedWeight, ...]) -> About:
    known = facts_of(net)
    tasks = {w.task for w in weights}
    return replace(
        known,
        architecture=getattr(net, "_proxbit_architecture", known.architecture),
        replaced=known.replaced | dict(_replaced(net)),
        task=max(tasks, key=len),
        made_by=f"proxbit {__version__}",
    )


def _replaced(net: nn.Module) -> Iterator[tuple[str, str]]:
    """The replacements that ``binarize`` made and that are still in place."""
    folded = _folded(net)
    for name, module in net.named_modules():
        for attribute in module.__dict__.get("_proxbit_undo", {}):
            now = getattr(module, attribute)
            now = now.inner if isinstance(now, Folded) else now
            if isinstance(now, nn.Module):
                yield _unfolded(f"{name}.{attribute}".lstrip("."), folded), _kind(now)


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
