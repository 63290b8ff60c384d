"""Accumulators: what happens to an integer sum of +-1 products before the scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from proxbit.core.maps import sign
from proxbit.core.tasks import check_register
from proxbit.kernels import training as fused
from proxbit.util.modes import hooked


def wrap(z: Tensor, bits: int) -> Tensor:
    """The value of a ``bits``-bit two's-complement register after summing up to z.

    Wrapping addition is a ring homomorphism: wrapping once at the end equals wrapping at each step.

    >>> wrap(torch.tensor([127.0, 128.0, -129.0]), 8)
    tensor([ 127., -128.,  127.])
    """
    return z - 2**bits * turns(z, bits)


def turns(z: Tensor, bits: int) -> Tensor:
    """How often the register wraps around on its way to z: nonzero exactly where z overflows."""
    return (z.detach() / 2**bits + 0.5).floor()


class _Cyclic(torch.autograd.Function):
    """The cyclic function of the wrapped sum, with derivative 1 inside and -k on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(m: Tensor, half: float, k: float) -> Tensor:
        # The middle one of three lines: no comparison, which is slow on a CPU.
        back = m * -k
        return torch.maximum(torch.minimum(m, back + k * half), back - k * half)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        m, half, ctx.k = inputs
        ctx.end = ctx.k / (ctx.k + 1) * half
        ctx.save_for_backward(m)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (m,) = ctx.saved_tensors
        inner = sign(ctx.end - m.abs()).clamp_min(0)
        return grads[0] * (inner * (1 + ctx.k) - ctx.k), None, None


def cyclic(m: Tensor, bits: int, k: float) -> Tensor:
    """WrapNet's cyclic function: m near zero, returning to 0 with slope -k towards the ends.

    It turns a wrapped sum into a continuous periodic function, so an overflow never jumps.

    >>> cyclic(wrap(torch.tensor([64.0, 100.0, 128.0, 300.0]), 8), 8, 2.0)
    tensor([64., 56.,  0., 44.])
    """
    return _Cyclic.apply(m, float(2 ** (bits - 1)), float(k))


def cyclic_values(m: Tensor, bits: int, k: float) -> Tensor:
    """The values of :func:`cyclic` alone, in plain operators: those can be traced and saved."""
    return _Cyclic.forward(m, float(2 ** (bits - 1)), float(k))


class _Read(torch.autograd.Function):
    """Let ``out``, which left a register in one pass, stand for the sums z.

    It keeps a byte for each: where the slope is -k.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, out: Tensor, falls: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(falls)
        ctx.k = k
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (falls,) = ctx.saved_tensors
        return _through(falls, grads[0], ctx.k), None, None, None


def _through(falls: Tensor, g: Tensor, k: float) -> Tensor:
    if not torch.is_grad_enabled():  # a second derivative needs torch's own operators
        once = fused.wrap_backward(falls, g, k)
        if once is not None:
            return once
    return torch.where(falls, g * -k, g)


class WrapAccumulator(nn.Module):
    """A ``bits``-bit accumulator that wraps around, followed by the cyclic function (BWAA).

    Attributes:
        overflow: Share of the last batch's sums that did not fit, a 0-d tensor.
    """

    overflow: Tensor

    def __init__(self, bits: int = 8, k: float = 2.0) -> None:
        """Keep the width of the register and the slope of the way back."""
        super().__init__()
        check_register(bits, k)
        self.bits, self.k = int(bits), float(k)
        self.register_buffer("overflow", torch.zeros(()), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """c_k(wrap(z)); the gradient passes the wrap unchanged."""
        learns = z.requires_grad and torch.is_grad_enabled()
        held = fused.wrap(z, self.bits, self.k, keep=learns)
        if held is not None:
            out, falls, over = held
            self.overflow.fill_(over / z.numel())
            return out if falls is None else _Read.apply(z, out, falls, self.k)
        n = turns(z, self.bits)
        with torch.no_grad():
            self.overflow.copy_(n.count_nonzero() / max(n.numel(), 1))
        return cyclic(z - 2**self.bits * n, self.bits, self.k)

    def excess(self, z: Tensor) -> Tensor:
        """Mean distance by which the sums leave the register: the term of the penalty."""
        return (z.abs() - 2 ** (self.bits - 1)).clamp_min(0).mean()

    def extra_repr(self) -> str:
        """Width and slope."""
        return f"bits={self.bits}, k={self.k:g}"


@contextmanager
def overflow_penalty(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Collect the overflow of every accumulator during the forward passes inside, as a loss term.

    Use it as::

        with pb.overflow_penalty(model) as penalty:
            loss = criterion(model(x), y) + 1e-3 * penalty()

    The penalty is the sum over accumulators of mean(max(|z| - 2^(bits-1), 0)).
    """
    terms: list[Tensor] = []

    def collect(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, WrapAccumulator)
        terms.append(module.excess(inputs[0]))

    accumulators = [m for m in model.modules() if isinstance(m, WrapAccumulator)]
    if not accumulators:
        raise ValueError("the model has no accumulators: binarize it with task='BWAA'")
    with hooked(m.register_forward_pre_hook(collect) for m in accumulators):
        yield lambda: torch.stack(terms).sum()
