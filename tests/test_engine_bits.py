"""Signs as bits: numpy's packbits is the oracle, and unpacking is the inverse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxbit.packfile import bits
from proxbit.packfile.bits import pack_bits, unpack_bits

SHAPES = st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple)
KINDS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64])


@pytest.fixture(params=[8, 24, 1 << 20], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that small tensors are cut into several."""
    monkeypatch.setattr(bits, "_PIECE", request.param)


def signs_of(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1


@given(shape=SHAPES, seed=st.integers(0, 99), kind=KINDS)
def test_a_stream_is_what_numpy_packs(shape, seed, kind):
    signs = signs_of(shape, seed)
    oracle = np.packbits((signs.numpy() > 0).reshape(-1), bitorder="little")
    for given_as in (signs.to(kind), signs > 0):
        packed = pack_bits(given_as)
        assert packed.dtype == torch.uint8
        assert np.array_equal(packed.numpy(), oracle)


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_signs_come_back_from_a_stream(shape, seed):
    signs = signs_of(shape, seed)
    back = unpack_bits(pack_bits(signs), shape)
    assert back.dtype == torch.float32 and torch.equal(back, signs)


@given(seed=st.integers(0, 99))
def test_the_order_is_that_of_the_shape_whatever_the_memory(seed):
    signs = signs_of((5, 7, 3), seed)
    turned = signs.permute(2, 0, 1)
    assert not turned.is_contiguous()
    assert torch.equal(pack_bits(turned), pack_bits(turned.contiguous()))


def test_only_what_is_above_zero_is_a_one():
    values = torch.tensor([0.0, -0.0, 1e-38, -1e-38, torch.inf, -torch.inf, torch.nan, 2.0])
    assert pack_bits(values).tolist() == [0b10010100]


def test_a_gradient_is_no_obstacle():
    w = torch.ones(3, 3, requires_grad=True)
    assert not pack_bits(w).requires_grad


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (torch.zeros(2, dtype=torch.uint8), (8,)),
        (torch.zeros(1, dtype=torch.uint8), (3, 3)),
        (torch.zeros(1, 1, dtype=torch.uint8), (8,)),
        (torch.zeros(1, dtype=torch.int8), (8,)),
    ],
)
def test_a_stream_of_another_size_is_refused(data, shape):
    with pytest.raises(ValueError, match="signs of shape"):
        unpack_bits(data, shape)
