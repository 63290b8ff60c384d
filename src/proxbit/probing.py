"""Proof by running: is every binary weight really used, and is every binary input alive?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from proxbit.convert import binary_weights
from proxbit.nn import BinaryProduct, InputQuantizer, WeightQuantizer


@dataclass(frozen=True)
class Probe:
    """What one run of the model showed.

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

    def __str__(self) -> str:
        """A line, and one more for each problem."""
        every = len(self.used) + len(self.unused)
        lines = [f"{len(self.used)} of {every} binary weights were used"]
        lines += [
            f"not used: {name} (read directly by other code? pass parametrize=)"
            for name in self.unused
        ]
        lines += [f"constant input: {name} (a ReLU in front?)" for name in self.constant]
        return "\n".join(lines)


def probe(model: nn.Module, example: Any) -> Probe:
    """Run ``model`` on ``example`` and see which binary weights reach the output.

    The model runs twice in eval mode, without gradients (where PyTorch may take fused paths) and
    with them (to follow each product to the output); it is left as it was.
    """
    weights = binary_weights(model)
    if not weights:
        raise ValueError("this model is not binarized: call pb.binarize(model, ...) first")
    holders = _holders(model)
    with _watch(holders) as calls, torch.no_grad():
        run(model, example)
    with _trace(holders) as traces, torch.enable_grad():
        outputs = run(model, example)
    reached = _reached(outputs, traces)
    used = {id(q) for q in holders.values() if id(q) in calls and id(q) in reached}
    names = {True: [], False: []}  # type: dict[bool, list[str]]
    for weight in weights:
        names[id(weight.quantizer) in used].append(weight.name)
    return Probe(tuple(names[True]), tuple(names[False]), _constant_inputs(model, example))


def call(model: nn.Module, example: Any) -> Any:
    """Call the model with one input, a tuple of inputs, or a dict of keywords."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple | list) else model(example)


def run(model: nn.Module, example: Any) -> list[Tensor]:
    """Call the model in eval mode and return its floating-point outputs."""
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        result = call(model, example)
    finally:
        for module, mode in modes.items():
            module.training = mode
    leaves = pytree.tree_leaves(result)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _holders(model: nn.Module) -> dict[nn.Module, WeightQuantizer]:
    """The modules whose call is the use of a binary weight: products, or parametrizations."""
    products = {m: m.weight_quantizer for m in model.modules() if isinstance(m, BinaryProduct)}
    inside = {id(q) for q in products.values()}
    others = [m for m in model.modules() if isinstance(m, WeightQuantizer) and id(m) not in inside]
    return products | {m: m for m in others}


@contextmanager
def _watch(holders: dict[nn.Module, WeightQuantizer]) -> Iterator[set[int]]:
    """Collect the quantizers that were called."""
    calls: set[int] = set()
    handles = [
        holder.register_forward_hook(lambda m, i, o, key=id(quantizer): calls.add(key))
        for holder, quantizer in holders.items()
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _trace(holders: dict[nn.Module, WeightQuantizer]) -> Iterator[list[tuple[int, Tensor]]]:
    """Add a zero to each product, to see afterwards whether the output depends on it."""
    traces: list[tuple[int, Tensor]] = []

    def add(key: int, output: Tensor) -> Tensor:
        zero = torch.zeros_like(output, requires_grad=True)
        traces.append((key, zero))
        return output + zero

    handles = [
        holder.register_forward_hook(lambda m, i, o, key=id(quantizer): add(key, o))
        for holder, quantizer in holders.items()
    ]
    try:
        yield traces
    finally:
        for handle in handles:
            handle.remove()


def _reached(outputs: list[Tensor], traces: list[tuple[int, Tensor]]) -> set[int]:
    live = [output.float().sum() for output in outputs if output.requires_grad]
    if not live or not traces:
        return set()
    total = torch.stack(live).sum()
    grads = torch.autograd.grad(total, [zero for _, zero in traces], allow_unused=True)
    return {key for (key, _), grad in zip(traces, grads, strict=True) if grad is not None}


def _constant_inputs(model: nn.Module, example: Any) -> tuple[str, ...]:
    """Names of the products whose hard input never changed its sign."""
    seen: dict[str, bool] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, InputQuantizer):

            def look(m: nn.Module, i: Any, o: Tensor, name: str = name) -> None:
                signs = o < 0
                varied = bool(signs.any()) and not bool(signs.all())
                seen[name] = seen.get(name, False) or varied

            handles.append(module.register_forward_hook(look))
    try:
        if handles:
            with torch.no_grad():
                run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(name.removesuffix(".binary.input_quantizer") for name, ok in seen.items() if not ok)
