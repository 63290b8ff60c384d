"""The convergence theorem along a real run: its premises, and both sides of it after every step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from proxbit.core.methods import PC
from proxbit.nn import BinaryWeight, InputQuantizer
from proxbit.nn.model_weights import binary_weights, quantizers, require_binarized
from proxbit.theory import bound
from proxbit.theory.bound import TrailPoint
from proxbit.theory.recovery import recover
from proxbit.theory.watching import Watched, WatchedBinary
from proxbit.util.text import table

ROWS = 10  # of a printed trail


class Trail:
    """The records of :func:`follow`, one per step.

    Attributes:
        records: Both sides of the theorem after each step.
        ended: Why the trail ended before it was told to, in words; empty otherwise.
    """

    def __init__(self, optimizer: Optimizer, watched: list[Watched]) -> None:
        """Start at the present weights; :func:`follow` checks and chooses what is watched."""
        self.records: list[TrailPoint] = []
        self.ended = ""
        self._watched = watched
        self._start = sum(bound.distance(one.reference, one.here) for one in watched)
        self._handles: list[Any] = [handle for one in watched for handle in one.listen()]
        self._handles += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def holds(self) -> bool:
        """Whether both sides were equal after every step."""
        return all(record.holds for record in self.records)

    def stop(self) -> None:
        """Take the hooks off; the records stay."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: a number that is not finite is None."""
        return {"ended": self.ended, "records": [_plain(record) for record in self.records]}

    def __str__(self) -> str:
        """A sentence, and a table of about ten steps."""
        if not self.records:
            return f"no step was followed{f': {self.ended}' if self.ended else ''}"
        lines = [f"{len(self.records)} steps: {self._finding()}", "", _in_columns(self.records)]
        return "\n".join([*lines, *([f"ended: {self.ended}"] if self.ended else [])])

    def _finding(self) -> str:
        bad = next((record.step for record in self.records if not record.holds), None)
        if bad is None:
            return "both sides are equal after every one"
        return f"the sides differ from step {bad} on, which was not eta times the gradient of T"

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.ended:
            return
        moved = next((words for one in self._watched if (words := one.unsteady())), "")
        rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
        if moved:
            need = "the theorem needs a fixed T and r, so a pb.Constant schedule and sharp=0"
            self._end(f"{moved}; {need}")
        elif len(rates) > 1:
            found = " and ".join(f"{rate:g}" for rate in rates)
            self._end(f"the theorem has one step size for all weights, and here are {found}")
        else:
            for one in self._watched:
                one.prepare()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.ended:
            return
        eta = float(optimizer.param_groups[0]["lr"])
        with np.errstate(all="ignore"):  # a run that explodes has records that say so
            step = bound.added(one.step(eta) for one in self._watched)
        last = self.records[-1] if self.records else bound.first(self._start)
        self.records.append(bound.advanced(last, eta, step))

    def _end(self, why: str) -> None:
        """Warn and follow no further: a trail must not stop a training run.

        Its hooks stay until :meth:`stop`: the optimizer is just going through them.
        """
        self.ended = why
        warnings.warn(f"the trail ends: {why}", UserWarning, stacklevel=4)


def follow(
    model: nn.Module, optimizer: Optimizer, reference: Mapping[str, Tensor] | None = None
) -> Trail:
    """Compare the two sides of the convergence theorem after each step of a run.

    The theorem is about plain steps at a constant strength with a fixed T: torch.optim.SGD without
    momentum, ``schedule=pb.Constant(...)``, ``sharp=0``, and scale "none" or "unit". Anything else
    is refused; a strength that moves later, or a turn to signs, ends the trail with a warning.

    Args:
        model: A binarized model with an admitted pair.
        optimizer: What trains it. Float parameters count too, with T(w) = w.
        reference: The weights to compare with, such as the state_dict of an earlier run; a binary
            weight w* stands for P(w*). By default the weights as they are now.

    Returns:
        A trail: ``records``, ``holds``, ``to_dict()``, ``stop()``; print it for a table.
    """
    check_premises(model, optimizer)
    return Trail(optimizer, _watch(model, optimizer, reference))


def _watch(
    model: nn.Module, optimizer: Optimizer, reference: Mapping[str, Tensor] | None
) -> list[Watched]:
    """Every weight that the optimizer moves, once, with its reference."""
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    weights = [w for w in binary_weights(model) if id(w.parameter) in owned]
    tensors = reversed(model.state_dict(keep_vars=True).items())  # of two names, the first
    names = {id(tensor): name for name, tensor in tensors}
    quantized = {id(weight.parameter) for weight in weights}
    plain = [p for p in model.parameters() if id(p) in owned - quantized]
    watched = [*_watch_binary(weights, names), *(Watched(names[id(p)], p) for p in plain)]
    if reference is not None:
        _compare(watched, reference)
    return watched


