"""The binary weights in training: flips, saturation, wrong-way and dead gradients, overflow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.core import maps
from proxbit.nn import BinaryProduct, BinaryWeight, WeightQuantizer, WrapAccumulator
from proxbit.nn.model_weights import require_binarized
from proxbit.util.text import percent, table

# The signs at the last look, beside the quantizers rather than in them: looking changes no model,
# and neither copies nor checkpoints carry what somebody looked at.
_LAST_SIGNS: weakref.WeakKeyDictionary[WeightQuantizer, Tensor] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class LayerState:
    """One binary weight, now.

    Attributes:
        name: Name of the weight.
        weights: How many.
        strength: The present strength of its pair.
        flips: Share of the signs that changed since the last look; None at the first one.
        saturated: Share within 5 % of +-scale.
        wrong_way: Share where the backward map is negative.
        dead: Share where the backward map is zero: these latents do not move.
        overflow: Share of the last batch's sums that overflowed; None without an accumulator.
    """

    name: str
    weights: int
    strength: float
    flips: float | None
    saturated: float
    wrong_way: float
    dead: float
    overflow: float | None


@dataclass(frozen=True)
class Diagnosis:
    """All binary weights, now; prints as a table."""

    layers: tuple[LayerState, ...]

    def to_list(self) -> list[dict[str, Any]]:
        """Plain data, ready for JSON."""
        return [asdict(layer) for layer in self.layers]

    def __str__(self) -> str:
        """One row per weight and a row for all; below, what gradients do where they turn or end."""
        head = ("weight", "count", "strength", "flips", "within 5 %", "B < 0", "B = 0", "overflow")
        rows = [_row(layer) for layer in (*self.layers, self.total)]
        return "\n".join([table(head, rows), *self._notes()])

    def _notes(self) -> Iterator[str]:
        wrong, dead = self.total.wrong_way, self.total.dead
        if wrong:
            yield (
                f"B < 0 ({percent(wrong)}): the gradient is turned round, these weights move the\n"
                "  other way; the slope of a sign-Swish does that beyond its peak. 50 to 60 % is\n"
                "  usual at the last strength of BNN++; at the first it means too high a strength."
            )
        if dead:
            yield f"B = 0 ({percent(dead)}): no gradient comes through, these weights do not move."

    @property
    def total(self) -> LayerState:
        """The mean over all weights, each counted once."""
        count = sum(layer.weights for layer in self.layers)

        def mean(name: str) -> float | None:
            known = [(getattr(x, name), x.weights) for x in self.layers]
            known = [(value, n) for value, n in known if value is not None]
            return sum(v * n for v, n in known) / sum(n for _, n in known) if known else None

        names = ("strength", "flips", "saturated", "wrong_way", "dead", "overflow")
        return LayerState("all", count, **{name: mean(name) for name in names})  # type: ignore[arg-type]


def _row(layer: LayerState) -> tuple[str, ...]:
    shares = (layer.flips, layer.saturated, layer.wrong_way, layer.dead, layer.overflow)
    figures = ("-" if share is None else percent(share) for share in shares)
    return (layer.name, f"{layer.weights:,}", f"{layer.strength:.3g}", *figures)


def diagnose(model: nn.Module) -> Diagnosis:
    """Look at every binary weight; flips are counted since the previous look at this model."""
    weights = require_binarized(model)
    overflows = {
        id(product.weight_quantizer): float(product.accumulator.overflow)
        for product in model.modules()
        if isinstance(product, BinaryProduct) and isinstance(product.accumulator, WrapAccumulator)
    }
    return Diagnosis(tuple(_look(w, overflows.get(id(w.quantizer))) for w in weights))


def _look(weight: BinaryWeight, overflow: float | None) -> LayerState:
    quantizer, w = weight.quantizer, weight.latent
    if quantizer.hard:
        f, b = maps.sign(w), torch.zeros_like(w)
    else:
        z = quantizer.units(w)
        f = quantizer.forward_map(z)
        b = quantizer.pair.backward(z, quantizer.strength)
    return LayerState(
        name=weight.name,
        weights=w.numel(),
        strength=float(quantizer.strength),
        flips=_flips(quantizer, maps.sign(f) > 0),
        saturated=_mean((f.abs() - 1).abs() <= 0.05),
        wrong_way=_mean(b < 0),
        dead=_mean(b == 0),
        overflow=overflow,
    )


def _flips(quantizer: WeightQuantizer, signs: Tensor) -> float | None:
    last = _LAST_SIGNS.get(quantizer)
    _LAST_SIGNS[quantizer] = signs
    return None if last is None else _mean(last.to(signs.device) != signs)


def _mean(mask: Tensor) -> float:
    return float(mask.float().mean())
