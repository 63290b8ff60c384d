"""load: from what a file holds to a packed model."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.engine.packed import packed_layers
from proxbit.engine.packed_attention import PackedMultiheadAttention, projection_names
from proxbit.engine.packing import find_precision, finish
from proxbit.engine.routes import is_usual
from proxbit.engine.saving import REPLACEMENTS, float_tensors
from proxbit.engine.twins import carry_over, is_plain, layer_for
from proxbit.engine.unpacked import keep_facts, take_note
from proxbit.models.building import build, make
from proxbit.nn.attention_norm import NAME, add_attention_norms
from proxbit.nn.binary_attention import switch_off_fused_paths
from proxbit.nn.model_weights import binary_weights
from proxbit.packfile.contents import Contents, PackedWeight, label
from proxbit.packfile.file import read
from proxbit.util.text import first_line, saying

LARGEST_SIDE = 1024  # pixels
# What else a file may say of its network, with the largest number that is believed.
_LARGEST = {
    "classes": 200_000, "channels": 4096, "patch_size": 512, "width": 4096, "drop_path": 1,
    "embed_dim": 8192, "depth": 256, "num_heads": 256, "mlp_ratio": 64,
}  # fmt: skip


def load(
    path: str | Path,
    skeleton: nn.Module | None = None,
    example: Any = None,
    *,
    precision: str = "exact",
    largest_side: int = LARGEST_SIDE,
) -> nn.Module:
    """Load a packed network from a file, in eval mode.

    Time and memory depend on what the file holds, not on what its header claims.

    Args:
        path: What :func:`save` wrote.
        skeleton: The float architecture, with any weights; it stays as it is. Not needed where the
            file knows how to build it: models of :func:`proxbit.models.build`, timm's included.
        example: As for :func:`pack`: each layer keeps the way that is faster on this machine.
        precision: As for :func:`pack`.
        largest_side: The largest images, by their side in pixels, that the file may ask for without
            a skeleton.
    """
    held = read(path)
    _require_model(skeleton)
    with saying(f"cannot load '{path}'", ValueError):
        net = rebuild(held, skeleton, precision, largest_side)
    finish(net, example)
    return net


def _require_model(skeleton: object) -> None:
    """Refuse a wrong skeleton: a mistake that is easy to make deserves its own sentence."""
    if isinstance(skeleton, type):
        name = skeleton.__name__
        raise TypeError(f"skeleton= is a float model, and {name} is a class: make one, {name}(...)")
    if skeleton is None:
        return
    if not isinstance(skeleton, nn.Module):
        kind = type(skeleton).__name__
        raise TypeError(f"skeleton= is a float model (a torch.nn.Module), not {kind}")
    if binary_weights(skeleton) or packed_layers(skeleton):
        raise ValueError(
            "skeleton= is the float model, and this one is binarized or packed: make it anew, or "
            "take pb.restore(copy.deepcopy(model))"
        )


def rebuild(
    held: Contents,
    skeleton: nn.Module | None = None,
    precision: str = "exact",
    largest_side: int = LARGEST_SIDE,
) -> nn.Module:
    """The packed network that these contents describe."""
    inputs = find_precision(precision)
    model = _skeleton(held, largest_side) if skeleton is None else copy.deepcopy(skeleton)
    with torch.no_grad():
        _replace_modules(model, held)
        _add_norms(model, held)
        floats = dict(held.floats)
        model = _with_layers(model, held, floats, inputs)
        _tie(model, held.tied, floats)
        _load_floats(model, floats, held.tied)
    return keep_facts(model, held.about).eval()


def _skeleton(held: Contents, largest_side: int) -> nn.Module:
    """The network that the file names; what it says is checked before anything is built."""
    if held.about.architecture is None:
        raise ValueError(
            "it does not say how to build its network: give the float model, skeleton="
        )
    options = dict(held.about.architecture)
    name = options.pop("name", None)
    if not isinstance(name, str) or ".py" in name:
        raise ValueError(f"its network is {name!r}, which is not run: give skeleton=")
    _require_known(options, largest_side)
    values = sum(t.numel() for t in held.floats.values())
    values += sum(math.prod(w.shape) for w in held.weights)
    wanted = _values_of(name, options)
    if wanted > 2 * values:
        raise ValueError(f"its network {name!r} has {wanted:,} numbers, and it holds {values:,}")
    return build(name, **options) if is_usual(options) else _made(name, options)


def _require_known(options: dict[str, Any], largest_side: int) -> None:
    """Refuse options that our networks do not take, and numbers that would cost without end."""
    for key, value in options.items():
        most = largest_side if key == "image_size" else _LARGEST.get(key)
        if most is None or type(value) not in (int, float) or value < 0:
            raise ValueError(f"it asks for {key}={value!r} for its network: give skeleton= instead")
        if value > most:
            raise_it = ", or raise largest_side (--largest-side)" if key == "image_size" else ""
            raise ValueError(
                f"it asks for {key}={value!r} for its network, more than {most}: give skeleton= "
                f"instead{raise_it}"
            )


def _made(name: str, options: dict[str, Any]) -> nn.Module:
    """The network, built without sending an image through it."""
    sizes = {"classes": 10, "channels": 3}  # as build has them
    sizes |= {key: options[key] for key in ("classes", "channels", "image_size") if key in options}
    return make(name, sizes, {key: options[key] for key in options.keys() - sizes.keys()})


def _values_of(name: str, options: dict[str, Any]) -> int:
    """How many numbers a network holds, without making them."""
    try:
        with torch.device("meta"):
            model = _made(name, options)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"its network {name!r} cannot be looked at before it is made ({first_line(error)}): "
            "give skeleton="
        ) from error
    return sum(t.numel() for t in (*model.parameters(), *model.buffers()))


def _add_norms(model: nn.Module, held: Contents) -> None:
    """The extra norms behind attentions, where the file has them and the skeleton does not."""
    missing = held.floats.keys() - model.state_dict().keys()
    if any(name.endswith(f".{NAME}.weight") for name in missing):
        add_attention_norms(model)


def _replace_modules(model: nn.Module, held: Contents) -> None:
    for name, kind in held.about.replaced.items():
        owner, _, attribute = name.rpartition(".")
        if kind not in REPLACEMENTS:
            raise ValueError(f"{name!r} is a {kind!r} there, which this proxbit does not know")
        try:
            parent = model.get_submodule(owner)
            if not callable(getattr(parent, attribute)):
                raise AttributeError
        except AttributeError:
            raise ValueError(f"it has a module {name!r}, and the skeleton has none") from None
        weight = f"{name}.weight"
        slopes = held.floats.get(held.tied.get(weight, weight))
        arguments = (slopes.numel(),) if kind == "prelu" and slopes is not None else ()
        setattr(parent, attribute, REPLACEMENTS[kind](*arguments))


def _with_layers(
    model: nn.Module, held: Contents, floats: dict[str, Tensor], precision: int
) -> nn.Module:
    """The model with packed layers; weights without a packed layer go to the floats."""
    known = _by_label(held)
    memo: dict[int, Any] = {}
    for name, module in model.named_modules():
        parts = _parts_of(name, module)
        if parts and all(part in known for part in parts):
            found = [_fitting(model, known[part]) for part in parts]
            memo[id(module)] = carry_over(name, module, _packed(module, found, precision))
    left = [w for w in known.values() if id(_owner(model, w.name)) not in memo]
    for weight in left:
        _fitting(model, weight)
        floats[weight.name] = _with_rows(floats.get(weight.name), weight)
    for made in memo.values():  # the output projection inside a packed attention
        inner = getattr(made, "out_proj", None)
        if isinstance(made, PackedMultiheadAttention) and id(inner) in memo:
            made.out_proj = memo[id(inner)]
    net: nn.Module = copy.deepcopy(model, memo)
    for weight in left:
        if weight.rows is None:
            take_note(net, weight)
    switch_off_fused_paths(net, lambda module: bool(packed_layers(module)))
    return net


def _by_label(held: Contents) -> dict[str, PackedWeight]:
    """The binary weights by all of their labels; tied ones have the same bits."""
    known = {w.label: w for w in held.weights}
    for name, source in held.tied.items():
        if source in known:
            rows = label("", known[source].rows)
            known[name] = replace(known[source], name=name.removesuffix(rows))
    return known


def _parts_of(name: str, module: nn.Module) -> list[str]:
    """Labels of the weights that a module must have in a file to be packed."""
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.MultiheadAttention):
        return [label(*part) for part in projection_names(module, prefix)]
    return [f"{prefix}weight"] if is_plain(module) else []


def _packed(module: nn.Module, weights: list[PackedWeight], precision: int) -> nn.Module:
    if isinstance(module, nn.MultiheadAttention):
        return PackedMultiheadAttention(module, weights, precision)
    return layer_for(module, weights[0], precision)


def _owner(model: nn.Module, name: str) -> nn.Module | None:
    """The module that has this tensor; None where there is none."""
    try:
        return model.get_submodule(name.rpartition(".")[0])
    except AttributeError:
        return None


def _with_rows(found: Tensor | None, weight: PackedWeight) -> Tensor:
    """The float tensor of a weight, behind the rows of it that are there already."""
    return weight.dense() if found is None else torch.cat([found, weight.dense()])


def _fitting(model: nn.Module, weight: PackedWeight) -> PackedWeight:
    """The weight, if the skeleton has a tensor of its name and shape."""
    there = getattr(_owner(model, weight.name), weight.name.rpartition(".")[2], None)
    if not isinstance(there, Tensor):
        raise ValueError(f"it has a weight {weight.name!r}, and the skeleton has none")
    shape, wanted = tuple(there.shape), weight.tensor_shape
    enough = shape[0] == wanted[0] if weight.rows is None else shape[0] >= weight.rows[1]
    if shape[1:] != wanted[1:] or not enough:
        raise ValueError(
            f"its weight {weight.label!r} has the shape {wanted}, and that of the skeleton {shape}"
        )
    return weight


def _tie(net: nn.Module, tied: dict[str, str], floats: dict[str, Tensor]) -> None:
    """Let every other name of a float tensor stand for the very tensor."""
    for name, source in tied.items():
        if source not in floats:  # a packed layer, or part of one
            continue
        places = [_place(net, each) for each in (name, source)]
        (mine, key), (theirs, first) = places
        if theirs[first].shape != mine[key].shape or type(theirs[first]) is not type(mine[key]):
            raise ValueError(f"it ties {name!r} to {source!r}, which do not fit in the skeleton")
        mine[key] = theirs[first]
        floats.pop(name, None)


def _place(net: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Where a module keeps this tensor."""
    key = name.rpartition(".")[2]
    module = _owner(net, name)
    for held in () if module is None else (module._parameters, module._buffers):
        if isinstance(held.get(key), Tensor):
            return held, key
    raise ValueError(f"it has a tensor {name!r}, and the skeleton has none")


def _load_floats(net: nn.Module, floats: dict[str, Tensor], tied: dict[str, str]) -> None:
    """Fill in all other tensors; the first that does not fit is named."""
    wanted = dict(float_tensors(net))
    for name, tensor in floats.items():
        if name not in wanted:
            raise ValueError(f"it has a tensor {name!r}, and the skeleton has none")
        if wanted[name].shape != tensor.shape:
            raise ValueError(
                f"its tensor {name!r} has the shape {tuple(tensor.shape)}, and that of the "
                f"skeleton {tuple(wanted[name].shape)}"
            )
    filled = {t.data_ptr() for name, t in wanted.items() if name in floats}
    missing = [n for n, t in wanted.items() if n not in floats and n not in tied]
    missing = [n for n in missing if wanted[n].data_ptr() not in filled]  # tied by the skeleton
    if missing:
        raise ValueError(f"the skeleton has a tensor {missing[0]!r}, and it has none")
    for name, tensor in floats.items():
        wanted[name].copy_(tensor)
