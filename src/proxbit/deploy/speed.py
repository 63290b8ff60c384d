"""The speed of a packed network next to the same one in float32, measured fairly."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.deploy.packed_networks import refusing_shape
from proxbit.engine.packed import packed_layers
from proxbit.engine.packing import finish
from proxbit.engine.timing import race
from proxbit.kernels.inference import isa
from proxbit.util.text import alike, table


@dataclass(frozen=True)
class Timing:
    """One contender.

    Attributes:
        layout: How its images lie in memory: "contiguous" or "channels last".
        median: Milliseconds of a forward.
        best: Those of its fastest one, which other work on the machine disturbs least.
    """

    layout: str
    median: float
    best: float


@dataclass(frozen=True)
class Speed:
    """A packed network beside the float one, each in the layout that suits it.

    Attributes:
        batch_size: Images per forward pass.
        threads: Threads of both.
        kernels: What computed on bits: "avx2", "portable" or "torch".
        rounds: How often each was timed.
        packed: The packed network.
        float32: The float one.
        unpacked: Layers of the packed network that compute with unpacked weights.
    """

    batch_size: int
    threads: int
    kernels: str
    rounds: int
    packed: Timing
    float32: Timing
    unpacked: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times faster than float, by medians."""
        return self.float32.median / self.packed.median

    @property
    def ratio_best(self) -> float:
        """How many times faster than float, by the fastest forwards."""
        return self.float32.best / self.packed.best

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self) | {"ratio": self.ratio, "ratio_best": self.ratio_best}

    def __str__(self) -> str:
        """The two in a table, the verdict, and what computes unpacked."""
        rows = [
            (name, f"{each.median:.3f}", f"{each.best:.3f}", each.layout)
            for name, each in (("packed", self.packed), ("float32", self.float32))
        ]
        lines = [
            f"batch {self.batch_size}, {self.threads} thread(s), {self.kernels} kernels, "
            f"{self.rounds} rounds in turns",
            table(("", "median ms", "best ms", "layout"), rows),
            f"packed is {faster(self.ratio)} by the medians, {faster(self.ratio_best)} at best",
        ]
        if self.unpacked:
            names = ", ".join(alike(self.unpacked))
            lines.append(f"compute unpacked, faster here or without a kernel: {names}")
        return "\n".join(lines)


def faster(ratio: float) -> str:
    """A ratio of times in words.

    >>> faster(2.0), faster(0.5)
    ('2.0x faster', '2.0x slower')
    """
    return f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"


def noise(*shape: int) -> Tensor:
    """Images of noise, the same every time."""
    try:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))
    except RuntimeError as error:  # far more memory than there is
        raise ValueError(
            f"not enough memory for images of shape {shape}: choose a smaller batch"
        ) from error


def measure(
    packed: nn.Module,
    plain: nn.Module,
    example: Tensor,
    seconds: float,
    watch: Callable[[float], object] = lambda share: None,
) -> Speed:
    """Time both networks on one batch, in turns.

    Args:
        packed: What :func:`~proxbit.deploy.packed_networks.packed_network` returned; it is finished
            here, once for each layout.
        plain: The float network.
        example: A batch.
        seconds: How long to go on, at least three rounds.
        watch: Called after each round with the share that is done.
    """
    contenders = {
        (kind, layout): (net, x)
        for kind, net in (("packed", packed), ("float32", plain))
        for layout, net, x in _layouts(net, example)
    }
    calls: dict[Any, Any] = {key: partial(net, x) for key, (net, x) in contenders.items()}
    kernels = isa()  # speaks up where PROXBIT_KERNELS is wrong
    with refusing_shape(example.shape), torch.inference_mode():
        for (kind, _), (net, x) in contenders.items():
            if kind == "packed":
                finish(net, x)
        times = race(calls, seconds, watch)
    best = {kind: _quickest(kind, times) for kind in ("packed", "float32")}
    chosen = contenders["packed", best["packed"].layout][0]
    slow = tuple(name for name, layer in packed_layers(chosen) if layer.route == "float")
    rounds = len(next(iter(times.values())))
    return Speed(len(example), torch.get_num_threads(), kernels, rounds, **best, unpacked=slow)


def _layouts(net: nn.Module, x: Tensor) -> list[tuple[str, nn.Module, Tensor]]:
    """The network as it is and, for images, a copy with the channels last in memory."""
    net = net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    found = [("contiguous", net, x.contiguous())]
    if x.dim() == 4:
        last = torch.channels_last
        twin = copy.deepcopy(net).to(memory_format=last)  # type: ignore[call-overload]
        found.append(("channels last", twin, x.contiguous(memory_format=last)))
    return found


def _quickest(kind: str, times: dict[Any, list[float]]) -> Timing:
    mine = {layout: values for (one, layout), values in times.items() if one == kind}
    layout, values = min(mine.items(), key=lambda each: statistics.median(each[1]))
    return Timing(layout, 1e3 * statistics.median(values), 1e3 * min(values))
