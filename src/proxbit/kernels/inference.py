"""The kernels of packed networks: their structures and functions, as ctypes sees them."""

from __future__ import annotations

import ctypes
import warnings
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

from proxbit.kernels.library import Signatures, agrees, choice, declare, opened, with_codes
from proxbit.kernels.library import check as check


class KernelWarning(UserWarning):
    """The packed network computes more slowly than it could."""


class Binary(ctypes.Structure):
    """``pb_binary``: binary weights and binary inputs."""

    _fields_ = (
        ("outputs", c_int64), ("row_bytes", c_int64), ("products", c_int64), ("groups", c_int64),
        ("panels", c_void_p), ("panel_bytes", c_int64), ("scale", c_void_p), ("scales", c_int64),
        ("bias", c_void_p), ("biases", c_int64), ("threshold", c_void_p), ("thresholds", c_int64),
        ("register_bits", c_int32), ("slope", c_float), ("activation", c_int32),
        ("low", c_void_p), ("high", c_void_p), ("flip", c_void_p), ("bounds", c_int64),
    )  # fmt: skip


class Following(ctypes.Structure):
    """``pb_following``: what follows a layer, on the rows of floats that it gives."""

    _fields_ = (
        ("gain", c_void_p), ("shift", c_void_p), ("other", c_void_p), ("bits", c_void_p),
        ("contracted", c_int32), ("activation", c_int32),
    )  # fmt: skip


class Weight(ctypes.Structure):
    """``pb_weight``: binary weights and float inputs."""

    _fields_ = (
        ("outputs", c_int64), ("inputs", c_int64), ("groups", c_int64),
        ("weights", c_void_p), ("weight_bytes", c_int64), ("scale", c_void_p), ("scales", c_int64),
        ("bias", c_void_p), ("biases", c_int64), ("activation", c_int32), ("precision", c_int32),
    )  # fmt: skip


class Window(ctypes.Structure):
    """``pb_window``: the window of a convolution."""

    _fields_ = (
        ("batch", c_int64), ("channels", c_int64), ("height", c_int64), ("width", c_int64),
        ("stride_n", c_int64), ("stride_c", c_int64), ("stride_h", c_int64), ("stride_w", c_int64),
        ("kernel_h", c_int64), ("kernel_w", c_int64), ("step_h", c_int64), ("step_w", c_int64),
        ("dilation_h", c_int64), ("dilation_w", c_int64),
        ("pad_top", c_int64), ("pad_bottom", c_int64), ("pad_left", c_int64),
        ("pad_right", c_int64), ("pad_bit", c_int32), ("in_size", c_int64), ("out_size", c_int64),
    )  # fmt: skip


class Attention(ctypes.Structure):
    """``pb_attention``: shapes and strides of attention, and the order of its sums."""

    _fields_ = (
        ("batch", c_int64), ("heads", c_int64), ("queries", c_int64), ("keys", c_int64),
        ("width", c_int64), ("q_strides", c_int64 * 3), ("k_strides", c_int64 * 3),
        ("v_strides", c_int64 * 3), ("scale", c_float), ("lanes", c_int32), ("run", c_int64),
    )  # fmt: skip


_BINARY, _WEIGHT, _WINDOW = POINTER(Binary), POINTER(Weight), POINTER(Window)
_FOLLOWING = POINTER(Following)
_OUTPUT = (c_void_p, c_void_p)  # as floats, or as bits
_ORDER = [c_void_p, c_int64, c_int64, c_void_p]  # bits in one order, and where they go in another
_IMAGES = [_BINARY, _WINDOW, c_void_p, c_void_p, *_OUTPUT, _FOLLOWING, c_int]
_SIGNATURES: Signatures = {
    "pb_panel_bytes": (c_size_t, [c_int64, c_int64]),
    "pb_weight_bytes": (c_size_t, [c_int64, c_int64]),
} | with_codes({
    "pb_make_panels": _ORDER, "pb_read_panels": _ORDER,
    "pb_make_weights": _ORDER, "pb_read_weights": _ORDER,
    "pb_binary_conv": _IMAGES, "pb_depthwise_conv": _IMAGES,
    "pb_weight_conv": [_WEIGHT, _WINDOW, c_void_p, c_void_p, c_int],
    "pb_binary_linear": [
        _BINARY, c_void_p, c_int64, c_void_p, c_int64, c_int64, *_OUTPUT, c_int64, _FOLLOWING,
        c_int,
    ],
    "pb_weight_linear": [_WEIGHT, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int],
    "pb_weight_linear8": [
        _WEIGHT, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int,
    ],
    "pb_sign_rows": [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int],
    "pb_round_rows": [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int],
    "pb_follow": [c_void_p, c_int64, c_int64, _FOLLOWING, c_int],
    "pb_attend": [POINTER(Attention), c_void_p, c_void_p, c_void_p, c_void_p, c_int],
})  # fmt: skip


def library() -> Any:
    """The kernels, or None where torch must serve."""
    return _library(opened())


@cache
def _library(loaded: Any) -> Any:
    if choice() == "torch" or (loaded is not None and _fits(loaded)):
        return loaded
    warnings.warn(
        "proxbit's kernels are not built here, so packed networks compute with torch: the same "
        "results, more slowly. Install proxbit again with a C++ compiler at hand.",
        KernelWarning,
        stacklevel=3,
    )
    return None


def _fits(loaded: Any) -> bool:
    kinds = (Binary, Following, Weight, Window, Attention)  # pb_binary is Binary, and so on
    alike = (agrees(loaded, f"pb_{kind.__name__.lower()}", kind) for kind in kinds)
    return declare(loaded, _SIGNATURES) and all(alike)


def isa() -> str:
    """Name the backend that computes, such as avx2 or portable, or torch."""
    loaded = library()
    return "torch" if loaded is None else str(loaded.pb_isa().decode())
