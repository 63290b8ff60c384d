"""Attention by a kernel that gives the bits of torch, faster.

In which order torch sums depends on its build and on the CPU. So torch is asked: random queries,
keys and values of the same shape go both ways, with each order that a torch is known to have, and
only where all results are the same bits and the kernel is faster, it takes the place of torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from proxbit.engine.timing import race
from proxbit.kernels import inference as kernels

_SECONDS = 0.02  # spent on a shape
_LANES = (16, 8)  # of torch with AVX-512, with AVX2
_RUNS = (192, 256, 384, 128)  # products that libraries for matrices sum in one go
_MOST_KEYS = 512  # beyond, torch takes keys in parts
Form = tuple[torch.Size, tuple[int, ...]]


class Way(NamedTuple):
    """Attention of one shape: the structure of the kernel, and the shapes that it is made for."""

    heads: kernels.Attention
    forms: tuple[Form, Form, Form]

    def takes(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether these tensors are of the shape and the kind."""
        return (
            self.forms == (_form(q), _form(k), _form(v))
            and all(x.dtype == torch.float32 and x.is_cpu for x in (q, k, v))
            and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
        )


def attend(way: Way, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k' / sqrt(width)) v, in memory as torch leaves it: heads next to each other."""
    (batch, heads, queries, width), _ = way.forms[0]
    out = torch.empty(batch, queries, heads, width)
    _attend(way, q.data_ptr(), k.data_ptr(), v.data_ptr(), out)
    return out.transpose(1, 2)


def attend_joined(way: Way, qkv: Tensor) -> Tensor:
    """The same for queries, keys and values side by side in contiguous rows; heads side by side."""
    (batch, heads, queries, width), _ = way.forms[0]
    out = torch.empty(batch, queries, heads * width)
    first, step = qkv.data_ptr(), heads * width * qkv.element_size()
    _attend(way, first, first + step, first + 2 * step, out)
    return out


def _attend(way: Way, q: int, k: int, v: int, out: Tensor) -> None:
    code = kernels.library().pb_attend(
        ctypes.byref(way.heads), q, k, v, out.data_ptr(), torch.get_num_threads()
    )
    if code:
        kernels.check(code)


def find_way(q: Tensor, k: Tensor, v: Tensor) -> Way | None:
    """How the kernel computes this attention; None where torch stays."""
    if kernels.library() is None or not all(map(_fits, (q, k, v))):
        return None
    if q.shape[:2] != k.shape[:2] or k.shape != v.shape or q.shape[3] != k.shape[3]:
        return None
    if not 0 < k.shape[2] <= _MOST_KEYS or not q.numel():
        return None
    return _find_way((_form(q), _form(k), _form(v)), torch.get_num_threads(), kernels.isa())


def _fits(x: Tensor) -> bool:
    plain = x.dim() == 4 and x.dtype == torch.float32 and x.is_cpu
    return plain and x.stride(3) == 1 and x.shape[3] % 16 == 0


@cache
def _find_way(forms: tuple[Form, Form, Form], threads: int, isa: str) -> Way | None:
    with torch.inference_mode():
        q, k, v = (_random(*form, seed) for seed, form in enumerate(forms))
        by_torch = partial(functional.scaled_dot_product_attention, q, k, v)
        wanted = by_torch()
        ways = (Way(heads, forms) for heads in _orders(forms))
        way = next((way for way in ways if torch.equal(attend(way, q, k, v), wanted)), None)
        if way is None:
            return None
        times = race({"torch": by_torch, "kernel": partial(attend, way, q, k, v)}, _SECONDS)
    return way if min(times["kernel"]) < min(times["torch"]) else None


def _orders(forms: tuple[Form, Form, Form]) -> Iterator[kernels.Attention]:
    """The structure with each order of sums that torch may have."""
    (batch, heads, queries, width), (_, _, keys, _) = forms[0][0], forms[1][0]
    strides: list[Any] = [(ctypes.c_int64 * 3)(*steps[:3]) for _, steps in forms]
    runs = dict.fromkeys((keys, *(min(run, max(keys // 2, 1)) for run in _RUNS), *_RUNS))
    for lanes in _LANES:
        for run in runs:
            if run <= keys:
                yield kernels.Attention(
                    batch, heads, queries, keys, width, *strides, width**-0.5, lanes, run
                )


def _random(shape: torch.Size, steps: tuple[int, ...], seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    room = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    return torch.randn(room, generator=source).mul_(2).as_strided(shape, steps)


def _form(x: Tensor) -> Form:
    return x.shape, x.stride()
