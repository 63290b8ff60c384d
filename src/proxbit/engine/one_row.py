"""One row times a float matrix, on all threads: torch leaves such a product to one.

As a batch of products, each with some of the outputs, every thread has one. In which order torch
sums an output may depend on how many there are; so torch is asked: random rows go both ways, and
only where all results are the same bits and the batch is faster, it takes the place of the product.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.engine.timing import race

FEWEST_WEIGHTS = 1 << 17  # below, a second thread has nothing to gain
_SECONDS = 0.02  # spent on a layer
_ROWS = 3  # that are asked about


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> Tensor:
    """The row times the matrix, cut into parts that have equally many outputs."""
    outputs, inputs = weight.shape
    rows = x.reshape(1, 1, inputs).expand(parts, 1, inputs)
    matrices = weight.view(parts, outputs // parts, inputs).transpose(1, 2)
    if bias is None:
        out = torch.bmm(rows, matrices)
    else:
        out = torch.baddbmm(bias.view(parts, 1, outputs // parts), rows, matrices)
    return out.view(*x.shape[:-1], outputs)


def takes(layer: nn.Linear, x: Tensor) -> bool:
    """Whether this is one row, and the layer as large as it must be."""
    weight = layer.weight
    plain = all(t.dtype == torch.float32 and t.is_cpu and t.is_contiguous() for t in (weight, x))
    return plain and x.numel() == layer.in_features and weight.numel() >= FEWEST_WEIGHTS


def find_parts(layer: nn.Linear, threads: int) -> int:
    """Into how many parts to cut, at most as many as there are threads; 1 where torch's way stays.

    The layer's own memory is asked: where it begins may change the bits, too.
    """
    weight, bias = layer.weight, layer.bias
    source = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, layer.in_features, generator=source) for _ in range(_ROWS)]
    for parts in range(threads, 1, -1):
        if layer.out_features % parts:
            continue
        with torch.inference_mode():
            cut = [in_parts(row, weight, bias, parts) for row in rows]
            whole = [functional.linear(row, weight, bias) for row in rows]
            if all(map(torch.equal, cut, whole)):
                return parts if _is_faster(rows[0], weight, bias, parts) else 1
    return 1


def _is_faster(row: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> bool:
    times = race(
        {
            "whole": partial(functional.linear, row, weight, bias),
            "cut": partial(in_parts, row, weight, bias, parts),
        },
        _SECONDS,
    )
    return min(times["cut"]) < min(times["whole"])
