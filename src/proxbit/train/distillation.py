"""Distillation as in BiBERT: a float teacher shows its scores, relations and hidden states.

Forward hooks on the inner modules of both networks take down what they compute, so the student may
be wrapped (DDP) or compiled; they do nothing outside of a call of the :class:`Distiller`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from proxbit.nn import BinaryMultiheadAttention
from proxbit.nn.attention_norm import attentions, blocks
from proxbit.nn.probing import call
from proxbit.train.norm_calibration import observing, unfused
from proxbit.train.relations import relation_distance

NAMES = ("logits", "labels", "relations", "hidden")


@dataclass(frozen=True)
class Terms:
    """The weights of the loss, 0 for a term that is not wanted; by default as in BiBERT.

    Attributes:
        logits: Cross entropy with the teacher's probabilities, summed over classes.
        labels: Cross entropy with the targets.
        relations: Distances of X X^T per head, X = Q, K, V, summed over layers.
        hidden: Distances of the embedding's and each block's output, summed.
        per_sample: Normalize each sample by itself and average, instead of the batch as a whole:
            the loss of a batch is then the mean of the losses of its samples.
        temperature: Divides the scores of both in the logits term, which is multiplied by its
            square so that its gradient keeps its size.
    """

    logits: float = 1.0
    labels: float = 0.5
    relations: float = 1.0
    hidden: float = 1.0
    per_sample: bool = False
    temperature: float = 1.0

    @classmethod
    def for_model(cls, *models: nn.Module) -> Terms:
        """The default terms as far as all of these models have what they compare.

        >>> Terms.for_model(nn.Linear(8, 2))
        Terms(logits=1.0, labels=0.5, relations=0.0, hidden=0.0, per_sample=False, temperature=1.0)
        """
        relations = all(attentions(model) for model in models)
        hidden = all(blocks(model) for model in models)
        return cls(relations=float(relations), hidden=float(hidden))


def distance(a: Tensor, b: Tensor, samples: int = 1) -> Tensor:
    """D(a, b): the norm of a / ||a|| - b / ||b||; neither squared nor divided by the size.

    With ``samples`` > 1 the tensors are that many of equal size, and the result is the mean of D.
    Only directions count: from 0 (the same) over 1.41 (at right angles) to 2 (opposite).

    >>> distance(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]]), 2)
    tensor(1.)
    """
    units = [functional.normalize(_full(x).reshape(samples, -1), dim=1) for x in (a, b)]
    return torch.linalg.vector_norm(units[0] - units[1], dim=1).mean()


def evenly(deep: int, shallow: int) -> list[int]:
    """Which layers of a deep network stand for those of a shallow one: each group's last.

    >>> evenly(12, 4), evenly(5, 2)
    ([2, 5, 8, 11], [1, 4])
    """
    return [(i + 1) * deep // shallow - 1 for i in range(shallow)]


def _full(x: Tensor) -> Tensor:
    """At least float32: sums of squares overflow in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Tape:
    """The notes of one model's hooks while it is on, in the order of the calls.

    It is empty otherwise: a copy of the model copies its hooks, and they this tape.

    Attributes:
        projections: Queries, keys and values of each attention, as (batch, ..., heads, tokens, d).
        hidden: What enters the first block, and what leaves each.
    """

    def __init__(self) -> None:
        self.on = False
        self.projections: list[Tensor] = []
        self.hidden: list[Tensor] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on, self.projections, self.hidden = False, [], []


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _note_layer(
    tape: _Tape, parts: int, heads: int, _: nn.Module, args: Any, output: Tensor
) -> None:
    """After a layer that projects to queries, keys and values at once, or to one of the three."""
    if tape.on:
        tape.projections.extend(_heads(x, heads) for x in output.chunk(parts, -1))


def _note_attention(tape: _Tape, module: Any, args: Any, kwargs: Any, output: Any) -> None:
    """After PyTorch's attention, which projects inside a function: project once more."""
    if tape.on and not isinstance(module, BinaryMultiheadAttention):
        given = [*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs)]
        for x, w, b in zip(given[:3], *_projections(module), strict=True):
            x = x.transpose(0, 1) if _tokens_first(module) else x
            tape.projections.append(_heads(functional.linear(x, w, b), module.num_heads))


def _projections(module: Any) -> tuple[Any, Any]:
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weight, bias = module.in_proj_weight, module.in_proj_bias
    weights = separate if weight is None else weight.chunk(3)
    return weights, (None, None, None) if bias is None else bias.chunk(3)


