"""Whether weights fit a model, and how they differ."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from proxbit.models.structure import layers, stated_classifiers
from proxbit.models.weight_files import Tensors, plain
from proxbit.util.text import few

# BatchNorm counts its batches; weights older than the counter do without, and lose nothing.
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Misfit:
    """How weights differ from what a model wants.

    Attributes:
        missing: Tensors of the model that the weights lack.
        extra: Tensors that the model does not know.
        shapes: Tensors of another shape: name, shape in the file, shape in the model.
    """

    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.shapes)

    def __str__(self) -> str:
        """The counts and the first few names of each kind."""
        shapes = [f"{name} {given} for {wanted}" for name, given, wanted in self.shapes]
        kinds = {"missing": self.missing, "unknown to the model": self.extra}
        parts = [f"{len(names)} {what} ({few(names)})" for what, names in kinds.items() if names]
        parts += [f"{len(shapes)} of another shape ({few(shapes)})"] if shapes else []
        return ", ".join(parts)


def misfit(own: Tensors, given: Tensors) -> Misfit:
    """Compare the tensors of a model with those of a file, by name and shape."""
    missing = tuple(n for n in own if n not in given and n.rpartition(".")[2] != COUNTER)
    extra = tuple(n for n in given if n not in own)
    both = ((n, tuple(given[n].shape), tuple(own[n].shape)) for n in own if n in given)
    return Misfit(missing, extra, tuple(each for each in both if each[1] != each[2]))


def heads(model: nn.Module, own: Tensors, given: Tensors) -> tuple[str, ...]:
    """Names of the classifier's tensors.

    timm's models say which layer it is. In others it is the one that differs from the weights in
    its number of outputs alone, or the last layer where none does.
    """
    every = [plain(name) for name in layers(model)]
    other = [name for name in every if _other_outputs(f"{name}.weight".lstrip("."), own, given)]
    chosen = stated_classifiers(model) or other or every[-1:]
    return tuple(n for n in own if n.rpartition(".")[0] in chosen)


def _other_outputs(name: str, own: Tensors, given: Tensors) -> bool:
    if name not in own or name not in given:
        return False
    there, here = given[name].shape, own[name].shape
    return there[:1] != here[:1] and there[1:] == here[1:]
