"""The contract of a binary layer: the float layer's own forward is the oracle."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxbit.binarization.conversion import binarize, restore
from proxbit.binarization.hardening import harden
from proxbit.binarization.layer_choice import SWAPS, Swaps
from proxbit.core.methods import Method
from proxbit.core.pairs import Pair
from proxbit.core.tasks import Task
from proxbit.nn import InputQuantizer
from proxbit.nn.model_weights import binary_weights
from proxbit.nn.probing import probe, run
from proxbit.testing.backends import available_backends, use_backend
from proxbit.util.notices import SettingsWarning


def check_layer(
    layer: nn.Module,
    example: Any,
    method: str | Method | Pair = "bnn++",
    *,
    swaps: Swaps = SWAPS,
    tasks: Sequence[str | Task] = ("BW", "BWA"),
    backends: Sequence[str] | None = None,
) -> None:
    """Raise an AssertionError, in one sentence, if the binary form of ``layer`` breaks a law.

    For a binary class of your own, pass a float layer and ``swaps=pb.SWAPS | {Mine: MyBinary}``.
    The laws: binarizing keeps Parameters and keys; in BW the layer computes what the float layer
    computes with the quantized weights, soft and hard; every binary weight reaches the output and
    gets a finite gradient; where inputs are binary, a hard layer sees their signs only; copies
    compute the same; ``restore`` gives the float layer back.

    Args:
        layer: A float layer, which stays as it is.
        example: An input, a tuple of inputs, or a dict of keywords.
        method: The method to make it binary with.
        swaps: From float layer classes to binary ones.
        tasks: The tasks to try.
        backends: The kernels to compute with; all that run on this machine by default.
    """
    for backend in available_backends() if backends is None else backends:
        for task in tasks:
            name = task.name if isinstance(task, Task) else task
            label = f"{type(layer).__name__}, {name}, kernels {backend}"
            with use_backend(backend), warnings.catch_warnings():
                warnings.simplefilter("ignore", SettingsWarning)
                _check(copy.deepcopy(layer), example, method, task, swaps, label)


def _check(
    layer: nn.Module, example: Any, method: Any, task: Any, swaps: Swaps, label: str
) -> None:
    plain = copy.deepcopy(layer)
    before, kinds = _outputs(layer, example), [type(m) for m in layer.modules()]
    parameters, keys = dict(layer.named_parameters()), set(layer.state_dict())
    report = binarize(layer, method, task, only=lambda *_: True, swaps=swaps)
    if not report.binary:
        reasons = "; ".join(line.why for line in report.layers)
        raise AssertionError(f"{label}: no weight became binary ({reasons})")
    _keeps_parameters(layer, parameters, keys, label)
    _uses_and_trains(layer, example, label)
    _copies_agree(layer, example, label)
    inputs = [m for m in layer.modules() if isinstance(m, InputQuantizer)]
    if not inputs:
        _is_the_float_layer(layer, plain, example, f"{label}, soft")
    _comes_back(copy.deepcopy(layer), example, before, kinds, label)
    harden(layer)
    if not inputs:
        _is_the_float_layer(layer, plain, example, f"{label}, hard")
    elif all(quantizer.shift is None for quantizer in inputs):
        _sees_signs(layer, example, label)


def _outputs(layer: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad():
        return run(layer, example)


def _keeps_parameters(
    layer: nn.Module, parameters: dict[str, nn.Parameter], keys: set[str], label: str
) -> None:
    now = {id(p) for p in layer.parameters()}
    for name, parameter in parameters.items():
        if id(parameter) not in now:
            raise AssertionError(f"{label}: Parameters stay the same objects, and {name!r} is gone")
    odd = sorted(k for k in keys ^ set(layer.state_dict()) if not k.endswith(".shift"))
    if odd:
        raise AssertionError(
            f"{label}: the state_dict keeps its keys, and {odd[0]!r} is only in one of the two"
        )


def _uses_and_trains(layer: nn.Module, example: Any, label: str) -> None:
    unused = probe(layer, example).unused
    if unused:
        raise AssertionError(
            f"{label}: every binary weight reaches the output, and {unused[0]!r} does not"
        )
    layer.zero_grad()
    with torch.enable_grad():
        sum(output.square().sum() for output in run(layer, example)).backward()  # type: ignore[union-attr]
    for weight in binary_weights(layer):
        grad = weight.parameter.grad
        if grad is None or not bool(grad.isfinite().all()) or not bool(grad.any()):
            raise AssertionError(
                f"{label}: a latent weight gets a finite gradient, and that of {weight.name!r} is "
                f"{'missing' if grad is None else 'zero or not finite'}"
            )
    layer.zero_grad()


def _is_the_float_layer(layer: nn.Module, plain: nn.Module, example: Any, label: str) -> None:
    """The oracle: the float layer, whose weights are written over by the quantized ones."""
    oracle = copy.deepcopy(plain)
    names = {id(p): name for name, p in restored_names(layer).items()}
    for weight in binary_weights(layer):
        own = oracle.get_parameter(names[id(weight.parameter)])
        replace(weight, parameter=own).write(weight.quantizer.proximal(weight.latent))
    law = f"{label}: it computes what the float layer computes with the quantized weights"
    _agree(law, _outputs(layer, example), _outputs(oracle, example))


def restored_names(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by the names that they have in the float layer, parametrized or not."""
    found = {}
    for name, parameter in layer.named_parameters():
        parts = name.split(".")
        if parts[-1] == "original" and "parametrizations" in parts:
            parts = [part for part in parts[:-1] if part != "parametrizations"]
        found[".".join(parts)] = parameter
    return found


def _copies_agree(layer: nn.Module, example: Any, label: str) -> None:
    copies = {"a deep copy": copy.deepcopy(layer)}
    # A pair of lambdas, or a parametrized layer: Python and torch do not pickle those.
    with suppress(pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        copies["the unpickled layer"] = pickle.loads(pickle.dumps(layer))
    wanted = _outputs(layer, example)
    for what, twin in copies.items():
        _agree(f"{label}: {what} computes the same", _outputs(twin, example), wanted, exact=True)


def _comes_back(
    layer: nn.Module, example: Any, before: list[Tensor], kinds: list[type], label: str
) -> None:
    restore(layer)
    now = [type(m).__name__ for m in layer.modules()]
    if now != [kind.__name__ for kind in kinds]:
        raise AssertionError(f"{label}: restore gives the float classes back, and it has {now}")
    _agree(f"{label}: restored, it computes as before", _outputs(layer, example), before)


def _sees_signs(layer: nn.Module, example: Any, label: str) -> None:
    """Inputs that are larger by a power of two have the same signs, and the same bits behind."""
    law = f"{label}: a hard layer sees the signs of its input only, so a larger one changes nothing"
    larger = pytree.tree_map_only(Tensor, lambda x: 4 * x if x.is_floating_point() else x, example)
    _agree(law, _outputs(layer, larger), _outputs(layer, example))


def _agree(law: str, got: list[Tensor], wanted: list[Tensor], exact: bool = False) -> None:
    for one, other in zip(got, wanted, strict=True):
        if one.shape != other.shape:
            raise AssertionError(
                f"{law}, and an output is {tuple(one.shape)}, {tuple(other.shape)}"
            )
        apart = float((one - other).abs().max()) if one.numel() else 0.0
        size = float(other.abs().max()) if one.numel() else 0.0
        if not apart <= (0.0 if exact else 1e-4 * size):
            raise AssertionError(f"{law}, and the outputs are {apart:.3g} apart")
