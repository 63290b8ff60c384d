"""Kernels with binary weights and float inputs, against sums in float64."""

from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from every_backend import SUPPORTED, on_each, using
from proxbit.kernels.inference import Weight, Window, library

LIBRARY = library()
if LIBRARY is None:
    pytest.skip("the kernels are not built: pip install -e .", allow_module_level=True)

OK, EXACT, INPUT8 = 0, 0, 1
ACTIVATIONS = [lambda y: y, functional.relu, functional.gelu, functional.hardtanh]
often = settings(max_examples=5 * settings.default.max_examples)
Array = np.ndarray[Any, Any]

IMAGE = ["batch", "channels", "height", "width"]
STRIDES = ["stride_n", "stride_c", "stride_h", "stride_w"]
KERNEL = ["kernel_h", "kernel_w", "step_h", "step_w", "dilation_h", "dilation_w"]
PADS = ["pad_top", "pad_bottom", "pad_left", "pad_right"]


def address(array: Array) -> int:
    return array.ctypes.data


class Layer:
    """Random signs with scale and bias, packed; keeps the arrays that its record points to."""

    def __init__(self, seed: int, outputs: int, inputs: int, groups: int = 1, **options: int):
        rng = np.random.default_rng(seed)
        self.shape = (groups, outputs, inputs)
        self.signs = 2 * rng.integers(2, size=self.shape, dtype=np.int8) - 1
        self.scale = rng.uniform(0.1, 2.0, groups * outputs).astype(np.float32)
        self.bias = rng.standard_normal(groups * outputs).astype(np.float32)
        self.packed: dict[str, Array] = {}
        arrays = [(address(array), array.size) for array in (self.scale, self.bias)]
        self.record = Weight(outputs, inputs, groups, None, 0, *sum(arrays, ()), **options)

    @property
    def ready(self) -> Any:
        """The record for the backend in use."""
        isa = LIBRARY.pb_isa().decode()
        if isa not in self.packed:
            self.packed[isa] = packed_weights(self.signs)
        self.record.weights, self.record.weight_bytes = (
            address(self.packed[isa]), self.packed[isa].size,
        )  # fmt: skip
        return byref(self.record)

    def linear(self, x: Array, threads: int = 1) -> Array:
        """The kernel; x lies among NaNs, and the output among sevens, which must stay."""
        groups, outputs, _ = self.shape
        rows, columns = x.shape
        around = np.full((rows + 2, columns + 3), np.nan, np.float32)
        around[1:-1, 2:-1] = x
        out = np.full((rows + 2, groups * outputs), 7.0, np.float32)
        ends = address(around[1:-1, 2:]), columns + 3, rows, columns, address(out[1:])
        size = rows * groups * outputs
        assert LIBRARY.pb_weight_linear(self.ready, *ends, size, threads) == OK
        assert (out[[0, -1]] == 7).all()
        return out[1:-1]

    def sums(self, x: Array) -> Array:
        """The oracle without scale, bias and activation, in float64."""
        groups, outputs, inputs = self.shape
        parts = x.astype(np.float64).reshape(len(x), groups, inputs)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.einsum("rgi,goi->rgo", parts, self.signs.astype(np.float64))
        return sums.reshape(len(x), groups * outputs)

    def scaled(self, sums: Array) -> Array:
        return sums * self.scale + self.bias.astype(np.float64)


def packed_weights(signs: Array) -> Array:
    """Signs [group, output, input] as the backend in use wants them."""
    groups, outputs, inputs = signs.shape
    packed = np.full((groups, LIBRARY.pb_weight_bytes(outputs, inputs)), 0xA5, np.uint8)
    for group, to in zip(signs, packed, strict=True):
        bits = np.packbits(group > 0, axis=-1, bitorder="little")
        assert LIBRARY.pb_make_weights(address(bits), outputs, inputs, address(to)) == OK
    return packed


