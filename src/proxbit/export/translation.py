"""From a network to a graph of ONNX by PyTorch's exporter, with a free batch or a fixed one."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

_torch_attention = functional.scaled_dot_product_attention


def translate_freely(network: nn.Module, example: Any, opset: int) -> Any:
    """The network with a free batch, or with that of the example if it takes no other."""
    batch = next((len(x) for x in pytree.tree_leaves(example) if _has_length(x)), None)
    free = pytree.tree_map(lambda x: _has_length(x) and len(x) == batch, example)
    if batch != 1:
        return translate(network, example, opset, free)
    # PyTorch takes a batch of one for fixed, so it gets one of two.
    twice = pytree.tree_map(lambda x, is_free: torch.cat([x, x]) if is_free else x, example, free)
    try:
        program = translate(network, twice, opset, free)
    except Exception:  # of a network that takes one input alone, or that cannot be translated
        return translate(network, example, opset)
    return translate(network, example, opset) if fixed_lengths(program) else program


def _has_length(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def translate(network: nn.Module, example: Any, opset: int, free: Any = None) -> Any:
    """The network as PyTorch's exporter translates it.

    Args:
        network: In eval mode.
        example: An input, a tuple of inputs or a dict of keywords.
        opset: Version of the standard operators.
        free: For each input, whether its first dimension is free; none by default.
    """
    several = isinstance(example, tuple | list | dict)
    named = example if isinstance(example, dict) else None
    shapes = pytree.tree_map(lambda is_free: {0: torch.export.Dim.AUTO} if is_free else None, free)
    attention = mock.patch.object(functional, "scaled_dot_product_attention", _attention)
    with warnings.catch_warnings(), torch.no_grad(), attention:
        # PyTorch and onnxscript warn of their own inner workings.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return torch.onnx.export(
            network,
            () if named is not None else tuple(example) if several else (example,),
            kwargs=named,
            dynamic_shapes=None if free is None else shapes if several else (shapes,),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Attention, with all dimensions before heads merged: the exporter knows no more than four."""
    if query.dim() <= 4 or rest or options.get("attn_mask") is not None:
        return _torch_attention(query, key, value, *rest, **options)
    q, k, v = (each.flatten(0, -4) for each in (query, key, value))
    return _torch_attention(q, k, v, **options).unflatten(0, query.shape[:-3])


def fixed_lengths(program: Any) -> dict[str, int]:
    """The lengths that a model fixed although they were offered as free, by PyTorch's symbol."""
    ranges = program.exported_program.range_constraints.items()
    return {str(symbol): int(r.lower) for symbol, r in ranges if r.lower == r.upper}
