"""Kernels with binary weights and binary inputs, against sums of integers."""

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from every_backend import SUPPORTED, on_each, using
from proxbit.kernels import inference as kernels
from proxbit.kernels import training as fused
from proxbit.kernels.inference import Binary, Following, Window
from proxbit.kernels.library import ABI, agrees

LIBRARY = kernels.library()
if LIBRARY is None:
    pytest.skip("the kernels are not built: pip install -e .", allow_module_level=True)

OK, BAD_ARGUMENT, NO_SUCH_ISA = 0, 1, 3
RELU, GELU, HARDTANH = 1, 2, 3
CANARY = 0xA5
MARGIN = 64  # bytes in front of and behind an output that must stay
often = settings(max_examples=5 * settings.default.max_examples)
Array = np.ndarray[Any, Any]


def address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def given_to(array: Array | None) -> tuple[int | None, int]:
    """Address and length, as the kernels take them."""
    return (None, 0) if array is None else (array.ctypes.data, array.size)


def packed(signs: Array) -> Array:
    """Signs of the last axis as bits, each row beginning with a new byte."""
    return np.ascontiguousarray(np.packbits(signs > 0, axis=-1, bitorder="little"))


class Layer:
    """Random signs in (group, output, tap, channel) with all that a layer may have beside them."""

    def __init__(
        self, seed: int, outputs: int, channels: int, taps: int = 1, groups: int = 1,
        bias: bool = True, register_bits: int = 0, slope: float = 2.0, activation: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.signs = rng.choice(np.array([-1, 1], np.int64), (groups, outputs, taps, channels))
        width = groups * outputs
        self.scale = rng.uniform(0.01, 2.0, width).astype(np.float32)
        self.bias = rng.standard_normal(width).astype(np.float32) if bias else None
        reach = int(np.sqrt(taps * channels)) + 2
        self.low = rng.integers(-reach, reach, width).astype(np.int32)
        self.high = rng.integers(-reach, 2 * reach, width).astype(np.int32)
        self.low[rng.random(width) < 0.2] = np.iinfo(np.int32).min
        self.high[rng.random(width) < 0.2] = np.iinfo(np.int32).max
        self.flip = rng.choice(np.array([0, 1, 255], np.uint8), width)
        self.panels: dict[str, Array] = {}
        self.record = Binary(
            outputs, taps * -(-channels // 8), taps * channels, groups, *given_to(self.laid()),
            *given_to(self.scale), *given_to(self.bias), None, 0, register_bits, slope, activation,
            address(self.low), address(self.high), address(self.flip), width,
        )  # fmt: skip

    def laid(self) -> Array:
        """The panels of the backend in use."""
        isa = LIBRARY.pb_isa().decode()
        if isa not in self.panels:
            self.panels[isa] = panels_of(self.signs)
        return self.panels[isa]

    def above(self, threshold: Array | None) -> Binary:
        """The record for inputs with these thresholds, on the backend in use."""
        record = Binary.from_buffer_copy(self.record)
        record.panels, record.panel_bytes = given_to(self.laid())
        record.threshold, record.thresholds = given_to(threshold)
        return record

    def wrapped(self, sums: Array) -> Array:
        """What a register holds: the number of the same class closest to 0, from -half."""
        bits = self.record.register_bits
        half = 1 << (bits - 1) if bits else 0
        return (sums + half) % (2 * half) - half if bits else sums

    def values(self, sums: Array) -> Array:
        """The oracle of float outputs before the activation, float32 with two roundings."""
        found = self.wrapped(sums).astype(np.float64)
        if self.record.register_bits:
            half, k = 2.0 ** (self.record.register_bits - 1), float(self.record.slope)
            back = np.sign(found) * k * (half - np.abs(found))
            found = np.where(np.abs(found) <= k / (k + 1) * half, found, back)
        out = found.astype(np.float32) * self.scale
        return out if self.bias is None else out + self.bias

    def bits(self, sums: Array) -> Array:
        """The oracle of outputs as bits."""
        inside = (self.low <= self.wrapped(sums)) & (self.wrapped(sums) < self.high)
        return packed(inside != (self.flip != 0))


def panels_of(signs: Array) -> Array:
    """The weight as the kernels want it, one group behind the other."""
    groups, outputs, *_ = signs.shape
    rows = packed(signs).reshape(groups, outputs, -1)
    size = LIBRARY.pb_panel_bytes(outputs, rows.shape[2])
    panels = np.full((groups, size), CANARY, np.uint8)
    for group, to in zip(rows, panels, strict=True):
        own = np.ascontiguousarray(group)
        assert LIBRARY.pb_make_panels(address(own), outputs, own.shape[1], address(to)) == OK
    return panels


class Output:
    """Room for an output, with canaries on both sides; the kernel gets one of two pointers."""

    def __init__(self, shape: tuple[int, ...], as_bits: bool) -> None:
        self.dtype = np.dtype(np.uint8 if as_bits else np.float32)
        self.shape = (*shape[:-1], -(-shape[-1] // 8)) if as_bits else shape
        self.size = int(np.prod(self.shape))
        self.room = np.full(self.size * self.dtype.itemsize + 2 * MARGIN, CANARY, np.uint8)
        place = address(self.room[MARGIN:])
        self.pointers = (None, place) if as_bits else (place, None)

    def untouched(self) -> bool:
        return bool((self.room == CANARY).all())

    def taken(self) -> Array:
        assert (self.room[:MARGIN] == CANARY).all()
        assert (self.room[-MARGIN:] == CANARY).all()
        return self.room[MARGIN:-MARGIN].view(self.dtype).reshape(self.shape)


def on_every_way(call: Callable[[int], Array]) -> Array:
    """The result, which is the same to the bit for every backend and number of threads."""
    every = on_each(lambda: [call(threads) for threads in (1, 2, 3)])
    results = [each for some in every for each in some]
    for other in results[1:]:
        assert other.tobytes() == results[0].tobytes()
    return results[0]


ODD = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.0], np.float32)


def inputs_of(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Floats among which every special value is likely."""
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.3, rng.choice(ODD, shape), x)


def signs_of(x: Array, threshold: Array | float = 0.0) -> Array:
    """The oracle: the sign bit of the distance from the threshold; NaN is +1."""
    with np.errstate(invalid="ignore"):
        distance = np.subtract(x, threshold, dtype=np.float32)
    return np.where(np.isnan(distance), 1, np.copysign(1, distance)).astype(int)


def thresholds(rng: np.random.Generator, like: Array, wanted: bool) -> Array | None:
    """One per channel, often equal to an input; ``like`` has its channels last."""
    if not wanted:
        return None
    found = like.reshape(-1, like.shape[-1])[0].copy()
    found[~np.isfinite(found)] = -0.0
    return np.where(rng.random(found.shape) < 0.5, found, rng.standard_normal(found.shape)).astype(
        np.float32
    )


# linear -------------------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
sizes = st.one_of(st.integers(1, 20), st.integers(1, 150))
many = st.one_of(sizes, st.integers(1, 1500))
rows_of = st.one_of(st.integers(1, 5), st.integers(1, 40))
registers = st.one_of(st.just(0), st.just(8), st.integers(2, 24))
slopes = st.sampled_from([0.5, 1.0, 1.25, 2.0, 3.0])  # of few digits: float32 makes no error


def linear(
    layer: Layer, x: Array | None, threshold: Array | None, bits: Array | None, rows: int,
    as_bits: bool, threads: int, then: Following | None = None,
) -> Array:  # fmt: skip
    out = Output((rows, layer.record.outputs), as_bits)
    stride = 0 if x is None else x.strides[0] // 4
    columns = layer.record.row_bytes if x is None else x.shape[1]
    code = LIBRARY.pb_binary_linear(
        layer.above(threshold), address(x), stride, address(bits), rows, columns, *out.pointers,
        out.size, then, threads,
    )  # fmt: skip
    assert code == OK
    return out.taken()


@often
@example(0, 64, 4100, 9, 0, 2.0, True, 0, False, False, False)
@example(1, 65, 4100, 9, 8, 2.0, True, 0, False, False, False)
@example(2, 129, 9000, 1, 0, 2.0, False, 0, False, False, True)
@example(3, 32, 24, 4, 8, 1.0, True, 3, True, False, True)
@given(
    seed=seeds, outputs=sizes, products=many, rows=rows_of, register=registers, slope=slopes,
    bias=st.booleans(), gap=st.integers(0, 9), edges=st.booleans(), from_bits=st.booleans(),
    as_bits=st.booleans(),
)  # fmt: skip
def test_a_linear_layer_is_the_sum_of_integers(
    seed: int, outputs: int, products: int, rows: int, register: int, slope: float, bias: bool,
    gap: int, edges: bool, from_bits: bool, as_bits: bool,
) -> None:  # fmt: skip
    layer = Layer(seed, outputs, products, bias=bias, register_bits=register, slope=slope)
    rng = np.random.default_rng(seed)
    room = inputs_of(rng, (rows * (products + gap) - gap,))
    x = np.lib.stride_tricks.as_strided(room, (rows, products), (4 * (products + gap), 4))
    threshold = thresholds(rng, x, edges)
    signs = signs_of(x, 0.0 if threshold is None else threshold)
    sums = signs @ layer.signs[0, :, 0].T
    given = (None, None, packed(signs)) if from_bits else (x, threshold, None)
    found = on_every_way(lambda threads: linear(layer, *given, rows, as_bits, threads))
    assert np.array_equal(found, layer.bits(sums) if as_bits else layer.values(sums))


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("register", [0, 8, 9])
def test_the_largest_sums_are_exact(rows: int, register: int) -> None:
    products = 8 * 8188
    layer = Layer(0, 33, products, register_bits=register)
    layer.signs[0, 1:3] = [[[1]], [[-1]]]
    layer.panels.clear()
    x = np.ones((rows, products), np.float32)
    sums = np.broadcast_to(layer.signs[0].sum((1, 2)), (rows, 33))
    assert np.array_equal(
        on_every_way(lambda t: linear(layer, x, None, None, rows, False, t)), layer.values(sums)
    )
    layer.record.row_bytes, layer.record.products = 8191, 8 * 8191  # more than can be counted
    layer.record.panel_bytes = LIBRARY.pb_panel_bytes(33, 8191)
    out = Output((rows, 33), False)
    code = LIBRARY.pb_binary_linear(
        layer.record, address(x), 8 * 8191, None, rows, 8 * 8191, *out.pointers, out.size, None, 1
    )
    assert code == BAD_ARGUMENT
    assert out.untouched()


@pytest.mark.parametrize(("rows", "outputs", "products"), [(70, 600, 6000), (21, 1024, 12000)])
@pytest.mark.parametrize("as_bits", [False, True])
def test_the_number_of_threads_changes_nothing(
    rows: int, outputs: int, products: int, as_bits: bool
) -> None:
    """So many products that the work is cut by rows, or by panels of outputs."""
    layer = Layer(4, outputs, products)
    x = inputs_of(np.random.default_rng(5), (rows, products))
    results = [linear(layer, x, None, None, rows, as_bits, threads) for threads in (1, 2, 3, 5)]
    bits = packed(signs_of(x))
    results += [linear(layer, None, None, bits, rows, as_bits, threads) for threads in (1, 3)]
    assert all(other.tobytes() == results[0].tobytes() for other in results[1:])
    exact = signs_of(x).astype(np.float32) @ layer.signs[0, :, 0].T.astype(np.float32)
    sums = exact.astype(np.int64)
    assert np.array_equal(results[0], layer.bits(sums) if as_bits else layer.values(sums))


def test_rows_may_be_the_same_place() -> None:
    layer = Layer(0, 20, 30)
    x = inputs_of(np.random.default_rng(1), (1, 30))
    repeated = np.broadcast_to(x, (9, 30))
    found = on_every_way(lambda t: linear(layer, repeated, None, None, 9, False, t))
    alone = linear(layer, x, None, None, 1, False, 1)
    assert np.array_equal(found, np.broadcast_to(alone, (9, 20)))


def gelu(y: Array) -> Array:
    from math import erf, sqrt

    return np.array([v * 0.5 * (1 + erf(v / sqrt(2))) for v in y.ravel()]).reshape(y.shape)


@pytest.mark.parametrize(
    ("activation", "oracle"),
    [(RELU, lambda y: np.maximum(y, 0)), (HARDTANH, lambda y: np.clip(y, -1, 1)), (GELU, gelu)],
)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("register", [0, 8])
def test_activations_are_their_formulas(
    activation: int, oracle: Callable[[Array], Array], rows: int, register: int
) -> None:
    layer = Layer(7, 70, 333, activation=activation, register_bits=register)
    x = inputs_of(np.random.default_rng(8), (rows, 333))
    y = layer.values(signs_of(x) @ layer.signs[0, :, 0].T).astype(np.float64)
    found = on_every_way(lambda threads: linear(layer, x, None, None, rows, False, threads))
    room = 1e-6 * np.maximum(1, np.abs(y)) if activation == GELU else 0.0
    assert (np.abs(found - oracle(y)) <= room).all()


# signs --------------------------------------------------------------------------------------------


@often
@given(
    seed=seeds, rows=st.integers(0, 70), columns=sizes, gap=st.integers(0, 5),
    more=st.integers(0, 5), edges=st.booleans(),
)  # fmt: skip
def test_signs_are_bits_and_the_rest_of_a_row_is_zero(
    seed: int, rows: int, columns: int, gap: int, more: int, edges: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = inputs_of(rng, (max(rows, 1), columns + gap))
    threshold = thresholds(rng, x[:, :columns], edges)
    signs = signs_of(x[:rows, :columns], 0.0 if threshold is None else threshold)
    bytes_ = -(-columns // 8) + more
    expected = np.zeros((rows, bytes_), np.uint8)
    expected[:, : bytes_ - more] = packed(signs)

    def call(threads: int) -> Array:
        out = Output((rows, 8 * bytes_), True)
        code = LIBRARY.pb_sign_rows(
            address(x), rows, columns, columns + gap, address(threshold), out.pointers[1], bytes_,
            threads,
        )  # fmt: skip
        assert code == OK
        return out.taken()

    assert np.array_equal(on_every_way(call), expected)


def test_many_rows_of_signs_do_not_depend_on_threads() -> None:
    x = inputs_of(np.random.default_rng(0), (1100, 1001))
    out = np.zeros((1100, 126), np.uint8)
    for threads in (1, 3):
        out[:] = CANARY
        place = address(out)
        assert LIBRARY.pb_sign_rows(address(x), 1100, 1001, 1001, None, place, 126, threads) == OK
        assert np.array_equal(out, packed(signs_of(x)))


# convolution --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The window and the input of a convolution, small and of every kind that fits."""

    batch: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    step: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]
    pad_bit: int

    @property
    def out_size(self) -> tuple[int, int]:
        found = []
        for axis in (0, 1):
            size = self.size[axis] + self.pads[2 * axis] + self.pads[2 * axis + 1]
            last = size - self.dilation[axis] * (self.kernel[axis] - 1) - 1
            found.append(last // self.step[axis] + 1)
        return found[0], found[1]

    def window(self, channels: int, strides: tuple[int, ...], out_size: int) -> Window:
        """The record; strides in elements, in the order batch, channels, height, width."""
        sizes = (self.batch, channels, *self.size)
        last = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        pixels = self.batch * self.size[0] * self.size[1]
        in_size = last + 1 if any(strides) else pixels * -(-channels // 8)
        return Window(
            *sizes, *strides, *self.kernel, *self.step, *self.dilation, *self.pads, self.pad_bit,
            in_size, out_size,
        )  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    two = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, step, dilation = draw(two), draw(two), draw(two)
    pads = draw(st.tuples(*(st.integers(0, 3) for _ in range(4))))
    size = []
    for axis in (0, 1):
        least = dilation[axis] * (kernel[axis] - 1) + 1 - pads[2 * axis] - pads[2 * axis + 1]
        size.append(draw(st.integers(max(1, least), max(1, least) + 12)))
    batch, pad_bit = draw(st.integers(1, 3)), draw(st.integers(0, 1))
    return Shape(batch, (size[0], size[1]), kernel, step, dilation, pads, pad_bit)


def convolved(layer: Any, shape: Shape, signs: Array) -> Array:
    """The oracle: one tap after the other on the padded signs [n, c, h, w]; channels last."""
    groups, outputs, _, channels = layer.signs.shape
    top, bottom, left, right = shape.pads
    pad = 2 * shape.pad_bit - 1
    padded = np.pad(
        signs, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=pad
    ).reshape(shape.batch, groups, channels, *(n + p + q for n, p, q in (
        (shape.size[0], top, bottom), (shape.size[1], left, right))))  # fmt: skip
    height, width = shape.out_size
    sums = np.zeros((shape.batch, height, width, groups, outputs), np.int64)
    for tap in range(shape.kernel[0] * shape.kernel[1]):
        y, x = (at * d for at, d in zip(divmod(tap, shape.kernel[1]), shape.dilation, strict=True))
        seen = padded[..., y :: shape.step[0], x :: shape.step[1]][..., :height, :width]
        sums += np.einsum("ngchw,goc->nhwgo", seen, layer.signs[:, :, tap])
    return sums.reshape(shape.batch, height, width, groups * outputs)


def somewhere(rng: np.random.Generator, x: Array, order: tuple[int, ...], steps: Array) -> Array:
    """The same values in memory of another order of axes, with gaps between them."""
    sizes = [x.shape[axis] for axis in order]
    room = inputs_of(rng, tuple(n * s for n, s in zip(sizes, steps, strict=True)))
    view = room[tuple(slice(None, None, s) for s in steps)].transpose(np.argsort(order))
    view[...] = x
    return view


def convolution(
    layer: Layer, shape: Shape, x: Array | None, threshold: Array | None, bits: Array | None,
    as_bits: bool, threads: int, then: Following | None = None,
) -> Array:  # fmt: skip
    groups, outputs, _, channels = layer.signs.shape
    out = Output((shape.batch, *shape.out_size, groups * outputs), as_bits)
    strides = (0,) * 4 if x is None else tuple(s // 4 for s in x.strides)
    code = LIBRARY.pb_binary_conv(
        layer.above(threshold), shape.window(groups * channels, strides, out.size), address(x),
        address(bits), *out.pointers, then, threads,
    )  # fmt: skip
    assert code == OK
    return out.taken()


@often
@given(
    seed=seeds, shape=shapes(), outputs=st.one_of(st.integers(1, 9), st.integers(1, 70)),
    channels=st.one_of(st.integers(1, 9), st.integers(1, 40)), groups=st.integers(1, 3),
    bias=st.booleans(), register=registers, slope=slopes, edges=st.booleans(),
    from_bits=st.booleans(), as_bits=st.booleans(), order=st.permutations(range(4)),
    steps=st.one_of(st.just((1, 1, 1, 1)), st.tuples(*(st.integers(1, 2) for _ in range(4)))),
)  # fmt: skip
def test_a_convolution_is_the_sum_of_integers(
    seed: int, shape: Shape, outputs: int, channels: int, groups: int, bias: bool, register: int,
    slope: float, edges: bool, from_bits: bool, as_bits: bool, order: list[int], steps: Any,
) -> None:  # fmt: skip
    groups = 1 if from_bits or as_bits else groups  # bits of several groups would share a byte
    taps = shape.kernel[0] * shape.kernel[1]
    layer = Layer(seed, outputs, channels, taps, groups, bias, register, slope)
    rng = np.random.default_rng(seed)
    x = inputs_of(rng, (shape.batch, groups * channels, *shape.size))
    threshold = thresholds(rng, x.transpose(0, 2, 3, 1), edges)
    signs = signs_of(x, 0.0 if threshold is None else threshold[:, None, None])
    sums = convolved(layer, shape, signs)
    if from_bits:
        given: tuple[Any, ...] = (None, None, packed(signs.transpose(0, 2, 3, 1)))
    else:
        given = (somewhere(rng, x, tuple(order), steps), threshold, None)
    found = on_every_way(lambda threads: convolution(layer, shape, *given, as_bits, threads))
    assert np.array_equal(found, layer.bits(sums) if as_bits else layer.values(sums))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_large_convolution_is_cut_into_the_same_pieces(batch: int, groups: int) -> None:
    shape = Shape(batch, (24, 20), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1)
    layer = Layer(1, 160 // groups, 288 // batch, 9, groups)
    x = inputs_of(np.random.default_rng(2), (batch, groups * (288 // batch), 24, 20))
    results = [convolution(layer, shape, x, None, None, False, threads) for threads in (1, 2, 3)]
    assert all(other.tobytes() == results[0].tobytes() for other in results[1:])
    rows = slice(0, 4)  # the oracle is slow: the upper lines tell
    part = Shape(batch, (5, 20), (3, 3), (1, 1), (1, 1), (1, 0, 1, 1), 1)
    sums = convolved(layer, part, signs_of(x[:, :, :5]))
    assert np.array_equal(results[0][:, rows], layer.values(sums))


@pytest.mark.parametrize("axis", range(4))
def test_an_expanded_image_needs_no_copy(axis: int) -> None:
    shape = Shape(2, (5, 9), (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), 0)
    layer = Layer(3, 12, 11, 6)
    whole = (2, 11, 5, 9)
    one = tuple(1 if i == axis else n for i, n in enumerate(whole))
    x = np.broadcast_to(inputs_of(np.random.default_rng(4), one), whole)
    found = on_every_way(lambda t: convolution(layer, shape, x, None, None, False, t))
    assert np.array_equal(found, layer.values(convolved(layer, shape, signs_of(x))))


# mistakes -----------------------------------------------------------------------------------------

BAD_LAYERS: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name in ("outputs", "row_bytes", "products", "groups")
        for value in (0, -1)
    ),
    *(("products", 33), ("row_bytes", 1), ("row_bytes", 9000), ("groups", 2)),
    *((name, 2**61) for name in ("outputs", "row_bytes", "products", "groups")),
    *(("activation", 4), ("activation", -1)),
    *(("panels", None), ("scale", None), ("bias", None)),
    *(("register_bits", value) for value in (-1, 1, 25, 99)),
    *((name, value) for name in ("panel_bytes", "scales", "biases", "thresholds")
      for value in (-1, 2, 2**61)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_LAYERS)
def test_a_bad_layer_is_refused_and_nothing_is_written(name: str, value: Any) -> None:
    layer, x = Layer(0, 3, 30), np.ones((2, 30), np.float32)
    linear(layer, x, None, None, 2, False, 1)  # as it is, it is good
    setattr(layer.record, name, value)
    out = Output((2, 3), False)
    ends = address(x), 30, None, 2, 30, *out.pointers, 6, None, 1
    code = LIBRARY.pb_binary_linear(layer.record, *ends)
    assert code == BAD_ARGUMENT
    assert out.untouched()


@pytest.mark.parametrize(
    ("name", "value"), [("low", None), ("high", None), ("flip", None), ("bounds", 2), ("bounds", 4)]
)
def test_outputs_as_bits_need_their_bounds(name: str, value: int | None) -> None:
    layer, x = Layer(0, 3, 30), np.ones((2, 30), np.float32)
    out = Output((2, 3), True)
    ends = address(x), 30, None, 2, 30, *out.pointers, 2, None, 1
    setattr(layer.record, name, value)
    code = LIBRARY.pb_binary_linear(layer.record, *ends)
    assert code == BAD_ARGUMENT
    assert out.untouched()


@pytest.mark.parametrize(("columns", "size"), [(29, 6), (31, 6), (-30, 6), (30, 5), (30, 7)])
def test_rows_of_another_length_are_refused(columns: int, size: int) -> None:
    layer, x, out = Layer(0, 3, 30), np.ones((2, 30), np.float32), Output((2, 3), False)
    call = LIBRARY.pb_binary_linear
    ends = columns, *out.pointers, size, None, 1
    assert call(layer.record, address(x), 30, None, 2, *ends) == BAD_ARGUMENT
    assert call(layer.record, None, 0, address(packed(x)), 2, *ends) == BAD_ARGUMENT
    assert out.untouched()


@pytest.mark.parametrize(
    ("x", "bits", "rows", "values", "out_bits"),
    [
        (1, 1, 2, 1, 0),
        (0, 0, 2, 1, 0),
        (1, 0, -1, 1, 0),
        (1, 0, 2, 1, 1),
        (1, 0, 2, 0, 0),
        (1, 0, 2**60, 1, 0),
    ],
)
def test_one_input_and_one_output_are_needed(
    x: int, bits: int, rows: int, values: int, out_bits: int
) -> None:
    layer, floats, bytes_ = Layer(0, 3, 30), np.ones((2, 30), np.float32), np.ones(8, np.uint8)
    out = Output((2, 3), False)
    place = out.pointers[0]
    code = LIBRARY.pb_binary_linear(
        layer.record, address(floats) if x else None, 30, address(bytes_) if bits else None,
        rows, 30, place if values else None, place if out_bits else None, 6, None, 1,
    )  # fmt: skip
    assert code == BAD_ARGUMENT
    assert out.untouched()


# what follows -------------------------------------------------------------------------------------


class After:
    """Random values of what follows rows of this width, and its formula in numpy."""

    def __init__(self, seed: int, shape: tuple[int, ...], norm: bool, add: bool, act: int) -> None:
        rng = np.random.default_rng(seed)
        width = shape[-1]
        self.gain = rng.standard_normal(width).astype(np.float32) if norm else None
        self.shift = rng.standard_normal(width).astype(np.float32) if norm else None
        self.other = rng.standard_normal(shape).astype(np.float32) if add else None
        self.bits = np.full((*shape[:-1], -(-width // 8)), CANARY, np.uint8)
        self.activation = act
        self.record = Following(
            address(self.gain), address(self.shift), address(self.other), address(self.bits), 0, act
        )

    def __call__(self, y: Array) -> tuple[Array, Array]:
        y = y if self.gain is None else y * self.gain + self.shift
        y = y if self.other is None else y + self.other
        if self.activation:
            y = np.clip(
                y,
                -1 if self.activation == HARDTANH else 0,
                1 if self.activation == HARDTANH else None,
            )
        return y, np.packbits(~np.signbit(y), axis=-1, bitorder="little")


def is_its_formula(run: Callable[..., Array], after: Callable[[], After]) -> None:
    """What follows in a call is what follows the result of a call without it."""

    def both(threads: int) -> Array:
        then = after()
        found, (wanted, bits) = run(threads, then.record), then(run(threads))
        assert np.array_equal(found, wanted)
        assert np.array_equal(then.bits, bits)
        return found

    on_every_way(both)


following = {
    "seed": seeds, "norm": st.booleans(), "add": st.booleans(),
    "act": st.sampled_from((0, RELU, HARDTANH)),
}  # fmt: skip


@given(
    rows=st.integers(1, 40), outputs=st.integers(1, 70), products=st.integers(1, 300), **following
)
def test_what_follows_rows_is_its_formula(
    rows: int, outputs: int, products: int, seed: int, norm: bool, add: bool, act: int
) -> None:
    layer, rng = Layer(seed, outputs, products), np.random.default_rng(seed)
    x = inputs_of(rng, (rows, products))

    def run(threads: int, then: Following | None = None) -> Array:
        return linear(layer, x, None, None, rows, False, threads, then)

    is_its_formula(run, lambda: After(seed, (rows, outputs), norm, add, act))


@given(shape=shapes(), outputs=st.integers(1, 40), groups=st.integers(1, 3), **following)
def test_what_follows_an_image_is_its_formula(
    shape: Shape, outputs: int, groups: int, seed: int, norm: bool, add: bool, act: int
) -> None:
    layer = Layer(seed, outputs, 5, shape.kernel[0] * shape.kernel[1], groups)
    x = inputs_of(np.random.default_rng(seed), (shape.batch, 5 * groups, *shape.size))
    size = (shape.batch, *shape.out_size, outputs * groups)

    def run(threads: int, then: Following | None = None) -> Array:
        return convolution(layer, shape, x, None, None, False, threads, then)

    is_its_formula(run, lambda: After(seed, size, norm, add, act))


PIXELS = st.builds(
    Shape, st.integers(1, 3), st.tuples(st.integers(1, 15), st.integers(1, 15)), st.just((1, 1)),
    st.just((1, 1)), st.just((1, 1)), st.just((0, 0, 0, 0)), st.integers(0, 1),
)  # fmt: skip


@given(
    seed=seeds, shape=st.one_of(PIXELS, shapes()), channels=st.sampled_from((7, 24, 32, 64)),
    last=st.booleans(), from_bits=st.booleans(), as_bits=st.booleans(), act=st.booleans(),
)  # fmt: skip
def test_threads_that_share_an_image_give_what_one_gives(
    seed: int, shape: Shape, channels: int, last: bool, from_bits: bool, as_bits: bool, act: bool
) -> None:
    """So many outputs that it pays to share, five of them different: the oracle is slow."""
    taps, places = shape.kernel[0] * shape.kernel[1], shape.batch * np.prod(shape.out_size)
    work = places * (taps * -(-channels // 8) * 8 + 200)
    outputs = int(np.clip(61_000_000 // work, 5, 2500))
    layer, rng, which = (
        Layer(seed, outputs, channels, taps),
        np.random.default_rng(seed),
        np.arange(outputs) % 5,
    )
    layer.signs[:] = layer.signs[:, which]
    layer.panels.clear()
    x = inputs_of(rng, (shape.batch, channels, *shape.size))
    signs = signs_of(x)
    sums = convolved(SimpleNamespace(signs=layer.signs[:, :5]), shape, signs)[..., which]
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    bits = packed(signs.transpose(0, 2, 3, 1)) if from_bits else None
    image = None if from_bits else somewhere(rng, x, order, np.ones(4, int))
    after = After(seed, (*sums.shape,), True, True, HARDTANH if act else RELU)
    then = None if as_bits else after.record
    found = on_every_way(
        lambda threads: convolution(layer, shape, image, None, bits, as_bits, threads, then)
    )
    if as_bits:
        assert np.array_equal(found, layer.bits(sums))
    else:
        values, ends = after(layer.values(sums))
        assert np.array_equal(found, values) and np.array_equal(after.bits, ends)


def test_what_cannot_follow_is_refused_and_nothing_is_written() -> None:
    layer, x, line = Layer(0, 3, 30), np.ones((2, 30), np.float32), np.ones(3, np.float32)
    place = address(line)
    bad = [
        Following(place, None, None, None, 0, 0), Following(None, place, None, None, 0, 0),
        Following(activation=GELU), Following(activation=-1),
    ]  # fmt: skip
    for then in bad:
        out = Output((2, 3), False)
        ends = address(x), 30, None, 2, 30, *out.pointers, 6, then, 1
        assert LIBRARY.pb_binary_linear(layer.record, *ends) == BAD_ARGUMENT
        assert LIBRARY.pb_follow(out.pointers[0], 2, 3, then, 1) == BAD_ARGUMENT
        assert out.untouched()
    out = Output((2, 3), True)  # bits are the end
    ends = address(x), 30, None, 2, 30, *out.pointers, 2, Following(), 1
    assert LIBRARY.pb_binary_linear(layer.record, *ends) == BAD_ARGUMENT
    assert LIBRARY.pb_follow(out.pointers[1], 2, 3, None, 1) == BAD_ARGUMENT
    assert out.untouched()


GOOD = Shape(1, (4, 4), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1)
BAD_WINDOWS: list[tuple[str, int]] = [
    *((name, value) for name in ("channels", "height", "width", "kernel_h", "kernel_w", "step_h",
                                 "step_w", "dilation_h", "dilation_w") for value in (0, -1, 2**40)),
    *((f"pad_{side}", value) for side in ("top", "bottom", "left", "right")
      for value in (-1, 2**40)),
    *(("batch", -1), ("batch", 2**60), ("kernel_h", 4), ("kernel_w", 2)),
    *(("dilation_h", 2), ("dilation_w", 2)),
    *(("channels", 3), ("channels", 9), ("height", 2), ("width", 2), ("pad_bit", 2)),
    *(("in_size", 31), ("in_size", -1), ("stride_h", 5), ("stride_n", -1), ("stride_c", 2**62)),
    *(("out_size", 11), ("out_size", 13), ("out_size", -12)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_WINDOWS)
def test_a_bad_window_is_refused_and_nothing_is_written(name: str, value: int) -> None:
    layer, x = Layer(0, 3, 2, 9), np.ones((1, 2, 4, 4), np.float32)
    convolution(layer, GOOD, x, None, None, False, 1)
    window, out = GOOD.window(2, (32, 16, 4, 1), 12), Output((1, 2, 2, 3), False)
    setattr(window, name, value)
    code = LIBRARY.pb_binary_conv(layer.record, window, address(x), None, *out.pointers, None, 1)
    assert code == BAD_ARGUMENT
    assert out.untouched()


def test_a_convolution_takes_one_input_and_bits_of_one_group() -> None:
    layer, x = Layer(0, 3, 2, 9), np.ones((1, 2, 4, 4), np.float32)
    bits, out = np.ones((1, 4, 4, 1), np.uint8), Output((1, 2, 2, 3), False)
    window = GOOD.window(2, (32, 16, 4, 1), 12)
    call = LIBRARY.pb_binary_conv
    assert call(layer.record, window, address(x), address(bits), *out.pointers, None, 1)
    assert call(layer.record, window, None, None, *out.pointers, None, 1) == BAD_ARGUMENT
    assert call(layer.record, None, address(x), None, *out.pointers, None, 1) == BAD_ARGUMENT
    two = Layer(0, 3, 1, 9, groups=2)
    assert call(two.record, window, None, address(bits), *out.pointers, None, 1) == BAD_ARGUMENT
    assert out.untouched()


def test_bad_rows_and_panels_are_refused() -> None:
    x, out = np.ones((2, 9), np.float32), Output((2, 16), True)
    place = out.pointers[1]
    call = LIBRARY.pb_sign_rows
    for bad in [(None, 2, 9, 9, None, place, 2), (address(x), 2, 9, 9, None, None, 2),
                (address(x), -1, 9, 9, None, place, 2), (address(x), 2, 0, 9, None, place, 2),
                (address(x), 2, 9, 9, None, place, 1)]:  # fmt: skip
        assert call(*bad, 1) == BAD_ARGUMENT
    for bad in [(None, 1, 1, place), (place, 1, 1, None), (place, 0, 1, place),
                (place, 1, 0, place), (place, -1, 1, place)]:  # fmt: skip
        assert LIBRARY.pb_make_panels(*bad) == BAD_ARGUMENT
    assert out.untouched()
    assert all(
        LIBRARY.pb_panel_bytes(*bad) == 0
        for bad in [(0, 1), (1, 0), (-1, 1), (1, -1), (2**61, 1), (1, 2**61)]
    )


def test_nothing_to_do_is_done() -> None:
    layer, out = Layer(0, 3, 2, 9), Output((1, 3), False)
    window = GOOD.window(2, (32, 16, 4, 1), 0)
    window.batch = 0
    assert LIBRARY.pb_binary_conv(layer.record, window, None, None, *out.pointers, None, 1) == OK
    call = LIBRARY.pb_binary_linear
    assert call(layer.record, None, 18, None, 0, 18, *out.pointers, 0, None, 1) == OK
    assert LIBRARY.pb_sign_rows(None, 0, 9, 9, None, None, 2, 1) == OK
    assert out.untouched()


# the library --------------------------------------------------------------------------------------


def test_backends_have_names() -> None:
    assert on_each(lambda: LIBRARY.pb_isa().decode()) == list(SUPPORTED)
    assert set(SUPPORTED) <= set(LIBRARY.pb_backends().decode().split())
    before = LIBRARY.pb_isa()
    assert LIBRARY.pb_use_isa(b"avx3") == NO_SUCH_ISA
    assert LIBRARY.pb_isa() == before  # a wrong name changes nothing
    assert LIBRARY.pb_abi() == ABI


@given(seed=seeds, outputs=sizes, products=st.integers(1, 300))
def test_panels_can_be_read_again(seed: int, outputs: int, products: int) -> None:
    signs = np.random.default_rng(seed).choice([-1, 1], (1, outputs, 1, products))
    rows = packed(signs[0, :, 0])
    for name in SUPPORTED:
        with using(name):
            panels, again = panels_of(signs), np.zeros_like(rows)
            assert LIBRARY.pb_read_panels(address(panels), *rows.shape, address(again)) == OK
            assert np.array_equal(again, rows)


RECORDS: dict[str, type[ctypes.Structure]] = {
    "pb_binary": Binary, "pb_window": Window, "pb_weight": kernels.Weight,
    "pb_quantizer": fused._Quantizer,
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_lies_in_memory_as_c_has_it(name: str) -> None:
    fields = declared_in_c(name)
    assert [field[0] for field in RECORDS[name]._fields_] == fields
    assert agrees(LIBRARY, name, RECORDS[name])
    rest = {"_fields_": RECORDS[name]._fields_[1:]}  # a field too few shifts those behind it
    assert not agrees(LIBRARY, name, type("Rest", (ctypes.Structure,), rest))
    assert LIBRARY.pb_layout(name.encode(), b"nothing") == -1


def declared_in_c(name: str) -> list[str]:
    """The fields of a structure in the header, in order."""
    header = (Path(__file__).parents[1] / "csrc" / "proxbit.h").read_text()
    body = next(part for part in header.split("typedef struct {") if f"}} {name};" in part)
    code = re.sub(r"/\*.*?\*/", "", body.split("}")[0], flags=re.DOTALL)
    names = [line.rsplit(" ", 1 + line.count(","))[1:] for line in code.split(";") if line.strip()]
    return [name.strip(" ,*") for line in names for name in line]
