"""Binary inputs of a pretrained transformer begin in units of their size."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import proxbit as pb
from proxbit.core.methods import METHODS
from proxbit.nn.quantizers import InputQuantizer
from proxbit.train.input_calibration import calibrate_inputs

SOFT, SHIFTED = METHODS["bnn++"], replace(METHODS["bnn++"], learn_shift=True)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3))


def calibrated(method: Any, batches: list[Tensor]) -> tuple[nn.Module, nn.Module]:
    model = mlp()
    before = copy.deepcopy(model)
    pb.binarize(model, method, "BWA")
    assert calibrate_inputs(model, before, batches) == ["2"]
    return model, before


def inputs_of(before: Any, batches: list[Tensor]) -> Tensor:
    """What the inner layer sees."""
    with torch.no_grad():
        return before[1](before[0](torch.cat(batches)))


batches = st.integers(0, 2**31).map(
    lambda seed: list(torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed)))
)


@given(batches)
def test_the_unit_is_the_mean_size_and_moves_into_the_weights(images: list[Tensor]) -> None:
    model, before = calibrated(SOFT, images)
    layer: Any = model[2]
    size = inputs_of(before, images).abs().mean()
    torch.testing.assert_close(layer.binary.input_quantizer.unit, size)
    torch.testing.assert_close(layer.weight, before[2].weight * size)
    assert torch.equal(layer.bias, before[2].bias)


@given(batches)
def test_a_shift_begins_at_the_mean_of_its_channel(images: list[Tensor]) -> None:
    model, before = calibrated(SHIFTED, images)
    layer: Any = model[2]
    x, quantizer = inputs_of(before, images), layer.binary.input_quantizer
    torch.testing.assert_close(quantizer.shift.detach(), x.mean(0))
    torch.testing.assert_close(quantizer.unit, (x - x.mean(0)).abs().mean())
    torch.testing.assert_close(layer.bias, before[2].bias + before[2].weight @ x.mean(0))


@given(batches)
def test_the_mean_of_an_output_survives_signs_of_the_inputs(images: list[Tensor]) -> None:
    """Float weights on the signs give the mean output of the float layer."""
    model, before = calibrated(METHODS["bnn"], images)
    layer: Any = model[2]
    x = inputs_of(before, images)
    signs = torch.where(x >= 0, 1.0, -1.0)
    with torch.no_grad():
        ours = nn.functional.linear(signs, layer.weight, layer.bias).mean(0)
        torch.testing.assert_close(ours, before[2](x).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [SOFT, SHIFTED, METHODS["pc"], METHODS["bi-real"]])
@given(seed=st.integers(0, 2**31), unit=st.floats(0.1, 4))
def test_a_quantizer_with_a_unit_is_the_pair_in_that_unit(
    method: Any, seed: int, unit: float
) -> None:
    torch.manual_seed(seed)
    x, g = torch.randn(2, 3, 5), torch.randn(3, 5)
    x, other = x[0].requires_grad_(), x[1]
    quantizer = InputQuantizer(method, 5, 0, other)
    quantizer.set_unit(torch.tensor(unit))
    if quantizer.shift is not None:
        quantizer.shift.data = other[0] / 3
    shift = 0 if quantizer.shift is None else quantizer.shift.detach()
    z, s = (x.detach() - shift) / quantizer.unit, quantizer.strength
    out = quantizer(x)
    out.backward(g)
    torch.testing.assert_close(out.detach(), quantizer.pair.forward(z, s))
    expected = g * quantizer.pair.backward(z, s) / unit
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("odd", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_size_stands_for_one(odd: float) -> None:
    quantizer = InputQuantizer(SOFT, 5, 0, torch.zeros(1))
    quantizer.set_unit(torch.tensor(odd))
    assert quantizer.unit == 1
