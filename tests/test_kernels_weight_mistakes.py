"""What the kernels with binary weights and float inputs refuse; then nothing is written."""

from ctypes import byref

import numpy as np
import pytest

from proxbit.kernels.inference import Weight, Window, library

LIBRARY = library()
if LIBRARY is None:
    pytest.skip("the kernels are not built: pip install -e .", allow_module_level=True)

OK, BAD_ARGUMENT = 0, 1
SIZES = ["outputs", "inputs", "groups"]
IMAGE = ["batch", "channels", "height", "width"]
STRIDES = ["stride_n", "stride_c", "stride_h", "stride_w"]
KERNEL = ["kernel_h", "kernel_w", "step_h", "step_w", "dilation_h", "dilation_w"]
PADS = ["pad_top", "pad_bottom", "pad_left", "pad_right"]

PACKED = {inputs: np.zeros(LIBRARY.pb_weight_bytes(3, inputs), np.uint8) for inputs in (5, 18)}
SCALE = np.ones(3, np.float32)


def layer(inputs: int) -> Weight:
    """Three outputs, every weight -1."""
    packed = PACKED[inputs]
    return Weight(3, inputs, 1, packed.ctypes.data, packed.size, SCALE.ctypes.data, 3)


def window(batch: int) -> Window:
    """Images of 4 x 4 with 2 channels, channels last, under a kernel of 3 x 3."""
    return Window(
        batch, 2, 4, 4, 32, 1, 8, 2, 3, 3, 1, 1, 1, 1, in_size=32 * batch, out_size=12 * batch
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in SIZES for value in (0, -1, 2**60)),
        *(("weights", None), ("scale", None)),
        *(
            (name, value)
            for name in ("weight_bytes", "scales", "biases")
            for value in (-1, 2, 2**60)
        ),
        *(("activation", 4), ("activation", -1), ("precision", 2), ("precision", -1)),
    ],
)
def test_a_bad_layer_is_refused(name: str, value: int | None) -> None:
    record, data = layer(5), np.full(10, 7.0, np.float32)
    setattr(record, name, value)
    ends = data.ctypes.data, 5, 2, 5, data.ctypes.data, 6, 1
    assert LIBRARY.pb_weight_linear(byref(record), *ends) == BAD_ARGUMENT
    assert LIBRARY.pb_weight_linear(None, *ends) == BAD_ARGUMENT
    assert (data == 7).all()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, None), (1, -5), (1, 2**61), (2, -2), (2, 2**61), (3, 4), (3, 6), (4, None), (5, 5)),
        *((5, 7), (6, 0), (6, -1)),
    ],
)
def test_bad_rows_are_refused(place: int, value: int | None) -> None:
    data = np.full(10, 7.0, np.float32)
    ends: list[int | None] = [data.ctypes.data, 5, 2, 5, data.ctypes.data, 6, 1]
    ends[place] = value
    assert LIBRARY.pb_weight_linear(byref(layer(5)), *ends) == BAD_ARGUMENT
    assert (data == 7).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, -1) for name in (*IMAGE, *STRIDES, *KERNEL, *PADS)),
        *((name, 2**62) for name in (*IMAGE, *KERNEL, *PADS)),
        *((name, 0) for name in (*IMAGE[1:], *KERNEL)),
        *(("kernel_h", 5), ("kernel_w", 5), ("dilation_h", 2), ("channels", 3), ("height", 2)),
        *(("in_size", 31), ("in_size", -1), ("stride_w", 3), ("out_size", 11), ("out_size", 13)),
    ],
)
def test_a_bad_window_is_refused(name: str, value: int) -> None:
    record, place, x, out = layer(18), window(1), np.ones(32, np.float32), np.zeros(12, np.float32)
    ends = x.ctypes.data, out.ctypes.data, 1
    assert LIBRARY.pb_weight_conv(byref(record), byref(place), *ends) == OK
    assert (out == -18).all()
    setattr(place, name, value)
    assert LIBRARY.pb_weight_conv(byref(record), byref(place), *ends) == BAD_ARGUMENT
    assert (out == -18).all()


def test_nothing_to_do_is_done() -> None:
    record = layer(18)
    assert LIBRARY.pb_weight_linear(byref(record), None, 18, 0, 18, None, 0, 1) == OK
    assert LIBRARY.pb_weight_conv(byref(record), byref(window(0)), None, None, 1) == OK


def test_packed_weights_take_one_bit_each_and_bad_shapes_none() -> None:
    assert LIBRARY.pb_weight_bytes(768, 768) == 768 * 768 // 8
    assert all(LIBRARY.pb_weight_bytes(*shape) == 0 for shape in [(0, 1), (1, 0), (-1, 1), (1, -1)])
    room = np.zeros(64, np.uint8)
    assert LIBRARY.pb_make_weights(None, 1, 1, room.ctypes.data) == BAD_ARGUMENT
    assert LIBRARY.pb_make_weights(room.ctypes.data, 1, 0, room.ctypes.data) == BAD_ARGUMENT
