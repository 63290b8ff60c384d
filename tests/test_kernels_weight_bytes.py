"""Binary weights with inputs of 8 bits: exact sums of integers, and one rounding at the end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from every_backend import on_each
from test_kernels_weight import (
    INPUT8,
    LIBRARY,
    OK,
    Array,
    Case,
    address,
    cases,
    plain,
    same_bits,
)  # fmt: skip

BAD_ARGUMENT = 1
threads = st.sampled_from([1, 2, 3])


def bytes_of(case: Case, gap: int = 0) -> Array:
    """Every value of 8 bits is likely, and the extremes are more so."""
    rng = np.random.default_rng(case.seed)
    x = rng.integers(-128, 128, (case.rows, case.groups * case.inputs + gap), dtype=np.int8)
    return np.where(rng.random(x.shape) < 0.2, rng.choice(np.int8([-128, 127]), x.shape), x)


def linear8(layer, x: Array, columns: int, quantum: Array, threads: int = 1) -> Array:
    """The kernel; the output lies among sevens, which must stay."""
    groups, outputs, _ = layer.shape
    out = np.full((len(x) + 2, groups * outputs), 7.0, np.float32)
    code = LIBRARY.pb_weight_linear8(
        layer.ready, address(x), x.shape[1], len(x), columns, address(quantum), quantum.size,
        address(out[1:]), len(x) * groups * outputs, threads,
    )  # fmt: skip
    assert code == OK
    assert (out[[0, -1]] == 7).all()
    return out[1:-1]


def rounded(x: Array, columns: int, threads: int = 1) -> tuple[Array, Array]:
    bytes_, quantum = np.full((len(x), columns), 7, np.int8), np.full(len(x), 7.0, np.float32)
    ends = len(x), columns, x.shape[1], address(bytes_), address(quantum), threads
    assert LIBRARY.pb_round_rows(address(x), *ends) == OK
    return bytes_, quantum


@given(case=cases | plain, gap=st.integers(0, 5), one=st.booleans(), threads=threads)
def test_the_sum_is_exact(case: Case, gap: int, one: bool, threads: int) -> None:
    layer, x = case.layer(), bytes_of(case, gap)
    columns = case.groups * case.inputs
    rng = np.random.default_rng(case.seed)
    quantum = rng.uniform(1e-3, 1, 1 if one else case.rows).astype(np.float32)
    first, *others = on_each(lambda: linear8(layer, x, columns, quantum, threads))
    sums = layer.sums(x[:, :columns]).astype(np.float32)  # integers below 2^24
    expected = (sums * quantum[:, None]) * layer.scale + layer.bias
    assert same_bits(first, expected)
    assert all(same_bits(first, other) for other in others)


@given(case=cases, gap=st.integers(0, 5), threads=threads)
def test_rounding_gives_the_nearest_byte(case: Case, gap: int, threads: int) -> None:
    columns = case.groups * case.inputs
    x = np.pad(case.x(), ((0, 0), (0, gap)), constant_values=np.nan)
    bytes_, quantum = rounded(x, columns, threads)
    largest = np.abs(x[:, :columns]).max(1, initial=0)
    usual = largest > 1e-30
    assert np.allclose(quantum[usual], largest[usual] / 127, rtol=1e-6)
    assert (quantum[~usual] == 0).all() and (bytes_[~usual] == 0).all()
    back = bytes_.astype(np.float64) * quantum[:, None]
    assert (np.abs(back - x[:, :columns]) <= 0.5001 * largest[:, None] / 127 + 1e-30).all()


@given(case=plain, threads=threads)
def test_two_steps_are_the_one_of_input8(case: Case, threads: int) -> None:
    layer, x = case.layer(precision=INPUT8), case.x()
    bytes_, quantum = rounded(x, x.shape[1])
    for one, two in on_each(
        lambda: (layer.linear(x, threads), linear8(layer, bytes_, x.shape[1], quantum, threads))
    ):
        assert same_bits(one, two)


def test_a_row_that_is_not_finite_stays_so() -> None:
    x = np.ones((3, 5), np.float32)
    x[0, 2], x[2, 4] = np.nan, -np.inf
    bytes_, quantum = rounded(x, 5)
    assert np.isnan(quantum[[0, 2]]).all() and not bytes_[[0, 2]].any()
    layer = Case(0, 3, 7, 5).layer()
    assert np.isnan(linear8(layer, bytes_, 5, quantum)[[0, 2]]).all()


@pytest.mark.parametrize(
    ("columns", "stride", "quanta", "size"),
    [(6, 5, 2, 14), (5, -1, 2, 14), (5, 5, 3, 14), (5, 5, 0, 14), (5, 5, 2, 13)],
)
def test_sizes_that_do_not_fit_are_refused(columns, stride, quanta, size) -> None:
    layer, x = Case(0, 2, 7, 5).layer(), np.zeros((2, 8), np.int8)
    quantum, out = np.ones(3, np.float32), np.full((2, 7), 7.0, np.float32)
    ends = 2, columns, address(quantum), quanta, address(out), size, 1
    assert LIBRARY.pb_weight_linear8(layer.ready, address(x), stride, *ends) == BAD_ARGUMENT
    assert (out == 7).all()
    assert LIBRARY.pb_round_rows(None, 2, 5, 5, address(x), address(quantum), 1) == BAD_ARGUMENT
    assert LIBRARY.pb_round_rows(address(out), 2, 0, 5, address(x), address(quantum), 1) == (
        BAD_ARGUMENT
    )
