"""Proof by running: is every binary weight really used, and is every binary input alive?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from proxbit.nn import BinaryProduct, InputQuantizer, WeightQuantizer
from proxbit.nn.model_weights import require_binarized
from proxbit.util.modes import eval_mode, hooked
from proxbit.util.notices import SettingsWarning
from proxbit.util.text import alike, few

Traces: TypeAlias = list[tuple[nn.Module, Tensor]]
Hook: TypeAlias = Callable[[nn.Module, Any, Tensor], Tensor | None]


@dataclass(frozen=True)
class Probe:
    """The findings of one run of the model.

    Attributes:
        used: Binary weights whose product reached the output.
        unused: Those that did not: bypassed, or not run on this example.
        constant: Binary inputs that were +1 throughout (or -1 throughout).
    """

    used: tuple[str, ...]
    unused: tuple[str, ...]
    constant: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every binary weight was used and every binary input varied."""
        return not self.unused and not self.constant

    @property
    def unused_layers(self) -> set[str]:
        """The modules that own the unused weights."""
        return {name.rpartition(".")[0] for name in self.unused}

    def __str__(self) -> str:
        """A line, and one more for each problem."""
        every = len(self.used) + len(self.unused)
        lines = [f"{len(self.used)} of {every} binary weights were used"]
        hint = "(read directly by other code? pass parametrize=)"
        lines += [f"not used: {name} {hint}" for name in alike(self.unused)]
        lines += [f"constant input: {name} (a ReLU in front?)" for name in alike(self.constant)]
        return "\n".join(lines)


def probe(model: nn.Module, example: Any) -> Probe:
    """Run ``model`` on ``example`` and see which binary weights reach the output.

    The model runs twice in eval mode, without gradients (where PyTorch may take fused paths) and
    with them (to follow each product to the output); it is left as it was. A model that overwrites
    its own state there (RWKV's cache) cannot be followed: then a call counts as use.
    """
    weights = require_binarized(model)
    holders, inputs = _holders(model), _inputs(model)
    called: set[nn.Module] = set()
    varied: set[nn.Module] = set()
    traces: Traces = []
    looks: dict[nn.Module, Hook] = dict.fromkeys(holders, partial(_note_call, called))
    looks |= dict.fromkeys(inputs, partial(_note_variation, varied))
    with hooked(m.register_forward_hook(look) for m, look in looks.items()), torch.no_grad():
        run(model, example)
    follow = partial(_add_zero, traces)
    with hooked(m.register_forward_hook(follow) for m in holders), torch.enable_grad():
        reaching = _reaching(run(model, example), traces, called)
    used = {id(holders[holder]) for holder in called & reaching}
    return Probe(
        tuple(weight.name for weight in weights if id(weight.quantizer) in used),
        tuple(weight.name for weight in weights if id(weight.quantizer) not in used),
        tuple(name for module, name in inputs.items() if module not in varied),
    )


def warn_of_unused(model: nn.Module, example: Any) -> None:
    """Say which binary weights the model does not use on the example: nothing holds for them."""
    tensors = [*_tensors(example), *model.parameters()]
    if torch.is_inference_mode_enabled() or any(t.is_inference() for t in tensors):
        return  # there is no following a product to the output there
    unused = probe(model, example).unused
    if unused:
        names = few(alike(unused))
        warnings.warn(
            f"the example does not use {len(unused)} binary weights ({names}): other code reads "
            "them without calling their layers, or does not run them; if it reads them, they were "
            "trained as floats: binarize with example=, or parametrize=",
            SettingsWarning,
            stacklevel=3,
        )


def call(model: nn.Module, example: Any) -> Any:
    """Call the model with one input, a tuple of inputs, or a dict of keywords."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple | list) else model(example)


def call_all(model: nn.Module, batches: Iterable[Any], what: str) -> None:
    """Call the model with each batch: an input, keywords, or a tuple whose first item is the input.

    ``what`` names who asked, should there be none.
    """
    given = False
    for batch in batches:
        call(model, batch[0] if isinstance(batch, tuple | list) else batch)
        given = True
    if not given:
        raise ValueError(f"{what} got no batches: pass some inputs, or a data loader")


def run(model: nn.Module, example: Any) -> list[Tensor]:
    """Call the model in eval mode and return its floating-point outputs."""
    with eval_mode(model):
        result = call(model, example)
    return [tensor for tensor in _tensors(result) if tensor.is_floating_point()]


def _tensors(result: Any) -> Iterator[Tensor]:
    """The tensors in whatever a model returns: nested sequences, mappings, dataclasses."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        yield from _tensors(list(result.values()))
    elif isinstance(result, tuple | list | set):
        for item in result:
            yield from _tensors(item)
    elif is_dataclass(result) or isinstance(result, SimpleNamespace):
        yield from _tensors(list(vars(result).values()))


def _holders(model: nn.Module) -> dict[nn.Module, WeightQuantizer]:
    """The modules whose call is the use of a binary weight: products, or parametrizations."""
    products = {m: m.weight_quantizer for m in model.modules() if isinstance(m, BinaryProduct)}
    inside = {id(q) for q in products.values()}
    others = [m for m in model.modules() if isinstance(m, WeightQuantizer) and id(m) not in inside]
    return products | {m: m for m in others}


def _inputs(model: nn.Module) -> dict[nn.Module, str]:
    """The input quantizers with the names of their layers."""
    return {
        module: name.removesuffix(".input_quantizer").removesuffix(".binary")
        for name, module in model.named_modules()
        if isinstance(module, InputQuantizer)
    }


def _note_call(called: set[nn.Module], module: nn.Module, _: Any, output: Tensor) -> None:
    called.add(module)


def _note_variation(varied: set[nn.Module], module: nn.Module, _: Any, output: Tensor) -> None:
    negative = output < 0
    if bool(negative.any()) and not bool(negative.all()):
        varied.add(module)


def _add_zero(traces: Traces, module: nn.Module, _: Any, output: Tensor) -> Tensor:
    """A zero that needs a gradient shows afterwards whether the output depends on this product."""
    zero = torch.zeros_like(output, requires_grad=True)
    traces.append((module, zero))
    return output + zero


def _reaching(outputs: list[Tensor], traces: Traces, called: set[nn.Module]) -> set[nn.Module]:
    live = [output.float().sum() for output in outputs if output.requires_grad]
    if not live or not traces:
        return set()
    zeros = [zero for _, zero in traces]
    try:
        grads = torch.autograd.grad(torch.stack(live).sum(), zeros, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        return called
    return {m for (m, _), grad in zip(traces, grads, strict=True) if grad is not None}
