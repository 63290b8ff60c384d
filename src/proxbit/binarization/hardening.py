"""Ending a run: exact +-scale weights, and batch-norm statistics that fit them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.binarization.conversion import binary_weights, quantizers
from proxbit.nn import BinaryWeight, InputQuantizer
from proxbit.nn.probing import call, run, warn_of_unused
from proxbit.util.text import percent


@dataclass(frozen=True)
class Gap:
    """How far the hard network is from the soft one it came from.

    Attributes:
        method: The method that was hardened.
        layers: Relative change of each weight, ||hard - soft|| / ||soft||, by name.
        outputs: Relative change of the outputs on the example; None without one.
        agreement: Share of the example's largest outputs that stayed; None without one.
    """

    method: str
    layers: dict[str, float]
    outputs: float | None = None
    agreement: float | None = None

    def __str__(self) -> str:
        """One line."""
        worst = max(self.layers, key=lambda name: self.layers[name])
        mean = sum(self.layers.values()) / len(self.layers)
        text = (
            f"hardened {len(self.layers)} weights ({self.method}): they changed by "
            f"{percent(mean)} on average, {percent(self.layers[worst])} at most ({worst})"
        )
        if self.outputs is not None:
            text += f"; outputs by {percent(self.outputs)}"
        if self.agreement is not None:
            text += f", {percent(self.agreement)} of the decisions stayed"
        return text


def harden(
    model: nn.Module,
    example: Any = None,
    *,
    tell: Callable[[str], object] | None = print,
) -> nn.Module:
    """Make every binary weight exactly +-scale, in place, and return the model.

    The sign of F(w) is final, with the scale that matches the soft weight best in least squares.
    Signs no longer train; norms, biases and float layers do. Inputs become hard signs as well, and
    keep their backward map. A model that is hard already stays as it is.

    Args:
        model: A binarized model.
        example: An input (or tuple of inputs, or dict of keywords) on which to measure the gap. A
            warning names binary weights that the model does not use there.
        tell: Where the line about the soft-to-hard gap goes; None for nowhere.
    """
    weights = binary_weights(model)
    if not weights:
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    weights = [weight for weight in weights if weight.quantizer.method.binary]
    if not weights:
        _say(tell, "FP is the float baseline: nothing to harden")
        return model
    if all(weight.quantizer.hard for weight in weights):
        _say(tell, "the model is hard already: nothing changed")
        return model
    if example is not None:
        warn_of_unused(model, example)
    before = None if example is None else _outputs(model, example)
    gaps = _harden_weights(weights)
    for quantizer in quantizers(model):
        quantizer.hard = quantizer.hard or isinstance(quantizer, InputQuantizer)
    after = None if example is None else _outputs(model, example)
    names = ", ".join(dict.fromkeys(weight.quantizer.method.name for weight in weights))
    _say(tell, str(Gap(names, gaps, *_compare(before, after))))
    return model


def sharpen(model: nn.Module) -> nn.Module:
    """Let the network see signs from now on while latent weights go on training; in place.

    The forward map gets a sign behind it, the backward map stays: what trains is the hard network,
    so nothing is lost when ``harden`` follows. ``attach`` does this by itself for methods with a
    ``sharp`` share; this is for a moment of one's own choice. A hard pair is sharp already.
    """
    if not binary_weights(model):
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    floats = {w.quantizer for w in binary_weights(model) if not w.quantizer.method.binary}
    for quantizer in quantizers(model):
        quantizer.sharp = quantizer not in floats
    return model


def hardened(model: nn.Module) -> nn.Module:
    """A hard copy in eval mode, to measure a network in the middle of its training."""
    return harden(copy.deepcopy(model), tell=None).eval()


def _harden_weights(weights: list[BinaryWeight]) -> dict[str, float]:
    """Write the hard weights; every value is computed before the first is written."""
    values = [weight.quantizer.hardened(weight.latent) for weight in weights]
    gaps = {}
    for weight, hard in zip(weights, values, strict=True):
        gaps[weight.name] = _relative(hard, weight.quantizer.proximal(weight.latent))
    for weight, hard in zip(weights, values, strict=True):
        weight.write(hard)
        weight.quantizer.hard = True
        weight.settle()
    return gaps


def _outputs(model: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad():
        return run(model, example)


def _compare(
    before: list[Tensor] | None, after: list[Tensor] | None
) -> tuple[float | None, float | None]:
    if not before or not after:
        return None, None
    agreement = None
    if before[0].dim() >= 2 and before[0].shape[-1] > 1:
        agreement = float((before[0].argmax(-1) == after[0].argmax(-1)).float().mean())
    flat = [torch.cat([t.flatten().float() for t in side]) for side in (after, before)]
    return _relative(*flat), agreement


def _relative(new: Tensor, old: Tensor) -> float:
    return float((new - old).norm() / old.norm().clamp_min(torch.finfo(old.dtype).tiny))


def _say(tell: Callable[[str], object] | None, text: str) -> None:
    if tell is not None:
        tell(text)


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate batch-norm statistics anew, as the plain average over ``batches``; in place.

    After hardening, the running statistics still describe the soft network. Everything else is in
    eval mode meanwhile. A batch is an input, a dict of keywords, or what a loader yields: a tuple
    or list whose first item is the input. If a batch fails, the old statistics stay.
    """
    kind = nn.modules.batchnorm._BatchNorm
    norms = [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]
    old = [({k: v.clone() for k, v in m.state_dict().items()}, m.momentum) for m in norms]
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        for m in norms:
            m.reset_running_stats()
            m.momentum, m.training = None, True  # None: the cumulative average
        _run_all(model, batches)
    except BaseException:
        for m, (state, _) in zip(norms, old, strict=True):
            m.load_state_dict(state)
        raise
    finally:
        for m, (_, momentum) in zip(norms, old, strict=True):
            m.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    return model


def _run_all(model: nn.Module, batches: Iterable[Any]) -> None:
    count = 0
    with torch.no_grad():
        for batch in batches:
            call(model, batch[0] if isinstance(batch, tuple | list) else batch)
            count += 1
    if not count:
        raise ValueError("recalibrate got no batches: pass some inputs, or a data loader")
