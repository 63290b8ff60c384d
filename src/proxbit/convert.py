"""From a float model to a trainable binary one, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from proxbit import advice, parametrized
from proxbit.choose import (
    SWAPS,
    Choice,
    Selector,
    Swaps,
    check_finite,
    choose,
    is_lazy,
    own_weights,
)
from proxbit.methods import Method, Rule, find_method
from proxbit.nn import TASKS, BinaryWeight, Form, Quantizer, Task
from proxbit.pairs import Pair
from proxbit.relu import NeverNegative, never_negative, replacement
from proxbit.report import LayerLine, Report, alike, packed_bytes
from proxbit.scales import Scale, Unit
from proxbit.schedules import Schedule
from proxbit.text import unknown

# PyTorch's fused inference paths read weights directly; these attributes switch them off.
FUSED_PATHS: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def binarize(
    model: nn.Module,
    method: str | Method | Pair = "bnn++",
    task: Task = "BW",
    *,
    settings: str = "default",
    schedule: Schedule | None = None,
    rule: Rule | None = None,
    scale: Scale | str | None = None,
    unit: Unit | None = None,
    input_schedule: Schedule | None = None,
    sharp: float | None = None,
    sharp_strength: float | None = None,
    only: Selector | None = None,
    skip: Selector | None = None,
    parametrize: Selector | None = None,
    swaps: Swaps = SWAPS,
    relu: Callable[[], nn.Module] | None = None,
    pad_value: float = 1.0,
    bits: int = 8,
    k: float = 2.0,
) -> Report:
    """Make the weights of ``model`` binary, in place: same Parameters, same state_dict keys.

    Args:
        model: Any PyTorch model.
        method: A name such as "bnn++", a :class:`Method`, or a bare :class:`Pair`.
        task: "BW": weights. "BWA": weights and the inputs of their layers. "BWAA": as BWA, with
            sums in a ``bits``-bit wrap-around accumulator.
        settings: "default" (best hard accuracy) or "paper" (what the paper states).
        schedule: Replaces the method's schedule; so do ``rule``, ``scale`` and ``unit`` theirs.
        rule: Where the gradient is taken and where the step starts.
        scale: "none", "layer", "channel", "ls", "ls-layer" or a :class:`Scale`.
        unit: What the pair takes for one: "one" (raw weights), "current" or "initial" mean|w|.
        input_schedule: Replaces the schedule of the inputs' pair in BWA and BWAA.
        sharp: Replaces the method's share of steps, the last ones, in which the network sees signs.
        sharp_strength: Replaces the strength of the weights' pair there.
        only: Globs over module names, or a predicate of (name, module): binarize exactly these.
            Without it the first convolution, patch embeddings and the classifier stay float.
        skip: The same, for what stays float.
        parametrize: The same, for modules whose weight other code reads without calling them.
        swaps: From float layer classes to binary ones; extend it with ``SWAPS | {Mine: MyBinary}``.
        relu: What replaces a ReLU in front of a binary input, such as ``nn.Identity``
            or, for methods that pass every gradient on (BC, PC), ``nn.Hardtanh``.
        pad_value: What a convolution pads its binary input with: +1, -1 or 0.
        bits: Width of the BWAA accumulator.
        k: Slope of its cyclic function.

    Returns:
        A report: what became binary, what stayed float and why, the size when packed.
    """
    chosen = find_method(
        method, settings, schedule=schedule, rule=rule, scale=scale, unit=unit,
        input_schedule=input_schedule, sharp=sharp, sharp_strength=sharp_strength,
    )  # fmt: skip
    if task not in TASKS:
        raise ValueError(unknown("task", task, TASKS))
    if relu is not None and (isinstance(relu, nn.Module) or not callable(relu)):
        raise TypeError(f"relu= makes modules, such as the class nn.Hardtanh; it is {relu!r}")
    form = Form(chosen, task if chosen.binary else "BW", bits, k, pad_value)
    form.accumulator()  # checks bits and k before anything changes
    if pad_value not in (-1, 0, 1):
        raise ValueError(f"a binary input is padded with 1, -1 or 0, not {pad_value}")
    choices = _plan(model, form.task, only, skip, parametrize, swaps)
    names = [choice.name for choice in choices if choice.binary]
    constant = never_negative(model, names) if form.task != "BW" else []
    lines, bytes_float = _lines(choices, form), _bytes(model)
    _make_all_binary([choice for choice in choices if choice.binary], form)
    _switch_off_fused_paths(model)
    problems = _constant_signs(constant, relu, chosen)
    notes = problems + _replace_relus(model, constant, relu)
    advice.warn_once(binary_weights(model), problems)
    saved = sum(_saving(weight) for weight in once(binary_weights(model)))
    return Report(chosen.name, form.task, lines, bytes_float, bytes_float - saved, tuple(notes))


def restore(model: nn.Module) -> nn.Module:
    """Back to an ordinary float model, in place: the latent weights (or the hard ones, if hard)."""
    if not binary_weights(model):
        raise ValueError("this model is not binarized: there is nothing to restore")
    for weight in binary_weights(model):
        if weight.quantizer.thaw:
            weight.parameter.requires_grad_(True)
    for module in list(model.modules()):
        _make_float(module)
        for name, value in module.__dict__.pop("_proxbit_undo", {}).items():
            if not isinstance(value, nn.Module):
                delattr(module, name)  # a function cannot stand where a module is registered
            setattr(module, name, value)
    return model


def binary_weights(model: nn.Module) -> list[BinaryWeight]:
    """Every binary weight of the model, in module order."""
    return [weight for name, module in model.named_modules() for weight in _own(name, module)]


def _own(name: str, module: Any) -> Iterator[BinaryWeight]:
    prefix = f"{name}." if name else ""
    if hasattr(module, "float_class"):
        yield from module.binary_weights(prefix)
    yield from parametrized.binary_weights(module, prefix)


def once(weights: list[BinaryWeight]) -> list[BinaryWeight]:
    """Tied weights once: their bits are stored once, and a prox applied twice is another prox."""
    return list({(id(w.parameter), str(w.rows)): w for w in weights}.values())


def quantizers(model: nn.Module) -> list[Quantizer]:
    """Every quantizer of the model, of weights and of inputs."""
    return list(named_quantizers(model).values())


def named_quantizers(model: nn.Module) -> dict[str, Quantizer]:
    """The same, each under the name of its module."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Quantizer)}


