"""Files and inputs that are wrong: one sentence through ONNX Runtime's own error, never a crash."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from onnx import numpy_helper

from ort_nodes import ATTRIBUTES, is_read, model, session

LINEAR: dict[str, Any] = {"bits": np.zeros(12, "u1"), "scale": np.ones(8, "f4")}
X = np.zeros((2, 12), "f4")
IMAGE = np.zeros((1, 3, 4, 4), "f4")
CONV: dict[str, Any] = {"bits": np.zeros(14, "u1"), "scale": np.ones(4, "f4")}
NODE = r"the node 'layer' \((Binary|Weight)(Linear|Conv)\): "

# Operator, other constants than usual, attributes, the sentence.
L, C = {"shape": [8, 12]}, {"shape": [4, 3, 3, 3]}
MADE_WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("BinaryLinear", {}, {}, r"its weight has the shape \(\), and that of a linear layer"),
    ("BinaryLinear", {}, {"shape": [8, 12, 1]}, "that of a linear layer has two numbers"),
    ("BinaryLinear", {}, {"shape": [8, 13]}, "it has 12 bytes of weights, and needs 13"),
    ("BinaryLinear", {}, {"shape": [8, 0]}, r"the impossible shape \(8, 0\)"),
    ("BinaryLinear", {}, {"shape": [-8, -12]}, r"the impossible shape \(-8, -12\)"),
    ("BinaryLinear", {}, {"shape": [2**31, 2**31]}, r"is too large"),
    ("BinaryLinear", {}, L | {"group": 2}, "a linear layer has no groups"),
    ("BinaryLinear", {"scale": np.ones(7, "f4")}, L, "has 7 scales, and needs 8"),
    ("BinaryLinear", {"bias": np.ones(1, "f4")}, L, "has 1 biases, and needs 8"),
    ("BinaryLinear", {"threshold": np.ones(8, "f4")}, L, "has 8 thresholds, and needs 12"),
    ("BinaryLinear", {"low": np.zeros(8, "i4")}, L, "it has no upper bounds"),
    ("BinaryLinear", {}, L | {"register_bits": 25}, "its register has 25 bits, and not 2 to 24"),
    ("BinaryLinear", {}, L | {"activation": "mish"}, "'mish', and this library knows none, relu"),
    ("WeightLinear", {}, L | {"precision": "half"}, "'precision' is 'half'"),
    ("WeightLinear", {}, L | {"format": 2}, "format 2, .* pip install --upgrade proxbit-runtime"),
    ("WeightLinear", {}, {"shape": [8, 11]}, "it has 12 bytes of weights, and needs 11"),
    ("BinaryConv", {}, {"shape": [4, 3]}, "that of a convolution has three or four numbers"),
    ("BinaryConv", {}, C | {"strides": [0, 1]}, r"'strides' is \(0, 1\)"),
    ("BinaryConv", {}, C | {"pads": [1, 1]}, r"'pads' is \(1, 1\)"),
    ("BinaryConv", {}, C | {"pads": [0, 0, 0, 2**40]}, r"'pads' is \(0, 0, 0, 1099511627776\)"),
    ("BinaryConv", {}, C | {"group": 3}, "it has 4 outputs for 3 groups"),
    (
        "BinaryConv",
        {},
        C | {"input_layout": "CHWN"},
        "is 'CHWN', and this library knows NCHW, NHWC",
    ),
    ("WeightConv", {}, C | {"dilations": [1, 2, 3]}, r"'dilations' is \(1, 2, 3\)"),
    (
        "BinaryLinear",
        {"low": np.zeros(8, "i4"), "high": np.ones(8, "i4"), "flip": np.zeros(8, "u1")},
        L,
        "has 8 bytes of flips, and needs 1",
    ),
]


@pytest.mark.parametrize(("op", "constants", "attributes", "sentence"), MADE_WRONG)
def test_a_node_that_makes_no_sense_is_refused_when_the_session_is_made(
    op: str, constants: dict[str, Any], attributes: dict[str, Any], sentence: str
) -> None:
    x, usual = (IMAGE, CONV) if op.endswith("Conv") else (X, LINEAR)
    with pytest.raises(Exception, match=NODE + ".*" + sentence):
        session(model(op, {"x": x}, usual | constants, rank=x.ndim, **attributes))


OF_EVERY_TYPE: list[Any] = [1, 1.5, "one", [1, 1], [0.5, 0.5], ["one"], numpy_helper.from_array(X)]


READ = [
    (op, name) for op in ("BinaryLinear", "WeightConv") for name in ATTRIBUTES if is_read(op, name)
]


@pytest.mark.parametrize(("op", "name"), READ)
def test_an_attribute_of_another_type_is_not_taken_for_absent(op: str, name: str) -> None:
    x, constants, usual = (IMAGE, CONV, C) if op.endswith("Conv") else (X, LINEAR, L)
    for value in OF_EVERY_TYPE:
        fits = isinstance(value[0], int) if isinstance(value, list) else True
        if not (isinstance(value, ATTRIBUTES[name]) and fits):
            content = model(op, {"x": x}, constants, rank=x.ndim, **usual | {name: value})
            with pytest.raises(Exception, match=f"{NODE}its attribute '{name}' has another type"):
                session(content)


def test_weights_that_are_no_constants_are_refused() -> None:
    x = {"x": X, "bits": LINEAR["bits"]}
    with pytest.raises(Exception, match="its bytes of weights must be constants of the file"):
        session(model("BinaryLinear", x, {"scale": LINEAR["scale"]}, **L))


WRONG_INPUTS: list[tuple[str, tuple[int, ...], str]] = [
    ("BinaryLinear", (2, 11), r"12 values in the last dimension, and the input has .* \(2, 11\)"),
    ("WeightLinear", (2, 13), "takes 12 values"),
    ("BinaryConv", (1, 2, 4, 4), r"of 3 channels, which come second of 4 .* \(1, 2, 4, 4\)"),
    (
        "BinaryConv",
        (1, 3, 2, 4),
        r"window of this layer is larger than its input .* \(1, 3, 2, 4\)",
    ),
    ("WeightConv", (1, 3, 0, 4), "larger than its input"),
]


@pytest.mark.parametrize(("op", "shape", "sentence"), WRONG_INPUTS)
def test_an_input_of_another_shape_is_refused(
    op: str, shape: tuple[int, ...], sentence: str
) -> None:
    constants, attributes = (CONV, C) if op.endswith("Conv") else (LINEAR, L)
    x = np.zeros(shape, "f4")
    net = session(model(op, {"x": x}, constants, rank=x.ndim, **attributes))
    with pytest.raises(Exception, match=NODE + ".*" + sentence):
        net.run(None, {"x": x})


def test_floats_where_bits_are_handed_on_are_refused() -> None:
    bounds = {"low": np.zeros(8, "i4"), "high": np.ones(8, "i4")}
    net = session(model("BinaryLinear", {"x": X}, LINEAR | bounds, **L))
    with pytest.raises(Exception, match="this layer gives bits, its second output"):
        net.run(None, {"x": X})


def test_an_empty_batch_gives_an_empty_output() -> None:
    net = session(model("BinaryLinear", {"x": X}, LINEAR, **L))
    (out,) = net.run(None, {"x": X[:0]})
    assert out.shape == (0, 8)
