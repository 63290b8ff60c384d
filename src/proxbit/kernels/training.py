"""Quantizers and accumulators in one pass over memory: the C++ kernels behind their formulas.

Each function returns None to fall back to PyTorch: without the kernels, for a map they do not know,
for other tensors than plain ones on a CPU, and under anything that traces, compiles or transforms.
Then the formulas of :mod:`proxbit.core.maps` are computed one pass after another: the two agree to
a few roundings, and exactly for signs and for all that is piecewise linear.

Images and filters with their channels last are turned until they lie in order, and the answer back.
Inputs in bfloat16 or float16, as autocast makes them, are computed in float32 and rounded once.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from proxbit.core import maps, prox
from proxbit.core.pairs import Map
from proxbit.core.scales import Scale
from proxbit.kernels.library import agrees, check, declare, opened, with_codes

Given = TypeVar("Given", Tensor, Tensor | None)  # an absent tensor stays absent

# Smaller tensors cost microseconds either way: they get torch's bits, those of the formulas.
SMALLEST = 4096


class _Quantizer(ctypes.Structure):
    """``pb_quantizer``: values, and the curve that they go through."""

    _fields_ = (
        ("rows", c_int64), ("columns", c_int64), ("strength", c_void_p), ("shift", c_void_p),
        ("shifts", c_int64), ("map", c_int32), ("sharp", c_int32), ("height", c_float),
    )  # fmt: skip


_QUANTIZER = POINTER(_Quantizer)
_SIGNATURES = with_codes({
    "pb_quantize": [_QUANTIZER, c_void_p, *[c_int32] * 4, c_void_p, c_void_p, c_void_p, c_int],
    "pb_pull": [_QUANTIZER, c_void_p, c_void_p, *[c_void_p, c_int64] * 2, c_void_p, c_int],
    "pb_quantize_bf16": [_QUANTIZER, c_void_p, c_void_p, c_int],
    "pb_pull_bf16": [_QUANTIZER, c_void_p, c_void_p, *[c_void_p, c_int64] * 2, c_void_p, c_int],
    "pb_wrap": [
        c_void_p, c_int64, c_int32, c_double, c_void_p, c_void_p, POINTER(c_int64), c_int,
    ],
    "pb_wrap_pull": [c_void_p, c_void_p, c_int64, c_double, c_void_p, c_int],
})  # fmt: skip

_LINE = 1
_FORWARD = {
    maps.sign: 0, maps.sign_swish: 2, maps.peaked_swish: 3, maps.poly: 4, maps.soft_sign: 5,
}  # fmt: skip
_BACKWARD = {
    maps.inside: 16, maps.triangle: 17, maps.sign_swish_slope: 18, maps.peaked_swish_slope: 19,
    maps.poly_slope: 20, maps.soft_sign_slope: 21,
}  # fmt: skip
_ONE, _GIVEN, _MEAN = range(3)
_SCALES = {"none": 0, "unit": 1, "mean": 2, "least_squares": 3}


@dataclass(frozen=True)
class Measures:
    """How a weight is measured on its way through a pair.

    Attributes:
        scale: Kind and extent of the scale.
        current: Whether the unit is mean|w|, measured now, as far as the scale extends.
        unit: The unit if it was measured before; None for one.
        scaled: Whether the quantized weight is to be multiplied by the scale.
    """

    scale: Scale
    current: bool
    unit: Tensor | None
    scaled: bool


def forward(
    f: Map, x: Tensor, strength: Tensor, shift: Tensor | None = None, sharp: bool = False
) -> Tensor | None:
    """F(x - shift), or its sign; None to fall back to PyTorch."""
    lib = _library()
    curve = None if lib is None else _curve(f)
    if curve is None:
        return None
    if _half(x):
        return _rounded(forward(f, x.float(), strength, shift, sharp), x)
    if _channels_last(x):
        return _back(forward(f, _turned(x), strength, _turned(shift), sharp))
    if not _ours(x, strength, shift):
        return None
    how = _quantizer(x, strength, shift, curve, sharp)
    if how is None:
        return None
    q, threads = torch.empty_like(x), torch.get_num_threads()
    if x.dtype is torch.bfloat16:
        check(lib.pb_quantize_bf16(byref(how), _at(x), _at(q), threads))
    else:
        check(lib.pb_quantize(byref(how), _at(x), _ONE, 0, 0, 0, None, None, _at(q), threads))
    return q


def quantize_weight(
    f: Map, w: Tensor, strength: Tensor, shift: Tensor | None, sharp: bool, measures: Measures
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """F((w - shift) / unit), times the scale if asked, with unit and scale; None to fall back."""
    lib = _library()
    curve = None if lib is None else _curve(f)
    if curve is None:
        return None
    if _channels_last(w):
        found = quantize_weight(f, _turned(w), strength, _turned(shift), sharp, measures)
        return None if found is None else (_back(found[0]), *found[1:])
    if not _ours(w, strength, shift, measures.unit) or w.dtype is not torch.float32:
        return None
    how = _quantizer(w, strength, shift, curve, sharp, rows=True)
    if how is None or w.dim() < 2:
        return None
    measured, kind, q, unit, scale = _room(w, measures)
    choices = measured, kind, measures.scale.per == "layer", measures.scaled
    places, threads = (_at(unit), _at(scale), _at(q)), torch.get_num_threads()
    check(lib.pb_quantize(byref(how), _at(w), *choices, *places, threads))
    return q, unit, unit if kind == _SCALES["unit"] else scale


def backward(
    b: Map,
    w: Tensor,
    g: Tensor,
    strength: Tensor,
    unit: Tensor | None = None,
    factor: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor | None:
    """The gradient g B((w - shift) / unit) factor in one pass; None to fall back to PyTorch."""
    lib = _library()
    code = None if lib is None else _code(b, _BACKWARD)
    if code is None:
        return None
    if _half(w, g):
        return _rounded(backward(b, w.float(), g.float(), strength, unit, factor, shift), w)
    if _channels_last(w):
        return _back(backward(b, _turned(w), _turned(g), strength, unit, factor, _turned(shift)))
    if not _ours(w, strength, shift, unit, factor):
        return None
    units, factors = (0 if t is None else t.numel() for t in (unit, factor))
    how = _quantizer(w, strength, shift, (code, 0.0), rows=max(units, factors) > 1)
    if how is None or g.shape != w.shape or not _plain(g := g.contiguous(), w.dtype):
        return None
    if not (_fits(unit, w, how.rows) and _fits(factor, w, how.rows)):
        return None
    out, threads = torch.empty_like(w), torch.get_num_threads()
    places = _at(unit), units, _at(factor), factors, _at(out)
    pull = lib.pb_pull if w.dtype is torch.float32 else lib.pb_pull_bf16
    check(pull(byref(how), _at(w), _at(g), *places, threads))
    return out


def wrap(z: Tensor, bits: int, k: float, keep: bool) -> tuple[Tensor, Tensor | None, int] | None:
    """The output of a register that sums up to z; None to fall back to PyTorch.

    Also where its slope is -k, if that is to be kept, and how many sums did not fit.
    """
    lib = _library()
    if lib is None:
        return None
    if _channels_last(z):
        found = wrap(_turned(z), bits, k, keep)
        return None if found is None else (_back(found[0]), _back(found[1]), found[2])
    if z.numel() < SMALLEST or not _plain(z):
        return None
    out, over, threads = torch.empty_like(z), c_int64(), torch.get_num_threads()
    falls = torch.empty_like(z, dtype=torch.bool) if keep else None
    places = _at(out), _at(falls), byref(over)
    check(lib.pb_wrap(_at(z), z.numel(), bits, k, *places, threads))
    return out, falls, over.value


def wrap_backward(falls: Tensor, g: Tensor, k: float) -> Tensor | None:
    """The gradient g, times -k where a register's output falls; None to fall back to PyTorch."""
    lib = _library()
    if lib is None:
        return None
    if _channels_last(falls):
        return _back(wrap_backward(_turned(falls), _turned(g), k))
    if not falls.is_contiguous() or not _plain(g := g.contiguous()):
        return None
    out, threads = torch.empty_like(g), torch.get_num_threads()
    check(lib.pb_wrap_pull(_at(falls), _at(g), g.numel(), k, _at(out), threads))
    return out


