"""Attention norms set so that a pretrained network changes least."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.binarization.conversion import restore
from proxbit.nn.attention_norm import EPS, NAME, attention_norms, attentions, output_width
from proxbit.nn.model_weights import binary_weights
from proxbit.nn.probing import call_all
from proxbit.util.modes import eval_mode, hooked


def calibrate_norms(
    model: nn.Module, batches: Iterable[Any], float_model: nn.Module | None = None
) -> nn.Module:
    """Set the attention norms so that the pretrained function changes least, in place.

    LN takes two numbers from every token, its mean and its deviation over the channels. Gain and
    bias of each channel are the line that leads from the normalized float output back to the float
    output, best in least squares over all tokens. It gives the function back exactly where the two
    numbers are the same for all tokens, and their average effect where they are not.

    Args:
        model: A model with attention norms, float or binarized.
        batches: Inputs, dicts of keywords, or what a loader yields: tuples whose first item is
            the input.
        float_model: The float network whose attention outputs count. By default the model itself
            with its norms passed by; if it is binarized, with its latent weights.
    """
    norms = attention_norms(model)
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no attention norms: call add_attention_norms(model) first"
        )
    source = _float_twin(model) if float_model is None else float_model
    widths = [output_width(attention) for attention in attentions(source).values()]
    if widths != [norm.normalized_shape[0] for norm in norms]:
        raise ValueError(
            f"the attentions of float_model have outputs of widths {widths}, the norms "
            f"{[norm.normalized_shape[0] for norm in norms]}: pass the network they came from"
        )
    lines = _fit(source, batches)
    with torch.no_grad():
        for norm, line in zip(norms, lines, strict=True):
            gain, bias = line.solution()
            norm.weight.copy_(gain)
            norm.bias.copy_(bias)
    return model


def _float_twin(model: nn.Module) -> nn.Module:
    """The model itself if it is float, else a copy with its latent weights."""
    weights = binary_weights(model)
    if any(weight.quantizer.hard for weight in weights):
        raise ValueError("this model is hard, its float weights are gone: pass float_model=")
    return restore(copy.deepcopy(model)) if weights else model


class _Line:
    """Least squares of an output on its own LN, for each channel, over batches as they come."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(2, 1)
        self.moments = torch.zeros(2, 1)

    def add(self, attention: nn.Module, args: Any, output: Any) -> None:
        """After an attention: merge the means, the variance of LN, its covariance with the output.

        PyTorch's attention also returns its weights.
        """
        y: Tensor = (output[0] if isinstance(output, tuple) else output).flatten(0, -2)
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        both = torch.stack([functional.layer_norm(y, y.shape[-1:], eps=EPS), y])
        mean = both.mean(1)
        off = both - mean[:, None]
        moments = (off * off[0]).mean(1)
        self.count += len(y)
        share = len(y) / self.count
        move = mean - self.mean.to(mean)
        between = share * (1 - share) * move * move[0]
        self.moments = torch.lerp(self.moments.to(mean).expand_as(mean), moments, share) + between
        self.mean = self.mean.to(mean) + share * move

    def solution(self) -> tuple[Tensor, Tensor]:
        """Gain and bias."""
        variance, covariance = self.moments
        gain = covariance / variance.clamp_min(torch.finfo(variance.dtype).tiny)
        return gain, self.mean[1] - gain * self.mean[0]


def _fit(source: nn.Module, batches: Iterable[Any]) -> list[_Line]:
    found = attentions(source)
    lines = [_Line() for _ in found]
    watched = zip(found.values(), lines, strict=True)
    hooks = (attention.register_forward_hook(line.add) for attention, line in watched)
    with _without_norms(found.values()), hooked(hooks), observing(source):
        call_all(source, batches, "calibrate_norms")
    for name, line in zip(found, lines, strict=True):
        if not line.count:
            raise ValueError(
                f"attention {name!r} was not seen on these batches: pass a model that runs it, "
                "and not a compiled one"
            )
    return lines


@contextmanager
def _without_norms(found: Iterable[nn.Module]) -> Iterator[None]:
    """Let the norms of the attentions, if they have any, do nothing inside."""
    norms = {a: a._modules[NAME] for a in found if a._modules.get(NAME) is not None}
    try:
        for attention in norms:
            attention._modules[NAME] = nn.Identity()
        yield
    finally:
        for attention, norm in norms.items():
            attention._modules[NAME] = norm


@contextmanager
def observing(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no fused paths (they pass hooks by); all is left as it was."""
    with eval_mode(model), torch.no_grad(), unfused():
        yield


@contextmanager
def unfused() -> Iterator[None]:
    """PyTorch's attention without its fused inference paths."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
