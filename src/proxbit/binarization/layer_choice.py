"""Which layers become binary, which stay float, and why: a plan, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from proxbit.binarization.bypass import read_directly
from proxbit.binarization.roles import first_layers, last_layers
from proxbit.core.tasks import TaskName
from proxbit.engine.twins import adds_methods
from proxbit.nn import BinaryMultiheadAttention, binary_layers, is_conv1d
from proxbit.util.text import unknown_name_message

Selector: TypeAlias = str | Iterable[str] | Callable[[str, nn.Module], bool]
Swaps: TypeAlias = Mapping[type[nn.Module], type[nn.Module]]

SWAPS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: binary_layers.BinaryLinear,
    nn.Conv1d: binary_layers.BinaryConv1d,
    nn.Conv2d: binary_layers.BinaryConv2d,
    nn.MultiheadAttention: BinaryMultiheadAttention,
}

# How libraries of adapters (PEFT) name the small matrices that they train beside a frozen weight.
_ADAPTER = re.compile(
    r"(lora|dora|vera|loha|lokr|hada|oft|boft|ia3|fourierft|randlora)_|adapters?$"
)


@dataclass(frozen=True, eq=False)
class Choice:
    """The decision about one module that owns weights.

    Attributes:
        name: Name of the module in the model ("" for the model itself).
        module: The module.
        swap: The binary class that it takes, if any.
        parametrize: Names of the weights that get a parametrization instead, if any.
        why: The reason why it stays float; empty for a binary one.
        kept: Whether it stays float by default only, so that ``only=`` would make it binary.
        remark: What else is to be said of a binary one.
    """

    name: str
    module: nn.Module
    swap: type[nn.Module] | None = None
    parametrize: tuple[str, ...] = ()
    why: str = ""
    kept: bool = False
    remark: str = ""

    @property
    def binary(self) -> bool:
        """Whether the module becomes binary."""
        return not self.why


def choose(
    model: nn.Module,
    task: TaskName = "BW",
    *,
    only: Selector | None = None,
    skip: Selector | None = None,
    parametrize: Selector | None = None,
    swaps: Swaps = SWAPS,
    graph: fx.Graph | None = None,
) -> list[Choice]:
    """Decide for every module that owns weights; raises on selectors that match nothing.

    ``graph`` is that of the model, if it could be traced: it tells the first and last layers.
    """
    modules = dict(model.named_modules())
    direct = _matcher(parametrize, modules, "parametrize")
    made = [_classify(name, m, swaps, direct(name, m)) for name, m in modules.items()]
    choices = [choice for choice in made if choice is not None]
    wanted = _matcher(only, modules, "only", default=True)
    unwanted = _matcher(skip, modules, "skip")
    kept = {} if only is not None else _kept_by_default(model, choices, task, graph)
    tied = _tied_to_float(choices)
    readers = read_directly(model)

    def decide(choice: Choice) -> Choice:
        if not choice.binary:
            return choice
        if not wanted(choice.name, choice.module):
            return replace(choice, why="not in only=")
        if unwanted(choice.name, choice.module):
            return replace(choice, why="in skip=")
        if choice.name in kept:
            return replace(choice, why=kept[choice.name], kept=True)
        if choice.name in tied:
            return replace(choice, why=tied[choice.name])
        if choice.swap is not None and choice.name in readers:
            return parametrized(choice, f"{readers[choice.name]} reads its weight directly")
        return choice

    return [decide(choice) for choice in choices]


def parametrized(choice: Choice, remark: str) -> Choice:
    """The same module with parametrized weights instead of a binary class."""
    names = _but_biases(own_weights(choice.module))
    return replace(choice, swap=None, parametrize=names, remark=remark)


def _matcher(
    selector: Selector | None, modules: Mapping[str, nn.Module], what: str, default: bool = False
) -> Callable[[str, nn.Module], bool]:
    """A predicate from globs (which match a module or anything inside it) or from a function."""
    if selector is None:
        return lambda name, module: default
    if callable(selector):
        return selector
    patterns = [selector] if isinstance(selector, str) else list(selector)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in modules):
            names = [name for name in modules if name]
            shown = names[:8] + ["..."] * (len(names) > 8)
            near = unknown_name_message("module", pattern, shown)
            raise ValueError(f"{what}={pattern!r} matches no module: {near}")
    return lambda name, module: any(
        fnmatchcase(part, pattern) for part in _ancestry(name) for pattern in patterns
    )


def _ancestry(name: str) -> list[str]:
    """The module's name and those of its parents: 'a', 'a.b' and 'a.b.c' for 'a.b.c'."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _classify(name: str, module: nn.Module, swaps: Swaps, direct: bool) -> Choice | None:
    """A choice for a module that owns weights itself; None for one that owns none."""
    kind = type(module).__name__
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        return Choice(name, module, why=f"{kind} is not initialized yet: run the model once first")
    weights = own_weights(module)
    if not weights:
        return None
    problem = _unfit(weights.values())
    if problem:
        return Choice(name, module, why=problem)
    if direct:
        return Choice(name, module, parametrize=_but_biases(weights))
    if is_conv1d(module):
        return Choice(name, module, swap=binary_layers.BinaryConv1D)
    bases: list[Any] = [base for base in type(module).__mro__ if base in swaps]
    if not bases:
        return Choice(name, module, why=_no_form(module, weights))
    if "weight" not in weights and not isinstance(module, nn.MultiheadAttention):
        return Choice(name, module, why=f"its weight is computed from {', '.join(weights)}")
    other = type(module).forward is not bases[0].forward
    if other or adds_methods(type(module), bases[0]):
        own = f"{kind} has {'a forward' if other else 'methods'} of its own"
        why = f"{own}: pass swaps= with a binary {kind}, or parametrize="
        return Choice(name, module, why=why)
    return Choice(name, module, swap=swaps[bases[0]])


