"""Microseconds per call of one small layer at one row: what a call of Python leaves of the bits.

Torch's float32 ``linear`` and the packed layer, called by themselves; then a residual network of
such layers, per layer with its sum: in float, and packed, which computes by a plan.

    python benchmarks/small_layers.py
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from evidence import environment
from pairing import facts, table
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.engine import isa
from proxbit.engine.timing import race

SIDES = (64, 128, 256, 512, 768)
DEPTH = 8  # layers of the residual network
SECONDS = 0.4  # for each size
HEAD = ("layer", "torch linear", "BW", "BWA", "float net", "BW net", "BWA net")


class Residual(nn.Module):
    """Layers with sums around them, so that a plan joins both."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(side, side) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def packed(model: nn.Module, task: Any) -> Any:
    pb.binarize(model, "bc", task, only="*")
    return pb.pack(pb.harden(model).eval())


def calls(side: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Name, layers of a call, and the call."""
    x, layer = torch.randn(1, side), nn.Linear(side, side)
    yield "torch linear", 1, partial(functional.linear, x, layer.weight, layer.bias)
    yield "float net", DEPTH, partial(Residual(side).eval(), x)
    tasks: tuple[Any, ...] = ("BW", "BWA")
    for task in tasks:
        yield task, 1, partial(packed(nn.Sequential(nn.Linear(side, side)), task)[0], x)
        net = packed(Residual(side), task)
        net(x)  # makes the plan
        yield f"{task} net", DEPTH, partial(net, x)


def measure(side: int, seconds: float) -> dict[str, float]:
    """Microseconds per layer, the fastest of many calls: other work only ever adds."""
    found = {name: (layers, call) for name, layers, call in calls(side)}
    times = race({name: call for name, (_, call) in found.items()}, seconds)
    return {name: 1e6 * min(times[name]) / layers for name, (layers, _) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", default=SECONDS, type=float, help="for each size")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(facts(environment(("proxbit", "torch"), 1, 0) | {"kernels": isa()}))
    rows = []
    with torch.inference_mode():
        for side in SIDES:
            us = measure(side, args.seconds)
            rows.append((f"{side}x{side}", *(f"{us[name]:.1f}" for name in HEAD[1:])))
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
