"""The kernels as operators of torch, for graphs: torch.compile, torch.export, torch.jit.trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from proxbit.engine.forms import ConvGeometry, Kernel, PackedForm

Numbers = list[int]


def is_traced() -> bool:
    """Whether torch.jit.trace is at work, for which sizes are tensors and no checks are kept."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def in_graph() -> bool:
    """Whether torch takes down a graph now, so that only its own operators count."""
    recording = torch.compiler.is_compiling() or is_traced()
    if recording and torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "ONNX has no operators for packed layers: give the network to pb.export_onnx"
        )
    return recording


def as_node(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The call of a module as one node of the graph that torch.fx is making."""
    tracer = args[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)


def is_symbol(x: object) -> bool:
    """Whether torch.fx stands in for the input."""
    return isinstance(x, fx.Proxy)


def numbers(form: PackedForm) -> Numbers:
    """The form as integers, without its slope."""
    return [int(value) for name, value in form._asdict().items() if name != "slope"]


def _form(given: Numbers, slope: float) -> PackedForm:
    names = [name for name in PackedForm._fields if name != "slope"]
    values = dict(zip(names, given, strict=True))
    return PackedForm(**values | {"binary": bool(values["binary"])}, slope=slope)  # type: ignore[arg-type]


@torch.library.custom_op("proxbit::linear", mutates_args=())
def linear(
    x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
    form: Numbers, slope: float,
) -> Tensor:  # fmt: skip
    """Rows of floats, in the last dimension, times packed weights."""
    kernel = Kernel(_form(form, slope), laid, scale, bias, shift)
    _require(x, x.dim() > 0 and x.shape[-1] == kernel.form.products, kernel.form.products)
    rows = x.reshape(-1, kernel.form.products).contiguous()
    return kernel.linear(rows).reshape(*x.shape[:-1], kernel.width)


@linear.register_fake
def _(x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
      form: Numbers, slope: float) -> Tensor:  # fmt: skip
    return x.new_empty(*x.shape[:-1], scale.shape[0])


@torch.library.custom_op("proxbit::convolve", mutates_args=())
def convolve(
    x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
    form: Numbers, slope: float, window: Numbers,
) -> Tensor:  # fmt: skip
    """Images convolved with packed weights; the result has its channels last in memory."""
    kernel = Kernel(_form(form, slope), laid, scale, bias, shift)
    channels = kernel.form.products // kernel.form.taps * kernel.form.groups
    _require(x, x.dim() == 4 and x.shape[1] == channels, channels)
    return kernel.convolve(x, _window(window))


@convolve.register_fake
def _(x: Tensor, laid: Tensor, scale: Tensor, bias: Tensor | None, shift: Tensor | None,
      form: Numbers, slope: float, window: Numbers) -> Tensor:  # fmt: skip
    height, width = _window(window).out_size(x.shape[2], x.shape[3])
    return x.new_empty(x.shape[0], height, width, scale.shape[0]).permute(0, 3, 1, 2)


def _require(x: Tensor, fits: bool, channels: int) -> None:
    """A graph keeps no checks of Python, so the operator makes them: kernels read plain memory."""
    if not fits or x.dtype != torch.float32 or not x.is_cpu:
        raise ValueError(
            f"this packed layer was traced for float32 inputs of {channels} channels on the CPU, "
            f"not {x.dtype} of shape {tuple(x.shape)} on {x.device}"
        )


def flat(window: ConvGeometry) -> Numbers:
    """The window as integers."""
    return [*window.kernel, *window.stride, *window.dilation, *window.padding]


def _window(given: Numbers) -> ConvGeometry:
    kernel, stride, dilation = (tuple(given[i : i + 2]) for i in (0, 2, 4))
    return ConvGeometry(kernel, stride, dilation, tuple(given[6:]))  # type: ignore[arg-type]
