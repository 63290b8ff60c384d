"""The C++ kernels, found and opened with ctypes where they were built.

The environment variable PROXBIT_KERNELS chooses: ``auto`` (default), the name of a backend, such as
``avx2`` or ``portable`` (plain C++, the same bits), or ``torch`` (no kernels at all).
PROXBIT_LIBRARY names another build of the library. Both are read when the kernels are first used.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from proxbit.util.text import require_known

Signatures: TypeAlias = Mapping[str, tuple[Any, list[Any]]]

ABI = 4
_ENDINGS = {"darwin": ".dylib", "win32": ".dll"}
_PLACE = Path(__file__).parent / f"libproxbit{_ENDINGS.get(sys.platform, '.so')}"
_SIGNATURES: Signatures = {
    "pb_abi": (c_int, []),
    "pb_backends": (c_char_p, []),
    "pb_supports": (c_int, [c_char_p]),
    "pb_isa": (c_char_p, []),
    "pb_use_isa": (c_int, [c_char_p]),
    "pb_use_team": (None, [c_void_p]),
    "pb_layout": (c_int64, [c_char_p, c_char_p]),
}


@cache
def choice() -> str:
    """The value of PROXBIT_KERNELS at the first use of the kernels.

    It is read once: weights are laid out for one instruction set, and to change it under a thread
    that computes would make it read them as those of another.
    """
    return os.environ.get("PROXBIT_KERNELS", "auto")


def library_file() -> str:
    """The shared library, which ONNX Runtime can register as well."""
    return os.environ.get("PROXBIT_LIBRARY", str(_PLACE))


@cache
def opened() -> Any:
    """The library with the chosen backend; None where it was not built or is not wanted."""
    loaded, asked = _load(), choice()
    if loaded is not None:
        _use(loaded, asked)
    return None if asked == "torch" else loaded


def _use(loaded: Any, asked: str) -> None:
    built, supported = _built(loaded), _supported(loaded)
    require_known("value of PROXBIT_KERNELS", asked, ("auto", *built, "torch"))
    if asked in built and asked not in supported:
        raise ValueError(
            f"PROXBIT_KERNELS is {asked!r}, and this CPU lacks those instructions: it has "
            f"{', '.join(supported)}"
        )
    loaded.pb_use_isa(asked.encode() if asked in built else None)


class Backends(NamedTuple):
    """The kernels' instruction sets, the best first.

    Attributes:
        built: Those in the library.
        supported: Those that this CPU has.
        chosen: The one that computes; ``torch`` where there are no kernels.
    """

    built: tuple[str, ...]
    supported: tuple[str, ...]
    chosen: str


def backends() -> Backends:
    """Which instruction sets are built, which this CPU has, and which one computes."""
    loaded = _load()
    if loaded is None:
        return Backends((), (), "torch")
    chosen = "torch" if opened() is None else str(loaded.pb_isa().decode())
    return Backends(_built(loaded), _supported(loaded), chosen)


def _built(loaded: Any) -> tuple[str, ...]:
    return tuple(loaded.pb_backends().decode().split())


def _supported(loaded: Any) -> tuple[str, ...]:
    return tuple(name for name in _built(loaded) if loaded.pb_supports(name.encode()))


def with_codes(arguments: Mapping[str, list[Any]]) -> dict[str, tuple[Any, list[Any]]]:
    """The types of functions that all return a code for :func:`check`, by those of arguments."""
    return {name: (c_int, types) for name, types in arguments.items()}


def declare(loaded: Any, signatures: Signatures) -> bool:
    """Tell ctypes the types of some functions; False if the library lacks one of them."""
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name, None)
        if function is None:
            return False
        function.restype, function.argtypes = result, arguments
    return True


def agrees(loaded: Any, name: str, structure: type[ctypes.Structure]) -> bool:
    """Whether C lays out a structure as it is declared here, field by field."""
    here = {field[0]: getattr(structure, field[0]).offset for field in structure._fields_}
    there = {field: loaded.pb_layout(name.encode(), field.encode()) for field in here}
    return here == there and loaded.pb_layout(name.encode(), None) == ctypes.sizeof(structure)


@cache
def _load() -> Any:
    try:
        loaded = ctypes.CDLL(library_file())
    except OSError:
        return None
    if not declare(loaded, _SIGNATURES) or loaded.pb_abi() != ABI:
        return None
    loaded.pb_use_team(_torch_team())
    return loaded


def _torch_team() -> int | None:
    """The OpenMP threads that torch itself uses, so that the two never fight for cores."""
    import torch  # noqa: F401  (brings its OpenMP into the process)

    try:
        team = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(team, c_void_p).value


def check(code: int) -> None:
    """Raise what a kernel reported."""
    if code == 2:
        raise MemoryError("a kernel of proxbit ran out of memory")
    if code:
        raise ValueError("a kernel of proxbit was called with sizes that do not fit each other")
