"""Signs as bits, eight to a byte: bit 1 is +1, bit 0 is -1, the first sign is the lowest bit."""

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
    return _unpack(data).reshape(-1)[:count].reshape(tuple(shape))


def pack_rows(signs: Tensor) -> Tensor:
    """The signs of a matrix, each row beginning with a new byte: [N, K] to [N, ceil(K / 8)].

    >>> pack_rows(torch.tensor([[1.0, -1.0, 1.0], [1.0, -1.0, -1.0]]))
    tensor([[5],
            [1]], dtype=torch.uint8)
    """
    if signs.dim() != 2:
        raise ValueError(f"rows of signs have 2 dimensions, not the shape {tuple(signs.shape)}")
    rows = max(1, _PIECE // max(1, signs.shape[1]))
    return torch.cat([_pack(piece) for piece in signs.detach().split(rows)])


def unpack_rows(rows: Tensor, k: int) -> Tensor:
    """The float32 signs of :func:`pack_rows` for rows of ``k`` signs.

    >>> unpack_rows(torch.tensor([[5], [1]], dtype=torch.uint8), 3)
    tensor([[ 1., -1.,  1.],
            [ 1., -1., -1.]])
    """
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != byte_count(k):
        raise ValueError(
            f"rows of {k} signs are {byte_count(k)} bytes each in two dimensions, "
            f"not {rows.dtype} of shape {tuple(rows.shape)}"
        )
    return _unpack(rows).reshape(rows.shape[0], 8 * rows.shape[1])[:, :k].contiguous()


def byte_count(signs: int) -> int:
    """How many bytes so many signs take.

    >>> byte_count(8), byte_count(9)
    (1, 2)
    """
    return -(-signs // 8)


def _pack(signs: Tensor) -> Tensor:
    """Bytes of the last dimension, padded with zeros."""
    padded = functional.pad((signs > 0).to(torch.uint8), (0, -signs.shape[-1] % 8))
    eights = padded.reshape(*signs.shape[:-1], padded.shape[-1] // 8, 8)
    return (eights << torch.arange(8, dtype=torch.uint8, device=signs.device)).sum(
        -1, dtype=torch.uint8
    )


def _unpack(data: Tensor) -> Tensor:
    """Eight signs per byte, in one more dimension; a table makes them in one step."""
    bytes_, places = torch.arange(256, device=data.device), torch.arange(8, device=data.device)
    table = 2.0 * (bytes_[:, None] >> places & 1) - 1.0
    return table.index_select(0, data.reshape(-1).int()).reshape(*data.shape, 8)
