"""Fusing: the modules after a packed layer become the last step of its kernel.

With binary inputs, often only a batch norm and an activation stand between two layers, and of the
result only the sign is used: the first layer hands bits to the second. With float inputs, a batch
norm is folded into scale and bias, and a known activation follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from proxbit.engine.norms import NORM, traced
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.packed_layers import PackedConv2d, PackedLinear

# Modules that treat every value by itself: what they do to a sum can be tabled.
_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU,
    nn.Hardswish, nn.Softplus,
)  # fmt: skip
# Those that treat every channel of an image by itself; behind a linear layer the channels of a
# batch norm could be any dimension.
_CHANNELWISE = (nn.BatchNorm2d, nn.PReLU)
PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)


def activation_code(module: nn.Module | None) -> int:
    """The number of an activation that kernels have; 0 for every other module.

    >>> activation_code(nn.ReLU(inplace=True)), activation_code(nn.Hardtanh(0, 6))
    (1, 0)
    """
    if type(module) is nn.ReLU:
        return 1
    if type(module) is nn.GELU:
        return 2 if module.approximate == "none" else 0
    if type(module) is nn.Hardtanh:
        return 3 if (module.min_val, module.max_val) == (-1.0, 1.0) else 0
    return 0


class Folded(nn.Module):
    """A stand-in for a module that the layer before it computes: it passes everything through."""

    def __init__(self, inner: nn.Module, layer: PackedLayer) -> None:
        """Keep the module for its tensors, which a file stores under its name."""
        super().__init__()
        self.inner, self.layer = inner, (layer,)
        self.training = inner.training

    def forward(self, x: Tensor) -> Tensor:
        """Return the input unchanged."""
        return x

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.layer[0].forget()


class FoldedNorm(Folded):
    """The same for a norm that carries an activation, which still computes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of the input."""
        inner: Any = self.inner
        return inner.act(inner.drop(x))


def fuse(net: nn.Module, *, depthwise: bool = True) -> None:
    """Fold into each packed layer what may be folded.

    Args:
        net: A packed network.
        depthwise: Whether depthwise convolutions take and give bits.
    """
    found = traced(net, (PackedLayer,))
    if found is None:
        return
    graph, modules = found
    calls = Counter(id(modules[str(n.target)]) for n in graph.nodes if n.op == "call_module")
    for node in graph.nodes:
        if node.op == "call_module" and _is_ready(modules[str(node.target)]):
            names = list(_chain(node, modules, calls))
            _fold(net, [(name, modules[name]) for name in names], depthwise)


def unfuse(net: nn.Module) -> None:
    """Put every folded module back in its place."""
    for module in list(net.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, Folded):
                setattr(module, name, child.inner)
    for _, layer in packed_layers(net):
        layer.finish_with([])


def _is_ready(module: nn.Module) -> bool:
    kinds = (PackedLinear, PackedConv2d)
    return isinstance(module, kinds) and module.route == "bits" and not module.after


def _chain(node: fx.Node, modules: dict[str, nn.Module], calls: Counter[int]) -> Iterator[str]:
    """Names of a layer and the modules after it, while nothing else reads the values in between."""
    while node.op == "call_module":
        module = modules[str(node.target)]
        if calls[id(module)] != 1 or module._forward_hooks or module._forward_pre_hooks:
            return
        yield str(node.target)
        if len(node.users) != 1:
            return
        node = next(iter(node.users))


def _fold(net: nn.Module, chain: list[tuple[str, nn.Module]], depthwise: bool) -> None:
    if not chain:
        return
    first = chain[0][1]
    assert isinstance(first, PackedLayer)
    after = [module for _, module in chain[1:]]
    if not first.form.binary:
        folded = _to_activation(first, after)
    else:
        folded = _to_next_layer(first, after, depthwise) or _to_norm(first, after)
    for name, module in reversed(chain[1:]):  # the activation before the norm that carries it
        if any(module is each for each in folded):
            kind, place = (FoldedNorm if name.endswith(NORM) else Folded), name.removesuffix(NORM)
            net.set_submodule(place, kind(net.get_submodule(place), first))


def _to_activation(first: PackedLayer, after: list[nn.Module]) -> list[nn.Module]:
    """Batch norm and activation behind a layer with float inputs."""
    folded: list[nn.Module] = []
    for module in after:
        if not folded and isinstance(first, PackedConv2d) and _is_fixed_norm(module):
            folded.append(module)
        elif activation_code(module):
            folded.append(module)
            break
        elif not isinstance(module, PASSING):
            break
    if folded:
        first.finish_with(folded, activation=activation_code(folded[-1]))
    return folded


def _to_next_layer(first: PackedLayer, after: list[nn.Module], depthwise: bool) -> list[nn.Module]:
    """All modules up to the next binary layer, if only the signs of their outputs are used."""
    image = isinstance(first, PackedConv2d)
    allowed = (*_ELEMENTWISE, *PASSING, *(_CHANNELWISE if image else ()))
    target = next((module for module in after if isinstance(module, PackedLayer)), None)
    if target is None or not _receives(first, target, depthwise):
        return []
    between = after[: after.index(target)]
    if not all(isinstance(module, allowed) and _is_fixed(module) for module in between):
        return []
    folded = [module for module in between if not isinstance(module, PASSING)]
    first.finish_with(folded, target=target)
    if first.bounds() is None:
        first.finish_with([])
        return []
    return folded


def _to_norm(first: PackedLayer, after: list[nn.Module]) -> list[nn.Module]:
    """The batch norm behind a layer with binary inputs, if its kernel can have the norm's bits."""
    norm = after[0] if after else None
    image = isinstance(first, PackedConv2d)
    if not image or not isinstance(norm, nn.BatchNorm2d) or not _is_fixed(norm):
        return []
    first.finish_with([norm])
    first.prepare()
    if not first.has_line():
        first.finish_with([])
        return []
    return [norm]


def _is_fixed(module: nn.Module) -> bool:
    """Whether a module is the same for every batch, and in the type of the sums it is tabled on."""
    tensors = (*module.parameters(), *module.buffers())
    floats = all(t.dtype == torch.float32 for t in tensors if t.is_floating_point())
    steady = _is_fixed_norm(module) or not isinstance(module, nn.BatchNorm2d)
    return floats and steady and not module.training


def _is_fixed_norm(module: nn.Module) -> bool:
    """Whether a batch norm is the same line for every batch."""
    norm = isinstance(module, nn.BatchNorm2d) and not module.training
    return norm and module.running_mean is not None


def _receives(first: PackedLayer, last: nn.Module, depthwise: bool) -> bool:
    """Whether the bits of one layer are what the other takes."""
    if type(first) is not type(last) or not isinstance(last, PackedLinear | PackedConv2d):
        return False
    if last.route != "bits" or first.shape[0] != last.shape[1] * last.form.groups:
        return False
    zeros = not isinstance(last, PackedConv2d) or last.mode == "zeros"
    forms = (first.form, last.form)
    alone = depthwise or all(form.groups == 1 for form in forms)
    return zeros and alone and all(form.takes_bits for form in forms)
