"""BWAA: a narrow register that wraps around, against integer arithmetic step by step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.nn import WrapAccumulator, cyclic, wrap

often = settings(max_examples=4 * settings.default.max_examples)
bits_of = st.integers(2, 12)
slopes = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 8.0])


def add_with_wrap(terms: np.ndarray, bits: int) -> np.ndarray:
    """Sum the last axis one term at a time in a register of ``bits`` bits, two's complement."""
    register = np.zeros(terms.shape[:-1], dtype=np.int64)
    mask, top = (1 << bits) - 1, 1 << (bits - 1)
    for j in range(terms.shape[-1]):
        register = (register + terms[..., j]) & mask
        register = np.where(register & top, register - (1 << bits), register)
    return register


def cyclic_of_integers(m: np.ndarray, bits: int, k: float) -> np.ndarray:
    """Spec section 9, case by case."""
    half = 2 ** (bits - 1)
    edge = k / (k + 1) * half
    return np.where(m > edge, k * half - k * m, np.where(m < -edge, -k * half - k * m, m))


def bits_from(x: Tensor) -> np.ndarray:
    return np.where(x.detach().numpy() >= 0, 1, -1)


# wrap ---------------------------------------------------------------------------------------------


@often
@given(
    terms=st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=300), bits=bits_of, data=st.data()
)
def test_wrapping_once_is_wrapping_at_every_step_in_any_order(
    terms: list[int], bits: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(terms))))
    sequential = add_with_wrap(np.array(terms)[order], bits)
    assert wrap(torch.tensor(float(sum(terms))), bits).item() == sequential


@given(z=st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=20), bits=bits_of)
def test_wrap_is_the_formula_and_has_its_period(z: list[int], bits: int) -> None:
    x, half = torch.tensor(z, dtype=torch.float32), 2 ** (bits - 1)
    expected = [(value + half) % (2 * half) - half for value in z]
    assert wrap(x, bits).tolist() == expected
    assert torch.equal(wrap(x + 2 * half, bits), wrap(x, bits))
    assert torch.equal(wrap(wrap(x, bits), bits), wrap(x, bits))


def test_eight_bits_are_those_of_int8() -> None:
    z = np.arange(-1000, 1001)
    assert wrap(torch.tensor(z, dtype=torch.float32), 8).tolist() == z.astype(np.int8).tolist()


# cyclic -------------------------------------------------------------------------------------------


@often
@given(z=st.lists(st.integers(-5000, 5000), min_size=1, max_size=20), bits=bits_of, k=slopes)
def test_cyclic_is_the_case_list(z: list[int], bits: int, k: float) -> None:
    m = wrap(torch.tensor(z, dtype=torch.float64), bits)
    np.testing.assert_allclose(
        cyclic(m, bits, k).numpy(), cyclic_of_integers(m.numpy(), bits, k), atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [0.3, 1.7, 2.0, math.pi])
def test_cyclic_is_as_precise_as_its_input(k: float, dtype: torch.dtype) -> None:
    m = torch.arange(-128, 128, dtype=dtype)
    got = cyclic(m, 8, k)
    assert got.dtype == dtype
    eps = torch.finfo(dtype).eps
    exact = cyclic_of_integers(np.arange(-128, 128), 8, k)
    np.testing.assert_allclose(got.numpy(), exact, atol=4 * 128 * k * eps + 128 * eps, rtol=0)


@given(bits=bits_of, k=slopes)
def test_an_overflow_never_jumps(bits: int, k: float) -> None:
    """c(wrap(z)) is continuous, odd and periodic, and stays within k/(k+1) of the register."""
    half = 2 ** (bits - 1)
    z = torch.linspace(-3 * half, 3 * half, 6 * 512 + 1, dtype=torch.float64)
    c = cyclic(wrap(z, bits), bits, k)
    assert float(c.diff().abs().max()) <= max(k, 1) * float(z[1] - z[0]) + 1e-9
    assert float(c.abs().max()) <= k / (k + 1) * half + 1e-9
    torch.testing.assert_close(c.flip(0), -c)
    torch.testing.assert_close(cyclic(wrap(z + 2 * half, bits), bits, k), c)


@often
@given(z=st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), bits=bits_of, k=slopes)
def test_the_gradient_is_one_inside_and_minus_k_on_the_way_back(
    z: list[int], bits: int, k: float
) -> None:
    x = torch.tensor(z, dtype=torch.float32, requires_grad=True)
    upstream = torch.arange(1.0, len(z) + 1)
    (g,) = torch.autograd.grad(WrapAccumulator(bits, k)(x), x, upstream)
    m = np.array([(value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for value in z])
    inner = np.abs(m) <= k / (k + 1) * 2 ** (bits - 1)
    assert g.tolist() == (upstream.numpy() * np.where(inner, 1, -k)).tolist()


def test_the_accumulator_vmaps() -> None:
    z = torch.randint(-400, 400, (4, 7)).float()
    mapped = torch.vmap(lambda row: cyclic(wrap(row, 8), 8, 2.0))(z)
    assert torch.equal(mapped, cyclic(wrap(z, 8), 8, 2.0))


@pytest.mark.parametrize("bits", [1, 0, -3, 25, 7.5])
def test_a_register_of_another_width_is_refused(bits: float) -> None:
    with pytest.raises(ValueError, match=f"{bits}"):
        WrapAccumulator(bits)
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=f"{bits}"):
        pb.binarize(model, "bc", pb.Task("BWAA", bits=bits), only="*")
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("k", [0, -1.0, math.nan, math.inf])
def test_a_slope_that_is_no_slope_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match="slope k"):
        WrapAccumulator(8, k)
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="slope k"):
        pb.binarize(model, "bc", pb.Task("BWAA", k=k), only="*")
    assert type(model[0]) is nn.Linear


