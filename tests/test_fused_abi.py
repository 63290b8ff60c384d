"""The C functions of the quantizers refuse what does not fit, and write nothing then."""

import ctypes

import pytest
import torch

from proxbit.kernels import library as kernels
from proxbit.kernels import training as fused

pytestmark = pytest.mark.skipif(kernels.opened() is None, reason="the kernels are not built here")


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"columns": -1}, {"strength": None}, {"shifts": -1}, {"map": 6}, {"map": 22}],
    ids=str,
)
def test_wrong_arguments_are_refused_and_nothing_is_written(wrong: dict[str, int | None]) -> None:
    library = fused._library()
    w, out, s = torch.randn(2, 3), torch.full((2, 3), 7.0), torch.tensor(1.0)
    at_w, at_out = w.data_ptr(), out.data_ptr()
    for sound, call in (
        (0, lambda how: library.pb_quantize(how, at_w, 0, 0, 0, 0, None, None, at_out, 1)),
        (16, lambda how: library.pb_pull(how, at_w, at_w, None, 0, None, 0, at_out, 1)),
        (0, lambda how: library.pb_quantize_bf16(how, at_w, at_out, 1)),
        (16, lambda how: library.pb_pull_bf16(how, at_w, at_w, None, 0, None, 0, at_out, 1)),
    ):
        fields = {"rows": 2, "columns": 3, "strength": s.data_ptr(), "shifts": 0, "map": sound}
        assert call(ctypes.byref(fused._Quantizer(**fields | wrong))) == 1
        assert bool((out == 7).all())


def test_places_that_are_missing_are_refused() -> None:
    library = fused._library()
    w, s = torch.randn(2, 3), torch.tensor(1.0)
    at, how = w.data_ptr(), fused._Quantizer(rows=2, columns=3, strength=s.data_ptr())
    for unit, scale in [(1, 0), (2, 0), (0, 2), (0, 3), (3, 0), (0, 4), (-1, 0)]:
        arguments = (unit, scale, 0, 1, None, None, at, 1)
        assert library.pb_quantize(ctypes.byref(how), at, *arguments) == 1
    how.map = 16
    for unit, factor in [((None, 1), (None, 0)), ((at, 3), (None, 0)), ((None, 0), (at, 5))]:
        assert library.pb_pull(ctypes.byref(how), at, at, *unit, *factor, at, 1) == 1