def inputs_of(seed: int, rows: int, columns: int, kind: str = "normal") -> Array:
    """Rows of a kind that is hard for some way of summing."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    if kind == "tower":
        x[np.arange(rows), rng.integers(columns, size=rows)] = 1e4
    elif kind == "sparse":
        x *= rng.random(x.shape) < 0.1
    elif kind == "zero":
        x[::2] = 0
    elif kind == "steep":
        x *= 10.0 ** rng.uniform(-6, 6, (rows, 1))
    x *= {"huge": 1e34 / columns, "tiny": 1e-36}.get(kind, 1.0)
    return x.astype(np.float32)


@dataclass(frozen=True)
class Case:
    seed: int
    rows: int
    outputs: int
    inputs: int
    groups: int = 1
    kind: str = "normal"

    def layer(self, **options: int) -> Layer:
        return Layer(self.seed, self.outputs, self.inputs, self.groups, **options)

    def x(self) -> Array:
        return inputs_of(self.seed + 1, self.rows, self.groups * self.inputs, self.kind)


seeds = st.integers(0, 2**32 - 1)
sizes = st.one_of(st.integers(1, 20), st.integers(1, 150))
rows_of = st.one_of(st.integers(1, 5), st.integers(6, 40))
kinds = st.sampled_from(["normal", "tower", "sparse", "huge", "tiny", "zero", "steep"])
precisions = st.sampled_from([EXACT, INPUT8])
cases = st.builds(Case, seeds, rows_of, sizes, sizes, st.integers(1, 3), kinds)
plain = st.builds(Case, seeds, rows_of, sizes, st.integers(1, 900))


@given(case=st.builds(Case, seeds, st.just(1), sizes, st.integers(1, 300)))
def test_weights_can_be_read_again(case: Case) -> None:
    signs = case.layer().signs
    rows = np.packbits(signs[0] > 0, axis=-1, bitorder="little")
    for name in SUPPORTED:
        with using(name):
            packed, again = packed_weights(signs), np.zeros_like(rows)
            ends = case.outputs, case.inputs, address(again)
            assert LIBRARY.pb_read_weights(address(packed), *ends) == OK
            assert np.array_equal(again, rows)


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit; one NaN is as good as another."""
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all()) and a[~nan].tobytes() == b[~nan].tobytes()


# linear -------------------------------------------------------------------------------------------


@often
@example(case=Case(0, 1, 70, 2100), bias=True)
@example(case=Case(1, 1, 33, 4000, kind="sparse"), bias=True)
@example(case=Case(2, 9, 2100, 50), bias=True)
@example(case=Case(3, 1, 300, 12000, kind="tower"), bias=True)
@given(case=cases, bias=st.booleans())
def test_exact_sums_are_those_of_float64(case: Case, bias: bool) -> None:
    layer, x = case.layer(), case.x()
    if not bias:
        layer.bias[:], layer.record.bias, layer.record.biases = 0, None, 0
    expected = layer.scaled(layer.sums(x))
    norms = np.linalg.norm(x.astype(np.float64).reshape(-1, case.inputs), axis=1)
    room = 1e-5 * np.repeat(norms, case.outputs).reshape(expected.shape) * layer.scale
    for result in on_each(lambda: layer.linear(x)):
        assert (np.abs(result - expected) <= room + 2e-7 * np.abs(expected)).all()


@pytest.mark.parametrize("rows", [1, 50])
def test_exact_sums_lose_no_more_than_float32_sums_do(rows: int) -> None:
    layer, x = Layer(5, 256, 1024), inputs_of(6, rows, 1024)
    expected = layer.scaled(layer.sums(x))
    for result in on_each(lambda: layer.linear(x)):
        assert np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2)) < 5e-7


@often
@given(case=cases, precision=precisions, activation=st.integers(0, 3))
def test_instruction_sets_give_the_same_bits(case: Case, precision: int, activation: int) -> None:
    layer, x = case.layer(precision=precision, activation=activation), case.x()
    first, *others = on_each(lambda: layer.linear(x))
    assert all(same_bits(first, other) for other in others)


