"""The kernels as operators of torch, so that torch.compile and torch.export can see them."""

from __future__ import annotations

import torch
from torch import Tensor

from proxbit.engine.forms import Form, Kernel, Window

Numbers = list[int]


def numbers(form: Form) -> Numbers:
    """The form as integers, without its slope."""
    return [int(value) for name, value in form._asdict().items() if name != "slope"]


def _form(given: Numbers, slope: float) -> Form:
    names = [name for name in Form._fields if name != "slope"]
    values = dict(zip(names, given, strict=True))
    return Form(**values | {"binary": bool(values["binary"])}, slope=slope)  # type: ignore[arg-type]


@torch.library.custom_op("proxbit::linear", mutates_args=())
def linear(
    x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
    form: Numbers, slope: float,
) -> Tensor:  # fmt: skip
    """Rows of floats times packed weights."""
    return Kernel(_form(form, slope), laid, scale, bias, shift).linear(x.contiguous())


@linear.register_fake
def _(x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
      form: Numbers, slope: float) -> Tensor:  # fmt: skip
    return x.new_empty(x.shape[0], scale.shape[0])


@torch.library.custom_op("proxbit::convolve", mutates_args=())
def convolve(
    x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
    form: Numbers, slope: float, window: Numbers,
) -> Tensor:  # fmt: skip
    """Images convolved with packed weights; the result has its channels last in memory."""
    kernel = Kernel(_form(form, slope), laid, scale, bias, shift)
    return kernel.convolve(x, _window(window))


@convolve.register_fake
def _(x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
      form: Numbers, slope: float, window: Numbers) -> Tensor:  # fmt: skip
    height, width = _window(window).out_size(x.shape[2], x.shape[3])
    return x.new_empty(x.shape[0], height, width, scale.shape[0]).permute(0, 3, 1, 2)


def flat(window: Window) -> Numbers:
    """The window as integers."""
    return [*window.kernel, *window.stride, *window.dilation, *window.padding]


def _window(given: Numbers) -> Window:
    kernel, stride, dilation = (tuple(given[i : i + 2]) for i in (0, 2, 4))
    return Window(kernel, stride, dilation, tuple(given[6:]))  # type: ignore[arg-type]
