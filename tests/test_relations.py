"""Distances of relations, against the matrices of tokens by tokens that they do not make."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxbit.train.relations import relation_distance


def plain(x: Tensor, y: Tensor, samples: int) -> Tensor:
    """The definition: both relations, each divided by its norm, and the norm of the difference."""
    units = []
    for t in (x, y):
        relation = (t @ t.transpose(-2, -1)).reshape(samples, -1)
        units.append(relation / relation.norm(dim=1, keepdim=True))
    return (units[0] - units[1]).norm(dim=1).mean()


def with_gradient(f: object, x: Tensor, y: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    assert callable(f)
    value = f(x, y, samples)
    return value.detach(), torch.autograd.grad(value, x)[0]


@given(
    st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6),
    st.integers(1, 5), st.integers(1, 5), st.booleans(), st.floats(0.01, 3),
)  # fmt: skip
def test_value_and_gradient_are_those_of_the_definition(
    seed: int, batch: int, heads: int, tokens: int, d: int, other: int, alone: bool, far: float
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(batch, heads, tokens, d, dtype=torch.float64)
    y = far * torch.randn(batch, heads, tokens, other, dtype=torch.float64)
    y[..., : min(d, other)] += x[..., : min(d, other)]
    samples = batch if alone else 1
    (value, g), (expected, slope) = (
        with_gradient(f, x, y, samples) for f in (relation_distance, plain)
    )
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=2e-8)
    if float(expected) > 1e-3:  # one token has no direction to turn to
        torch.testing.assert_close(g, slope, rtol=1e-5, atol=1e-7)


def test_strided_heads_and_windows_count_as_they_lie() -> None:
    """Heads come as views of one projection, and windows of a sample one after the other."""
    qkv, teacher = torch.randn(6, 5, 24), torch.randn(6, 5, 24)
    x, y = (t.unflatten(-1, (3, 8)).transpose(1, 2) for t in (qkv, teacher))
    for samples in (1, 2, 6):
        ours, expected = (with_gradient(f, x, y, samples) for f in (relation_distance, plain))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("apart", [1e-2, 1e-3])
def test_small_distances_keep_their_digits_in_single_precision(apart: float) -> None:
    x = torch.randn(16, 3, 50, 32)
    y = x + apart * torch.randn(16, 3, 50, 32)
    (value, g), (expected, slope) = (
        with_gradient(relation_distance, x, y, 1),
        with_gradient(plain, x.double(), y.double(), 1),
    )
    assert float(value) == pytest.approx(float(expected), rel=1e-2)
    assert float((g - slope).norm() / slope.norm()) < 1e-2


def test_what_is_equal_or_has_vanished_has_a_finite_distance_and_no_gradient() -> None:
    x = torch.randn(2, 3, 7, 4)
    zero = torch.zeros_like(x)
    for mine, other, expected in [(x, x, 0.0), (x, zero, 1.0), (zero, x, 1.0), (zero, zero, 0.0)]:
        for samples in (1, 2):
            value, g = with_gradient(relation_distance, mine, other, samples)
            assert float(value) == expected
            assert not bool(g.any())
    value, g = with_gradient(relation_distance, x, torch.stack([x[0], zero[0]]), 2)
    assert float(value) == 0.5
    assert bool(g.isfinite().all())


def test_nothing_of_tokens_by_tokens_is_kept() -> None:
    kept: list[int] = []

    def note(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    x = torch.randn(2, 3, 300, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        value = relation_distance(x, torch.randn(2, 3, 300, 8))
    value.backward()
    assert kept
    assert max(kept) <= x.numel() < 2 * 3 * 300 * 300


def test_opposite_signs_of_a_projection_are_the_same_relation() -> None:
    x = torch.randn(1, 2, 9, 4)
    turned = torch.linalg.qr(torch.randn(4, 4)).Q
    assert float(relation_distance(x, -x)) == pytest.approx(0, abs=1e-3)
    assert float(relation_distance(x, x @ turned)) == pytest.approx(0, abs=1e-3)
    assert float(relation_distance(x, torch.randn(1, 2, 9, 4))) < math.sqrt(2)
