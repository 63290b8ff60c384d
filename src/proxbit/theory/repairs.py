"""For a refused pair, its admitted neighbours: each a pair ready for ``binarize``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxbit.core import maps, prox
from proxbit.core.maps import Strength
from proxbit.core.pairs import Map, Pair, from_derivative, from_transform, monotone_bnn_plus_plus
from proxbit.theory.axis import Axis
from proxbit.theory.judging import judge
from proxbit.theory.layout import lay_out
from proxbit.theory.verdict import Verdict, check

Neighbour: TypeAlias = tuple[Pair, str]

# Primitives in closed form; any other map is integrated by quadrature.
PRIMITIVES: dict[Callable[..., Tensor], tuple[str, Map]] = {
    maps.one: ("FP", maps.identity),
    maps.inside: ("hard tanh", maps.hard_tanh),
    maps.triangle: ("Poly+ at strength 1.41", partial(maps.at_strength, maps.poly, maps.SQRT2)),
    maps.sign_swish_slope: ("BNN++", maps.sign_swish),
    maps.poly_slope: ("Poly+", maps.poly),
    maps.soft_sign_slope: ("EDE+", maps.soft_sign),
}


@dataclass(frozen=True)
class Repair:
    """An admitted neighbour of a pair.

    Attributes:
        pair: The new pair.
        how: What was changed.
        verdict: The theory's word on it.
    """

    pair: Pair
    how: str
    verdict: Verdict

    def __str__(self) -> str:
        """The name and the change."""
        return f"{self.pair.name}: {self.how}"


def repair(pair: Pair, strength: float = 1.0, proximal: Map | None = None) -> list[Repair]:
    """List admitted neighbours of a pair, nearest first; for an admitted pair, more of its family.

    Args:
        pair: Any pair.
        strength: Where its neighbours are checked.
        proximal: The prox map P to compose with; the linear quantizer with rho = 0.5 if None.
    """
    neighbours = _neighbours(pair, strength, proximal or half_way)
    options = [_considered(new, how, strength) for new, how in neighbours]
    return [option for option in options if option and option.verdict.admitted]


def _neighbours(pair: Pair, strength: float, proximal: Map) -> Iterator[Neighbour]:
    """What may be admitted instead, and how it is made."""
    name, integral = primitive(pair.backward)
    name, axis = name or f"{pair.name} integrated", lay_out(pair, strength)
    yield from _with_gaps(pair, axis)
    yield Pair(integral, pair.backward, name), "B kept, and integrated into F"
    if not pair.hard and not (pair.knots and pair.knots(strength)):  # Corollary 2: F has no jump
        new = from_derivative(pair.forward, f"{pair.name} differentiated")
        yield new, "F kept, and differentiated into B"
    yield from _monotone(pair, axis)
    new = from_transform(integral, pair.backward, proximal, f"{name} of a prox")
    yield new, "B integrated into T, then F = T o P and B = T' o P with a prox map P"


def _considered(pair: Pair, how: str, strength: float) -> Repair | None:
    try:
        return Repair(pair, how, check(pair, strength))
    except ValueError:  # an F that cannot be differentiated, for one
        return None


def half_way(w: Tensor, s: Strength) -> Tensor:
    """The linear quantizer halfway between the identity and the sign."""
    return prox.linear_quantizer(w, 0.5)


def primitive(slope: Map) -> tuple[str, Map]:
    """The integral of a map from 0, in closed form where we know it (then with a name)."""
    known = PRIMITIVES.get(slope)
    return known if known else ("", partial(_quadrature, slope))


def _with_gaps(pair: Pair, axis: Axis) -> Iterator[Neighbour]:
    """F and B kept, if only the letter of the corollary refuses them: P jumps where it must."""
    found = judge(axis)
    if found.gaps and not found.breaches:
        places = ", ".join(f"{place:.3g}" for place in found.gaps)
        stairs = partial(_stairs, tuple(found.gaps))
        how = f"F and B kept, and P said to jump at w = {places}, where T is free in the gap"
        yield replace(pair, proximal=stairs, name=f"{pair.name} with P"), how


def _stairs(places: tuple[float, ...], w: Tensor, s: Strength) -> Tensor:
    """A step up by one at each place: enough to say where P jumps."""
    return torch.stack([(w >= place).to(w.dtype) for place in places]).sum(0)


def _monotone(pair: Pair, axis: Axis) -> Iterator[Neighbour]:
    """Remove the part where B is negative: F must fall there, and nowhere else."""
    if axis.low.min() >= -1e-12 * axis.most.max():
        return
    if pair.backward is maps.sign_swish_slope:
        yield monotone_bnn_plus_plus, "stopped where B would turn negative: F never falls"
    else:
        slope = partial(_positive, pair.backward)
        new = Pair(partial(_quadrature, slope), slope, f"{pair.name} without negative B")
        yield new, "B cut at 0, and integrated into F: F never falls"


def _positive(f: Map, w: Tensor, s: Strength) -> Tensor:
    return f(w, s).clamp_min(0)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_ENDS = [0.0, *(2.0**-k for k in range(11, -1, -1))]


def _quadrature(slope: Map, w: Tensor, s: Strength) -> Tensor:
    """The integral of ``slope`` from 0 to w, by Gauss-Legendre on panels that halve towards 0."""
    total = torch.zeros_like(w)
    for low, high in itertools.pairwise(_ENDS):
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            x = low + (high - low) * (float(node) + 1) / 2
            total = torch.add(total, slope(w * x, s), alpha=float(weight) * (high - low) / 2)
    return total * w
