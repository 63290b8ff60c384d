"""Every backend of the kernels that this CPU has; which of them the tests executed is printed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from proxbit.kernels.library import backends, opened

T = TypeVar("T")
SUPPORTED = () if opened() is None else backends().supported
EXECUTED: set[str] = set()


@contextmanager
def using(name: str) -> Iterator[None]:
    """Let the kernels run on one backend for a while."""
    library, before = opened(), backends().chosen
    assert library.pb_use_isa(name.encode()) == 0
    EXECUTED.add(name)
    try:
        yield
    finally:
        assert library.pb_use_isa(before.encode()) == 0


def on_each(call: Callable[[], T]) -> list[T]:
    """What a call gives on one backend after the other."""
    results = []
    for name in SUPPORTED:
        with using(name):
            results.append(call())
    return results
