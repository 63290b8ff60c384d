"""Binary weights without a packed kernel: floats in memory, +-scale, and bits in a file.

Such a weight is an ordinary tensor of an ordinary module, which keeps a note of it; so a network
that was loaded can be saved again, as small as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from proxbit.core.maps import sign
from proxbit.core.weight_layout import Layout
from proxbit.packfile.bits import pack_bits
from proxbit.packfile.contents import About, PackedWeight

# On the module that has the tensor, so that copies of the network and parts of it keep theirs.
_NOTES = "_proxbit_unpacked"
# On the packed network, a module of the user's own class: what a file says besides tensors.
_FACTS = "_proxbit_about"


def facts_of(net: nn.Module) -> About:
    """The facts that a packed network keeps; empty ones for any other module."""
    known: About = vars(net).get(_FACTS, About())
    return known


def keep_facts(net: nn.Module, facts: About) -> nn.Module:
    """The network, which is a packed one from now on."""
    net.__dict__[_FACTS] = facts
    return net


def is_packed(net: nn.Module) -> bool:
    """Whether ``pack`` or ``load`` made this network, even one without a packed layer."""
    return _FACTS in vars(net)


class Note(NamedTuple):
    """How a tensor holds a binary weight.

    Attributes:
        layout: Where its outputs are; None if they come first.
        per_output: Whether each output has a scale, or all have one.
    """

    layout: Layout | None
    per_output: bool


def take_note(net: nn.Module, weight: PackedWeight) -> None:
    """Remember that the tensor of this name holds a binary weight."""
    owner, _, name = weight.name.rpartition(".")
    per_output = weight.scale is not None and weight.scale.numel() > 1
    module = net.get_submodule(owner)
    module.__dict__.setdefault(_NOTES, {})[name] = Note(weight.layout, per_output)


def unpacked_weights(net: nn.Module) -> Iterator[tuple[str, Tensor, Note]]:
    """Name, tensor and note of each; a module that stands at two places once."""
    for prefix, module in net.named_modules():
        for name, note in vars(module).get(_NOTES, {}).items():
            yield f"{prefix}.{name}".lstrip("."), getattr(module, name), note


def in_bits(name: str, tensor: Tensor, note: Note) -> PackedWeight:
    """The weight as a file holds it, if it still is one.

    The tensor alone knows the scale: a cast or a loaded state_dict changes it, and a copy would not
    know.
    """
    weight = tensor.detach() if note.layout is None else note.layout.rows(tensor.detach())
    dims = tuple(range(1 if note.per_output else 0, weight.dim()))
    scale = weight.abs().amax(dims, keepdim=True)
    if not weight.is_meta and not bool((weight.abs() == scale).all()):
        raise ValueError(
            f"{name!r} was binary when the network was packed, and is not any more: it was changed "
            "since, so binarize, harden and pack the network again"
        )
    return PackedWeight(
        name, tuple(weight.shape), pack_bits(sign(weight)), scale.float().flatten(),
        layout=note.layout,
    )  # fmt: skip