def _library() -> Any:
    """The kernels, or None to fall back to PyTorch: also while torch alone does not compute."""
    return None if watched() else _declared(opened())


def watched() -> bool:
    """Whether a compiler, a tracer, a transform or a mode of torch is watching.

    They would not see a call into C, nor what becomes of a tensor's value in Python.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return bool(torch._C._len_torch_dispatch_stack())


@cache
def _declared(loaded: Any) -> Any:
    if loaded is None or not declare(loaded, _SIGNATURES):
        return None
    return loaded if agrees(loaded, "pb_quantizer", _Quantizer) else None


def _channels_last(t: Tensor) -> bool:
    """Whether only the order of its dimensions keeps a tensor of images or filters from us."""
    if t.dim() != 4 or not torch._C._has_storage(t) or t.is_contiguous():
        return False
    return t.is_contiguous(memory_format=torch.channels_last)


def _turned(t: Given) -> Given:
    """The channels last in name too; the shifts of channels as one row, which then fits them."""
    if t is None:
        return t
    return t.permute(0, 2, 3, 1) if t.dim() == 4 else t.flatten()


def _back(t: Given) -> Given:
    return t if t is None else t.permute(0, 3, 1, 2)


def _half(t: Tensor, *others: Tensor) -> bool:
    """Whether only the precision keeps tensors from us: bfloat16 alone has kernels of its own."""
    if t.dtype not in (torch.bfloat16, torch.float16) or not t.is_cpu or t.numel() < SMALLEST:
        return False
    return any(each.dtype is not torch.bfloat16 for each in (t, *others))


def _rounded(t: Tensor | None, like: Tensor) -> Tensor | None:
    return None if t is None else t.to(like.dtype)


def _code(f: Map, table: dict[Any, int]) -> int | None:
    return table.get(f) if isinstance(f, FunctionType) else None


def _curve(f: Map) -> tuple[int, float] | None:
    """The number of a forward map, and the height of the line; None for a map of somebody else."""
    if not (isinstance(f, partial) and f.func is prox.linear_quantizer):
        code = _code(f, _FORWARD)
        return None if code is None else (code, 0.0)
    varrho = f.keywords.get("varrho", 0.0)
    if f.args or set(f.keywords) - {"varrho"}:
        return None
    if varrho is None:
        return _LINE, -1.0
    return (_LINE, float(varrho)) if varrho >= 0 else None


def _ours(w: Tensor, strength: Tensor, *others: Tensor | None) -> bool:
    """Whether all tensors are plain, the values enough for a call, and the strength one number."""
    if w.numel() < SMALLEST or strength.numel() != 1:
        return False
    dtype = torch.bfloat16 if w.dtype is torch.bfloat16 else torch.float32
    return _plain(w, dtype) and all(t is None or _plain(t) for t in (strength, *others))


def _plain(t: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    return (
        type(t) in (Tensor, nn.Parameter)
        and t.dtype is dtype
        and t.is_cpu
        and torch._C._has_storage(t)  # not so in a batch of vmap, or if sparse
        and t.is_contiguous()
    )


def _quantizer(
    w: Tensor, strength: Tensor, shift: Tensor | None, curve: tuple[int, float],
    sharp: bool = False, rows: bool = False,
) -> _Quantizer | None:  # fmt: skip
    """The values as rows, each with one shift; or columns with one each, if shifts come last."""
    code, height = curve
    if shift is None:
        count = w.shape[0] if rows else 1
        return _Quantizer(count, w.numel() // count, _at(strength), None, 0, code, sharp, height)
    channels, trailing = shift.numel(), shift.dim() - 1
    if w.dim() <= trailing or w.shape[-trailing - 1] != channels or shift.shape[0] != channels:
        return None
    width = w.shape[-trailing:].numel() if trailing else channels
    shifts = channels if trailing else 0
    count = w.numel() // width
    return _Quantizer(count, width, _at(strength), _at(shift), shifts, code, sharp, height)


def _room(w: Tensor, measures: Measures) -> tuple[int, int, Tensor, Tensor | None, Tensor | None]:
    """The kinds of unit and scale as numbers; places for the result, the unit and the scale."""
    kind, unit = measures.scale.kind, measures.unit
    measured = _MEAN if measures.current else _ONE if unit is None else _GIVEN
    shape = (1 if measures.scale.per == "layer" else w.shape[0], *(1 for _ in w.shape[1:]))
    if measures.current:
        unit = w.new_empty(shape)
        kind = "unit" if kind == "mean" else kind  # the same mean|w|: measured once
    if kind == "unit" and unit is None:
        kind = "none"
    scale = w.new_empty(shape) if kind in ("mean", "least_squares") else None
    return measured, _SCALES[kind], torch.empty_like(w), unit, scale


def _fits(values: Tensor | None, w: Tensor, rows: int) -> bool:
    """Whether there is one value for all, or one for each row."""
    if values is None or values.numel() == 1:
        return True
    return values.numel() == rows and values.shape[0] == w.shape[0] == rows


def _at(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()
