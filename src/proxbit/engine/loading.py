"""load: from what a file holds to a packed model."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.convert import FUSED_PATHS
from proxbit.engine.attention import PackedMultiheadAttention, projection_names
from proxbit.engine.contents import Contents, PackedWeight, label
from proxbit.engine.file import read
from proxbit.engine.packed import packed_layers
from proxbit.engine.packing import carry_over, find_precision, finish, layer_for
from proxbit.engine.routes import is_usual
from proxbit.engine.saving import REPLACEMENTS, inside_attention, own_names
from proxbit.models.building import build, make
from proxbit.text import first_line

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
    """A packed network from a file, in eval mode.

    Time and memory follow from what the file holds, not from what it says.

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
    try:
        net = rebuild(held, skeleton, precision, largest_side)
    except ValueError as error:
        raise ValueError(f"cannot load '{path}': {error}") from None
    finish(net, example)
    return net


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
        model = _with_layers(model, held.weights, floats, inputs)
        _load_floats(model, floats)
    model._proxbit_about = held.about  # type: ignore[assignment]
    return model.eval()


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
    """Refuse what no network of ours is told, or in numbers that would cost without end."""
    for key, value in options.items():
        most = largest_side if key == "image_size" else _LARGEST.get(key)
        if most is None or type(value) not in (int, float) or value < 0:
            raise ValueError(f"it asks for {key}={value!r} of its network: give skeleton= instead")
        if value > most:
            raise_it = ", or raise largest_side (--largest-side)" if key == "image_size" else ""
            raise ValueError(
                f"it asks for {key}={value!r} of its network, more than {most}: give skeleton= "
                f"instead{raise_it}"
            )


def _made(name: str, options: dict[str, Any]) -> nn.Module:
    """The network, without an image sent through it."""
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
    from proxbit.train.attention_norm import NAME, add_attention_norms  # train brings accelerate

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
        slopes = held.floats.get(f"{name}.weight")
        arguments = (slopes.numel(),) if kind == "prelu" and slopes is not None else ()
        setattr(parent, attribute, REPLACEMENTS[kind](*arguments))


def _with_layers(
    model: nn.Module,
    weights: tuple[PackedWeight, ...],
    floats: dict[str, Tensor],
    precision: int,
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
                memo[id(module)] = carry_over(
                    module, PackedMultiheadAttention(module, found, precision)
                )
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and f"{prefix}weight" in left:
            weight = _fitting(model, left.pop(f"{prefix}weight"))
            memo[id(module)] = carry_over(module, layer_for(module, weight, precision))
    for weight in left.values():
        _fitting(model, weight)
        floats[weight.name] = weight.dense()
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


def _load_floats(net: nn.Module, floats: dict[str, Tensor]) -> None:
    """Fill in all other tensors; the first that does not fit is named."""
    own = tuple(own_names(net))
    wanted = {name: t for name, t in net.state_dict().items() if not name.startswith(own)}
    for name, layer in packed_layers(net):
        if layer.bias is not None and not inside_attention(net, name):
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
