"""Settings that cannot work on the given weights: said once, with numbers and the fix."""

from __future__ import annotations

import warnings

import torch

from proxbit.core.methods import METHODS, Method
from proxbit.core.schedules import Schedule
from proxbit.nn import BinaryWeight
from proxbit.util.notices import SettingsWarning
from proxbit.util.text import alike, few, percent

_ENOUGH = 100_000  # weights looked at per layer


def warn_once(problems: list[str], stacklevel: int = 3) -> None:
    """Warn once about everything that ``binarize`` can see is wrong."""
    if problems:
        warnings.warn("; ".join(problems), SettingsWarning, stacklevel=stacklevel)


def frozen(weights: list[BinaryWeight]) -> list[str]:
    """Weights that no optimizer will move."""
    found = [w for w in weights if not w.parameter.requires_grad and not w.quantizer.hard]
    if not found or not found[0].quantizer.method.binary:
        return []
    return [
        f"{len(found)} of {len(weights)} binary weights are frozen (requires_grad=False: "
        f"{few(alike(w.name for w in found))}), so their signs cannot train: unfreeze them, or "
        "leave them float with skip="
    ]


def strengths(weights: list[BinaryWeight]) -> list[str]:
    """Too strong at the start (B negative), or too weak at the end (nothing binarizes)."""
    method = weights[0].quantizer.method
    if method.by_rate or not method.binary:
        return []
    negative = _share(weights, method.schedule(0.0), "negative")
    if negative > 0.5:
        return [
            f"{method.name}: at the first strength {method.schedule(0.0):g} the backward map is "
            f"negative on {percent(negative)} of the weights, which then move the wrong way: "
            f"start lower, or measure in another unit (now {method.unit!r}){_default_hint(method)}"
        ]
    if method.sharp:  # the network sees signs long before it is hardened
        return []
    highest = max(method.schedule(i / 20) for i in range(21))
    hard = _share(weights, highest, "hard")
    if hard < 0.5:
        return [
            f"{method.name}: at the last strength {highest:g} only {percent(hard)} of "
            f"the weights are within 5 % of +-scale, so hardening will change the network: "
            f"end higher, or measure in another unit (now {method.unit!r}){_default_hint(method)}"
        ]
    return []


def _share(weights: list[BinaryWeight], strength: float, what: str) -> float:
    """Share of the weights whose B is negative, or whose F is within 5 % of +-1."""
    hits = total = 0.0
    for weight in weights:
        pair, w = weight.quantizer.pair, weight.latent
        if w.is_meta:
            continue
        z = weight.quantizer.units(w).flatten()
        z = z[:: max(1, z.numel() // _ENOUGH)]
        s = torch.tensor(float(strength), device=z.device)
        if what == "negative":
            found = pair.backward(z, s) < 0
        else:
            found = (pair.forward(z, s).abs() - 1).abs() <= 0.05
        hits, total = hits + float(found.float().mean()) * w.numel(), total + w.numel()
    return hits / total if total else float(what == "hard")


def _default_hint(method: Method) -> str:
    usual = METHODS.get(method.name.lower())
    if usual is None or usual.schedule == method.schedule:
        return ""
    return f"; the default is {usual.schedule} in unit {usual.unit!r}"


def warn_of_freezing(method: Method, steps: int) -> None:
    """PQ and rPC with a threshold per step: every sign is pinned once the thresholds sum to 1."""
    if method.by_rate or method.rule.start_from != "quantized":
        return
    pinned = _steps_to_sum_one(method.schedule, steps)
    if pinned is not None and pinned < steps / 2:
        warnings.warn(
            f"{method.name}: a threshold of {method.schedule(0.0):g} and more at every step pins "
            f"every weight to its sign after about {pinned} of {steps} steps, and none can flip "
            f"again: use settings='default' (threshold = learning rate times lambda)",
            SettingsWarning,
            stacklevel=4,
        )


def _steps_to_sum_one(schedule: Schedule, steps: int) -> int | None:
    total = 0.0
    for step in range(steps):
        total += schedule(step / max(steps - 1, 1))
        if total >= 1:
            return step + 1
    return None
