"""The paper's row names, each with its pair, schedule, rule, scale and unit.

This is the only place where a name becomes an object. Every method has two settings: ``default``
(what works for hard one-bit networks) and ``paper`` (what the paper states; see docs/methods.md).
Those that Corollary 1 admits have a third, ``admitted``: such a pair trains to the last step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from proxbit.core import pairs
from proxbit.core.pairs import Pair
from proxbit.core.scales import SCALES, UNITS, Scale, Unit, find_scale
from proxbit.core.schedules import AtLeast, Constant, Linear, Logarithmic, Schedule, check_schedule
from proxbit.util.text import require_known, unknown_name_message
from proxbit.util.user_objects import user_object

Point = Literal["latent", "quantized"]


@dataclass(frozen=True)
class Rule:
    """Where the gradient is taken and where the optimizer's step starts.

    ============================  ======================  =========================
    .                             step starts at latent   step starts at quantized
    ============================  ======================  =========================
    gradient at quantized         PC and all of PC++      PQ
    gradient at latent            PTB (plain training)    rPC
    ============================  ======================  =========================
    """

    gradient_at: Point = "quantized"
    start_from: Point = "latent"


PC = Rule("quantized", "latent")
PQ = Rule("quantized", "quantized")
RPC = Rule("latent", "quantized")
PTB = Rule("latent", "latent")


@dataclass(frozen=True)
class Method:
    """Everything that turns a float layer into a trainable binary one.

    Attributes:
        name: The paper's row name.
        pair: Forward and backward quantizer of the weights.
        schedule: Strength of the pair over the run.
        rule: Where the gradient is taken and where the step starts.
        scale: The float beside the bits.
        unit: What the pair takes for one: "one" (raw weights), "current" or "initial" mean|w|.
        input_pair: Quantizer of the layer's input in BWA and BWAA; None means ``pair``.
        input_schedule: Its strength over the run; None means ``schedule``.
        input_rule: PTB leaves inputs alone while training; every other method quantizes them.
        sharp: Share of ``attach``'s steps, the last ones, in which the network sees the sign of F
            while the gradient keeps B: what trains then is the hard network.
        sharp_strength: Strength of the weights' pair there; None means the schedule's last.
        clip: Bound of the latent weights after each step where they have no scale; None for none.
        by_rate: The schedule gives lambda, and the strength is learning rate times lambda over
            the unit: the step of a proximal-gradient method.
        learn_shift: Learn one shift per output channel (and per input channel in BWA).
        binary: False for the float baseline, which ``harden`` leaves alone.
        relu: What replaces a ReLU in front of a binary input; None: whatever suits the pair.
    """

    name: str
    pair: Pair
    schedule: Schedule = field(default_factory=Constant)
    rule: Rule = PC
    scale: Scale = SCALES["channel"]
    unit: Unit = "one"
    input_pair: Pair | None = None
    input_schedule: Schedule | None = None
    input_rule: Rule = PC
    sharp: float = 0.0
    sharp_strength: float | None = None
    clip: float | None = None
    by_rate: bool = False
    learn_shift: bool = False
    binary: bool = True
    relu: type[nn.Module] | None = None


_TIED = replace(pairs.prox_connect(varrho=None), name="LQ")
_proximal = Method(
    "PQ", _TIED, Linear(0.0, 0.3), PQ, Scale("unit"), "initial", clip=1.0, by_rate=True,
    input_pair=pairs.prox_connect(), input_schedule=Linear(0, 1),
)  # fmt: skip
_soft = Method(
    "BNN++", pairs.bnn_plus_plus, Logarithmic(1, 3), scale=SCALES["ls"], unit="current",
    input_schedule=Linear(1, 5), sharp=0.5,
)  # fmt: skip

METHODS: dict[str, Method] = {
    "fp": Method("FP", pairs.full_precision, scale=SCALES["none"], binary=False),
    "ptb": Method("PTB", pairs.binary_connect, rule=PTB, input_rule=PTB),
    "bc": Method("BC", pairs.binary_connect, clip=1.0),
    "pc": Method("PC", pairs.prox_connect(), Linear(0, 2), unit="current"),
    "pq": _proximal,
    "rpc": replace(_proximal, name="rPC", rule=RPC),
    "bnn": Method("BNN", pairs.bnn, clip=1.0),
    "bnn+": Method(
        "BNN+", pairs.bnn_plus, Constant(0.5), unit="initial", input_schedule=Constant(2)
    ),
    "bnn++": _soft,
    "bnn++prox": Method(
        "BNN++ prox", pairs.swish_of_prox(), Linear(0, 2), scale=SCALES["ls"], unit="current",
        input_pair=pairs.bnn_plus, input_schedule=Linear(1, 5),
    ),
    "bi-real": Method("Bi-Real", pairs.bi_real),
    "r-bnn": Method(
        "R-BNN", pairs.r_bnn, Logarithmic(1e-2, 1e1),
        input_schedule=AtLeast(1.0, Logarithmic(1e-2, 1e1)),
    ),
    "poly+": replace(_soft, name="Poly+", pair=pairs.poly_plus),
    "ede": Method("EDE", pairs.ede, Logarithmic(1e-1, 1e1)),
    "ede+": replace(_soft, name="EDE+", pair=pairs.ede_plus),
    "react": Method("ReAct", pairs.bnn, learn_shift=True),
}  # fmt: skip


def _consistent(method: Method) -> Method:
    """Measure as the scale does: PQ and rPC write the quantized weight back.

    With mean|w| measured anew each time, clipping at the mean would lower the mean, and so on to 0.
    """
    if method.rule.start_from == "latent" or method.scale.kind == "unit":
        return method
    if method.scale.kind == "none":
        return replace(method, unit="one")
    return replace(method, scale=replace(method.scale, kind="unit"), unit="initial")


# In the paper's settings all methods are trained alike.
_PAPER_RELU = nn.Hardtanh
# What the paper states: one mean|w| per layer, the raw weight inside the pair (except the linear
# quantizer, which is defined for the set {-s, +s}), its own strengths. PC, PQ and rPC have "the
# same" linear quantizer, "similar to" ProxQuant's: varrho tied to rho. R-BNN's code never lets the
# strength of inputs fall below 1; Poly+ has its B.
_SAME_LINE: dict[str, object] = {
    "pair": _TIED, "schedule": Linear(0.01, 10), "by_rate": False, "input_pair": None,
    "input_schedule": None,
}  # fmt: skip
_STATED: dict[str, dict[str, object]] = {
    **dict.fromkeys(("pc", "pq", "rpc"), _SAME_LINE),
    "bnn+": {"schedule": Constant(5), "unit": "one", "input_schedule": None},
    "bnn++": {"schedule": Linear(5, 30), "unit": "one", "input_schedule": None},
    "bnn++prox": {"schedule": Linear(0.01, 10), "input_schedule": Linear(5, 30)},
    "poly+": {
        "schedule": Logarithmic(1e-2, 1e1), "unit": "one",
        "input_schedule": AtLeast(1.0, Logarithmic(1e-2, 1e1)),
    },
    "ede+": {"schedule": Logarithmic(1e-1, 1e1), "unit": "one", "input_schedule": None},
}  # fmt: skip


def _as_stated(name: str, method: Method) -> Method:
    scale = method.scale if name == "fp" else SCALES["layer"]
    alike = replace(method, scale=scale, sharp=0.0, relu=_PAPER_RELU)
    return _consistent(replace(alike, **_STATED.get(name, {})))  # type: ignore[arg-type]


PAPER: dict[str, Method] = {name: _as_stated(name, method) for name, method in METHODS.items()}

# Without the signs at the end, which make (sign, B) of (F, B); the strength rises further instead.
_TO_THE_END: dict[str, Schedule] = {
    "bnn++": Logarithmic(1, 20), "poly+": Logarithmic(1, 40), "ede+": Logarithmic(1, 40),
}  # fmt: skip
_ADMITTED_AS_THEY_ARE = ("fp", "bc", "pc", "bnn", "bnn++prox", "react")
ADMITTED: dict[str, Method] = {name: METHODS[name] for name in _ADMITTED_AS_THEY_ARE} | {
    name: replace(METHODS[name], sharp=0.0, schedule=schedule)
    for name, schedule in _TO_THE_END.items()
}

SETTINGS: dict[str, dict[str, Method]] = {
    "default": METHODS, "paper": PAPER, "admitted": ADMITTED,
}  # fmt: skip

_ALIASES = {
    "fullprecision": "fp", "float": "fp", "binaryconnect": "bc", "proxconnect": "pc",
    "proxquant": "pq", "reverseproxconnect": "rpc", "reactnet": "react", "rbnn": "r-bnn",
    "bireal": "bi-real", "birealnet": "bi-real",
}  # fmt: skip


def method(
    name: str | Method | Pair,
    settings: str = "default",
    *,
    schedule: Schedule | None = None,
    rule: Rule | None = None,
    scale: Scale | str | None = None,
    unit: Unit | None = None,
    input_pair: str | Method | Pair | None = None,
    input_schedule: Schedule | None = None,
    sharp: float | None = None,
    sharp_strength: float | None = None,
    learn_shift: bool | None = None,
) -> Method:
    """Find a method by its name, or make one of a bare pair, with any part replaced.

    >>> method("bnn_plus_plus").name, method("Bi-Real").name
    ('BNN++', 'Bi-Real')
    >>> method("bnn++", "paper", scale="channel", schedule=Linear(1, 10)).schedule
    Linear(start=1, end=10)

    Args:
        name: A name such as "bnn++", FILE.py:NAME for a pair or method of your own (the file is
            executed), a :class:`Pair`, or a :class:`Method`.
        settings: Of a name: "default" (best hard accuracy), "paper" (what the paper states) or
            "admitted" (a pair that Corollary 1 admits, to the last step).
        schedule: Strength of the weights' pair over the run.
        rule: Where the gradient is taken and where the step starts.
        scale: "none", "layer", "channel", "ls", "ls-layer" or a :class:`Scale`.
        unit: What the pair takes for one: "one" (raw weights), "current" or "initial" mean|w|.
        input_pair: Pair of the inputs in BWA and BWAA, or the method whose inputs these are to be.
        input_schedule: Strength of the inputs' pair in BWA and BWAA.
        sharp: Share of the steps, the last ones, in which the network sees signs.
        sharp_strength: Strength of the weights' pair there.
        learn_shift: Whether to learn a shift per output channel, and per input channel in BWA.
    """
    if rule is not None and not isinstance(rule, Rule):
        raise TypeError(f"rule= is a Rule, such as proxbit.core.methods.PQ; it is {rule!r}")
    found = _resolve(name, settings)
    changes = {
        "schedule": schedule, "rule": rule, "unit": unit, "input_schedule": input_schedule,
        "sharp": sharp, "sharp_strength": sharp_strength, "learn_shift": learn_shift,
    }  # fmt: skip
    if settings == "paper":
        found = replace(found, relu=found.relu or _PAPER_RELU)
    if input_pair is not None:
        found = _with_inputs_of(found, input_pair, settings)
    if scale is not None:
        found = replace(found, scale=find_scale(scale))
    given = {key: value for key, value in changes.items() if value is not None}
    return _checked(_consistent(replace(found, **given)))  # type: ignore[arg-type]


def _with_inputs_of(method: Method, name: str | Method | Pair, settings: str) -> Method:
    """The method with the binary inputs of another one; Corollary 1 is about weights only."""
    other = _resolve(name, "default" if settings == "admitted" else settings)
    pair, schedule = other.input_pair or other.pair, other.input_schedule or other.schedule
    return replace(method, input_pair=pair, input_schedule=schedule)


def _checked(made: Method) -> Method:
    require_known("unit", made.unit, UNITS)
    for used in (made.schedule, made.input_schedule or made.schedule):
        check_schedule(used)
    if not 0 <= made.sharp <= 1:
        raise ValueError(f"sharp= is a share of the steps, from 0 to 1, not {made.sharp}")
    if made.sharp_strength is not None:
        check_schedule(Constant(made.sharp_strength))
    return made


def _resolve(name: str | Method | Pair, settings: str) -> Method:
    if isinstance(name, Method):
        return name
    if isinstance(name, Pair):
        return Method(name.name, name)
    if not isinstance(name, str):
        raise TypeError(
            f"a method is a name, a Method or a Pair, not {type(name).__name__}: "
            f"try one of {', '.join(METHODS)}"
        )
    require_known("settings", settings, SETTINGS)
    if ".py:" in name:
        return _resolve(user_object(name, Pair, Method), settings)
    key = _key(name)
    if key not in SETTINGS[settings]:
        raise ValueError(
            f"{METHODS[key].name} has no admitted settings: Corollary 1 refuses its pair or its "
            f"rule; take one of {', '.join(ADMITTED)}"
        )
    return SETTINGS[settings][key]


def _key(name: str) -> str:
    """bnn_plus_plus, BNN++ and 'bnn plus plus' all mean 'bnn++'."""
    bare = re.sub(r"[\s_\-]+", "", name.lower().replace("plus", "+"))
    by_bare = {key.replace("-", ""): key for key in METHODS}
    key = by_bare.get(bare) or _ALIASES.get(bare)
    if key is None:
        raise ValueError(unknown_name_message("method", name, METHODS))
    return key