def _tokens_first(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) and not attention.batch_first


def _note_block(tape: _Tape, tokens_first: bool, _: nn.Module, args: Any, output: Any) -> None:
    if tape.on:
        left = output[0] if isinstance(output, tuple) else output
        states = (left,) if tape.hidden else (args[0], left)
        tape.hidden.extend(x.transpose(0, 1) if tokens_first else x for x in states)


def _watch_projections(tape: _Tape, attentions: Iterable[Any]) -> Iterator[RemovableHandle]:
    for attention in attentions:
        if isinstance(attention, BinaryMultiheadAttention):
            hook = partial(_note_layer, tape, 1, attention.num_heads)
            yield from (product.register_forward_hook(hook) for product in attention.binary)
        elif isinstance(attention, nn.MultiheadAttention):
            yield attention.register_forward_hook(partial(_note_attention, tape), with_kwargs=True)
        else:
            hook = partial(_note_layer, tape, 3, attention.num_heads)
            yield attention.qkv.register_forward_hook(hook)


class _Watched:
    """A model with its hooks."""

    def __init__(self, role: str, model: nn.Module, uses: tuple[str, ...]) -> None:
        self.role, self.model, self.tape = role, model, _Tape()
        self.attentions = attentions(model) if "relations" in uses else {}
        self.blocks = blocks(model) if "hidden" in uses else {}
        self.handles = list(_watch_projections(self.tape, self.attentions.values()))
        for block, attention in self.blocks.items():
            hook = partial(_note_block, self.tape, _tokens_first(attention))
            self.handles.append(block.register_forward_hook(hook))

    def scores(self, run: Any, x: Any) -> Tensor:
        """Run the model, as itself or wrapped; all that is watched must be seen."""
        with unfused():
            output = call(run, x)
        states = len(self.blocks) + bool(self.blocks)
        if len(self.tape.projections) < 3 * len(self.attentions) or len(self.tape.hidden) < states:
            raise RuntimeError(
                f"the {self.role} ran past the hooks on its attentions: make the Distiller after "
                "binarize and before torch.compile, keep it open while it is used, and take a "
                "model that calls its projections as layers"
            )
        if not isinstance(output, Tensor):
            raise TypeError(
                f"the {self.role} answers with {type(output).__name__}, not with one tensor of "
                "scores: wrap it in a module that returns these (a distilled DeiT: call its "
                "set_distilled_training(False))"
            )
        return output