# A whole layer ------------------------------------------------------------------------------------


def finish(m: np.ndarray, layer: nn.Module, bits: int, k: float, trailing: int) -> np.ndarray:
    """Cyclic function, then the scale mean|w| per channel, then the bias: all in float32."""
    w = layer.weight.detach()
    shape = (-1, *(1,) * trailing)
    scale = pb.Scale("mean", "channel").mean_size(w).numpy().reshape(shape)
    by_hand = w.abs().flatten(1).mean(1).numpy().reshape(shape)
    np.testing.assert_allclose(scale, by_hand, rtol=1e-6)
    c = cyclic_of_integers(m, bits, k).astype(np.float32)
    return c * scale + layer.bias.detach().numpy().reshape(shape)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("k", [1.0, 2.0])
@pytest.mark.parametrize("fan_in", [7, 300])
def test_a_linear_layer_is_an_integer_simulation(bits: int, k: float, fan_in: int) -> None:
    layer = nn.Linear(fan_in, 6)
    model = nn.Sequential(layer)
    pb.binarize(model, "bc", pb.Task("BWAA", bits=bits, k=k), only="*")
    x = torch.randn(5, fan_in) + 0.2
    products = bits_from(x)[:, None, :] * bits_from(layer.weight)[None]
    m = add_with_wrap(products, bits)
    assert np.array_equal(model(x).detach().numpy(), finish(m, layer, bits, k, 0))
    overflowed = products.sum(-1) != m
    accumulator = layer.binary.accumulator
    assert accumulator.overflow.item() == pytest.approx(overflowed.mean(), abs=1e-7)
    assert fan_in < 2 ** (bits - 1) or bits == 8 or overflowed.any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups", "pad_value"),
    [
        (1, 0, 1, 1, 1),
        (2, 1, 1, 2, 1),
        (1, 2, 2, 1, -1),
        (1, "same", 1, 4, 1),
        ((1, 2), (1, 0), 1, 1, 0),
    ],
)
def test_a_convolution_is_an_integer_simulation(
    bits: int, stride: int, padding: int, dilation: int, groups: int, pad_value: int
) -> None:
    layer = nn.Conv2d(4, 8, 3, stride=stride, padding=padding, dilation=dilation, groups=groups)
    model = nn.Sequential(layer)
    pb.binarize(model, "bc", pb.Task("BWAA", bits=bits, pad_value=pad_value), only="*")
    x = torch.randn(2, 4, 7, 6) + 0.3
    border = {"same": (1, 1)}.get(padding, padding)
    border = (border, border) if isinstance(border, int) else border
    signs = np.pad(
        bits_from(x),
        ((0, 0), (0, 0), (border[0],) * 2, (border[1],) * 2),
        constant_values=pad_value,
    )
    m = convolve(signs, bits_from(layer.weight), stride, dilation, groups, bits)
    assert np.array_equal(model(x).detach().numpy(), finish(m, layer, bits, 2.0, 2))


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    stride: int | tuple[int, int],
    dilation: int,
    groups: int,
    bits: int,
) -> np.ndarray:
    """A convolution as sums of integer products, one at a time in a wrapping register."""
    rows, columns = (stride, stride) if isinstance(stride, int) else stride
    reach = dilation * (w.shape[2] - 1) + 1
    height, width = (x.shape[2] - reach) // rows + 1, (x.shape[3] - reach) // columns + 1
    out = np.zeros((x.shape[0], w.shape[0], height, width), dtype=np.int64)
    fan, step = w.shape[1], w.shape[0] // groups
    for channel in range(w.shape[0]):
        start = channel // step * fan
        for i in range(height):
            for j in range(width):
                top, left = i * rows, j * columns
                patch = x[
                    :,
                    start : start + fan,
                    top : top + reach : dilation,
                    left : left + reach : dilation,
                ]
                products = (patch * w[channel]).reshape(x.shape[0], -1)
                out[:, channel, i, j] = add_with_wrap(products, bits)
    return out


