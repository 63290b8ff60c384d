"""The strengths, unit, scale and phases of a run's method, as options that can be written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxbit.core import methods
from proxbit.core.methods import Method
from proxbit.core.scales import SCALES
from proxbit.core.schedules import Constant, Linear, Logarithmic, Schedule
from proxbit.train.config import Config
from proxbit.util.text import numbers

MOST = 0.6  # of the steps before hardening, in which a method sees signs by default
# The paper's strengths end with the last step.
FROZEN = {"default": 0.15, "paper": 0.0, "admitted": 0.15}


def resolve_method(config: Config, method: Method | None = None) -> Config:
    """The configuration with its method's own settings written out where none were asked for.

    The method is looked up unless it is given.

    A run keeps them: it goes on as it began even where another version has other defaults. What no
    option can say (a scale or a schedule of a special kind) stays open.

    >>> resolve_method(Config(method="bnn++")).strength, resolve_method(Config(method="bnn++")).unit
    ('1:3:log', 'current')
    """
    method = method or methods.method(config.method, config.settings)
    frozen = FROZEN[config.settings] if config.frozen is None else config.frozen
    own: dict[str, Any] = {"frozen": frozen, "sharp": min(method.sharp, MOST * (1 - frozen))}
    if method.binary:
        own |= {
            "strength": _spell(method.schedule),
            "input_strength": None if config.task == "BW" else _spell(method.input_schedule),
            "unit": method.unit,
            "scale": next((name for name, scale in SCALES.items() if scale == method.scale), None),
        }
    return replace(config, **{k: v for k, v in own.items() if getattr(config, k) is None})


def with_options(method: Method, config: Config) -> Method:
    """The method with the parts that the options of a run replace."""
    return methods.method(
        method, schedule=parse_strength(config.strength), scale=config.scale, unit=config.unit,  # type: ignore[arg-type]
        input_schedule=parse_strength(config.input_strength),
        sharp=(config.sharp or 0.0) / (1 - (config.frozen or 0.0)),
        sharp_strength=config.sharp_strength, learn_shift=config.learn_shift,
    )  # fmt: skip


def parse_strength(text: str | None) -> Schedule | None:
    """The schedule that FROM:TO, FROM:TO:log or one number stands for."""
    if text is None:
        return None
    log = text.endswith(":log")
    match numbers(text.removesuffix(":log")):
        case [start, end]:
            return (Logarithmic if log else Linear)(start, end)
        case [always] if not log:
            return Constant(always)
    raise ValueError(f"a strength is 5, 1:20 or 0.1:10:log, not {text!r}")


def _spell(schedule: Schedule | None) -> str | None:
    """A schedule as ``parse_strength`` reads it; None for any that it cannot read."""
    match schedule:
        case Linear(start, end):
            return f"{_number(start)}:{_number(end)}"
        case Logarithmic(start, end):
            return f"{_number(start)}:{_number(end)}:log"
        case Constant(value) if schedule != Constant():  # that of methods without a strength
            return _number(value)
    return None


def _number(value: float) -> str:
    """All digits of a number, and no more."""
    return repr(float(value)).removesuffix(".0")