class Distiller:
    """The loss of a student beside a frozen teacher.

    The teacher runs in eval mode without gradients and is left as it is; neither network becomes a
    part of the other. Make it when the student is binarized, before it is compiled.

    Attributes:
        terms: The weights of the loss; by default ``Terms.for_model(student, teacher)``.
        uses: The names of the terms that act.
        parts: The last value of each of these before its weight, detached.

    >>> student, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
    >>> distiller = Distiller(student, teacher)
    >>> loss, scores = distiller(torch.randn(4, 8), torch.tensor([0, 1, 1, 0]))
    >>> loss.backward()
    >>> list(distiller.parts)
    ['logits', 'labels']
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, terms: Terms | None = None) -> None:
        """Put the hooks on both networks; :meth:`close` takes them off."""
        if student is teacher:
            raise ValueError("student and teacher are one module: pass a copy.deepcopy as teacher")
        self.terms = Terms.for_model(student, teacher) if terms is None else terms
        _check(self.terms)
        self.uses = tuple(name for name in NAMES if getattr(self.terms, name))
        _check_models(self.uses, teacher=teacher, student=student)
        self.parts: dict[str, Tensor] = {}
        self._teacher = _Watched("teacher", teacher, self.uses)
        self._student = _Watched("student", student, self.uses)

    def __call__(
        self, x: Any, targets: Tensor, run: Callable[..., Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss and the student's scores.

        Args:
            x: An input, a tuple of inputs, or a dict of keywords.
            targets: Classes as int64 (n,), or probabilities (n, classes).
            run: The student as it is to be called, where it is wrapped or compiled.
        """
        teacher, student = self._teacher, self._student
        with teacher.tape.recording(), student.tape.recording():
            with observing(teacher.model):
                expected = teacher.scores(teacher.model, x)
            scores = student.scores(student.model if run is None else run, x)
            with torch.autocast(scores.device.type, enabled=False):
                parts = self._classes(scores, expected, targets)
                parts |= self._states(len(scores) if self.terms.per_sample else 1)
        self.parts = {name: part.detach() for name, part in parts.items()}
        weighted = [getattr(self.terms, name) * part for name, part in parts.items()]
        return torch.stack(weighted).sum(), scores

    def close(self) -> None:
        """Take the hooks off both networks."""
        for handle in (*self._student.handles, *self._teacher.handles):
            handle.remove()

    def _classes(self, scores: Tensor, expected: Tensor, targets: Tensor) -> dict[str, Tensor]:
        parts, t = {}, self.terms.temperature
        if "logits" in self.uses:
            _same("scores", scores.shape, expected.shape, "give both the same classes, or logits=0")
            soft = (_full(expected) / t).softmax(-1)
            parts["logits"] = t * t * functional.cross_entropy(_full(scores) / t, soft)
        if "labels" in self.uses:
            parts["labels"] = functional.cross_entropy(_full(scores), _checked(targets, scores))
        return parts

    def _states(self, samples: int) -> dict[str, Tensor]:
        parts, ours, theirs = {}, self._student.tape, self._teacher.tape
        if "relations" in self.uses:
            layers = _chosen("relations", len(theirs.projections) // 3, len(ours.projections) // 3)
            chosen = [theirs.projections[3 * layer + i] for layer in layers for i in range(3)]
            parts["relations"] = _total("relations", ours.projections, chosen, samples)
        if "hidden" in self.uses:
            layers = _chosen("hidden", len(theirs.hidden) - 1, len(ours.hidden) - 1)
            chosen = [theirs.hidden[i] for i in (0, *(layer + 1 for layer in layers))]
            parts["hidden"] = _total("hidden", ours.hidden, chosen, samples)
        return parts


def _chosen(term: str, teacher: int, student: int) -> list[int]:
    if teacher < student:
        raise ValueError(
            f"the teacher has {teacher} layers and the student {student}: take a teacher at least "
            f"as deep, or {term}=0"
        )
    return evenly(teacher, student)


def _total(term: str, ours: list[Tensor], theirs: list[Tensor], samples: int) -> Tensor:
    """The sum of the distances of pairs; a relation forgets how wide a head is."""
    related = term == "relations"
    need = "heads and tokens" if related else "tokens and width"
    hint = f"give both the same {need}, or {term}=0"
    measured, dims = (relation_distance, -1) if related else (distance, None)
    distances = []
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        _same(f"{term} {i}", mine.shape[:dims], other.shape[:dims], hint)
        distances.append(measured(_full(mine), _full(other), samples))
    return torch.stack(distances).sum()


def _same(what: str, student: torch.Size, teacher: torch.Size, hint: str) -> None:
    if student != teacher:
        raise ValueError(
            f"{what}: {tuple(student)} in the student and {tuple(teacher)} in the teacher; {hint}"
        )


def _check(terms: Terms) -> None:
    weights = {name: getattr(terms, name) for name in NAMES}
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"{name}={weight} cannot weigh a loss: pass 0 or more")
    if not any(weights.values()):
        raise ValueError(f"no term acts: give one of {', '.join(NAMES)} a weight above 0")
    if not 0 < terms.temperature < math.inf:
        raise ValueError(f"temperature={terms.temperature} must be above 0; 1 is the usual one")


def _check_models(uses: tuple[str, ...], **models: nn.Module) -> None:
    """Require, before the first hook, that each model has what the terms compare."""
    for role, model in models.items():
        for name, found in (("relations", attentions(model)), ("hidden", blocks(model))):
            if name in uses and not found:
                raise ValueError(
                    f"the term {name!r} cannot act: the {role} ({type(model).__name__}) has no "
                    "attention blocks of a known kind (timm's, or nn.MultiheadAttention); pass "
                    f"terms=Terms.for_model(student, teacher), or Terms({name}=0)"
                )


def _checked(targets: Tensor, scores: Tensor) -> Tensor:
    if targets.dtype == torch.int64 and targets.shape == scores.shape[:1]:
        return targets
    if targets.is_floating_point() and targets.shape == scores.shape:
        return _full(targets)
    raise ValueError(
        f"targets are {targets.dtype} {tuple(targets.shape)} for scores {tuple(scores.shape)}: "
        "pass classes as int64 (n,), or probabilities (n, classes)"
    )
