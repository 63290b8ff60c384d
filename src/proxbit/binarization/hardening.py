"""Ending a run: exact +-scale weights, and batch-norm statistics that fit them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.nn import BinaryWeight, InputQuantizer
from proxbit.nn.model_weights import quantizers, require_binarized
from proxbit.nn.probing import call_all, run, warn_of_unused
from proxbit.util.modes import eval_mode
from proxbit.util.text import percent


@dataclass(frozen=True)
class Gap:
    """How far the hard network is from the soft one; prints as one line.

    Attributes:
        method: The method, or several.
        layers: Relative change of each weight, ||hard - soft|| / ||soft||, by name.
        outputs: Relative change of the outputs on the example; None without one.
        agreement: Share of the example's largest outputs that stay; None without one.
    """

    method: str
    layers: dict[str, float]
    outputs: float | None = None
    agreement: float | None = None

    @property
    def mean(self) -> float:
        """The change of a weight tensor on average."""
        return sum(self.layers.values()) / max(len(self.layers), 1)

    @property
    def worst(self) -> str:
        """The name of the weight that changes most; empty if there are none."""
        return max(self.layers, key=lambda name: self.layers[name], default="")

    def __str__(self) -> str:
        """One line."""
        if not self.layers:
            return f"{self.method} is the float baseline: there is nothing to harden"
        text = (
            f"hardening changes {len(self.layers)} weights ({self.method}) by {percent(self.mean)} "
            f"on average, {percent(self.layers[self.worst])} at most ({self.worst})"
        )
        if self.outputs is not None:
            text += f"; outputs by {percent(self.outputs)}"
        if self.agreement is not None:
            text += f", {percent(self.agreement)} of the decisions stay"
        return text


def gap(model: nn.Module, example: Any = None) -> Gap:
    """Measure how much :func:`harden` would change the model; the model stays as it is.

    Call it before ``harden``, or at any moment of the training. For a hard model every figure is 0.

    Args:
        model: A binarized model.
        example: An input (or tuple of inputs, or dict of keywords) on which to compare the outputs
            of the model with those of a hard copy. A warning names binary weights that the model
            does not use there.
    """
    every = require_binarized(model)
    weights = [weight for weight in every if weight.quantizer.method.binary]
    names = ", ".join(dict.fromkeys(weight.quantizer.method.name for weight in weights or every))
    layers = {weight.name: _change(weight) for weight in weights}
    if example is None or not weights:
        return Gap(names, layers)
    warn_of_unused(model, example)
    with torch.no_grad():
        soft, hard = run(model, example), run(hardened(model), example)
    return Gap(names, layers, *_compare(soft, hard))


def harden(model: nn.Module) -> nn.Module:
    """Make every binary weight exactly +-scale, in place, and return the model.

    The sign of F(w) is final, with the scale that matches the soft weight best in least squares.
    Signs no longer train; norms, biases and float layers do. Inputs become hard signs as well, and
    keep their backward map. A model that is hard already stays as it is. To know how much this
    changes, call :func:`gap` first.
    """
    weights = [w for w in require_binarized(model) if w.quantizer.method.binary]
    if all(weight.quantizer.hard for weight in weights):
        return model
    # Every value is computed before the first is written: weights may share a Parameter.
    values = [weight.quantizer.hardened(weight.latent) for weight in weights]
    for weight, (bits, scale) in zip(weights, values, strict=True):
        weight.harden(bits, scale)
    for quantizer in quantizers(model):
        quantizer.hard = quantizer.hard or isinstance(quantizer, InputQuantizer)
    return model


def sharpen(model: nn.Module) -> nn.Module:
    """Let the network see signs from now on while the latent weights keep training; in place.

    The forward map gets a sign behind it, the backward map stays: what trains is the hard network,
    so nothing is lost when ``harden`` follows. ``attach`` does this by itself for methods with a
    ``sharp`` share; call this to choose the moment yourself. A hard pair is sharp already.
    """
    floats = {w.quantizer for w in require_binarized(model) if not w.quantizer.method.binary}
    for quantizer in quantizers(model):
        quantizer.sharp = quantizer not in floats
    return model


def hardened(model: nn.Module) -> nn.Module:
    """Return a hard copy in eval mode, to measure a network in the middle of its training."""
    return harden(copy.deepcopy(model)).eval()


def _change(weight: BinaryWeight) -> float:
    quantizer, latent = weight.quantizer, weight.latent
    if quantizer.hard:
        return 0.0
    bits, scale = quantizer.hardened(latent)
    return _relative(bits * scale, quantizer.proximal(latent))


def _compare(before: list[Tensor], after: list[Tensor]) -> tuple[float | None, float | None]:
    if not before:
        return None, None
    agreement = None
    if before[0].dim() >= 2 and before[0].shape[-1] > 1:
        agreement = float((before[0].argmax(-1) == after[0].argmax(-1)).float().mean())
    flat = [torch.cat([t.flatten().float() for t in side]) for side in (after, before)]
    return _relative(*flat), agreement


def _relative(new: Tensor, old: Tensor) -> float:
    return float((new - old).norm() / old.norm().clamp_min(torch.finfo(old.dtype).tiny))


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate batch-norm statistics again, as the plain average over ``batches``; in place.

    After hardening, the running statistics still describe the soft network. Meanwhile everything
    else is in eval mode. A batch is an input, a dict of keywords, or what a loader yields: a tuple
    or list whose first item is the input. If a batch fails, the old statistics stay.
    """
    kind = nn.modules.batchnorm._BatchNorm
    norms = [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]
    old = [({k: v.clone() for k, v in m.state_dict().items()}, m.momentum) for m in norms]
    try:
        with eval_mode(model), torch.no_grad():
            for m in norms:
                m.reset_running_stats()
                m.momentum, m.training = None, True  # None: the cumulative average
            call_all(model, batches, "recalibrate")
    except BaseException:
        for m, (state, _) in zip(norms, old, strict=True):
            m.load_state_dict(state)
        raise
    finally:
        for m, (_, momentum) in zip(norms, old, strict=True):
            m.momentum = momentum
    return model
