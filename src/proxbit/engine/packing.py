"""pack: from a hard model to a packed one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn

from proxbit.engine.copying import packed_copy
from proxbit.engine.forms import EXACT, INPUT8
from proxbit.engine.fusing import fuse, unfuse
from proxbit.engine.packed import packed_layers, share_signs
from proxbit.engine.plan import plan_for
from proxbit.engine.routes import choose_routes, guess_routes, time_of, time_unpacked, usual_input
from proxbit.engine.unpacked import unpacked_weights
from proxbit.kernels import inference as kernels
from proxbit.nn import BinaryWeight, parametrized
from proxbit.nn.model_weights import binary_weights
from proxbit.nn.probing import warn_of_unused
from proxbit.util.text import few, require_known

_WORTH_CHECKING = 1e-3  # seconds of a forward: below, calls of Python decide
_NOISE = 1.1  # by how much two timings of the same can differ
PRECISIONS = {"exact": EXACT, "input8": INPUT8}


def pack(model: nn.Module, example: Any = None, *, precision: str = "exact") -> nn.Module:
    """Make a network for inference whose hard layers hold one bit per weight.

    It is a copy: changes of the one never reach the other. BWA and BWAA
    give the hard model's sums bit for bit, BW the same up to float32 rounding. Binary weights of
    modules without a packed form (an LSTM, a transposed convolution) stay floats in memory and
    become bits in a file; a KernelWarning names them, and so does :func:`proxbit.summary`.

    Args:
        model: A binarized model after :func:`proxbit.harden`.
        example: An input (or tuple of inputs, or dict of keywords). With it each layer is timed
            both ways on this machine and keeps the faster one, and a warning names binary weights
            that the model does not use there; a model of :func:`proxbit.models.build` that knows
            its image size is timed on one image without it.
        precision: "exact", or "input8" to round the float inputs of BW layers to 8 bits each, which
            is faster and less exact.
    """
    inputs = find_precision(precision)
    _require_hard(model)
    if example is not None:
        warn_of_unused(model, example)
    net = packed_copy(model, inputs)
    _tell_unpacked(net)
    finish(net, example)
    return net


def find_precision(name: str) -> int:
    """The number behind a precision's name."""
    require_known("precision", name, PRECISIONS)
    return PRECISIONS[name]


def _tell_unpacked(net: nn.Module) -> None:
    names = [name for name, _, _ in unpacked_weights(net)]
    names += [weight.name for weight in binary_weights(net)]
    if names:
        warnings.warn(
            f"no packed kernel fits {few(names)}: torch computes with floats there; a file still "
            "holds one bit per weight",
            kernels.KernelWarning,
            stacklevel=3,
        )


def finish(net: nn.Module, example: Any) -> None:
    """Choose the faster way of each layer, then let layers take over what stands between them."""
    _refuse_save_pretrained(net)
    share_signs(net)
    example = usual_input(net) if example is None else example
    by_torch = 0.0
    if example is None:
        guess_routes(net)
    else:
        by_torch = time_unpacked(net, example)
        choose_routes(net, example)
    if kernels.library() is None:
        return
    _join(net)
    if by_torch > _WORTH_CHECKING and any(layer.route == "bits" for _, layer in packed_layers(net)):
        _keep_the_faster(net, example, by_torch)


def _join(net: nn.Module) -> None:
    fuse(net)
    for _, layer in packed_layers(net):
        layer.prepare()  # now, not in the middle of a trace or of the first forward
    plan_for(net)


def _keep_the_faster(net: nn.Module, example: Any, by_torch: float) -> None:
    """Keep what is faster as a whole: layers that win one by one can lose together.

    Unless bits win clearly, torch is timed once more, right behind them. ``summary`` says which
    layers compute unpacked then: all of them.
    """
    on_bits = time_of(net, example)
    if on_bits * _NOISE <= by_torch:
        return
    routes = {layer: layer.route for _, layer in packed_layers(net)}
    unfuse(net)
    net.__dict__.pop("forward", None)  # its plan
    for layer in routes:
        layer.take("float")
    if min(by_torch, time_of(net, example)) < on_bits:
        return
    for layer, route in routes.items():
        layer.take(route)
    _join(net)


def _refuse_save_pretrained(net: nn.Module) -> None:
    """Refuse ``save_pretrained``: ``from_pretrained`` would read the file as another network."""
    for module in net.modules():
        adapters = type(module).__module__.startswith("peft.")  # saves its own float matrices
        if hasattr(type(module), "save_pretrained") and not adapters:
            module.__dict__["save_pretrained"] = _no_save_pretrained


def _no_save_pretrained(*_: Any, **__: Any) -> None:
    raise NotImplementedError(
        "save_pretrained cannot write a packed network (from_pretrained would read a float model "
        "with other weights): use pb.save(net, path), and pb.load(path, float_model) to read it"
    )


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
    changed = [w.name for w in weights if not _is_binary(w)] + list(_stacked(model))
    if changed:
        raise ValueError(
            f"a hard weight is +scale or -scale everywhere, and {few(changed)} are not: they were "
            "changed after pb.harden (an adapter merged, weights edited or loaded), so undo that, "
            "or pb.restore, pb.binarize and pb.harden the model anew"
        )


def _stacked(model: nn.Module) -> Iterator[str]:
    """Parametrized weights to which other code has added a parametrization."""
    for prefix, module in model.named_modules():
        for weight in parametrized.binary_weights(module, ""):
            entry: Any = module.parametrizations[weight.name]
            if len(entry) > 1:
                yield f"{prefix}.{weight.name}".lstrip(".")


def _is_binary(weight: BinaryWeight) -> bool:
    """Whether every value is exactly plus or minus its scale."""
    _, scale = weight.quantizer.split(weight.latent)
    return scale is None or bool((weight.latent.abs() == scale).all())
