"""One pass in C++ gives what the passes of torch give."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import proxbit as pb
from every_backend import on_each
from proxbit.core import maps, pairs, prox
from proxbit.kernels import library as kernels
from proxbit.kernels import training as fused

pytestmark = [
    pytest.mark.skipif(kernels.opened() is None, reason="the kernels are not built here"),
    pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def even_the_smallest_tensor() -> Iterator[None]:
    """Take the kernels for tensors of any size."""
    before, fused.SMALLEST = fused.SMALLEST, 1
    yield
    fused.SMALLEST = before


# The formulas in float64, as the papers print them ------------------------------------------------

PEAK = 1.1996786402577337
ROOT2 = np.sqrt(2.0)


def steepening(s: float) -> tuple[float, float]:
    s = max(s, 1e-4)
    return max(1 / s, 1.0), s


def sign(w: np.ndarray, s: float) -> np.ndarray:
    return np.copysign(1.0, w)


def swish(w: np.ndarray, s: float) -> np.ndarray:
    z = s * w / 2
    return np.tanh(z) + z * bell(z)


def bell(z: np.ndarray) -> np.ndarray:
    """The slope of tanh without cancellation."""
    e = np.exp(-2 * np.abs(z))
    return 4 * e / (1 + e) ** 2


def swish_slope(w: np.ndarray, s: float) -> np.ndarray:
    z = s * w / 2
    return s * bell(z) * (1 - z * np.tanh(z))


def stopped(f: Callable[..., np.ndarray], w: np.ndarray, s: float) -> np.ndarray:
    end = 2 * PEAK / s
    return np.where(np.abs(w) < end, f(w, s), f(np.sign(w) * end, s)) / PEAK


def poly(w: np.ndarray, s: float) -> np.ndarray:
    k, s = steepening(s)
    z = np.clip(s * w, -ROOT2, ROOT2)
    return k * (ROOT2 * z - z * np.abs(z) / 2)


def poly_slope(w: np.ndarray, s: float) -> np.ndarray:
    k, s = steepening(s)
    return np.maximum(k * (ROOT2 * s - s * s * np.abs(w)), 0)


def tanh(w: np.ndarray, s: float) -> np.ndarray:
    k, s = steepening(s)
    return k * np.tanh(s * w)


def tanh_slope(w: np.ndarray, s: float) -> np.ndarray:
    k, s = steepening(s)
    return k * s * bell(s * w)


def line(varrho: float | None, w: np.ndarray, s: float) -> np.ndarray:
    rho = min(s, 1.0)
    height = rho if varrho is None else min(varrho, 1.0)
    if rho == 1:
        return sign(w, s)
    return np.clip(sign(w, s) * (height + np.abs(w) * (1 - height) / (1 - rho)), -1, 1)


FORWARD = {
    maps.sign: sign,
    maps.sign_swish: swish,
    maps.peaked_swish: partial(stopped, swish),
    maps.poly: poly,
    maps.soft_sign: tanh,
    **{
        partial(prox.linear_quantizer, varrho=height): partial(line, height)
        for height in (None, 0.0, 0.3, 1.0, 7.0)
    },
}
BACKWARD = {
    maps.inside: lambda w, s: (np.abs(w) <= 1).astype(float),
    maps.triangle: lambda w, s: np.maximum(2 - 2 * np.abs(w), 0),
    maps.sign_swish_slope: swish_slope,
    maps.peaked_swish_slope: lambda w, s: np.maximum(stopped(swish_slope, w, s), 0),
    maps.poly_slope: poly_slope,
    maps.soft_sign_slope: tanh_slope,
}
EXACT_FORWARD = [
    f for f in FORWARD if f not in (maps.sign_swish, maps.peaked_swish, maps.soft_sign)
]
EXACT_BACKWARD = [maps.inside, maps.triangle, maps.poly_slope]


def name_of(f: object) -> str:
    return f.__name__ if not isinstance(f, partial) else f"line {f.keywords['varrho']}"


def over(argument: str, table: object) -> pytest.MarkDecorator:
    values = list(table)
    return pytest.mark.parametrize(argument, values, ids=map(name_of, values))


floats = st.floats(-1e4, 1e4, width=32) | st.floats(-2, 2, width=32)
tensors = st.lists(floats, min_size=1, max_size=70).map(torch.tensor)
strengths = st.floats(0.015625, 100, width=32) | st.sampled_from([1.0, 30.0])


# Maps and slopes ----------------------------------------------------------------------------------


@over("f", FORWARD)
@given(w=tensors, s=strengths)
def test_a_forward_map_is_its_formula(f: pairs.Map, w: Tensor, s: float) -> None:
    found = fused.forward(f, w, torch.tensor(s))
    expected = FORWARD[f](w.double().numpy(), s)
    k = max(1 / s, 1.0)
    # The line is cut at 1 where a rounding of 1 - rho still moves it.
    tolerance = 1e-6 * (k if f in (maps.poly, maps.soft_sign) else 1 + 1 / max(1 - s, 1e-3))
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-6, atol=tolerance)


@over("b", BACKWARD)
@given(w=tensors, s=strengths, seed=st.integers(0, 99))
def test_a_gradient_is_upstream_times_its_slope(
    b: pairs.Map, w: Tensor, s: float, seed: int
) -> None:
    g = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed))
    found = fused.backward(b, w, g, torch.tensor(s))
    expected = BACKWARD[b](w.double().numpy(), s) * g.double().numpy()
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2e-6, atol=2e-6 * max(s, 1))


@over("f", [maps.sign_swish, maps.soft_sign])
def test_smooth_maps_keep_their_digits_near_zero(f: pairs.Map) -> None:
    w = torch.logspace(-30, 2, 4001)
    found = fused.forward(f, torch.cat([w, -w]), torch.tensor(2.0)).double().numpy()
    expected = FORWARD[f](torch.cat([w, -w]).double().numpy(), 2.0)
    assert float(np.abs(found / expected - 1).max()) < 4e-7


@over("f", EXACT_FORWARD)
@given(w=tensors, s=strengths)
def test_maps_without_exponentials_are_those_of_torch_bit_for_bit(
    f: pairs.Map, w: Tensor, s: float
) -> None:
    w = torch.cat([w, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45])])
    strength = torch.tensor(s)
    found, expected = fused.forward(f, w, strength), f(w, strength)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@over("b", EXACT_BACKWARD)
@given(w=tensors, s=strengths)
def test_slopes_without_exponentials_are_those_of_torch_bit_for_bit(
    b: pairs.Map, w: Tensor, s: float
) -> None:
    w = torch.cat([w, torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, torch.nan, 1e-45])])
    g, strength = torch.randn_like(w), torch.tensor(s)
    found, expected = fused.backward(b, w, g, strength), g * b(w, strength)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@over("f", FORWARD)
@given(w=tensors, s=strengths)
def test_a_sharp_map_is_the_sign_of_the_weight(f: pairs.Map, w: Tensor, s: float) -> None:
    w = torch.cat([w[w.abs() * s > 1e-30], torch.tensor([0.0, -0.0, 1e-30, -1e-30])])
    assert torch.equal(fused.forward(f, w, torch.tensor(s), sharp=True), maps.sign(w))


@over("f", FORWARD)
def test_a_weight_that_is_no_number_stays_none(f: pairs.Map) -> None:
    found = fused.forward(f, torch.tensor([1.0, torch.nan, -1.0]), torch.tensor(3.0))
    assert found.isnan().tolist() == [False, True, False]


@over("b", BACKWARD)
def test_a_slope_at_no_number_is_none(b: pairs.Map) -> None:
    found = fused.backward(b, torch.tensor([0.5, torch.nan]), torch.ones(2), torch.tensor(3.0))
    assert found.isnan().tolist() == [False, True]


# Where maps are evaluated: shift, unit, factor ----------------------------------------------------


@given(
    lead=st.integers(1, 4),
    channels=st.integers(1, 5),
    trailing=st.lists(st.integers(1, 4), max_size=2),
    seed=st.integers(0, 99),
)
def test_each_channel_has_its_shift(lead: int, channels: int, trailing: list[int], seed: int):
    torch.manual_seed(seed)
    x, s = torch.randn(lead, channels, *trailing), torch.tensor(1.5)
    shift, g = torch.randn(channels, *(1 for _ in trailing)), torch.randn_like(x)
    assert torch.equal(fused.forward(maps.poly, x, s, shift), maps.poly(x - shift, s))
    found = fused.backward(maps.triangle, x, g, s, shift=shift)
    assert torch.equal(found, g * maps.triangle(x - shift, s))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("upstream", ["same", torch.float32], ids=str)
@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 4),
    shifted=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_inputs_of_autocast_are_computed_in_float32_and_rounded_once(
    dtype: torch.dtype, upstream: torch.dtype | str, sizes: tuple[int, ...], shifted: bool,
    last: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    x, s = torch.randn(sizes).to(dtype), torch.tensor(1.5)
    g = torch.randn(sizes).to(dtype if upstream == "same" else upstream)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    shift = torch.randn(sizes[1], 1, 1) if shifted else None
    unit, factor = torch.tensor(0.3), torch.tensor(3.0)
    for f in FORWARD:
        for sharp in (False, True):
            whole = fused.forward(f, x.float(), s, shift, sharp)
            assert torch.equal(fused.forward(f, x, s, shift, sharp), whole.to(dtype))
    for b in BACKWARD:
        pulled = fused.backward(b, x.float(), g.float(), s, unit, factor, shift)
        assert torch.equal(fused.backward(b, x, g, s, unit, factor, shift), pulled.to(dtype))


@given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=70))
def test_every_bfloat16_is_rounded_as_torch_rounds(bits: list[int]) -> None:
    x = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    g, s = torch.linspace(-1, 3, len(x)).to(torch.bfloat16), torch.tensor(1.7)
    for f in FORWARD:
        found, whole = fused.forward(f, x, s), fused.forward(f, x.float(), s)
        torch.testing.assert_close(found, whole.to(x.dtype), rtol=0, atol=0, equal_nan=True)
    for b in BACKWARD:
        found, whole = fused.backward(b, x, g, s), fused.backward(b, x.float(), g.float(), s)
        torch.testing.assert_close(found, whole.to(x.dtype), rtol=0, atol=0, equal_nan=True)


@given(sizes=st.tuples(*[st.integers(1, 5)] * 4), shifted=st.booleans(), seed=st.integers(0, 99))
def test_channels_last_changes_no_bit_and_stays(
    sizes: tuple[int, ...], shifted: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, g, s = torch.randn(sizes), torch.randn(sizes), torch.tensor(1.5)
    shift = torch.randn(sizes[1], 1, 1) if shifted else None
    last = x.contiguous(memory_format=torch.channels_last)
    found = fused.forward(maps.sign_swish, last, s, shift)
    assert torch.equal(found, fused.forward(maps.sign_swish, x, s, shift))
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = fused.backward(maps.sign_swish_slope, x, g, s, shift=shift)
    for upstream in (g, g.contiguous(memory_format=torch.channels_last)):
        pulled = fused.backward(maps.sign_swish_slope, last, upstream, s, shift=shift)
        assert torch.equal(pulled, expected)
        assert pulled.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(20_000,), (2, 1)], ids=str)
def test_rows_longer_than_one_part_keep_their_shifts(shape: tuple[int, ...]) -> None:
    x, g, s = *torch.randn(2, 2, 20_000), torch.tensor(1.5)
    shift = torch.randn(shape)
    assert torch.equal(fused.forward(maps.poly, x, s, shift), maps.poly(x - shift, s))
    found = fused.backward(maps.triangle, x, g, s, shift=shift)
    assert torch.equal(found, g * maps.triangle(x - shift, s))


@pytest.mark.parametrize("units", ["none", "one", "rows"])
@pytest.mark.parametrize("factors", ["none", "one", "rows"])
@pytest.mark.parametrize("shape", [(3, 5), (7, 2, 3, 3), (1, 40)], ids=str)
def test_the_gradient_is_measured_and_multiplied(
    units: str, factors: str, shape: tuple[int, ...]
) -> None:
    sizes = {"none": None, "one": (), "rows": (shape[0], *(1 for _ in shape[1:]))}
    w, g, s = torch.randn(shape), torch.randn(shape), torch.tensor(0.7)
    unit, factor = (
        None if sizes[kind] is None else torch.rand(sizes[kind]) + 0.5 for kind in (units, factors)
    )
    shift = torch.randn(sizes["rows"])
    for off in (None, shift):
        v = w if off is None else w - off
        v = v if unit is None else v / unit
        expected = g * maps.poly_slope(v, s) * (1 if factor is None else factor)
        assert torch.equal(fused.backward(maps.poly_slope, w, g, s, unit, factor, off), expected)


# Units and scales ---------------------------------------------------------------------------------


def oracle(w: np.ndarray, shift: float, scale: pb.Scale, unit: str | float, s: float):
    """The quantized weight, the unit and the scale of sign-Swish, in float64."""
    axes = tuple(range(0 if scale.per == "layer" else 1, w.ndim))
    size = np.abs(w).mean(axes, keepdims=True)
    measure = size if unit == "current" else unit
    f = swish((w - shift) / measure, s)
    scales = {
        "none": 1.0,
        "unit": measure,
        "mean": size,
        "least_squares": (w * f).sum(axes, keepdims=True) / (f * f).sum(axes, keepdims=True),
    }
    return f, measure, scales[scale.kind]


@pytest.mark.parametrize("kind", ["none", "unit", "mean", "least_squares"])
@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("unit", [1.0, 0.02, "current"])
@given(
    shape=st.sampled_from([(3, 5), (1, 1), (2, 3, 2, 2), (40, 33), (2, 2500)]),
    shift=st.sampled_from([0.0, 0.01]),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_unit_and_scale_are_those_of_the_layer(
    kind: str,
    per: str,
    unit: float | str,
    shape: tuple[int, ...],
    shift: float,
    last: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    w, s, scale = torch.randn(shape) * 0.03 + 0.02, torch.tensor(1.3), pb.Scale(kind, per)
    if last and w.dim() == 4:
        w = w.contiguous(memory_format=torch.channels_last)
    shifts = torch.full((shape[0], *(1 for _ in shape[1:])), shift) if shift else None
    given_unit = torch.tensor(unit) if isinstance(unit, float) and unit != 1 else None
    # The shift as float32 has it: beside a weight that nearly equals it, 0.01 is another number.
    f, measure, factor = oracle(
        w.double().numpy(), float(np.float32(shift)), scale,
        unit if given_unit is None else float(given_unit), 1.3,
    )  # fmt: skip
    for scaled in (False, True):
        measures = fused.Measures(scale, unit == "current", given_unit, scaled)
        q, found, times = fused.quantize_weight(maps.sign_swish, w, s, shifts, False, measures)
        np.testing.assert_allclose(q, f * factor if scaled else f, rtol=2e-5, atol=1e-6)
        if unit == "current":
            np.testing.assert_allclose(found, measure, rtol=1e-6)
        if kind == "none" or (kind == "unit" and unit == 1.0):
            assert times is None
        else:
            np.testing.assert_allclose(times, np.broadcast_to(factor, times.shape), rtol=2e-6)


def test_a_layer_of_zeros_has_scale_zero_and_a_unit_above_it() -> None:
    w, s = torch.zeros(3, 4), torch.tensor(2.0)
    for kind in ("mean", "least_squares"):
        measures = fused.Measures(pb.Scale(kind, "channel"), False, None, True)
        q, _, scale = fused.quantize_weight(maps.sign_swish, w, s, None, False, measures)
        assert not torch.cat([q, scale], 1).any()
    q, unit, _ = fused.quantize_weight(
        maps.sign, w, s, None, False, fused.Measures(pb.Scale("unit"), True, None, False)
    )
    assert bool(((unit > 0) & (q == 1)).all())


# The same bits everywhere -------------------------------------------------------------------------


def everything(w: Tensor, g: Tensor) -> list[Tensor]:
    """Every map, slope and sum once."""
    s = torch.tensor(1.7)
    found = [fused.forward(f, w, s) for f in FORWARD]
    found += [fused.backward(b, w, g, s) for b in BACKWARD]
    w16, g16 = w.bfloat16(), g.bfloat16()
    found += [fused.forward(f, w16, s) for f in FORWARD]
    found += [fused.backward(b, w16, g16, s) for b in BACKWARD]
    for per in ("layer", "channel"):
        for current in (False, True):
            measures = fused.Measures(pb.Scale("least_squares", per), current, None, True)
            found += fused.quantize_weight(maps.soft_sign, w, s, None, False, measures)
    return [each for each in found if each is not None]


def test_every_instruction_set_gives_the_same_bits() -> None:
    w, g = torch.randn(2, 67, 99)
    first, *others = on_each(lambda: everything(w, g))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("shape", [(300, 701), (2, 110_000)], ids=str)
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, ...]) -> None:
    w, g = torch.randn(2, *shape)
    one = everything(w, g)
    torch.set_num_threads(3)
    try:
        three = everything(w, g)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