def test_the_gradient_of_a_layer_follows_the_cyclic_function() -> None:
    """dz = s c'(m) dy: to the input with the scale, to the weight by convention (b) without it."""
    layer = nn.Linear(60, 6, bias=False).double()
    model = nn.Sequential(layer)
    pb.binarize(model, "bc", pb.Task("BWAA", bits=4, k=3.0), only="*")
    x = (torch.randn(5, 60, dtype=torch.float64) + 0.1).requires_grad_()
    upstream = torch.randn(5, 6, dtype=torch.float64)
    model(x).backward(upstream)
    signs_x, signs_w = bits_from(x), bits_from(layer.weight)
    m = add_with_wrap(signs_x[:, None] * signs_w[None], 4)
    slope = np.where(np.abs(m) <= 3 / 4 * 8, 1, -3)
    scale = layer.weight.detach().abs().mean(1).numpy()
    g = upstream.numpy() * slope
    np.testing.assert_allclose(layer.weight.grad.numpy(), g.T @ signs_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), (g * scale) @ signs_w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_sums_stay_exact(dtype: torch.dtype) -> None:
    """Above 256 bfloat16 has no odd numbers: a sum in it would wrap to another place."""
    layer = nn.Linear(1001, 4, bias=False)
    model = nn.Sequential(layer)
    pb.binarize(model, "bc", pb.Task("BWAA", bits=8), only="*")
    sums: list[Tensor] = []
    layer.binary.accumulator.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    x = torch.randn(3, 1001) + 1.0
    with torch.no_grad():
        layer.weight.add_(0.02)
    with torch.autocast("cpu", dtype=dtype):
        model(x)
    exact = (bits_from(x)[:, None] * bits_from(layer.weight)[None]).sum(-1)
    assert np.abs(exact).max() > 256
    assert sums[0].double().tolist() == exact.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_half_precision_model_the_sums_stay_exact(dtype: torch.dtype) -> None:
    layer = nn.Linear(1001, 4, bias=False).to(dtype)
    model = nn.Sequential(layer)
    pb.binarize(model, "bc", pb.Task("BWAA", bits=8), only="*")
    sums: list[Tensor] = []
    layer.binary.accumulator.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    x = torch.randn(3, 1001).to(dtype)
    assert model(x).dtype == dtype
    exact = (bits_from(x.float())[:, None] * bits_from(layer.weight.float())[None]).sum(-1)
    assert sums[0].double().tolist() == exact.tolist()


# The penalty --------------------------------------------------------------------------------------


def test_the_penalty_is_the_mean_excess_of_every_accumulator() -> None:
    model = nn.Sequential(
        nn.Linear(80, 12), nn.Tanh(), nn.Linear(12, 70), nn.Tanh(), nn.Linear(70, 4)
    )
    pb.binarize(model, "bc", pb.Task("BWAA", bits=4), only="*")
    x = torch.randn(6, 80)
    with pb.overflow_penalty(model) as penalty:
        model(x)
        got = penalty()
    expected, h = 0.0, x
    for layer in model:
        if isinstance(layer, nn.Linear):
            z = (bits_from(h)[:, None] * bits_from(layer.weight)[None]).sum(-1)
            expected += np.maximum(np.abs(z) - 8, 0).mean()
        h = layer(h)
    assert got.item() == pytest.approx(expected, rel=1e-6)
    got.backward()
    assert model[0].weight.grad.abs().sum() > 0
    assert model[2].weight.grad.abs().sum() > 0


def test_the_gradient_of_the_penalty_pulls_sums_back() -> None:
    """dR/dz = sign(z) / N where |z| > 2^(bits-1), else 0; the scale plays no part in it."""
    accumulator = WrapAccumulator(4, 2.0)
    z = torch.tensor([[3.0, 8.0, 9.0, -20.0]], requires_grad=True)
    accumulator.excess(z).backward()
    assert accumulator.excess(z).item() == (1 + 12) / 4
    assert z.grad.tolist() == [[0.0, 0.0, 0.25, -0.25]] or z.grad.tolist() == [
        [0, 0.25, 0.25, -0.25]
    ]


def test_the_penalty_watches_only_inside_its_block() -> None:
    model = nn.Sequential(nn.Linear(80, 12))
    pb.binarize(model, "bc", pb.Task("BWAA", bits=4), only="*")
    x = torch.randn(6, 80)
    model(x)
    with pb.overflow_penalty(model) as penalty:
        model(x)
        once = penalty().item()
        model(x)
        assert penalty().item() == pytest.approx(2 * once)
    model(x)
    assert penalty().item() == pytest.approx(2 * once)


def test_without_accumulators_there_is_no_penalty() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    pb.binarize(model, "bc", "BWA", only="*")
    with pytest.raises(ValueError, match="BWAA"), pb.overflow_penalty(model):
        pass


@pytest.mark.parametrize("method", ["bnn++", "pc", "poly+"])
def test_a_soft_pair_uses_the_same_expression_on_reals(method: str) -> None:
    layer = nn.Linear(90, 4, bias=False).double()
    model = nn.Sequential(layer)
    pb.binarize(model, method, pb.Task("BWAA", bits=4), only="*")
    pb.set_strength(model, 0.8)
    x = torch.randn(5, 90, dtype=torch.float64) + 0.3
    f, scale = layer.binary.weight_quantizer.split(layer.weight)
    z = functional.linear(layer.binary.input_quantizer(x), f).detach().numpy()
    m = np.mod(z + 8, 16) - 8
    expected = cyclic_of_integers(m, 4, 2.0) * scale.detach().numpy().reshape(-1)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, atol=1e-4)