def _compare(watched: list[Watched], reference: Mapping[str, Tensor]) -> None:
    for one in watched:
        if one.name not in reference:
            raise ValueError(f"the reference lacks {one.name!r}: pass a state_dict of this model")
        one.compare_with(reference[one.name])


def _watch_binary(weights: list[BinaryWeight], names: dict[int, str]) -> list[Watched]:
    """Watch tied weights as one weight with several uses; recover equal pairs once."""
    uses: dict[tuple[int, str], list[BinaryWeight]] = {}
    for weight in weights:
        if weight.layout is not None:
            raise ValueError(
                f"{weight.name!r} does not hold its output channels first, and follow compares "
                "weights as their Parameters hold them: leave it float with skip="
            )
        uses.setdefault((id(weight.parameter), str(weight.rows)), []).append(weight)
    recovered = cache(recover)
    watched = list[Watched]()
    for group in uses.values():
        quantizer = group[0].quantizer
        found = recovered(quantizer.pair, float(quantizer.strength))
        watched.append(WatchedBinary(names[id(group[0].parameter)], group, found))
    return watched


def _plain(record: TrailPoint) -> dict[str, Any]:
    data = asdict(record) | {"mean_gap": record.mean_gap, "bound": record.bound}
    finite = {key: value if math.isfinite(value) else None for key, value in data.items()}
    return finite | {"holds": record.holds}


def _in_columns(records: list[TrailPoint]) -> str:
    """The first step, the last, and steps at equal ratios between."""
    chosen = np.unique(np.geomspace(1, len(records), ROWS).round().astype(int)) - 1
    head = ("step", "eta", "gap", "left", "right", "mean gap", "bound", "equal")
    rows = []
    for r in (records[i] for i in chosen):
        numbers = (f"{x:.4g}" for x in (r.eta, r.gap, r.left, r.right, r.mean_gap, r.bound))
        rows.append((r.step, *numbers, "yes" if r.holds else "NO"))
    return table(head, rows)


def check_premises(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse, with the way out, a run that the theorem says nothing about."""
    weights = require_binarized(model)
    if any(isinstance(quantizer, InputQuantizer) for quantizer in quantizers(model)):
        raise ValueError(
            "the theorem is about quantized weights, and this model quantizes inputs too: "
            "binarize with task='BW'"
        )
    for weight in weights:
        _check_weight(weight)
    _check_steps(optimizer)
    _check_owned(model, optimizer, weights)


def _check_weight(weight: BinaryWeight) -> None:
    """One rule, one fixed T, the step of that T."""
    quantizer, method = weight.quantizer, weight.quantizer.method
    if quantizer.hard:
        raise ValueError(f"{weight.name!r} is hard and does not train: follow before harden")
    if method.rule != PC:
        raise ValueError(
            f"the theorem is about the rule PC, and {weight.name!r} follows {method.name}'s: "
            f"pass rule=pb.Rule() to binarize"
        )
    if quantizer.sharp:
        raise ValueError(
            f"{weight.name!r} is seen as its sign, not through its pair: follow before that, or "
            f"binarize with sharp=0"
        )
    if quantizer.shift is not None:
        raise ValueError(f"{weight.name!r} learns a shift, so T moves: the theorem needs a fixed T")
    raw = method.scale.kind == "none" and method.unit == "one"
    if not raw and (method.scale.kind != "unit" or method.unit == "current"):
        raise ValueError(
            f"{weight.name!r} has the scale {str(method.scale)!r} and the unit {method.unit!r}, "
            f"and the theorem needs a fixed T: binarize with scale='none', unit='one', or with "
            f"scale=pb.Scale('unit'), unit='initial'"
        )


def _check_owned(model: nn.Module, optimizer: Optimizer, weights: list[BinaryWeight]) -> None:
    """The optimizer moves some of the binary weights, and nothing beside the model."""
    own = {id(parameter) for parameter in model.parameters()}
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not moved <= own:
        raise ValueError(
            "the optimizer owns parameters that are not the model's, on which the loss depends "
            "too: follow the whole model"
        )
    if not moved & {id(weight.parameter) for weight in weights}:
        raise ValueError(
            "the optimizer owns none of the latent parameters: build it from model.parameters()"
        )


def _check_steps(optimizer: Optimizer) -> None:
    """Refuse any step but eta times the gradient: the theorem covers no other."""
    extras = ("momentum", "weight_decay", "maximize")
    found = [f"{key}={group[key]}" for group in optimizer.param_groups for key in extras
             if group.get(key)]  # fmt: skip
    if isinstance(optimizer, torch.optim.SGD) and not found:
        return
    given = type(optimizer).__name__ + (f" with {found[0]}" if found else "")
    raise ValueError(
        f"the theorem is about steps of eta times the gradient, and this is {given}: "
        f"follow a run of torch.optim.SGD(model.parameters(), lr=...)"
    )