@given(
    case=plain,
    odd=st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=3),
    precision=precisions,
)
def test_rows_that_are_not_finite_give_the_plain_sum_and_spoil_no_other(
    case: Case, odd: list[float], precision: int
) -> None:
    layer, x, row = case.layer(precision=precision), case.x(), case.seed % case.rows
    clean = layer.linear(x)
    x[row, np.random.default_rng(case.seed).integers(case.inputs, size=len(odd))] = odd
    expected = layer.scaled(layer.sums(x))[row]
    for result in on_each(lambda: layer.linear(x)):
        np.testing.assert_array_equal(result[row], expected)
        assert same_bits(np.delete(result, row, 0), np.delete(clean, row, 0))


@often
@given(case=plain)
def test_input8_sums_integers_of_8_bits(case: Case) -> None:
    layer, x = case.layer(precision=INPUT8), case.x()
    inverse = np.float32(127) / np.abs(x).max(1, keepdims=True)
    expected = layer.scaled(layer.sums(np.rint(x * inverse)) / inverse.astype(np.float64))
    for result in on_each(lambda: layer.linear(x)):
        assert (np.abs(result - expected) <= 1e-6 * (np.abs(expected) + np.abs(layer.bias))).all()


@given(case=cases)
def test_input8_errs_by_half_a_step_and_rows_do_not_know_each_other(case: Case) -> None:
    layer, x = case.layer(precision=INPUT8), case.x()
    result, expected = layer.linear(x), layer.scaled(layer.sums(x))
    largest = np.abs(x.astype(np.float64)).reshape(-1, case.inputs).max(1)
    room = np.repeat(largest, case.outputs).reshape(result.shape) * layer.scale * case.inputs / 253
    assert (np.abs(result - expected) <= room + 1e-6 * np.abs(expected)).all()
    assert same_bits(result, np.concatenate([layer.linear(row[None]) for row in x]))


@pytest.mark.parametrize("precision", [EXACT, INPUT8])
@pytest.mark.parametrize("sizes", [(1, 5000, 4900), (9, 2100, 1300), (330, 270, 280)])
def test_threads_change_nothing(precision: int, sizes: tuple[int, int, int]) -> None:
    case = Case(1, *sizes)
    layer, x = case.layer(precision=precision), case.x()
    alone = layer.linear(x)
    assert all(same_bits(alone, layer.linear(x, threads)) for threads in (2, 3, 7))


@pytest.mark.parametrize("activation", range(4))
@pytest.mark.parametrize("rows", [1, 200])
def test_activations_are_their_formulas_and_pass_nan(activation: int, rows: int) -> None:
    layer = Layer(0, 100, 1, activation=activation)
    layer.bias[:], layer.scale[:] = 0, np.linspace(0, 4, 100)
    x = np.linspace(-2.0, 1e4, rows, dtype=np.float32)[:, None]
    x[1:100, 0] = np.linspace(-2.0, 2.0, 100)[: rows - 1][:99]
    y = x.astype(np.float64) * layer.signs[0, :, 0] * layer.scale
    expected = ACTIVATIONS[activation](torch.from_numpy(y)).numpy()
    for result in on_each(lambda: layer.linear(x)):
        assert (np.abs(result - expected) <= 1e-6 * np.maximum(1, np.abs(y))).all()
    for result in on_each(lambda: layer.linear(np.full_like(x, np.nan))):
        assert np.isnan(result).all()


@pytest.mark.parametrize("precision", [EXACT, INPUT8])
@pytest.mark.parametrize("rows", [1, 20])
def test_the_largest_sums_overflow_nowhere(precision: int, rows: int) -> None:
    layer = Layer(0, 20, 6000, precision=precision)
    x = layer.signs[0, :rows].astype(np.float32)
    expected = layer.scaled(np.full((rows, 20), 6000.0))
    for result in on_each(lambda: layer.linear(x)):
        np.testing.assert_allclose(result.diagonal(), expected.diagonal(), rtol=1e-6)


# convolution --------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Small windows of every kind that fit their input."""
    values = {name: draw(st.integers(1, 3)) for name in ["batch", *KERNEL]}
    values |= {name: draw(st.integers(0, 2)) for name in PADS}
    for axis, size, pads in (("h", "height", PADS[:2]), ("w", "width", PADS[2:])):
        reach = values[f"dilation_{axis}"] * (values[f"kernel_{axis}"] - 1) + 1
        least = max(1, reach - sum(values[name] for name in pads))
        values[size] = draw(st.integers(least, least + 6))
    return Window(**values)


