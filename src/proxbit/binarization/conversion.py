"""From a float model to a trainable binary one, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import fx, nn

from proxbit.binarization import advice, layer_choice
from proxbit.binarization import relu as relus
from proxbit.binarization.conversion_report import LayerLine, Report, held_bytes, packed_size
from proxbit.binarization.layer_choice import SWAPS, Choice, Selector, Swaps
from proxbit.core import methods
from proxbit.core.methods import Method
from proxbit.core.pairs import Pair
from proxbit.core.tasks import Task, find_task
from proxbit.nn import Form, parametrized
from proxbit.nn.binary_attention import switch_off_fused_paths
from proxbit.nn.model_weights import binary_weights, own, require_binarized
from proxbit.nn.probing import Probe, probe
from proxbit.util.text import alike, few
from proxbit.util.tracing import trace


def binarize(
    model: nn.Module,
    method: str | Method | Pair = "bnn++",
    task: str | Task = "BW",
    *,
    only: Selector | None = None,
    skip: Selector | None = None,
    example: Any = None,
    parametrize: Selector | None = None,
    swaps: Swaps = SWAPS,
    relu: Callable[[], nn.Module] | str | None = None,
) -> Report:
    """Make the weights of ``model`` binary, in place: same Parameters, same state_dict keys.

    Args:
        model: Any PyTorch model.
        method: A name such as "bnn++", or what :func:`proxbit.method` makes: another schedule,
            scale or rule, the paper's settings, a pair of your own.
        task: "BW": weights. "BWA": weights and the inputs of their layers. "BWAA": as BWA, with
            sums in an 8-bit wrap-around accumulator. Details: :class:`proxbit.Task`.
        only: Globs over module names, or a predicate of (name, module): binarize exactly these.
            Without it the first convolution, patch embeddings, the layers that give the output and
            adapters (LoRA) stay float; in BWA and BWAA also a linear layer whose input is the data.
        skip: The same, for what stays float.
        example: An input (or tuple of inputs, or dict of keywords). The model runs on it at once,
            and layers that turn out not to be called are parametrized.
        parametrize: Selects, like ``only``, modules whose weight other code reads without calling
            them, and those without a binary class (LSTM, transposed convolutions, stacked experts).
        swaps: From float layer classes to binary ones; extend it with ``SWAPS | {Mine: MyBinary}``.
        relu: What replaces a ReLU in front of a binary input, whose sign would be constant: a class
            such as ``nn.Hardtanh``, or "keep" for none. By default the ReLU is left out
            (``nn.Identity``); methods that pass every gradient on (BC, PC) get ``nn.Hardtanh``.

    Returns:
        A report: what became binary, what stayed float and why, the size when packed.
    """
    chosen, asked = methods.method(method), find_task(task)
    new = relus.find_relu(relu, chosen)
    form = Form(chosen, asked if chosen.binary else Task("BW"))
    _require_float(model)
    graph = trace(model, (nn.Linear, nn.Conv1d, nn.Conv2d))
    choices = layer_choice.choose(
        model, form.task.name, only=only, skip=skip, parametrize=parametrize, swaps=swaps,
        graph=graph,
    )  # fmt: skip
    _require_some(choices)
    return _carry_out(model, form, choices, graph, new, example)


def _carry_out(
    model: nn.Module,
    form: Form,
    choices: list[Choice],
    graph: fx.Graph | None,
    new: relus.Maker | None,
    example: Any,
) -> Report:
    """Make the chosen layers binary; what became of them, and what to think of it."""
    names = [c.name for c in choices if c.swap and c.binary and form.task.name != "BW"]
    constant = relus.never_negative(model, names, graph) if names else []
    lines, bytes_float = [_line(choice) for choice in choices], held_bytes(model)
    _make_all_binary([choice for choice in choices if choice.binary], form)
    switch_off_fused_paths(model, lambda module: bool(binary_weights(module)), _set)
    notes = _replace_relus(model, constant, new)
    problems, kept = relus.constant_signs(constant, new, form.method)
    if example is not None:
        choices, found = _probed(model, choices, form, example)
        problems += _seen(found, constant)
    elif form.task.name != "BW" and graph is None:
        kept.append(relus.UNTRACED)
    weights = binary_weights(model)
    problems = [*advice.strengths(weights), *problems, *advice.frozen(weights)]
    advice.warn_once(problems, stacklevel=4)
    packed, hints = packed_size(model, bytes_float)
    layers = tuple(_finished(*each, form) for each in zip(lines, choices, strict=True))
    every = (*notes, *problems, *kept, *hints)
    return Report(form.method.name, form.task.name, layers, bytes_float, packed, every)


def restore(model: nn.Module) -> nn.Module:
    """Go back to an ordinary float model, in place, with the latent (or hard) weights."""
    for weight in require_binarized(model):
        if weight.quantizer.thaw:
            weight.parameter.requires_grad_(True)
    for module in list(model.modules()):
        _make_float(module)
        for name, value in module.__dict__.pop("_proxbit_undo", {}).items():
            if not isinstance(value, nn.Module):
                delattr(module, name)  # a function cannot stand where a module is registered
            setattr(module, name, value)
    return model


def _require_float(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"binarize takes a torch.nn.Module, not {type(model).__name__}")
    if binary_weights(model):
        raise ValueError("this model is binarized already: call pb.restore(model) first")


def _require_some(choices: list[Choice]) -> None:
    """Require a binary layer and finite values, or raise one clear error with nothing changed."""
    layer_choice.check_finite(choices)
    if any(choice.binary for choice in choices):
        return
    reasons = "; ".join(f"{c.name or type(c.module).__name__}: {c.why}" for c in choices[:8])
    hint = " (pass only='*' to binarize these too)" if any(c.kept for c in choices) else ""
    raise ValueError(f"no layer of this model can be binarized{hint}: {reasons or 'no weights'}")


def _make_all_binary(choices: list[Choice], form: Form) -> None:
    """Convert all layers or none: one that fails (a user's own, say) leaves the model as it was."""
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
    # torch takes a hook off by its handle only, and copies of the module need theirs.
    module._proxbit_after_load = module.register_load_state_dict_post_hook(_reconcile)


def _reconcile(module: nn.Module, _: object) -> None:
    for weight in own("", module):
        weight.reconcile()


def _make_float(module: Any) -> None:
    if hasattr(module, "float_class"):
        module.make_float()
        module.__class__ = module.float_class
        del module.float_class
    parametrized.undo(module)
    if hasattr(module, "_proxbit_after_load"):
        module._proxbit_after_load.remove()
        del module._proxbit_after_load


def _set(module: nn.Module, name: str, value: object) -> None:
    """Set an attribute in a way that ``restore`` can undo.

    The old value is kept on the module, hidden: nothing else travels with copies and pickles of a
    model that is not ours, and ``save`` has to know which modules were replaced.
    """
    undo = module.__dict__.setdefault("_proxbit_undo", {})
    undo.setdefault(name, getattr(module, name))
    setattr(module, name, value)


def _replace_relus(
    model: nn.Module, constant: list[relus.NeverNegative], new: relus.Maker | None
) -> list[str]:
    """Replace what can be replaced, and say what was."""
    sources = sorted({hit.source for hit in constant if hit.replaceable})
    if new is None or not sources:
        return []
    for source in sources:
        _replace_everywhere(model, source, new())
    names = few(alike(sources), 6)
    why = "the sign of what a ReLU gives is constant; relu 'keep' leaves it"
    return [f"replaced by {type(new()).__name__}: {names} ({why})"]


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


def _line(choice: Choice) -> LayerLine:
    """The report's line about a module, made before anything is changed."""
    kind, own = type(choice.module).__name__, layer_choice.own_weights(choice.module)
    weights = sum(p.numel() for p in own.values())
    return LayerLine(choice.name, kind, weights, choice.binary, choice.why)


def _finished(line: LayerLine, choice: Choice, form: Form) -> LayerLine:
    """The line with what became of a binary layer."""
    if not choice.binary:
        return line
    if not form.method.binary:
        return replace(line, binary=False, why="float baseline")
    if not choice.parametrize:
        return line
    remark = f" ({choice.remark})" if choice.remark else ""
    inputs = "" if form.task.name == "BW" else "; its input stays float"
    return replace(line, why=f"parametrized{remark}{inputs}")


def _probed(
    model: nn.Module, choices: list[Choice], form: Form, example: Any
) -> tuple[list[Choice], Probe]:
    """Run the model, and parametrize the layers that it does not call; all or nothing."""
    try:
        found = probe(model, example)
        idle = {c.name: c for c in choices if c.swap and c.name in found.unused_layers}
        turn, why = layer_choice.parametrized, "it is not called"
        turned = {name: turn(choice, why) for name, choice in idle.items()}
        for choice in turned.values():
            _make_again(choice, form)
        found = probe(model, example) if turned else found
        for name in found.unused_layers & turned.keys():
            # That did not help: the example does not run it, as an expert that is not chosen.
            _make_again(idle[name], form)
            del turned[name]
    except BaseException:
        restore(model)
        raise
    return [turned.get(choice.name, choice) for choice in choices], found


def _make_again(choice: Choice, form: Form) -> None:
    _make_float(choice.module)
    _make_binary(choice, form)


def _seen(found: Probe, constant: list[relus.NeverNegative]) -> list[str]:
    """The problems that only the example shows."""
    known = {hit.layer for hit in constant}
    odd = [name for name in found.constant if name not in known]
    problems = []
    if found.unused:
        names = few(alike(found.unused))
        problems.append(f"the example does not use {names}: whether they work is not known")
    if odd:
        names = few(alike(odd))
        problems.append(f"on the example the sign of the input of {names} is constant")
    return problems
