"""Maps, strengths and rules in plain text: one source for the pages and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxbit.core import maps, pairs, prox
from proxbit.core.methods import PC, PQ, PTB, RPC, Method, Rule
from proxbit.util.text import percent

LETTERS = "s is the strength, k = max(1/s, 1), a a learned shift per output channel"
SIGNS = (
    "signs: in the last steps the network sees the sign of F, and what trains is (sign of F, B);\n"
    "       with --settings admitted (F, B) trains to the end, at a strength that rises further"
)
RULES: dict[Rule, str] = {PC: "PC", PQ: "PQ", RPC: "rPC", PTB: "PTB"}


@dataclass(frozen=True)
class Formula:
    """One elementwise map in plain text.

    Attributes:
        short: As it stands in a narrow table.
        full: With the meaning of its own letters; ``short`` again where it has none.
    """

    short: str
    full: str

    def shifted(self) -> Formula:
        """The same map around a shift a, as ReAct learns it.

        >>> formula(maps.sign).shifted().full
        'sign(w - a)'
        """
        return Formula(self.short.replace("w", "w - a"), self.full.replace("w", "w - a"))


def _formula(short: str, rest: str = "") -> Formula:
    return Formula(short, short + rest)


FORMULAS: dict[Callable[..., Any], Formula] = {
    maps.identity: _formula("w"),
    maps.one: _formula("1"),
    maps.sign: _formula("sign(w)"),
    maps.inside: _formula("1[|w| <= 1]"),
    maps.triangle: _formula("max(2 - 2|w|, 0)"),
    maps.sign_swish: _formula("SS(w)", " = tanh u + u sech² u, u = s w / 2"),
    maps.sign_swish_slope: _formula("SS'(w)", " = s sech² u (1 - u tanh u)"),
    maps.peaked_swish: _formula(
        "SS(w) / 1.1997", ", held at ±1 beyond the peak of SS at |w| = 2.3994 / s"
    ),
    maps.peaked_swish_slope: _formula("SS'(w) / 1.1997", ", and 0 beyond the peak"),
    maps.poly: _formula("k (√2 z - z|z|/2)", ", z = s w within ±√2"),
    maps.poly_slope: _formula("max(k s (√2 - |z|), 0)"),
    maps.soft_sign: _formula("k tanh(s w)"),
    maps.soft_sign_slope: _formula("k s sech²(s w)"),
    pairs.prox_swish: _formula("SS(L(w)) / SS(1)", ", SS at strength 0.5, exactly ±1 where L is"),
    pairs.prox_swish_slope: _formula("SS'(L(w)) / SS(1)", ", SS at strength 0.5"),
    prox.linear_quantizer: _formula("L(w)", ": a line, then ±1 from |w| = 1 - s on"),
}
_WITHOUT_STRENGTH = (maps.identity, maps.sign, maps.one, maps.inside, maps.triangle)


def formula(f: Callable[..., Any]) -> Formula:
    """The formula of a map of the catalogue, partially applied or not.

    >>> formula(maps.sign_swish).short, formula(maps.poly).full
    ('SS(w)', 'k (√2 z - z|z|/2), z = s w within ±√2')
    """
    return FORMULAS[f.func if isinstance(f, partial) else f]


def formulas(method: Method) -> tuple[Formula, Formula]:
    """F and B of a method."""
    pair = method.pair
    forward, backward = formula(pair.forward), formula(pair.backward)
    return (forward.shifted(), backward.shifted()) if method.learn_shift else (forward, backward)


def strength(method: Method) -> str:
    """The strength of a method over a run; "none" where its maps have none.

    >>> from proxbit.core.methods import METHODS
    >>> [strength(METHODS[key]) for key in ("bc", "bnn++", "pq")]
    ['none', '1 to 3, log; 50 % signs', 'rate times λ, λ 0 to 0.3']
    """
    pair = method.pair
    if pair.forward in _WITHOUT_STRENGTH and pair.backward in _WITHOUT_STRENGTH:
        return "none"
    words = f"rate times λ, λ {method.schedule}" if method.by_rate else str(method.schedule)
    return f"{words}; {percent(method.sharp)} signs" if method.sharp else words


def input_strength(method: Method) -> str:
    """The strength of a method's inputs over a run; empty where it is that of the weights.

    >>> from proxbit.core.methods import METHODS
    >>> input_strength(METHODS["bnn++"]), input_strength(METHODS["bc"])
    ('1 to 5', '')
    """
    return "" if method.input_schedule is None else str(method.input_schedule)
