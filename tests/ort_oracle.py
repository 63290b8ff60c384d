"""What our operators compute, in plain formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y, "relu": functional.relu, "gelu": functional.gelu,
    "hardtanh": functional.hardtanh,
}  # fmt: skip


def sign_of(x: Any) -> Any:
    return np.where(np.signbit(x), -1, 1).astype("f4")


def signs_in(data: Any, count: int) -> Any:
    """The signs that bytes hold in their last dimension, as floats."""
    bits = np.unpackbits(data, axis=-1, bitorder="little")[..., :count]
    return bits.astype("f4") * 2 - 1


def bits_of(values: Any) -> Any:
    """Rows of bits, each padded to whole bytes."""
    return np.packbits(values > 0, axis=-1, bitorder="little")


def wrapped(sums: Any, bits: int, k: float) -> Any:
    """A register of so many bits, and the cyclic function behind it."""
    half = 2 ** (bits - 1)
    m = (sums + half) % (2 * half) - half
    return np.clip(m, -k * m - k * half, -k * m + k * half)


def convolved(x: Any, weight: Any, how: dict[str, Any], pad_value: float) -> Any:
    axes = weight.ndim - 2
    pads = how.get("pads", [0] * 2 * axes)
    around = [p for axis in range(axes - 1, -1, -1) for p in pads[axis::axes]]
    padded = functional.pad(torch.from_numpy(x), around, value=pad_value)
    convolve = functional.conv1d if axes == 1 else functional.conv2d
    strides, dilations = (how.get(name, [1] * axes) for name in ("strides", "dilations"))
    weight = torch.from_numpy(weight)
    return convolve(padded, weight, None, strides, 0, dilations, how.get("group", 1)).numpy()


def last(x: Any) -> Any:
    """Images with their channels last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def first(x: Any) -> Any:
    """Images whose channels come last, with their channels first."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def binary_node(op: str, how: dict[str, Any], held: dict[str, Any]) -> Any:
    """The output of a layer with binary inputs: floats, or bits if it has bounds.

    Args:
        op: BinaryLinear or BinaryConv.
        how: The attributes of the node.
        held: Its inputs by their names.
    """
    conv, shape = op == "BinaryConv", tuple(how["shape"])
    weight = signs_in(held["bits"], int(np.prod(shape))).reshape(shape)
    sums = _sums(conv, how, held, weight)
    if "register_bits" in how:
        sums = wrapped(sums, how["register_bits"], how.get("slope", 2.0))
    if "low" in held:
        inside = (held["low"] <= sums) & (sums < held["high"])
        flips = signs_in(held["flip"], shape[0]) > 0 if "flip" in held else False
        return bits_of(inside ^ flips)
    out = sums.astype("f4") * held["scale"] + held.get("bias", np.zeros(1, "f4"))
    out = ACTIVATIONS[how.get("activation", "none")](torch.from_numpy(out)).numpy()
    return out if not conv or how.get("output_layout") == "NHWC" else first(out)


def _sums(conv: bool, how: dict[str, Any], held: dict[str, Any], weight: Any) -> Any:
    """The sums of products, with the outputs of a layer in the last dimension."""
    channels = weight.shape[1] * how.get("group", 1)
    is_last = not conv or "x_bits" in held or how.get("input_layout") == "NHWC"
    if "x_bits" in held:
        signs = signs_in(held["x_bits"], channels)
    else:
        x = held["x"] if is_last else last(held["x"])
        signs = sign_of(x - held["threshold"] if "threshold" in held else x)
    if not conv:
        return signs @ weight.T
    return last(convolved(first(signs), weight, how, float(how.get("pad_value", 1))))