def convolved(layer: Layer, window: Window, x: Array) -> Array:
    """The oracle: torch's convolution in float64, channels last."""
    groups, outputs, _ = layer.shape
    signs = layer.signs.reshape(groups * outputs, window.kernel_h, window.kernel_w, -1)
    kernel = torch.from_numpy(signs).double().permute(0, 3, 1, 2)
    pads = (window.pad_left, window.pad_right, window.pad_top, window.pad_bottom)
    padded = functional.pad(torch.from_numpy(x).double(), pads)
    steps, dilations = (window.step_h, window.step_w), (window.dilation_h, window.dilation_w)
    sums = functional.conv2d(padded, kernel, None, steps, 0, dilations, groups)
    return layer.scaled(sums.permute(0, 2, 3, 1).numpy())


def laid_out(window: Window, x: Array, order: str) -> Array:
    """The input in one of the two orders, with its strides written into the window."""
    held = np.ascontiguousarray(x.transpose(["nchw".index(axis) for axis in order]))
    for axis, step in zip(order, held.strides, strict=True):
        setattr(window, f"stride_{axis}", step // 4)
    return held


def out_size(layer: Layer, window: Window) -> int:
    """Floats of the output."""
    groups, outputs, _ = layer.shape
    high = window.height + window.pad_top + window.pad_bottom
    wide = window.width + window.pad_left + window.pad_right
    rows = (high - window.dilation_h * (window.kernel_h - 1) - 1) // window.step_h + 1
    columns = (wide - window.dilation_w * (window.kernel_w - 1) - 1) // window.step_w + 1
    return int(window.batch * rows * columns * groups * outputs)


def conv(layer: Layer, window: Window, x: Array, out: Array, threads: int = 1) -> int:
    ends = address(x), address(out)
    window.in_size, window.out_size = x.size, out_size(layer, window)
    return LIBRARY.pb_weight_conv(layer.ready, byref(window), *ends, threads)


@often
@given(
    case=st.builds(
        Case, seeds, st.just(1), st.integers(1, 40), st.integers(1, 20), st.integers(1, 3)
    ),
    window=windows(),
    order=st.sampled_from(["nchw", "nhwc"]),
    precision=precisions,
)
def test_convolution_is_torchs(case: Case, window: Window, order: str, precision: int) -> None:
    window.channels = case.groups * case.inputs
    inputs = window.kernel_h * window.kernel_w * case.inputs
    layer = Layer(case.seed, case.outputs, inputs, case.groups, precision=precision)
    shape = (window.batch, window.channels, window.height, window.width)
    x = np.random.default_rng(case.seed).uniform(-1, 1, shape).astype(np.float32)
    held, expected = laid_out(window, x, order), convolved(layer, window, x)

    def run() -> Array:
        out = np.full(expected.size + 1, 7.0, np.float32)
        assert conv(layer, window, held, out) == OK
        assert out[-1] == 7
        return out[:-1].reshape(expected.shape)

    first, *others = on_each(run)
    assert (
        np.abs(first - expected) <= (2e-6 if precision == EXACT else 8e-3) * inputs + 1e-6
    ).all()
    assert all(same_bits(first, other) for other in others)


def test_a_batch_that_is_cut_into_pieces_gives_what_each_image_gives() -> None:
    window = Window(40, 32, 16, 16, *[0] * 4, 3, 3, *[1] * 8)
    layer = Layer(3, 24, 9 * 32)
    held = laid_out(window, inputs_of(4, 40 * 32, 256).reshape(40, 32, 16, 16), "nchw")
    out, alone = np.zeros((2, 40, 16, 16, 24), np.float32)
    assert conv(layer, window, held, out, threads=3) == OK
    window.batch = 1
    assert [conv(layer, window, *pair) for pair in zip(held, alone, strict=True)] == [OK] * 40
    assert same_bits(out, alone)
