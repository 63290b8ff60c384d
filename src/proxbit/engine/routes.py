"""Which way a packed layer computes fastest on this machine: on bits, or unpacked with torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.packed_layers import PackedConv2d, noted_inputs
from proxbit.engine.timing import race
from proxbit.nn.probing import run

_SECONDS = 0.06  # spent on each layer
MOST_SIDE, MOST_PATCHES = 512, 64  # of an image that is tried unasked
FEWEST = 24  # products per output, as in depthwise convolutions, below which we do not try bits


def guess_routes(net: nn.Module) -> None:
    """Choose without an input to measure with: layers with very few products compute unpacked."""
    for _, layer in packed_layers(net):
        if layer.form.products < FEWEST and not layer.form.depthwise:
            layer.take("float")


def usual_input(net: Any) -> Tensor | None:
    """One empty image, where the network is known to take images of one size."""
    known = getattr(net, "_proxbit_architecture", None) or {}
    if not is_usual(known):
        return None
    return torch.zeros(1, known.get("channels", 3), known["image_size"], known["image_size"])


def is_usual(known: dict[str, Any]) -> bool:
    """Whether a network is made for images that cost little, so that one may be tried at once.

    >>> is_usual({"image_size": 224}), is_usual({"image_size": 224, "patch_size": 1}), is_usual({})
    (True, False, False)
    """
    side, patch = known.get("image_size"), known.get("patch_size", MOST_SIDE)
    return isinstance(side, int) and side <= MOST_SIDE and side <= MOST_PATCHES * patch


def choose_routes(net: nn.Module, example: Any) -> None:
    """Time each layer both ways on the inputs that ``example`` gives it; keep the faster way.

    Convolutions are timed as a plan calls them: with the channels last in memory.
    """
    known: dict[Any, str] = {}
    with torch.inference_mode():
        with noted_inputs(net) as inputs:
            run(net, example)
        for layer, x in inputs.items():
            alike = (type(layer), layer.form, x.shape, x.stride(), getattr(layer, "border", None))
            if alike not in known:
                known[alike] = _faster(layer, x)
            layer.take(known[alike])


def _faster(layer: PackedLayer, x: Tensor) -> str:
    layer.take("bits")
    if layer.prepare() is None:
        return "float"

    near = x
    if isinstance(layer, PackedConv2d) and x.dim() == 4 and x.dtype == torch.float32:
        near = x.contiguous(memory_format=torch.channels_last)

    def call(route: str) -> None:
        layer.take(route)
        layer(near if route == "bits" else x)

    times = race({route: partial(call, route) for route in ("bits", "float")}, _SECONDS)
    return min(times, key=lambda route: min(times[route]))  # other work only ever adds


def time_of(net: nn.Module, example: Any) -> float:
    """Seconds of the fastest of a few forwards."""
    with torch.inference_mode():
        times = race({"net": partial(run, net, example)}, _SECONDS)
    return min(times["net"])


def time_unpacked(net: nn.Module, example: Any) -> float:
    """Seconds of a forward with every layer unpacked, computed by torch."""
    layers = [layer for _, layer in packed_layers(net)]
    if any(layer.sources for layer in layers):  # joined already
        return 0.0
    routes = [layer.route for layer in layers]
    for layer in layers:
        layer.take("float")
    try:
        return time_of(net, example)
    finally:
        for layer, route in zip(layers, routes, strict=True):
            layer.take(route)
            layer.forget()
