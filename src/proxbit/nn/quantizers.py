"""Quantizers as modules: a pair with its present strength, on a weight or on an input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.core import maps
from proxbit.core.methods import Method, Rule
from proxbit.core.pairs import Pair
from proxbit.core.scales import floor_at_tiny
from proxbit.core.schedules import Schedule
from proxbit.kernels import training as fused
from proxbit.nn.autograd import in_units, surrogate_gradient
from proxbit.nn.step_counter import StepCounter


def whole(t: Tensor) -> Tensor:
    """The full tensor behind a sharded one (FSDP2); inside a forward all are full already."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


class Quantizer(nn.Module):
    """The common part of weight and input quantizers: a pair, its strength, and how they are saved.

    The strength is a 0-d buffer, so that moving it never recompiles a graph, and so is ``signs``;
    whoever copies buffers, as ``AveragedModel`` does, copies both. None of the state adds a key to
    the state_dict: it travels in the state_dict's metadata, so a float checkpoint loads into a
    binarized model and back.

    Attributes:
        strength: The present strength of the pair.
        signs: Above 0 while the quantizer is sharp.
        counter: The optimizer steps taken so far.
        hard: Whether ``harden`` has replaced the forward map by the sign, for good.
    """

    strength: Tensor
    signs: Tensor

    def __init__(
        self, method: Method, pair: Pair, schedule: Schedule, rule: Rule, like: Tensor,
        counter: StepCounter | None,
    ) -> None:  # fmt: skip
        """Start the schedule at progress 0, on the device of ``like``."""
        super().__init__()
        self.method, self.pair, self.schedule, self.rule = method, pair, schedule, rule
        self.counter = StepCounter() if counter is None else counter
        self.hard = False
        # Whether weights were loaded without this state: from a float checkpoint.
        self.stale = False
        dtype = torch.promote_types(like.dtype, torch.float32)
        start = torch.tensor(float(schedule(0.0)), device=like.device, dtype=dtype)
        self.register_buffer("strength", start, persistent=False)
        self.register_buffer("signs", torch.zeros_like(start), persistent=False)
        self._sharp, self._read = False, (0, 0)

    @property
    def sharp(self) -> bool:
        """Whether a sign stands behind the forward map while training goes on.

        The buffer is read only after somebody wrote to it, since reading waits for the device.
        """
        mark = _mark(self.signs)
        if mark != self._read and not self.counter.attached and not self.signs.is_meta:
            self._sharp, self._read = bool(self.signs > 0), mark
        return self._sharp

    @sharp.setter
    def sharp(self, value: bool) -> None:
        self._sharp = value
        self.signs.fill_(float(value))
        self._read = _mark(self.signs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the module; ``to_empty`` would leave an arbitrary value in ``signs``."""
        sharp = self.sharp
        moved = super()._apply(fn, recurse)
        self.sharp = sharp
        return moved

    def set_strength(self, strength: float | Tensor) -> None:
        """Set the strength in place; a tensor is trusted, a number is checked."""
        if isinstance(strength, Tensor):
            self.strength.copy_(strength)
            return
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"a strength is a finite number >= 0, not {strength}")
        self.strength.fill_(strength)

    def looks_through(self) -> bool:
        """Whether the network sees the latent values now: in training, under PTB and rPC."""
        return self.training and not self.hard and self.rule.gradient_at == "latent"

    def forward_map(self, z: Tensor) -> Tensor:
        """F(z), or its sign while the quantizer is sharp."""
        f = self.pair.forward(z, self.strength)
        if fused.watched() and not self.pair.hard:  # one graph for both
            return torch.where(self.signs > 0, maps.sign(f), f)
        return maps.sign(f) if self._sharpens() else f

    def _sharpens(self) -> bool:
        return not self.pair.hard and not fused.watched() and self.sharp

    def saved(self) -> dict[str, Any]:
        """The state as plain numbers."""
        numbers = {"strength": float(self.strength), "step": self.counter.step}
        return numbers | {"hard": self.hard, "sharp": self.sharp}

    def restored(self, state: dict[str, Any]) -> None:
        """Take the state back."""
        self.set_strength(float(state["strength"]))
        self.counter.step, self.hard = int(state["step"]), bool(state["hard"])
        self.sharp = bool(state.get("sharp", False))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None and not self.strength.is_meta:
            metadata.setdefault(prefix[:-1], {})["proxbit"] = self.saved()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        missing: list[str] = []  # a float checkpoint has no shift: not an error
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        self.counter.loaded = "proxbit" in local_metadata
        self.stale = not self.counter.loaded
        if self.counter.loaded:
            self.restored(local_metadata["proxbit"])


class WeightQuantizer(Quantizer):
    """From a latent weight to the quantized one: scale times F(w / unit).

    Attributes:
        scale: The float beside the bits of a hard weight, as ``harden`` found it: one for the layer
            or one per output channel. Before that it is 1 and not used.
        unit: mean|w| at the start, for methods that measure in it; None otherwise.
        shift: One learnable shift per output channel (ReAct); None otherwise.
    """

    scale: Tensor
    unit: Tensor | None

    def __init__(self, method: Method, weight: Tensor, counter: StepCounter | None = None) -> None:
        """Measure the initial weight where the method needs it."""
        super().__init__(method, method.pair, method.schedule, method.rule, weight, counter)
        initial = torch.ones_like(self.strength) if method.unit == "initial" else None
        self.register_buffer("unit", initial, persistent=False)
        self.measure_unit(weight)
        sizes = [1 if i in method.scale.dims(weight) else n for i, n in enumerate(weight.shape)]
        # Always there, so that whoever copies buffers one by one finds the same ones.
        self.register_buffer("scale", weight.new_ones(sizes), persistent=False)
        shape = (weight.shape[0], *(1 for _ in weight.shape[1:]))
        self.shift = nn.Parameter(weight.new_zeros(shape)) if method.learn_shift else None
        self.thaw = False  # whether ``harden`` froze the Parameter, so that ``restore`` thaws it

    def measure_unit(self, w: Tensor) -> None:
        """Take mean|w| of these weights for the unit, where the method measures in it."""
        if self.unit is not None:
            size = w.detach().to(self.unit.dtype).abs().mean()
            self.unit.copy_(torch.where(size > 0, size, torch.ones_like(size)))

    def forward(self, w: Tensor) -> Tensor:
        """The quantized weight, scale included: what the layer multiplies with."""
        if self.hard:
            return w.detach()
        if self.looks_through():
            return w
        if self.method.scale.gradient == "full":
            f, scale = self.split(w)
            return f if scale is None else f * scale
        q, unit, scale = self._evaluate(w, scaled=True)
        factor = self._factor(unit, scale)
        return surrogate_gradient(w, q, self.strength, self.pair, unit, factor, self._shift())

    def split(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same in two parts, F(w / unit) and the scale, for exact sums of +-1 products."""
        if self.hard:
            return maps.sign(w.detach()), self.scale
        f, unit, scale = self._evaluate(w)
        if self.looks_through():
            # In units of the scale, as the signs are: a register counts them alike.
            return (w, None) if scale is None else (w / floor_at_tiny(scale), scale)
        if self.method.scale.gradient == "full":
            factor = None if unit is None else 1 / unit
            f = surrogate_gradient(w, f, self.strength, self.pair, unit, factor, self._shift())
            return f, self.method.scale(w, f, unit)
        factor = self._factor(unit, scale)
        if scale is not None:
            scale = floor_at_tiny(scale)
            # The scale reaches the gradient by itself here, so it is taken out of the factor.
            divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
            factor = 1 / divisor if factor is None else factor / divisor
        f = surrogate_gradient(w, f, self.strength, self.pair, unit, factor, self._shift())
        return f, scale

    def proximal(self, w: Tensor) -> Tensor:
        """The quantized weight whatever the mode, without a gradient."""
        if self.hard:
            return w.detach()
        with torch.no_grad():
            return self._evaluate(w, scaled=True)[0]

    def hardened(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest hard weight to the quantized one: the sign of F, and the matching scale."""
        with torch.no_grad():
            f, _, scale = self._evaluate(w)
            bits = maps.sign(f)
            if scale is None:
                return bits, torch.ones_like(self.scale)
            return bits, scale * (f * bits).mean(self.method.scale.dims(w), keepdim=True)

    def harden(self, scale: Tensor) -> None:
        """Be hard from now on, with this scale."""
        self.hard = True
        self.scale.copy_(scale)

    def find_scale(self, w: Tensor) -> None:
        """Read the scale off a hard weight that was loaded: checkpoints hold +-scale only."""
        if not w.is_meta:
            self.scale.copy_(w.detach().abs().amax(self.method.scale.dims(w), keepdim=True))

    def units(self, w: Tensor) -> Tensor:
        """The weight as the pair sees it, w / unit, without a gradient."""
        with torch.no_grad():
            return in_units(w, self._unit(w), self._shift())

    def _evaluate(
        self, w: Tensor, scaled: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """F of the shifted weight in its unit, times the scale if ``scaled``; unit and scale."""
        w, shift, method = w.detach(), self._shift(), self.method
        shift = None if shift is None else shift.detach()
        measures = fused.Measures(method.scale, method.unit == "current", self.unit, scaled)
        sharp = self._sharpens()
        once = fused.quantize_weight(self.pair.forward, w, self.strength, shift, sharp, measures)
        if once is not None:
            return once
        unit = self._unit(w)
        f = self.forward_map(in_units(w, unit, shift))
        if method.scale.kind == "mean" and method.unit == "current":
            scale = unit  # the same mean|w|: measured once
        else:
            scale = method.scale(w, f, unit)
        return f if scale is None or not scaled else f * scale, unit, scale

    def _shift(self) -> Tensor | None:
        return None if self.shift is None else whole(self.shift)

    def _unit(self, w: Tensor) -> Tensor | None:
        if self.method.unit == "current":
            return self.method.scale.mean_size(w).clamp_min(torch.finfo(w.dtype).tiny)
        return self.unit

    def _factor(self, unit: Tensor | None, scale: Tensor | None) -> Tensor | None:
        """The factor of B in the backward pass: nothing, or the chain rule's scale / unit."""
        if self.method.scale.gradient == "pass":
            return None
        if scale is None or unit is None:
            return scale if unit is None else 1 / unit
        return scale / unit

    def saved(self) -> dict[str, Any]:
        """The state as plain numbers, with the initial unit."""
        return super().saved() | {"unit": None if self.unit is None else float(self.unit)}

    def restored(self, state: dict[str, Any]) -> None:
        """Take the state back."""
        super().restored(state)
        if self.unit is not None and state["unit"] is not None:
            self.unit.fill_(float(state["unit"]))

    def extra_repr(self) -> str:
        """The method."""
        return f"{self.method.name}, scale={self.method.scale}, unit={self.method.unit}"


class InputQuantizer(Quantizer):
    """From a layer's input to its quantized input; the channels are ``trailing`` dims from the end.

    When hard, the forward is the sign and the backward stays B at the last strength, so that norms
    and float layers can go on training.

    Attributes:
        shift: One learnable shift per channel (ReAct); None otherwise.
        unit: The size of an input that the pair takes for one; None for 1.
    """

    unit: Tensor | None

    def __init__(
        self, method: Method, channels: int, trailing: int, like: Tensor,
        counter: StepCounter | None = None,
    ) -> None:  # fmt: skip
        """Take the method's input pair; the raw input is its own unit until one is set."""
        pair = method.input_pair or method.pair
        schedule = method.input_schedule or method.schedule
        super().__init__(method, pair, schedule, method.input_rule, like, counter)
        shape = (channels, *(1 for _ in range(trailing)))
        self.shift = nn.Parameter(like.new_zeros(shape)) if method.learn_shift else None
        self.register_buffer("unit", None, persistent=False)

    def set_unit(self, unit: Tensor) -> None:
        """Measure inputs in this unit from now on; what is no size stands for 1."""
        fits = torch.isfinite(unit) & (unit > 0)
        self.unit = torch.where(fits, unit, torch.ones_like(unit)).to(self.strength)

    def forward(self, x: Tensor) -> Tensor:
        """F(x), with the gradient multiplied by B(x), both in the unit."""
        if self.looks_through():
            return x
        factor = None if self.unit is None else 1 / self.unit
        f = self._evaluate(x.detach())
        return surrogate_gradient(x, f, self.strength, self.pair, self.unit, factor, self.shift)

    def _evaluate(self, x: Tensor) -> Tensor:
        shift = None if self.shift is None else self.shift.detach()
        if self.unit is not None and not self.hard:  # the sign is the same in any unit
            x, shift = x / self.unit.to(x.dtype), None if shift is None else shift / self.unit
        f = maps.sign if self.hard else self.pair.forward
        sharp = self._sharpens() and not self.hard
        once = fused.forward(f, x, self.strength, shift, sharp)
        if once is not None:
            return once
        z = in_units(x, None, shift)
        return maps.sign(z) if self.hard else self.forward_map(z)

    def extra_repr(self) -> str:
        """The pair."""
        return self.pair.name


def _mark(t: Tensor) -> tuple[int, int]:
    """A key that changes when a tensor is written to in place or replaced by another."""
    return id(t), 0 if t.is_inference() else t._version
