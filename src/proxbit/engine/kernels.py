"""The C++ kernels, loaded with ctypes where they were built.

The environment variable PROXBIT_KERNELS chooses: ``auto`` (default), ``avx2``, ``portable`` (plain
C++, the same bits), or ``torch`` (no kernels at all).
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from proxbit.text import unknown

ABI = 1
CHOICES = ("auto", "avx2", "portable", "torch")
_ENDINGS = {"darwin": ".dylib", "win32": ".dll"}
_PLACE = Path(__file__).parent / f"libproxbit{_ENDINGS.get(sys.platform, '.so')}"


class KernelWarning(UserWarning):
    """The packed network computes more slowly than it could."""


class Binary(ctypes.Structure):
    """``pb_binary``: binary weights and binary inputs."""

    _fields_ = (
        ("outputs", c_int64), ("row_bytes", c_int64), ("products", c_int64), ("groups", c_int64),
        ("panels", c_void_p), ("scale", c_void_p), ("bias", c_void_p),
        ("register_bits", c_int32), ("slope", c_float), ("activation", c_int32),
        ("low", c_void_p), ("high", c_void_p), ("flip", c_void_p),
    )  # fmt: skip


class Weight(ctypes.Structure):
    """``pb_weight``: binary weights and float inputs."""

    _fields_ = (
        ("outputs", c_int64), ("inputs", c_int64), ("groups", c_int64), ("weights", c_void_p),
        ("scale", c_void_p), ("bias", c_void_p), ("activation", c_int32), ("precision", c_int32),
    )  # fmt: skip


class Window(ctypes.Structure):
    """``pb_window``: what a convolution sees."""

    _fields_ = (
        ("batch", c_int64), ("channels", c_int64), ("height", c_int64), ("width", c_int64),
        ("stride_n", c_int64), ("stride_c", c_int64), ("stride_h", c_int64), ("stride_w", c_int64),
        ("kernel_h", c_int64), ("kernel_w", c_int64), ("step_h", c_int64), ("step_w", c_int64),
        ("dilation_h", c_int64), ("dilation_w", c_int64),
        ("pad_top", c_int64), ("pad_bottom", c_int64), ("pad_left", c_int64),
        ("pad_right", c_int64), ("pad_bit", c_int32),
    )  # fmt: skip


_BINARY, _WEIGHT, _WINDOW = POINTER(Binary), POINTER(Weight), POINTER(Window)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "pb_abi": (c_int, []),
    "pb_isa": (c_char_p, []),
    "pb_use_isa": (c_int, [c_char_p]),
    "pb_use_team": (None, [c_void_p]),
    "pb_panel_bytes": (c_size_t, [c_int64, c_int64]),
    "pb_make_panels": (c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    "pb_sign_rows": (
        c_int, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int],
    ),
    "pb_binary_linear": (
        c_int,
        [_BINARY, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int],
    ),
    "pb_binary_conv": (
        c_int, [_BINARY, _WINDOW, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int],
    ),
    "pb_weight_bytes": (c_size_t, [c_int64, c_int64]),
    "pb_make_weights": (c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    "pb_weight_linear": (c_int, [_WEIGHT, c_void_p, c_int64, c_int64, c_void_p, c_int]),
    "pb_weight_conv": (c_int, [_WEIGHT, _WINDOW, c_void_p, c_void_p, c_int]),
}  # fmt: skip


def library() -> Any:
    """The kernels, or None where torch must serve."""
    return _library(os.environ.get("PROXBIT_KERNELS", "auto"))


@cache
def _library(choice: str) -> Any:
    if choice not in CHOICES:
        raise ValueError(unknown("value of PROXBIT_KERNELS", choice, CHOICES))
    if choice == "torch":
        return None
    loaded = _load()
    if loaded is None:
        return None
    if loaded.pb_use_isa(None if choice == "auto" else choice.encode()):
        raise ValueError(
            f"PROXBIT_KERNELS is {choice!r}, and this machine has no such instructions"
        )
    return loaded


@cache
def _load() -> Any:
    try:
        loaded = ctypes.CDLL(str(_PLACE))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        loaded = None
    if loaded is None or loaded.pb_abi() != ABI:
        warnings.warn(
            "proxbit's kernels are not built here, so packed networks compute with torch: the same "
            "results, more slowly. Install proxbit again with a C++ compiler at hand.",
            KernelWarning,
            stacklevel=2,
        )
        return None
    loaded.pb_use_team(_torch_team())
    return loaded


def _torch_team() -> int | None:
    """The OpenMP threads of torch, so that two pools never fight for cores."""
    import torch  # noqa: F401  (brings its OpenMP into the process)

    try:
        team = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(team, c_void_p).value


def isa() -> str:
    """What computes: avx2, portable or torch."""
    loaded = library()
    return "torch" if loaded is None else str(loaded.pb_isa().decode())


def check(code: int) -> None:
    """Raise what a kernel reported."""
    if code == 2:
        raise MemoryError("a kernel of proxbit found no memory")
    if code:
        raise ValueError("a kernel of proxbit was called with sizes that do not fit each other")
