"""The bytes of a model as it is and when packed, and what would make it smaller still."""

from __future__ import annotations

from torch import Tensor, nn

from proxbit.binarization.layer_choice import is_lazy
from proxbit.engine.planning import planned_bytes
from proxbit.nn import BinaryWeight
from proxbit.nn.model_weights import binary_weights, once
from proxbit.packfile.bits import byte_count
from proxbit.packfile.narrow import is_table
from proxbit.util.text import percent, size

_WORTH = 0.8  # of the packed size: what a hint must save


def held(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    return sum(t.nbytes for t in _tensors(model).values())


def packed(model: nn.Module, bytes_float: int) -> tuple[int, list[str]]:
    """Bytes of the file to come, and a hint where float tables are most of them."""
    weights = [w for w in once(binary_weights(model)) if w.quantizer.method.binary]
    total = _file_bytes(model, weights, bytes_float)
    binary = {id(weight.parameter) for weight in weights}
    rest = {n: t for n, t in _tensors(model).items() if id(t) not in binary}
    smaller = total - sum(t.nbytes - _smaller(t) for t in rest.values())
    tables = {name: t for name, t in rest.items() if is_table(t)}
    if not weights or not tables or smaller > _WORTH * total:
        return total, []
    name, most = max(tables.items(), key=lambda item: item[1].nbytes)
    return total, [
        f"{percent(most.nbytes / total)} of the packed size is {name!r}, which stays float: saved "
        f"with float_rest 'float16' and tables 'int8' the file has about {size(smaller)}"
    ]


def _file_bytes(model: nn.Module, weights: list[BinaryWeight], bytes_float: int) -> int:
    """Bytes of the file, exact; an estimate where no file can be made of this model."""
    try:
        return planned_bytes(model) if weights else bytes_float
    except Exception:  # a size must not keep anybody from training
        return bytes_float - sum(_saving(weight) for weight in weights)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a state_dict would hold, each once, by the first of its names."""
    every = [*model.named_parameters(), *model.named_buffers()]
    return {name: t for name, t in every if not is_lazy(t)}


def _smaller(t: Tensor) -> int:
    if not t.is_floating_point():
        return t.nbytes
    if is_table(t):
        return t.numel() + 4 * t.shape[0]
    return min(t.nbytes, 2 * t.numel())


def _saving(weight: BinaryWeight) -> int:
    """Bytes that packing one weight saves: its bits, rounded up, and float32 scales are left."""
    w, method = weight.latent, weight.quantizer.method
    scales = {"none": 0, "layer": 1, "channel": w.shape[0]}
    count = scales["none" if method.scale.kind == "none" else method.scale.per]
    return w.nbytes - byte_count(w.numel()) - 4 * count
