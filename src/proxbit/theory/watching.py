"""The weights of a run as the theorem sees them: where they are, and the gradient of loss(T)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxbit.nn import BinaryWeight
from proxbit.theory.bound import BoundTerms, Point, terms
from proxbit.theory.curves import Array
from proxbit.theory.recovery import Recovered


class Watched:
    """A float weight: P(w) = w, T(w) = w and R(w) = w^2 / 2.

    Attributes:
        name: Its name in the state_dict.
        parameter: The Parameter that the optimizer owns.
        here: Where it is.
        reference: What it is compared with.
    """

    def __init__(self, name: str, parameter: nn.Parameter, rows: slice | None = None) -> None:
        """Stand where the weight is now."""
        self.name, self.parameter, self.rows = name, parameter, rows
        self.here = self.reference = self.place(parameter.detach())

    def place(self, values: Tensor) -> Point:
        """The point for given values of the whole Parameter."""
        latent = _array(values if self.rows is None else values[self.rows])
        return Point(latent, *self._prox(latent))

    def _prox(self, latent: Array) -> tuple[Array, Array]:
        """P, and R at P."""
        return latent, latent**2 / 2

    def compare_with(self, values: Tensor) -> None:
        """Take another reference."""
        if values.shape != self.parameter.shape:
            raise ValueError(
                f"the reference has {tuple(values.shape)} for {self.name!r}, "
                f"and the model {tuple(self.parameter.shape)}"
            )
        self.reference = self.place(values.detach())

    def listen(self) -> list[Any]:
        """Handles of the hooks needed to know the gradient: none."""
        return []

    def unsteady(self) -> str:
        """Anything that moved and must not, in words: nothing."""
        return ""

    def prepare(self) -> None:
        """Note what a step will change, before it is taken."""

    def gradient(self) -> Array:
        """T'(w) grad loss(T(w)), where the step started."""
        grad = self.parameter.grad
        return np.zeros(self.here.latent.shape) if grad is None else _array(grad)

    def step(self, eta: float) -> BoundTerms:
        """The terms that the step just taken adds to both sides."""
        before, self.here = self.here, self.place(self.parameter.detach())
        precision = torch.finfo(self.parameter.dtype).eps
        return terms(before, self.here, self.reference, self.gradient(), eta, precision)


class WatchedBinary(Watched):
    """A binary weight, with P and R of its pair; its gradient is taken at the quantized weight."""

    def __init__(self, name: str, uses: list[BinaryWeight], found: Recovered) -> None:
        """Watch one weight; tied ones are several uses of it."""
        self.uses, self.found = uses, found
        self._quantizer = uses[0].quantizer
        self._unit = 1.0 if self._quantizer.unit is None else float(self._quantizer.unit)
        self._slope: Array = np.zeros(())
        self._listener = Listener(uses[0].parameter)
        super().__init__(name, uses[0].parameter, uses[0].rows)

    def _prox(self, latent: Array) -> tuple[Array, Array]:
        z, potential = self.found.potential(latent / self._unit)
        return self._unit * z, self._unit**2 * potential

    def listen(self) -> list[Any]:
        """Hook every quantizer of the weight."""
        return [use.quantizer.register_forward_hook(self._listener) for use in self.uses]

    def unsteady(self) -> str:
        """A strength that moved, or a switch to signs."""
        if self._quantizer.sharp:
            return f"the network sees the signs of {self.name!r} now"
        now, before = float(self._quantizer.strength), self.found.strength
        if now == before:
            return ""
        return f"the strength of {self.name!r} moved from {before:g} to {now:g}"

    def prepare(self) -> None:
        """T' at the weight where the gradient was taken, in the precision of the layer."""
        units = self._quantizer.units(self.uses[0].latent)
        self._slope = _array(self._quantizer.pair.backward(units, self._quantizer.strength))

    def gradient(self) -> Array:
        """T' times the gradient at the quantized weight."""
        return self._slope * self._listener.taken(self.here.latent.shape)


class Listener:
    """A forward hook that adds up the gradients that arrive at a quantized weight.

    A copy of the model (``deepcopy``, pickle) gets a listener that hears nothing.
    """

    def __init__(self, parameter: nn.Parameter | None = None) -> None:
        """Listen for one Parameter, or for nothing."""
        self._parameter = parameter
        self._sum: Tensor | None = None

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Hook the quantized weight that is about to be used."""
        if self._parameter is None or not output.requires_grad:
            return
        if self._parameter.grad is None:  # gradients were thrown away: with them what was heard
            self._sum = None
        output.register_hook(self._add)

    def _add(self, grad: Tensor) -> None:
        self._sum = grad if self._sum is None else self._sum + grad

    def taken(self, shape: tuple[int, ...]) -> Array:
        """The sum of the gradients since it was last taken."""
        heard, self._sum = self._sum, None
        return np.zeros(shape) if heard is None else _array(heard)

    def __reduce__(self) -> tuple[type[Listener], tuple[()]]:
        """A copy is deaf."""
        return Listener, ()


def _array(t: Tensor) -> Array:
    return t.detach().to("cpu", torch.float64).numpy().copy()