def _but_biases(weights: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """The names without biases, which have two dimensions where experts are stacked."""
    return tuple(name for name in weights if not name.endswith("bias")) or tuple(weights)


def own_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that a module itself owns: Parameters of two dimensions and more."""
    own = module.named_parameters(recurse=False)
    return {name: p for name, p in own if not is_lazy(p) and p.dim() >= 2}


def is_lazy(t: Tensor) -> bool:
    """Whether a lazy module has not made its tensor yet."""
    return isinstance(t, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer)


def _unfit(weights: Iterable[nn.Parameter]) -> str:
    for weight in weights:
        if not weight.dtype.is_floating_point:
            return f"its weight is {weight.dtype}, not floating point"
        if weight.numel() == 0:
            return "its weight is empty"
    return ""


def _no_form(module: nn.Module, weights: Mapping[str, nn.Parameter]) -> str:
    kind = type(module).__name__
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(module, nn.RNNBase):
        return f"{kind} has no binary form: pass parametrize= with its name to binarize it"
    if len(list(module.children())) or "weight" not in weights:
        hint = ": pass parametrize= with its name to binarize them" if _are_experts(weights) else ""
        return f"free parameters ({', '.join(weights)}){hint}"
    return f"{kind} has no binary form: pass parametrize= with its name, or swaps="


def _are_experts(weights: Mapping[str, nn.Parameter]) -> bool:
    """Several matrices in one Parameter, one per expert; a position embedding has only one."""
    return any(
        w.dim() == 3 and min(w.shape) > 1 and not re.search("bias|pos", name)
        for name, w in weights.items()
    )


def _kept_by_default(
    model: nn.Module, choices: list[Choice], task: TaskName, graph: fx.Graph | None
) -> dict[str, str]:
    """First and last layers, and adapters."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    layers = {c.name: c.module for c in choices if c.binary and isinstance(c.module, kinds)}
    order = [choice.name for choice in choices if not any(choice.module.children())]
    first = first_layers(model, layers, order, graph)
    kept = {n: "first convolution" for n in first if not isinstance(layers[n], nn.Linear)}
    kept |= {name: "patch embedding" for name in layers if "patch_embed" in name}
    kept |= last_layers(model, layers, graph)
    kept |= {c.name: "adapter" for c in choices if _is_adapter(c.name)}
    left = {c.name for c in choices if c.binary} - kept.keys() - set(first)
    if task != "BW" and left:  # in a model of two layers the first is all there is
        why = f"first layer: the data itself is its input (float in {task})"
        kept = dict.fromkeys(first, why) | kept
    return kept


def _is_adapter(name: str) -> bool:
    return any(_ADAPTER.match(part) for part in name.split("."))


def _tied_to_float(choices: list[Choice]) -> dict[str, str]:
    """Layers whose weight a float module (an embedding, say) uses too."""
    held = [(c, id(p)) for c in choices for p in c.module.parameters(recurse=False)]
    owners = {key: choice.name for choice, key in held if not choice.binary}
    return {
        choice.name: f"shares its weight with {owners[key]!r}, which stays float"
        for choice, key in held
        if choice.binary and key in owners
    }


def check_finite(choices: list[Choice]) -> None:
    """Refuse NaN and infinite weights before anything is changed."""
    for choice in choices:
        for name, p in choice.module.named_parameters(recurse=False):
            if choice.binary and not p.is_meta and not bool(torch.isfinite(p.detach()).all()):
                full = f"{choice.name}.{name}".lstrip(".")
                raise ValueError(f"{full!r} has NaN or infinite values: repair or reload it first")
