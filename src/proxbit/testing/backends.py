"""Switching the kernels within a process: for tests, where nothing else computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from proxbit.kernels import library, training

_VARIABLE = "PROXBIT_KERNELS"


def available_backends() -> tuple[str, ...]:
    """The kernels that run on this machine, the best first; "torch", which is none, comes last."""
    return (*library.backends().supported, "torch")


@contextmanager
def use_backend(name: str, smallest: int = 1) -> Iterator[None]:
    """Let these kernels compute inside, for tensors of ``smallest`` values and more.

    A packed network is laid out for one backend: do not use it with another. Meanwhile
    nothing else may compute.
    """
    before, size = os.environ.get(_VARIABLE), training.SMALLEST
    try:
        training.SMALLEST = smallest
        _choose(name)
        yield
    finally:
        training.SMALLEST = size
        _choose(before)


def _choose(name: str | None) -> None:
    if name is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = name
    library.choice.cache_clear()
    library.opened.cache_clear()
    library.opened()  # says at once if there is no such backend
