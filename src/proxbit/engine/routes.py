"""Which way a packed layer computes fastest on this machine: on bits, or unpacked with torch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.engine.packed import PackedLayer
from proxbit.probing import run

_SECONDS = 0.03  # spent on each way of a layer
_MOST = 50
FEWEST = 24  # products per output below which bits do not pay, as in depthwise convolutions


def guess_routes(net: nn.Module) -> None:
    """Without an input to measure with: only what is sure to lose computes unpacked."""
    for module in net.modules():
        if isinstance(module, PackedLayer) and module.form.products < FEWEST:
            module.take("float")


def usual_input(net: Any) -> Tensor | None:
    """One empty image, where the network is known to take images of one size."""
    known = getattr(net, "_proxbit_architecture", None) or {}
    if not isinstance(known.get("image_size"), int):
        return None
    return torch.zeros(1, known.get("channels", 3), known["image_size"], known["image_size"])


def choose_routes(net: nn.Module, example: Any) -> None:
    """Time each layer both ways on the inputs that ``example`` gives it; keep the faster way."""
    layers = [m for m in net.modules() if isinstance(m, PackedLayer)]
    inputs: dict[PackedLayer, Tensor] = {}

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, PackedLayer)
        inputs.setdefault(module, given[0])

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        with torch.inference_mode():
            run(net, example)
    finally:
        for hook in hooks:
            hook.remove()
    known: dict[Any, str] = {}
    with torch.inference_mode():
        for layer, x in inputs.items():
            alike = (type(layer), layer.form, x.shape, x.stride(), getattr(layer, "border", None))
            if alike not in known:
                known[alike] = _faster(layer, x)
            layer.take(known[alike])


def _faster(layer: PackedLayer, x: Tensor) -> str:
    layer.take("bits")
    if layer.prepare() is None:
        return "float"
    seconds: dict[str, list[float]] = {"bits": [], "float": []}
    began, rounds = time.perf_counter(), 0
    while rounds < 3 or (rounds < _MOST and time.perf_counter() - began < 2 * _SECONDS):
        order = ("bits", "float") if rounds % 2 else ("float", "bits")
        for route in order:
            layer.take(route)
            layer(x)  # both ways equally warm
            start = time.perf_counter()
            layer(x)
            seconds[route].append(time.perf_counter() - start)
        rounds += 1
    medians = {route: statistics.median(values) for route, values in seconds.items()}
    return min(medians, key=lambda route: medians[route])
