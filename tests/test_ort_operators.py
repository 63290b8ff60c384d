"""Our operators in ONNX Runtime, one node at a time, beside plain formulas."""

import os
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

pytest.importorskip("onnxruntime")

from ort_nodes import check_model, model, pack, run, session
from ort_oracle import ACTIVATIONS, bits_of, convolved, last, sign_of, wrapped

SEEDS = st.integers(0, 2**32 - 1)


def signs(random: np.random.Generator, *shape: int) -> Any:
    return random.choice(np.array([-1, 1], "f4"), shape)


def floats(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype("f4")


@given(SEEDS, st.integers(1, 70), st.integers(1, 70), st.sampled_from([(3,), (1,), (2, 5), (0,)]))
def test_a_binary_linear_layer_gives_exact_sums(
    seed: int, outputs: int, inputs: int, rows: tuple[int, ...]
) -> None:
    random = np.random.default_rng(seed)
    weight, x = signs(random, outputs, inputs), floats(random, *rows, inputs)
    scale, bias = random.random(outputs, "f4"), floats(random, outputs)
    shift = floats(random, inputs)
    constants = {"bits": pack(weight), "scale": scale, "bias": bias, "threshold": shift}
    out = run("BinaryLinear", {"x": x}, constants, shape=[outputs, inputs], rank=x.ndim)
    sums = sign_of(x - shift) @ weight.T
    np.testing.assert_array_equal(out, sums * scale + bias)


@given(SEEDS, st.sampled_from([4, 8, 12]), st.sampled_from([1.0, 2.0]))
def test_a_register_wraps_the_sums(seed: int, width: int, slope: float) -> None:
    random = np.random.default_rng(seed)
    weight, x = signs(random, 5, 300), floats(random, 4, 300)
    constants = {"bits": pack(weight), "scale": np.ones(1, "f4")}
    out = run("BinaryLinear", {"x": x}, constants, shape=[5, 300], register_bits=width, slope=slope)
    np.testing.assert_array_equal(out, wrapped(sign_of(x) @ weight.T, width, slope))


@given(SEEDS, st.integers(1, 40), st.integers(1, 40))
def test_bits_go_from_layer_to_layer(seed: int, outputs: int, inputs: int) -> None:
    random = np.random.default_rng(seed)
    weight, given_signs = signs(random, outputs, inputs), signs(random, 3, inputs)
    low, high = (random.integers(-inputs, inputs, outputs).astype("i4") for _ in range(2))
    flip = random.integers(0, 2, outputs) > random.integers(0, 2)  # in half of the cases none
    constants = {
        "bits": pack(weight), "scale": np.ones(1, "f4"), "low": low, "high": high,
    }  # fmt: skip
    constants |= {"flip": pack(flip)} if flip.any() else {}
    shape = [outputs, inputs]
    out = run(
        "BinaryLinear", {"x_bits": bits_of(given_signs)}, constants, bits_out=True, shape=shape
    )
    sums = given_signs @ weight.T
    inside = (low <= sums) & (sums < high)
    np.testing.assert_array_equal(out, np.packbits(inside ^ flip, axis=1, bitorder="little"))


@given(SEEDS, st.integers(1, 40), st.integers(1, 40), st.sampled_from(sorted(ACTIVATIONS)))
def test_float_inputs_of_a_linear_layer(
    seed: int, outputs: int, inputs: int, activation: str
) -> None:
    random = np.random.default_rng(seed)
    weight, x = signs(random, outputs, inputs), floats(random, 9, inputs)
    scale, bias = random.random(outputs, "f4"), floats(random, outputs)
    constants = {"bits": pack(weight), "scale": scale, "bias": bias}
    shape = [outputs, inputs]
    out = run("WeightLinear", {"x": x}, constants, shape=shape, activation=activation)
    exact = torch.from_numpy(x.astype("f8") @ weight.T.astype("f8") * scale + bias)
    found = torch.from_numpy(out).double()
    torch.testing.assert_close(found, ACTIVATIONS[activation](exact), rtol=1e-5, atol=1e-5)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Attributes of a convolution and a fitting input shape."""
    axes, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2]))

    def each(low: int, high: int, count: int = axes) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(count)]

    kernel, dilations = each(1, 3), each(1, 2)
    return {
        "shape": [groups * draw(st.integers(1, 9)), draw(st.integers(1, 12)), *kernel],
        "group": groups, "strides": each(1, 2), "dilations": dilations,
        "pads": each(0, 2, 2 * axes), "sizes": [5 + n for n in each(0, 3)],
    }  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True])
@given(seed=SEEDS, how=convolutions(), pad_value=st.sampled_from([-1, 1]))
def test_a_binary_convolution_gives_exact_sums(
    channels_last: bool, seed: int, how: dict[str, Any], pad_value: int
) -> None:
    random = np.random.default_rng(seed)
    sizes = how.pop("sizes")
    weight = signs(random, *how["shape"])
    x = floats(random, 2, how["shape"][1] * how["group"], *sizes)
    scale = random.random(len(weight), "f4")
    layouts = {"input_layout": "NHWC", "output_layout": "NHWC"} if channels_last else {}
    given_x = last(x) if channels_last else x
    constants = {"bits": pack(weight), "scale": scale}
    how |= {"pad_value": pad_value}
    out = run("BinaryConv", {"x": given_x}, constants, rank=x.ndim, **how, **layouts)
    expected = convolved(sign_of(x), weight, how, pad_value)
    expected = expected * scale.reshape(-1, *(1 for _ in sizes))
    np.testing.assert_array_equal(out, last(expected) if channels_last else expected)


@pytest.mark.parametrize("channels_last", [False, True])
@given(seed=SEEDS, how=convolutions())
def test_float_inputs_of_a_convolution(channels_last: bool, seed: int, how: dict[str, Any]) -> None:
    random = np.random.default_rng(seed)
    sizes = how.pop("sizes")
    weight = signs(random, *how["shape"])
    x = floats(random, 2, how["shape"][1] * how["group"], *sizes)
    layouts = {"input_layout": "NHWC", "output_layout": "NHWC"} if channels_last else {}
    constants = {"bits": pack(weight), "scale": np.full(1, 0.5, "f4")}
    given_x = last(x) if channels_last else x
    out = run("WeightConv", {"x": given_x}, constants, rank=x.ndim, **how, **layouts)
    expected = 0.5 * convolved(x.astype("f8"), weight.astype("f8"), how, 0.0)
    expected = last(expected) if channels_last else expected
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_bits_of_images_have_their_channels_last() -> None:
    random = np.random.default_rng(0)
    weight, x = signs(random, 11, 10, 3, 3), signs(random, 2, 10, 6, 5)
    bounds = {"low": np.zeros(11, "i4"), "high": np.full(11, 2**31 - 1, "i4")}
    constants = {"bits": pack(weight), "scale": np.ones(1, "f4")} | bounds
    how = {"shape": [11, 10, 3, 3], "pads": [1, 1, 1, 1]}
    feed = {"x_bits": bits_of(last(x))}
    out = run("BinaryConv", feed, constants, bits_out=True, rank=4, **how)
    padded = torch.from_numpy(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1))
    sums = functional.conv2d(padded, torch.from_numpy(weight)).numpy()
    np.testing.assert_array_equal(out, bits_of(last(np.where(sums >= 0, 1, -1))))


@pytest.mark.parametrize("op", ["BinaryLinear", "WeightLinear"])
def test_as_many_threads_as_the_session_has_give_the_same(op: str) -> None:
    random = np.random.default_rng(0)
    weight, x = signs(random, 1024, 1536), floats(random, 64, 1536)  # enough for a second thread
    constants = {"bits": pack(weight), "scale": random.random(1024, "f4")}
    one, two, four = (
        run(op, {"x": x}, constants, threads, shape=[1024, 1536]) for threads in (1, 2, 4)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, four)


def others_share(threads: int) -> float:
    """The time of processors that other threads use, for each second of the one that calls."""
    random = np.random.default_rng(0)
    weight, x = signs(random, 1024, 1536), floats(random, 64, 1536)
    constants = {"bits": pack(weight), "scale": np.ones(1, "f4")}
    content = model("WeightLinear", {"x": x}, constants, shape=[1024, 1536])
    net = session(content, threads, {"session.intra_op.allow_spinning": "0"})
    net.run(None, {"x": x})
    whole, mine = time.process_time(), time.thread_time()
    for _ in range(30):
        net.run(None, {"x": x})
    mine = time.thread_time() - mine
    return (time.process_time() - whole - mine) / mine


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_session_works_on_as_many_threads_as_it_was_given() -> None:
    assert others_share(threads=1) < 0.05
    assert others_share(threads=2) > 0.1


def test_a_file_with_our_nodes_is_well_formed() -> None:
    constants = {"bits": np.zeros(2, "u1"), "scale": np.ones(1, "f4")}
    check_model(model("BinaryLinear", {"x": np.zeros((1, 4), "f4")}, constants, shape=[4, 4]))
