"""Update rule, strength and the switch to signs as hooks on any ``torch.optim.Optimizer``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import index
from typing import Any, SupportsIndex

from torch import Tensor, nn
from torch.optim import Optimizer

from proxbit.binarization import advice
from proxbit.binarization.resuming import OptimizerMemory, by_bare_name, unwrapped
from proxbit.core.methods import Method
from proxbit.nn import BinaryWeight, Quantizer, StepCounter, model_weights
from proxbit.nn.model_weights import binary_weights, once, quantizers, require_binarized

# Which optimizers are attached, so that none is twice. An attribute of the optimizer would travel
# with its pickles and its copies, which come without hooks.
_ATTACHED: weakref.WeakKeyDictionary[Optimizer, Attachment] = weakref.WeakKeyDictionary()


class Attachment:
    """The hooks that ``attach`` puts on an optimizer.

    It keeps no time of its own: the model's quantizers share one step counter. It travels in the
    metadata of ``model.state_dict()`` and, for savers that keep only a model's tensors, in
    ``optimizer.state_dict()``. Where neither is kept, save :meth:`state_dict`.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, steps: int, clip: float | str | None
    ) -> None:
        """Collect what the hooks need; :func:`attach` checks and registers."""
        self.weights = binary_weights(model)
        self.quantizers = model_weights.named_quantizers(model)
        self.steps, self.clip = steps, clip
        self._counter = _one_counter(list(self.quantizers.values()))
        owned = {w.quantizer for w in self.weights}
        self._inputs = [q for q in self.quantizers.values() if q not in owned]
        self._methods = list(dict.fromkeys(q.method for q in self.quantizers.values()))
        latent = once(self.weights)
        self._starts = [w for w in latent if w.quantizer.rule.start_from == "quantized"]
        bounds = {method: _bound(method, clip) for method in self._methods}
        self._clipped = [(w, b) for w in latent if (b := bounds[w.quantizer.method]) is not None]
        self._memory = OptimizerMemory(self.quantizers, self.weights, self._counter)
        self._handles = [
            *self._memory.register(optimizer),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self.refresh(optimizer)

    @property
    def step(self) -> int:
        """Optimizer steps taken so far."""
        return self._counter.step

    @property
    def progress(self) -> float:
        """From 0 at the first step to 1 at the last one of ``steps``."""
        return min(self.step / max(self.steps - 1, 1), 1.0)

    def refresh(self, optimizer: Optimizer) -> None:
        """Set every strength from the schedule, the present step and, where it counts, the rate.

        From the step on where a method's signs begin, its quantizers are sharp. The schedule of the
        weights ends there; that of the inputs, whose backward map goes on to matter, runs through.
        """
        sharp = {method for method in self._methods if self._sees_signs(method)}
        for quantizer in self.quantizers.values() if sharp else ():
            if not quantizer.sharp and quantizer.method in sharp:
                quantizer.sharp = True
        for quantizer in self._inputs:
            quantizer.set_strength(float(quantizer.schedule(self.progress)))
        values = {method: self._strength(method) for method in self._methods}
        rates = _rates(optimizer) if any(method.by_rate for method in self._methods) else {}
        for weight in self.weights:
            quantizer, value = weight.quantizer, values[weight.quantizer.method]
            if not quantizer.method.by_rate:
                quantizer.set_strength(value)
                continue
            threshold = value * rates.get(id(weight.parameter), 0.0)
            # A proximal-gradient threshold is in weights; the pair measures in units.
            unit = quantizer.unit
            quantizer.set_strength(threshold if unit is None else threshold / unit)

    def _strength(self, method: Method) -> float:
        """The strength of a method's weights now, or its lambda."""
        if method.sharp_strength is not None and self._sees_signs(method):
            return method.sharp_strength
        return float(method.schedule(min(self.step / max(self._soft(method) - 1, 1), 1.0)))

    def _soft(self, method: Method) -> int:
        """Steps before the network sees signs."""
        return self.steps - round(method.sharp * self.steps)

    def _sees_signs(self, method: Method) -> bool:
        soft = self._soft(method)
        return method.binary and soft < self.steps and soft <= self.step

    def _before_step(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        """PQ and rPC: let the step start from the quantized weight.

        Where the optimizer evaluates the loss itself, by a closure, that comes first: its gradient
        is that of the weights as they are now.
        """
        self._memory.before_step()
        starts = [weight for weight in self._starts if not weight.quantizer.hard]
        _, *given = args  # the first is the optimizer
        if not starts or not any(callable(each) for each in (*given, *kwargs.values())):
            _begin_at_quantized(starts)
            return None

        def turned(each: Any) -> Any:
            return _evaluated_once(each, starts, optimizer) if callable(each) else each

        return (optimizer, *map(turned, given)), {k: turned(v) for k, v in kwargs.items()}

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Clip, count, move the strength."""
        for weight, bound in self._clipped:
            if not weight.quantizer.hard:
                weight.parameter.detach().clamp_(-bound, bound)
        self._counter.step += 1
        self._memory.after_step()
        self.refresh(optimizer)

    def remove(self) -> None:
        """Take the hooks off; the model keeps its present strengths."""
        for handle in self._handles:
            handle.remove()
        self._counter.attached = False
        for optimizer, attachment in list(_ATTACHED.items()):
            if attachment is self:
                del _ATTACHED[optimizer]

    def sync(self, copy: nn.Module) -> None:
        """Give a copy of the model the present step, strengths and signs.

        ``AveragedModel`` takes them over itself, with the buffers. Averages of the state_dict alone
        (timm's ModelEma) do not: call this after each of their updates.
        """
        mine = model_weights.saved_states(self._memory.quantizers)
        theirs = by_bare_name(model_weights.named_quantizers(copy))
        odd = sorted(mine.keys() ^ theirs.keys())
        if odd:
            raise ValueError(f"this is not a copy of the model: {odd[0]!r} is in one of them only")
        for name, quantizer in theirs.items():
            quantizer.restored(mine[name] | {"hard": quantizer.hard})

    def state_dict(self) -> dict[str, Any]:
        """Step, strengths and units by quantizer name: plain numbers, ready for JSON."""
        return model_weights.saved_states(self.quantizers)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back; refuses a state of another model and then changes nothing."""
        if set(state) != set(self.quantizers):
            odd = sorted(set(state) ^ set(self.quantizers))[0]
            raise ValueError(f"this state is of another model: {odd!r} is only in one of the two")
        model_weights.restore_states(self.quantizers, self.weights, state)
        self._counter.loaded = True


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    *,
    clip: float | str | None = "auto",
) -> Attachment:
    """Let ``optimizer`` train the binarized ``model``: update rule, schedule and clipping as hooks.

    Nothing in the training loop changes. The strength moves once per ``optimizer.step()`` that
    really happens, so gradient accumulation and a GradScaler that skips a step are no problem. In
    the last steps, a share that the method calls ``sharp``, the network sees signs.

    Args:
        model: A binarized model, or a wrapper around one.
        optimizer: Any optimizer that owns its latent parameters; accelerate's and Lightning's
            wrappers are looked through.
        steps: Optimizer steps of the whole run; afterwards the strength stays.
        clip: Bound of the latent weights after each step. "auto": the method's own, which is
            [-1, 1] for BC, BNN, PQ and rPC without a scale, and none otherwise.

    Returns:
        A handle: ``remove()``, ``step``, ``progress``, ``state_dict()``. A copy of the optimizer
        (``copy.deepcopy``) comes without hooks: attach it again.
    """
    steps, optimizer = _counted(steps), unwrapped(optimizer)
    weights = require_binarized(model)
    _refuse_second(optimizer, set(quantizers(model)))
    _require_owned(model, optimizer, weights)
    advice.warn_once(advice.frozen(weights))
    for method in dict.fromkeys(weight.quantizer.method for weight in weights):
        _bound(method, clip)  # refuses a wrong one before anything changes
        advice.warn_of_freezing(method, steps)
    attachment = Attachment(model, optimizer, steps, clip)
    _ATTACHED[optimizer] = attachment
    return attachment


def _one_counter(quantizers: list[Quantizer]) -> StepCounter:
    """Give quantizers that train together their own counter, at their present step."""
    known = quantizers[0].counter
    counter = StepCounter(known.step, any(q.counter.loaded for q in quantizers))
    counter.attached = True
    for quantizer in quantizers:
        quantizer.counter = counter
    return counter


def _counted(steps: SupportsIndex) -> int:
    whole = isinstance(steps, SupportsIndex) and not isinstance(steps, bool)
    if not whole or index(steps) < 1:
        raise ValueError(f"steps is the number of optimizer steps of a run, 1 or more, not {steps}")
    return index(steps)


def _refuse_second(optimizer: Optimizer, mine: set[Quantizer]) -> None:
    if optimizer in _ATTACHED:
        raise ValueError("this optimizer is attached already: call .remove() on its handle first")
    for other in _ATTACHED.values():
        if mine & set(other.quantizers.values()):
            raise ValueError(
                "this model is attached to another optimizer: call .remove() on that handle first"
            )


def _require_owned(model: nn.Module, optimizer: Optimizer, weights: list[BinaryWeight]) -> None:
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    needed = {weight.name: weight.parameter for weight in weights}
    needed |= {name: p for name, p in model.named_parameters() if name.endswith("quantizer.shift")}
    missing = [n for n, p in needed.items() if p.requires_grad and id(p) not in owned]
    if missing:
        raise ValueError(
            f"the optimizer lacks {len(missing)} of {len(needed)} latent parameters, first "
            f"{missing[0]!r}: build it from model.parameters() after binarize"
        )


def _begin_at_quantized(weights: list[BinaryWeight]) -> None:
    for weight in weights:
        weight.write(weight.quantizer.proximal(weight.latent))


def _evaluated_once(
    closure: Callable[[], Any], weights: list[BinaryWeight], optimizer: Optimizer
) -> Callable[[], Any]:
    """The closure, after which the step starts from the quantized weights.

    A second evaluation would ask for the gradient at a point between two steps, which neither PQ
    nor rPC has: it is refused, and the latent weights are those before the step.
    """
    before: list[Tensor] = []

    def evaluate() -> Any:
        if before:
            for weight, latent in zip(weights, before, strict=True):
                weight.write(latent)
            raise ValueError(
                f"{type(optimizer).__name__} evaluated its closure twice in one step, and a step "
                f"of {weights[0].quantizer.method.name} has one gradient: take an optimizer that "
                "evaluates it once (SGD, Adam, ...), or a method of the rule PC"
            )
        loss = closure()
        before.extend(weight.latent.detach().clone() for weight in weights)
        _begin_at_quantized(weights)
        return loss

    return evaluate


def _bound(method: Method, clip: float | str | None) -> float | None:
    if clip == "auto":
        return method.clip if method.scale.kind == "none" else None
    if clip is None or (isinstance(clip, int | float) and clip > 0):
        return clip
    raise ValueError(f"clip is a positive bound, None or 'auto', not {clip!r}")


def _rates(optimizer: Optimizer) -> dict[int, float]:
    """The learning rate of every Parameter, now: a scheduler moves it, a load replaces groups."""
    return {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
