"""A pickle reader that runs nothing: plain Python values and arrays of bytes, or an error.

CIFAR's files are pickles, and a pickle may name any function to call. This reader knows six names,
all of them replaced by the harmless classes and functions below; numpy's own are never called.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from proxbit.util.text import saying


class ByteArray:
    """Stands in for a pickled numpy array; ``values`` is the uint8 array once its state is read."""

    values: np.ndarray[Any, np.dtype[np.uint8]]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, ByteKind):
            raise pickle.UnpicklingError("an array without a type")
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        order = "F" if fortran else "C"
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order=order)  # type: ignore[call-overload]


class ByteKind:
    """Stands in for the type of a pickled numpy array; only unsigned bytes are admitted."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "u1":
            raise pickle.UnpicklingError(f"an array of {code!r}, not of unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore the state of a type: it is the byte order, and a byte has none."""


class _Function:
    """A function that a pickle may call and cannot change: BUILD sets defaults of a plain one."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes a function")


_new_array = _Function(lambda *_: ByteArray())
# Python 3 writes bytes into old pickles as codecs.encode(text, "latin1"), and none as bytes().
_bytes = _Function(lambda text="", _encoding="latin1": text.encode("latin1"))


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): ByteArray,
    ("numpy", "dtype"): ByteKind,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("_codecs", "encode"): _bytes,
    ("__builtin__", "bytes"): _bytes,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return ADMITTED[module_name, global_name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, read without running anything that the file names."""
    # A damaged pickle fails in as many ways as there are bytes.
    with saying(f"cannot read {path} (replace it with an original)"):
        found = _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a dictionary: replace it")
    return found
