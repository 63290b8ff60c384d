"""The settings of a run that its method, its length and its number of images decide."""

from __future__ import annotations

import math
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
    method = method or method_of(config)
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


def method_of(config: Config) -> Method:
    """The method of a run as the catalogue or the user's file has it, with the inputs asked for."""
    return methods.method(config.method, config.settings, input_pair=config.input_pair)


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


STRENGTHS = ("none", "crop", "timm")  # the weakest first
LONG = 50  # epochs from which on the whole recipe of DeiT pays
BATCH_SIZE, SMALL_BATCH_SIZE = 128, 32
FEW_STEPS = 50  # in an epoch of the larger batches
FLOAT_VIEWS = 4_000  # images that a float stage sees at least, a few epochs at most


def augmentation_for(epochs: int) -> str:
    """The augmentation of a transformer: what a short run cannot learn from costs it points.

    In a single epoch every image is new as it is.

    >>> [augmentation_for(epochs) for epochs in (1, 4, 100)]
    ['none', 'crop', 'timm']
    """
    if epochs == 1:
        return "none"
    return "timm" if epochs >= LONG else "crop"


def weaker(given: str | None, other: str) -> str:
    """The weaker of two augmentations.

    >>> weaker("none", "crop"), weaker("timm", "crop"), weaker(None, "crop")
    ('none', 'crop', 'crop')
    """
    return min(given or other, other, key=STRENGTHS.index)


def batch_size_for(images: int, pretrained_transformer: bool) -> int:
    """Images per step: of few images a transformer learns more in more steps.

    >>> batch_size_for(2_000, True), batch_size_for(50_000, True), batch_size_for(2_000, False)
    (32, 128, 128)
    """
    few = images < FEW_STEPS * BATCH_SIZE
    return min(SMALL_BATCH_SIZE if few and pretrained_transformer else BATCH_SIZE, images)


def float_epochs_for(images: int) -> int:
    """Epochs of the float stage after its classifier was fitted: fewer, the more images there are.

    >>> float_epochs_for(2_000), float_epochs_for(50_000), float_epochs_for(100)
    (2, 1, 3)
    """
    return min(max(math.ceil(FLOAT_VIEWS / max(images, 1)), 1), 3)