def latent_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The Parameters behind binary weights, each once: for optimizer groups of their own."""
    return list({id(w.parameter): w.parameter for w in binary_weights(model)}.values())


def set_strength(model: nn.Module, strength: float) -> None:
    """Set the strength of every quantizer by hand, instead of ``attach``'s schedule."""
    found = quantizers(model)
    if not found:
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    for quantizer in found:
        quantizer.set_strength(float(strength))


def _plan(
    model: nn.Module,
    task: Task,
    only: Selector | None,
    skip: Selector | None,
    parametrize: Selector | None,
    swaps: Swaps,
) -> list[Choice]:
    """The choices, or one clear error with nothing changed."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"binarize takes a torch.nn.Module, not {type(model).__name__}")
    if binary_weights(model):
        raise ValueError("this model is binarized already: call pb.restore(model) first")
    choices = choose(model, task, only=only, skip=skip, parametrize=parametrize, swaps=swaps)
    check_finite(choices)
    if not any(choice.binary for choice in choices):
        reasons = "; ".join(f"{c.name or type(c.module).__name__}: {c.why}" for c in choices[:8])
        hint = " (pass only='*' to binarize these too)" if _only_by_default(choices) else ""
        raise ValueError(
            f"no layer of this model can be binarized{hint}: {reasons or 'no weights'}"
        )
    return choices


def _only_by_default(choices: list[Choice]) -> bool:
    return any(
        c.why in ("first convolution", "last classifier", "patch embedding") for c in choices
    )


def _make_all_binary(choices: list[Choice], form: Form) -> None:
    """All or nothing: a layer that fails (a user's own, say) leaves the model as it was."""
    for i, choice in enumerate(choices):
        try:
            _make_binary(choice, form)
        except Exception:
            for done in choices[: i + 1]:
                _make_float(done.module)
            raise


def _make_binary(choice: Choice, form: Form) -> None:
    module: Any = choice.module
    if choice.swap is None:
        parametrized.apply(module, choice.parametrize, form)
    else:
        module.float_class = type(module)
        module.__class__ = choice.swap
        module.make_binary(form)
    module._proxbit_after_load = module.register_load_state_dict_post_hook(_settle)


def _settle(module: nn.Module, _: object) -> None:
    for weight in _own("", module):
        weight.settle()


def _make_float(module: Any) -> None:
    if hasattr(module, "float_class"):
        module.make_float()
        module.__class__ = module.float_class
        del module.float_class
    parametrized.undo(module)
    if hasattr(module, "_proxbit_after_load"):
        module._proxbit_after_load.remove()
        del module._proxbit_after_load


def _switch_off_fused_paths(model: nn.Module) -> None:
    for module in model.modules():
        for kind, (name, value) in FUSED_PATHS.items():
            if isinstance(module, kind) and binary_weights(module):
                _set(module, name, value)


def _set(module: nn.Module, name: str, value: object) -> None:
    """Set an attribute so that ``restore`` can set it back."""
    undo = module.__dict__.setdefault("_proxbit_undo", {})
    undo.setdefault(name, getattr(module, name))
    setattr(module, name, value)


def _constant_signs(
    constant: list[NeverNegative], relu: Callable[[], nn.Module] | None, method: Method
) -> list[str]:
    """What ``relu`` does not mend, with the way to mend it."""
    fixes = {False: "use a module that can be negative"}
    if relu is None:
        fixes[True] = f"pass relu=nn.{replacement(method).__name__}"
    return [
        f"{_never_negative(hits)}: {fix}, or method 'react' (learned threshold)"
        for replaceable, fix in fixes.items()
        if (hits := [hit for hit in constant if hit.replaceable == replaceable])
    ]


def _never_negative(hits: list[NeverNegative]) -> str:
    """What is wrong with some layers, in one sentence however many they are."""
    layers = ", ".join(map(repr, alike(hit.layer for hit in hits)))
    sources = ", ".join(alike(hit.source for hit in hits))
    if len(hits) == 1:
        return (
            f"the input of {layers} comes from {sources} and is never negative, "
            "so its sign is constant"
        )
    return (
        f"the inputs of {len(hits)} layers ({layers}) come from {sources} and are never negative, "
        "so their signs are constant"
    )


def _replace_relus(
    model: nn.Module, constant: list[NeverNegative], relu: Callable[[], nn.Module] | None
) -> list[str]:
    """Replace what can be replaced, and say what was."""
    sources = sorted({hit.source for hit in constant if hit.replaceable})
    if relu is None or not sources:
        return []
    for source in sources:
        _replace_everywhere(model, source, relu())
    return [f"replaced by {relu().__class__.__name__}: {', '.join(alike(sources))}"]


def _replace_everywhere(model: nn.Module, source: str, new: nn.Module) -> None:
    """Replace a module (at every place that holds it) or a transformer layer's activation."""
    owner, _, attribute = source.rpartition(".")
    old = getattr(model.get_submodule(owner), attribute)
    if not isinstance(old, nn.Module):
        _set(model.get_submodule(owner), attribute, new)
        return
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # named_children skips repeats
            if child is old:
                _set(module, name, new)


def _lines(choices: list[Choice], form: Form) -> tuple[LayerLine, ...]:
    def line(choice: Choice) -> LayerLine:
        count = sum(p.numel() for p in own_weights(choice.module).values())
        why = choice.why
        if choice.binary and choice.parametrize:
            why = "parametrized" + ("" if form.task == "BW" else "; its input stays float")
        if choice.binary and not form.method.binary:
            why = "float baseline"
        binary = choice.binary and form.method.binary
        return LayerLine(choice.name, type(choice.module).__name__, count, binary, why)

    return tuple(line(choice) for choice in choices)


def _bytes(model: nn.Module) -> int:
    tensors = [t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)]
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())


def _saving(weight: BinaryWeight) -> int:
    """Bytes that packing one weight saves."""
    w, method = weight.latent, weight.quantizer.method
    if not method.binary:
        return 0
    scales = {"none": 0, "layer": 1, "channel": w.shape[0]}
    count = scales["none" if method.scale.kind == "none" else method.scale.per]
    return w.numel() * w.element_size() - packed_bytes(w.numel(), count)
