"""What the code cannot know of a pair: who proposed it, when to use it, its objective in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

import proxbit as pb
from proxbit.theory.axis import Array

MU = 2.0  # the smoothing at which closed forms are compared, so that a lost 1 / mu shows
RHO = 0.3  # the strength at which PC and LQ are shown


@dataclass(frozen=True)
class Objective:
    """P, T and r in closed form: in words, and as functions for the comparison."""

    words: tuple[str, str, str]
    prox: Callable[[Array], Array]
    transform: Callable[[Array], Array]
    regularizer: Callable[[Array], Array]
    gaps: str = "lowest"


@dataclass(frozen=True)
class Page:
    """What the code cannot know of a pair: its source, its use, its objective."""

    file: str
    pair: pb.Pair
    strength: float
    methods: tuple[str, ...]
    source: str
    use: str
    objective: Objective | None = None
    note: str = ""
    code: str = ""


def _sign(w: Array) -> Array:
    return np.where(w >= 0, 1.0, -1.0)


def _zero(z: Array) -> Array:
    return np.zeros_like(z)


def _same(z: Array) -> Array:
    return z


def _smooth(pair: pb.Pair, strength: float, t: str) -> Objective:
    def transform(z: Array) -> Array:
        return pair.forward(torch.from_numpy(z), strength).numpy()

    words = ("P(w) = w", f"T = {t}, the forward map itself", "r = 0: no regularizer")
    return Objective(words, _same, transform, _zero)


IDENTITY = Objective(("P(w) = w", "T(z) = z", "r = 0: plain gradient descent"), _same, _same, _zero)
BC = Objective(
    (
        "P(w) = sign(w)",
        "T(z) = z",
        "r is 0 on {-1, +1} and infinite elsewhere: the constraint itself",
    ),
    _sign,
    _same,
    lambda z: np.where(np.abs(z) == 1, 0.0, np.inf),
    "infinite",
)
LINE = Objective(
    (
        "P = L: P(w) = w / (1 - s), clamped to [-1, 1]",
        "T(z) = z",
        "r(z) = -s z² / (2µ) on [-1, 1], infinite elsewhere: concave, it pushes towards ±1",
    ),
    lambda w: np.clip(w / (1 - RHO), -1, 1),
    _same,
    lambda z: np.where(np.abs(z) <= 1, -RHO * z * z / (2 * MU), np.inf),
)
TIED = Objective(
    (
        "P = L: P(w) = sign(w) min(|w| + s, 1)",
        "T(z) = z",
        "r(z) = (s / µ) (s - |z|) for s <= |z| <= 1, infinite beyond 1: up to a constant s / µ "
        "times the distance to {-1, +1}, ProxQuant's regularizer; any larger r for |z| < s",
    ),
    lambda w: _sign(w) * np.minimum(np.abs(w) + RHO, 1),
    _same,
    lambda z: np.select(
        [np.abs(z) < RHO, np.abs(z) <= 1],
        [(RHO**2 - z * z) / (2 * MU), RHO * (RHO - np.abs(z)) / MU],
        np.inf,
    ),
)


def _swish_up_to_one(z: Array) -> Array:
    u = 0.25 * np.clip(z, -1, 1)
    swish = np.tanh(u) + u / np.cosh(u) ** 2
    return swish / (np.tanh(0.25) + 0.25 / np.cosh(0.25) ** 2)


SWISH_OF_LINE = replace(
    LINE, words=(LINE.words[0], "T = SS / SS(1), SS at strength 0.5", LINE.words[2]),
    transform=_swish_up_to_one,
)  # fmt: skip
BNN = Objective(
    (
        "P(w) = sign(w) on [-1, 1]; free beyond, where we let it go on with slope 1 / µ",
        "T(z) = z clamped to [-1, 1]",
        "r(z) = (1 - z²) / (2µ) or anything larger between -1 and +1; (1 - 1 / µ) (|z| - 1)² / 2 "
        "beyond, by our choice of P",
    ),
    lambda w: _sign(w) * (1 + np.maximum(np.abs(w) - 1, 0) / MU),
    lambda z: np.clip(z, -1, 1),
    lambda z: np.where(
        np.abs(z) < 1, (1 - z * z) / (2 * MU), (1 - 1 / MU) * (np.abs(z) - 1) ** 2 / 2
    ),
)

LU = "Lu et al., 2023 (ProxConnect++)"
BARE = "Here it is the bare pair, on weights, without the rest of that paper."
CATALOGUE = (
    Page(
        "fp", pb.full_precision, 1.0, ("fp",), "the float baseline",
        "Use it as the float network for comparison; it is never binary.", IDENTITY,
        code="pb.full_precision",
    ),
    Page(
        "bc", pb.binary_connect, 1.0, ("bc", "ptb"), "Courbariaux et al., 2015 (BinaryConnect)",
        "It is the simplest hard pair: the network is exactly ±1 from the first step on.",
        BC, code="pb.binary_connect",
        note="PTB has the same pair, but trains in float and takes the sign afterwards.",
    ),
    Page(
        "pc", pb.prox_connect(), RHO, ("pc",), "Dockhorn et al., 2021 (ProxConnect)",
        "Use it for fine-tuning: it goes from the float network to the sign without a jump.", LINE,
        code="pb.prox_connect()",
        note="L is a line through 0 here (varrho = 0); B is 1 even where L is flat.",
    ),
    Page(
        "lq", replace(pb.prox_connect(None), name="LQ"), RHO, ("pq", "rpc"),
        "Bai et al., 2018 (ProxQuant); the general L is due to Dockhorn et al., 2021",
        "Use it to compare with ProxQuant; under the rule PC the same map is a sound ProxConnect.",
        TIED,
        code="pb.prox_connect(None)",
        note="L leaves 0 at the height varrho = s. The pair is admitted, but PQ and rPC "
        "do not belong to the family, because their steps start at the quantized weight.",
    ),
    Page(
        "bnn", pb.bnn, 1.0, ("bnn",), "Hubara et al., 2016 (BNN)",
        "It is the usual baseline of hard networks whose weights fill [-1, 1]; at the size of a "
        "transformer's weights (0.02) it is BC.", BNN, code="pb.bnn",
    ),
    Page(
        "bnn-plus", pb.bnn_plus, 5.0, ("bnn+",), "Darabi et al., 2018 (BNN+)",
        "Use it for comparison; to train, take BNN++, which keeps this B. Beyond |w| = 2.3994 / s "
        "B is negative, so large weights step against their gradient.", code="pb.bnn_plus",
        note="This is the pair of the ProxConnect++ paper; the original has a regularizer too.",
    ),
    Page(
        "bnn-plus-plus", pb.bnn_plus_plus, 5.0, ("bnn++",), LU,
        "It is the first choice among the smooth pairs. Let its strength grow, harden at the end.",
        _smooth(pb.bnn_plus_plus, 5.0, "SS"), code="pb.bnn_plus_plus",
        note="F overshoots to 1.1997 at |w| = 2.3994 / s and B is negative beyond: that is "
        "allowed, since P and not F must never fall.",
    ),
    Page(
        "bnn-plus-plus-prox", pb.pairs.swish_of_prox(), RHO, ("bnn++prox",), LU,
        "Use it instead of BNN++ when theory must admit every step and hardening lose nothing: "
        "from rho = 1 on F is the sign.", SWISH_OF_LINE,
        code="pb.pairs.swish_of_prox()",
        note="The paper mentions the composition with a prox map. SS is divided by its value at 1, "
        "and B with it, so that F is ±1 where L is.",
    ),
    Page(
        "monotone-bnn-plus-plus", pb.monotone_bnn_plus_plus, 5.0, (), "proxbit, after " + LU,
        "Use it instead of BNN++ when F must never fall, or be exactly ±1 from some weight on.",
        _smooth(pb.monotone_bnn_plus_plus, 5.0, "SS / 1.1997 up to its peak"),
        code="pb.monotone_bnn_plus_plus",
    ),
    Page(
        "bi-real", pb.bi_real, 1.0, ("bi-real",), "Liu et al., 2018 (Bi-Real Net)",
        "Use it for comparison; Poly+ at strength 1.41 has the same B and an objective.",
        code="pb.bi_real", note=BARE,
    ),
    Page(
        "r-bnn", pb.r_bnn, 2.0, ("r-bnn",), "Lin et al., 2020 (Rotated BNN)",
        "Use it for comparison; Poly+ keeps this B and has an objective.",
        code="pb.r_bnn", note=BARE,
    ),
    Page(
        "poly-plus", pb.poly_plus, 2.0, ("poly+",), LU,
        "It is smooth, never overshoots and, for s >= 1, is exactly ±1 from |w| = 1.41 / s on.",
        _smooth(pb.poly_plus, 2.0, "the two parabolas"), code="pb.poly_plus",
    ),
    Page(
        "ede", pb.ede, 2.0, ("ede",), "Qin et al., 2020 (IR-Net)",
        "Use it for comparison; EDE+ keeps this B and has an objective.", code="pb.ede", note=BARE,
    ),
    Page(
        "ede-plus", pb.ede_plus, 2.0, ("ede+",), LU,
        "It is a smooth pair that never falls and gives every weight some gradient.",
        _smooth(pb.ede_plus, 2.0, "k tanh(s z)"), code="pb.ede_plus",
    ),
    Page(
        "react", replace(pb.shifted(pb.bnn, 0.5), name="ReAct"), 1.0, ("react",),
        "Liu et al., 2020 (ReActNet), as read by " + LU,
        "Use it when the weights of a channel are not centred on 0: the shift a is learned.",
        code="pb.shifted(pb.bnn, a)",
        note="BNN around a, drawn at a = 0.5. It inherits BNN's verdict and, moved by a, its P, T "
        "and r; P is known up to a constant only, and the picture has P(0) = 0.",
    ),
)  # fmt: skip
