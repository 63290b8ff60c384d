"""Binary inputs of a pretrained network: the first unit and shift of each, from some images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from proxbit.nn.binary_layers import BinaryLinear
from proxbit.nn.probing import call
from proxbit.nn.quantizers import InputQuantizer
from proxbit.train.norm_calibration import observing
from proxbit.util.modes import hooked


def calibrate_inputs(model: nn.Module, float_model: nn.Module, batches: Iterable[Any]) -> list[str]:
    """Let the binary inputs of linear layers begin as near to the float ones as signs can be.

    A layer that no norm follows, as in a transformer, would sum +-1 where it had summed inputs of
    another size (0.14 behind a GELU of ViT-Tiny). So x is seen as m + u F((x - t) / u): u, the mean
    of |x - t|, is the unit of the pair and goes into the weights; t, the mean of each channel, is
    the first shift if the method learns shifts, else 0; m, what a sign leaves of the mean, or t
    where F is soft and begins as a line, goes into the bias.

    Args:
        model: The binarized network, not trained yet; changed in place.
        float_model: The same network before it became binary.
        batches: Inputs for the float network, as often as they are asked for.

    Returns:
        The names of the layers that were changed.
    """
    layers = dict(_binary_inputs(model))
    images = list(batches)
    # PyTorch's attention reads the weights of its last layer and passes hooks by: it is left alone.
    means = _measured(float_model, dict.fromkeys(layers, nn.Identity()), images)
    layers = {name: parts for name, parts in layers.items() if name in means}
    shifts = {n: None if q.shift is None else means[n] for n, (_, q) in layers.items()}
    sizes = _measured(float_model, {n: partial(_size, shift=t) for n, t in shifts.items()}, images)
    signs = _measured(float_model, {n: partial(_sign, shift=t) for n, t in shifts.items()}, images)
    with torch.no_grad():
        for name, (layer, inputs) in layers.items():
            unit = sizes[name].mean()
            rest = means[name] - unit * signs[name] if inputs.pair.hard else shifts[name]
            _change(layer, inputs, unit, shifts[name], rest)
    return list(layers)


def _binary_inputs(model: nn.Module) -> Iterator[tuple[str, tuple[BinaryLinear, InputQuantizer]]]:
    for name, layer in model.named_modules():
        inputs = layer.binary.input_quantizer if isinstance(layer, BinaryLinear) else None
        if isinstance(layer, BinaryLinear) and isinstance(inputs, InputQuantizer):
            yield name, (layer, inputs)


def _change(
    layer: BinaryLinear, inputs: InputQuantizer, unit: Tensor, shift: Tensor | None,
    rest: Tensor | None,
) -> None:  # fmt: skip
    """Take over the unit, the shift, and the constant part of the input."""
    if layer.bias is not None and rest is not None:
        layer.bias.add_(layer.weight @ rest)
    inputs.set_unit(unit)
    if shift is not None and inputs.shift is not None:
        inputs.shift.copy_(shift.reshape(inputs.shift.shape))
    layer.weight.mul_(cast(Tensor, inputs.unit))
    layer.binary.weight_quantizer.measure_unit(layer.weight)


def _measured(model: nn.Module, what: dict[str, Any], batches: Iterable[Any]) -> dict[str, Tensor]:
    """The mean of a function of each layer's input, per channel."""
    sums: dict[str, Tensor] = {}
    counts = dict.fromkeys(what, 0)

    def note(name: str, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0].detach().flatten(0, -2).float()
        sums[name] = sums.get(name, 0) + what[name](x).sum(0)
        counts[name] += len(x)

    layers = {name: model.get_submodule(name) for name in what}
    hooks = (layer.register_forward_pre_hook(partial(note, n)) for n, layer in layers.items())
    with hooked(hooks), observing(model):
        for x in batches:
            call(model, x)
    return {name: total / counts[name] for name, total in sums.items()}


def _size(x: Tensor, shift: Tensor | None) -> Tensor:
    return (x if shift is None else x - shift).abs()


def _sign(x: Tensor, shift: Tensor | None) -> Tensor:
    return torch.where((x if shift is None else x - shift) >= 0, 1.0, -1.0)
