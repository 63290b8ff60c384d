"""Tensors stored smaller: signs as bits, floats as float16, or int8 with one scale per row.

Bit 1 is +1, bit 0 is -1, eight to a byte, and the first sign is the lowest bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_PIECE = 1 << 20  # signs at once, a multiple of 8: what is made on the way stays in the cache


def pack_bits(signs: Tensor) -> Tensor:
    """The signs of a tensor in row-major order as one stream of bytes; True or > 0 is bit 1.

    Bit i is bit i % 8 of byte i // 8. Only the end of the stream is padded, with zeros.

    >>> pack_bits(torch.tensor([[1.0, -1.0, 1.0], [1.0, -1.0, -1.0]]))
    tensor([13], dtype=torch.uint8)
    """
    pieces = signs.detach().reshape(-1).split(_PIECE)
    return torch.cat([_pack(piece) for piece in pieces])


def unpack_bits(data: Tensor, shape: Sequence[int]) -> Tensor:
    """The float32 signs +1 and -1 of :func:`pack_bits`, in their shape.

    >>> unpack_bits(torch.tensor([13], dtype=torch.uint8), (2, 3))
    tensor([[ 1., -1.,  1.],
            [ 1., -1., -1.]])
    """
    count = math.prod(shape)
    if data.dtype != torch.uint8 or tuple(data.shape) != (byte_count(count),):
        raise ValueError(
            f"signs of shape {tuple(shape)} are {byte_count(count)} bytes in one dimension, "
            f"not {data.dtype} of shape {tuple(data.shape)}"
        )
    bytes_, places = torch.arange(256, device=data.device), torch.arange(8, device=data.device)
    table = 2.0 * (bytes_[:, None] >> places & 1) - 1.0  # eight signs of each byte, in one step
    return table.index_select(0, data.int()).reshape(-1)[:count].reshape(tuple(shape))


def byte_count(signs: int) -> int:
    """How many bytes so many signs take.

    >>> byte_count(8), byte_count(9)
    (1, 2)
    """
    return -(-signs // 8)


def _pack(signs: Tensor) -> Tensor:
    """Bytes of signs in one dimension, padded with zeros."""
    eights = functional.pad((signs > 0).to(torch.uint8), (0, -len(signs) % 8)).reshape(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=signs.device)
    return (eights << places).sum(-1, dtype=torch.uint8)


TABLE_VALUES = 4096  # below, the scales and names eat what int8 saves


def to_half(name: str, given: Tensor) -> Tensor:
    """A float32 or float64 tensor as float16; other types as they are.

    >>> to_half("bias", torch.tensor([1.0, 70000.0]))
    Traceback (most recent call last):
    ValueError: 'bias' reaches 70000, which float16 cannot hold: use float_rest='float32'
    """
    if given.dtype not in (torch.float32, torch.float64):
        return given
    half = given.half()
    if bool((half.isinf() & given.isfinite()).any()):
        most = float(given[given.isfinite()].abs().max())
        raise ValueError(
            f"{name!r} reaches {most:g}, which float16 cannot hold: use float_rest='float32'"
        )
    return half


def is_table(given: Tensor) -> bool:
    """Whether a tensor is worth storing as int8: floats, at least 4,096 in two or more dimensions.

    >>> is_table(torch.zeros(64, 64)), is_table(torch.zeros(4096)), is_table(torch.zeros(9, 9))
    (True, False, False)
    """
    return given.is_floating_point() and given.dim() >= 2 and given.numel() >= TABLE_VALUES


def to_int8(name: str, given: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 in the tensor's shape, and one float32 scale per row.

    >>> values, scale = to_int8("table", torch.tensor([[0.5, -1.27], [0.0, 0.0]]))
    >>> values, scale
    (tensor([[  50, -127],
            [   0,    0]], dtype=torch.int8), tensor([0.0100, 0.0000]))
    """
    rows = given.float().reshape(row_count(tuple(given.shape)), -1)
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name!r} is not finite, and int8 cannot hold that: use tables='float'")
    scale = rows.abs().amax(1) / 127
    values = rows / torch.where(scale > 0, scale, 1)[:, None]
    return values.round().clamp(-127, 127).to(torch.int8).reshape(given.shape), scale


def from_int8(values: Tensor, scale: Tensor) -> Tensor:
    """The float32 tensor that :func:`to_int8` stored, to half a step.

    >>> from_int8(torch.tensor([[50, -127]], dtype=torch.int8), torch.tensor([0.5]))
    tensor([[ 25.0000, -63.5000]])
    """
    return (values.reshape(scale.numel(), -1) * scale[:, None]).reshape(values.shape)


def row_count(shape: tuple[int, ...]) -> int:
    """How many rows of a table have a scale: its first size, or all but its last if that is 1.

    >>> row_count((1000, 768)), row_count((768, 3, 16, 16)), row_count((1, 197, 768))
    (1000, 768, 197)
    """
    return shape[0] if shape[0] > 1 else math.prod(shape[:-1])
