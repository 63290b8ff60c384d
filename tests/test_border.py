"""The border of binary images is added once for a batch, and no gradient is lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.nn.border import AddBorder, inner_lines

pytestmark = [
    pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A padded convolution, one- or two-dimensional, and a batch that is large enough for it."""
    dims = draw(st.integers(1, 2))
    each = st.tuples(*[st.integers(1, 3)] * dims)
    kernel, stride, dilation = draw(each), draw(each), draw(each)
    padding = draw(st.tuples(*[st.integers(0, 4)] * dims))
    least = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [max(1, n + draw(st.integers(0, 4))) for n in least]
    make = nn.Conv1d if dims == 1 else nn.Conv2d
    if draw(st.booleans()):
        layer = make(2, 3, kernel, padding="same", dilation=dilation)
    else:
        layer = make(2, 3, kernel, stride=stride, padding=padding, dilation=dilation)
    torch.manual_seed(draw(st.integers(0, 99)))
    return layer, torch.randn(4, 2, *sizes)


def gradients(layer: nn.Module, out: Tensor, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    return torch.autograd.grad(out, [x, *layer.parameters()], torch.randn(out.shape))


@given(case=convolutions(), pad=st.sampled_from([1, -1]))
def test_a_batch_with_its_border_is_a_padded_batch(case: tuple[nn.Module, Tensor], pad: int):
    layer, x = case
    pb.binarize(layer, "bnn", pb.Task("BWA", pad_value=pad), only="*")
    x.requires_grad_()
    found = layer(x)
    border = layer._reversed_padding_repeated_twice
    padded = functional.pad(layer.binary.input_quantizer(x), border, value=pad)
    weight = layer.binary.weight_quantizer(layer.weight)
    convolve = functional.conv1d if x.dim() == 3 else functional.conv2d
    expected = convolve(padded, weight, layer.bias, layer.stride, 0, layer.dilation)
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients(layer, found, x), gradients(layer, expected, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@given(case=convolutions())
def test_the_border_reaches_the_outermost_lines_only(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    ones = nn.Conv2d if x.dim() == 4 else nn.Conv1d
    count = ones(1, 1, layer.kernel_size, layer.stride, 0, layer.dilation, bias=False)
    nn.init.ones_(count.weight)
    border = layer._reversed_padding_repeated_twice
    seen = count(functional.pad(torch.zeros_like(x[:1, :1]), border, value=1.0))[0, 0] > 0
    inside = torch.zeros_like(seen)
    inside[tuple(slice(*pair) for pair in inner_lines(x.shape[2:], border[-2::-2], layer))] = True
    assert torch.equal(seen, ~inside)


def test_a_second_derivative_goes_through() -> None:
    sums, border = (
        torch.randn(3, 2, 5, requires_grad=True),
        torch.randn(1, 2, 5, requires_grad=True),
    )
    with torch.no_grad():
        border[..., 1:4] = 0
    out = AddBorder.apply(sums, border, ((1, 4),))
    (g,) = torch.autograd.grad((out**2).sum(), border, create_graph=True)
    assert torch.autograd.grad(g.sum(), sums)[0][..., 0].eq(2).all()
