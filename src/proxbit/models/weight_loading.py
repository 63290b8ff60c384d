"""Weights of others into a model: all of them, or none and a sentence that says why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.models.resampling import resampled
from proxbit.models.weight_files import Tensors, plain, read_weights
from proxbit.models.weight_fitting import Misfit, heads, misfit
from proxbit.util.text import few, saying


@dataclass(frozen=True)
class Loaded:
    """The tensors that a weight file gave a model.

    Attributes:
        file: Where the weights came from.
        loaded: Names of the tensors that are now those of the file.
        resized: Those among them that timm resampled to the model's sizes.
        fresh: Names of the tensors of a new classifier, which are as they were.
    """

    file: str
    loaded: tuple[str, ...]
    resized: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        parts = [f"{len(self.loaded)} tensors from {self.file}"]
        parts += [f"resampled: {few(self.resized)}"] if self.resized else []
        parts += [f"new: {few(self.fresh)}"] if self.fresh else []
        return "; ".join(parts)


def load_weights(model: nn.Module, path: str | Path, *, new_head: bool | None = False) -> Loaded:
    """Load the weights of a file into the model, and say what was done.

    The file is safetensors, a folder that holds ``model.safetensors``, or a torch file of tensors
    alone: nothing in it is executed. If it does not fit, the model stays as it was.

    Args:
        model: The model; timm's transformers may have another image or patch size than the file.
        path: The file or folder.
        new_head: Keep the classifier of the model, and load the rest; None does so where nothing
            but the number of classes differs.
    """
    state = {n: tensor for n, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    names = {plain(name): name for name in state}
    own = {short: state[name] for short, name in names.items()}
    given = read_weights(path)
    head = heads(model, own, given)
    fitted = given
    if misfit(_without(own, head), _without(given, head)):
        fitted = resampled(model, own, given)
    fresh = head if new_head else ()
    problem = misfit(_without(own, fresh), _without(fitted, fresh))
    if problem and new_head is None and _is_of_other_classes(problem, head):
        fresh, problem = head, misfit(_without(own, head), _without(fitted, head))
    if problem:
        raise ValueError(_sentence(path, problem, head))
    _put(model, names, own, _without(fitted, fresh), path)
    resized = (n for n in fitted if n in given and fitted[n].shape != given[n].shape)
    return Loaded(str(path), tuple(_without(fitted, fresh)), tuple(resized), fresh)


def _without(tensors: Tensors, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def _sentence(path: str | Path, problem: Misfit, head: tuple[str, ...]) -> str:
    """Say what does not fit, and the cure where it is the classifier alone."""
    wrong = [*problem.missing, *problem.extra, *(name for name, _, _ in problem.shapes)]
    cure = "pass new_head=True (--new-head) to keep the model's own classifier and load the rest"
    if not all(name in head for name in wrong):
        return f"the weights in '{path}' do not fit the model: {problem}"
    if not _is_of_other_classes(problem, head):
        return f"the weights in '{path}' do not fit the model's classifier, {problem}: {cure}"
    _, given, own = problem.shapes[0]
    return f"the weights in '{path}' have {given[0]} classes, the model {own[0]}: {cure}"


def _is_of_other_classes(problem: Misfit, head: tuple[str, ...]) -> bool:
    """Whether nothing but the number of the classifier's outputs differs."""
    classifier = all(name in head for name in (*problem.extra, *(n for n, _, _ in problem.shapes)))
    same = all(len(a) == len(b) and a[1:] == b[1:] for _, a, b in problem.shapes)
    return classifier and bool(problem.shapes) and not problem.missing and same


def _put(
    model: nn.Module, names: dict[str, str], own: Tensors, given: Tensors, path: str | Path
) -> None:
    """Convert every tensor before the first is put into the model: a failure changes nothing."""
    state = model.state_dict()
    for name, tensor in given.items():
        if tensor.is_complex():
            raise ValueError(f"{name!r} in '{path}' is complex, and the model is real: not usable")
        with saying(f"{name!r} in '{path}' cannot be copied"):
            value = torch.empty_like(own[name]).copy_(tensor)
        # Where the model itself has an infinity (a mask), the file may have it, too.
        if bool((~value.isfinite() & own[name].isfinite()).any()):
            raise ValueError(f"{name!r} in '{path}' has values that are not finite: not usable")
        state[names[name]] = value
    model.load_state_dict(state)
