"""Which layers become binary, which stay float, and why: a plan, before anything is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from proxbit.nn import (
    BinaryConv1d,
    BinaryConv2d,
    BinaryLinear,
    BinaryMultiheadAttention,
    Task,
)
from proxbit.text import unknown

Selector: TypeAlias = str | Iterable[str] | Callable[[str, nn.Module], bool]
Swaps: TypeAlias = Mapping[type[nn.Module], type[nn.Module]]

SWAPS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: BinaryLinear,
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.MultiheadAttention: BinaryMultiheadAttention,
}

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention)


@dataclass(frozen=True, eq=False)
class Choice:
    """What happens to one module that owns weights.

    Attributes:
        name: Name of the module in the model ("" for the model itself).
        module: The module.
        swap: The binary class that it takes, if any.
        parametrize: Names of the weights that get a parametrization instead, if any.
        why: The reason why it stays float; empty for a binary one.
    """

    name: str
    module: nn.Module
    swap: type[nn.Module] | None = None
    parametrize: tuple[str, ...] = ()
    why: str = ""

    @property
    def binary(self) -> bool:
        """Whether the module becomes binary."""
        return not self.why


def choose(
    model: nn.Module,
    task: Task = "BW",
    *,
    only: Selector | None = None,
    skip: Selector | None = None,
    parametrize: Selector | None = None,
    swaps: Swaps = SWAPS,
) -> list[Choice]:
    """Decide for every module that owns weights; raises on selectors that match nothing."""
    modules = dict(model.named_modules())
    direct = _matcher(parametrize, modules, "parametrize")
    choices = [
        choice
        for name, module in modules.items()
        if (choice := _classify(name, module, swaps, direct(name, module))) is not None
    ]
    wanted = _matcher(only, modules, "only", default=True)
    unwanted = _matcher(skip, modules, "skip")
    kept = {} if only is not None else _kept_by_default(model, choices, task)
    tied = _tied_to_float(choices)

    def decide(choice: Choice) -> Choice:
        if not choice.binary:
            return choice
        if not wanted(choice.name, choice.module):
            return replace(choice, why="not in only=")
        if unwanted(choice.name, choice.module):
            return replace(choice, why="in skip=")
        why = kept.get(choice.name) or tied.get(choice.name) or ""
        return replace(choice, why=why)

    return [decide(choice) for choice in choices]


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
            near = unknown("module", pattern, names[:8]) + (", ..." if len(names) > 8 else "")
            raise ValueError(f"{what}={pattern!r} matches no module: {near}")
    return lambda name, module: any(
        fnmatchcase(part, pattern) for part in _ancestry(name) for pattern in patterns
    )


def _ancestry(name: str) -> list[str]:
    """'a.b.c' lies in 'a', 'a.b' and is 'a.b.c'."""
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
        return Choice(name, module, parametrize=tuple(weights))
    bases: list[Any] = [base for base in type(module).__mro__ if base in swaps]
    if not bases:
        return Choice(name, module, why=_no_form(module, weights))
    if "weight" not in weights and not isinstance(module, nn.MultiheadAttention):
        return Choice(name, module, why=f"its weight is computed from {', '.join(weights)}")
    if type(module).forward is not bases[0].forward:
        why = f"{kind} has a forward of its own: pass swaps= with a binary {kind}, or parametrize="
        return Choice(name, module, why=why)
    if _adds_methods(type(module), bases[0]):
        why = f"{kind} has methods of its own: pass swaps= with a binary {kind}, or parametrize="
        return Choice(name, module, why=why)
    return Choice(name, module, swap=swaps[bases[0]])


def _adds_methods(kind: type, base: type) -> bool:
    """Whether a subclass brings anything that taking another class would lose."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    return any(not name.startswith("__") for cls in between for name in vars(cls))


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
        return f"free parameters ({', '.join(weights)})"
    return f"{kind} has no binary form: pass parametrize= with its name, or swaps="


def _kept_by_default(model: nn.Module, choices: list[Choice], task: Task) -> dict[str, str]:
    """First convolution, last classifier, and 1x1 shortcuts where inputs are binary too."""
    kept: dict[str, str] = {}
    layers = [choice for choice in choices if choice.binary]
    convolutions = [c for c in layers if isinstance(c.module, nn.Conv1d | nn.Conv2d)]
    if convolutions:
        kept[convolutions[0].name] = "first convolution"
    for choice in layers:
        if "patch_embed" in choice.name:
            kept[choice.name] = "patch embedding"
    for name in _classifiers(model, layers):
        kept[name] = "last classifier"
    if task != "BW":
        for choice in convolutions:
            if _is_shortcut(choice):
                kept.setdefault(choice.name, f"1x1 shortcut convolution (float in {task})")
    return kept


def _is_shortcut(choice: Choice) -> bool:
    kernel = getattr(choice.module, "kernel_size", ())
    named = any(word in choice.name for word in ("downsample", "shortcut"))
    return named and all(size == 1 for size in kernel)


def _classifiers(model: nn.Module, layers: list[Choice]) -> list[str]:
    """The head that the model itself names (timm), or the last linear outside repeated blocks."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        found = getter()
        heads = {id(m) for head in (found if isinstance(found, tuple) else (found,))
                 if isinstance(head, nn.Module) for m in head.modules()}  # fmt: skip
        named = [choice.name for choice in layers if id(choice.module) in heads]
        if named:
            return named
    linears = [choice for choice in layers if isinstance(choice.module, nn.Linear)]
    if not linears or _in_a_block(model, linears[-1].name):
        return []
    return [linears[-1].name]


def _in_a_block(model: nn.Module, name: str) -> bool:
    """Whether the nearest parent that is not a mere container is one of several of its kind."""
    parents = [model, *(model.get_submodule(part) for part in _ancestry(name)[:-1])]
    owner = next((m for m in reversed(parents) if not isinstance(m, _CONTAINERS)), model)
    count = Counter(type(m) for m in model.modules())[type(owner)]
    return isinstance(owner, _BLOCKS) or (owner is not model and count > 1)


def _tied_to_float(choices: list[Choice]) -> dict[str, str]:
    """Layers whose weight a float module (an embedding, say) uses too."""
    owners = {
        id(p): choice.name
        for choice in choices
        if not choice.binary
        for p in choice.module.parameters(recurse=False)
    }
    return {
        choice.name: f"shares its weight with {owners[id(p)]!r}, which stays float"
        for choice in choices
        if choice.binary
        for p in choice.module.parameters(recurse=False)
        if id(p) in owners
    }


def check_finite(choices: list[Choice]) -> None:
    """Refuse NaN and infinite weights before anything is changed."""
    for choice in choices:
        for name, p in choice.module.named_parameters(recurse=False):
            if choice.binary and not p.is_meta and not bool(torch.isfinite(p.detach()).all()):
                full = f"{choice.name}.{name}".lstrip(".")
                raise ValueError(f"{full!r} has NaN or infinite values: repair or reload it first")
