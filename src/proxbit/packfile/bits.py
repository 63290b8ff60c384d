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
