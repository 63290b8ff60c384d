"""A map at one strength as a function of arrays, and the choices its operators make on the way.

Maps are built from torch's operators, and an operator that chooses (a comparison, a clamp, a sign)
tells where it changes its mind. So a break is found however narrow the stretch behind it is, and
between two breaks a map is taken for analytic: if it stands still on a part, it does on the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from proxbit.core.pairs import Map

Array: TypeAlias = NDArray[np.float64]
Pattern: TypeAlias = NDArray[Any]  # one value for each point; it changes where a choice does

POINTS_AT_ONCE = 2048  # a call of a map costs about as much as these
ONE_THREAD = 1000  # points up to which MKL's functions do without a second thread
MOST = 512  # changes that are followed: a wave has more than anybody needs

# Operators that hand on one of several things, those that ask for a sign, and staircases.
_CHOOSING = {"clamp", "clamp_min", "clamp_max", "relu", "hardtanh", "minimum", "maximum", "where",
             "fmin", "fmax", "threshold", "relu6"}  # fmt: skip
_SIGNED = {"abs", "sign", "sgn", "copysign", "leaky_relu", "elu", "celu", "selu"}
_STAIRS = {"floor", "ceil", "round", "trunc"}


class Curve:
    """A map at one strength; calling it refuses what a pair must not do."""

    def __init__(self, f: Map, strength: float, what: str) -> None:
        """Take the map and try it on a few points, all at once and apart."""
        self.map, self.what = f, what
        self.strength = torch.tensor(float(strength), dtype=torch.float64)
        self.precision = float(np.finfo(np.float64).eps)
        some = np.linspace(-3, 3, 13)[np.arange(13) * 5 % 13]  # in no order that a sort would keep
        apart = np.concatenate([self(part) for part in np.split(some, [1, 3, 7])])
        if not np.allclose(self(some), apart, rtol=1e-6, atol=1e-9):
            raise ValueError(
                f"the {what} map is not elementwise: a value depends on its neighbours"
            )

    def __call__(self, x: Array) -> Array:
        """The values; ValueError where they are not finite numbers, one for each point."""
        y = self._values(np.asarray(x, dtype=np.float64))
        if not np.isfinite(y).all():
            place = float(np.asarray(x)[~np.isfinite(y)][0])
            raise ValueError(f"the {self.what} map is not finite at w = {place:g}")
        return y

    def overflows(self, x: Array) -> NDArray[np.bool_]:
        """Where the values are infinite: a map such as exp leaves float64 far out."""
        return np.isinf(self._values(x))

    def hear(self, x: Array) -> tuple[list[Pattern], list[Pattern]]:
        """Patterns that change where the map may jump or bend, and where a value crosses zero."""
        breaks, turns = [], []
        for part in _parts(x):
            with _Ear(len(part)) as ear:
                self._part(part)
            breaks.append(ear.breaks)
            turns.append(ear.turns)
        return _joined(breaks), _joined(turns)

    def _values(self, x: Array) -> Array:
        return np.concatenate([self._part(part) for part in _parts(x)])

    def _part(self, x: Array) -> Array:
        w = torch.from_numpy(np.array(x))  # a copy: a map may work in place
        try:
            y = self.map(w, self.strength)
        except Exception as error:
            name = type(error).__name__
            raise ValueError(f"the {self.what} map raised {name}: {error}") from error
        if not isinstance(y, Tensor) or y.shape != w.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(
                f"the {self.what} map is not elementwise: {tuple(w.shape)} became {got}"
            )
        if y.is_floating_point():
            self.precision = max(self.precision, torch.finfo(y.dtype).eps)
        values: Array = y.detach().double().numpy()
        return values


def _parts(x: Array) -> list[Array]:
    """Pieces small enough for one thread: on a busy machine another takes long to wake up."""
    return np.split(x, range(ONE_THREAD, len(x), ONE_THREAD))


def _joined(parts: list[list[Pattern]]) -> list[Pattern]:
    """Patterns of pieces as patterns of the whole; none if the pieces say different things."""
    if len({len(part) for part in parts}) > 1:
        return []
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


class _Ear(TorchDispatchMode):
    """Listens to every operator of torch while a map is computed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.breaks: list[Pattern] = []
        self.turns: list[Pattern] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        before = self._rows(args, copy=True) if name in _CHOOSING | _SIGNED else []
        out = func(*args, **(kwargs or {}))
        for result in self._rows((out,)):
            self._note(name, before, result)
        return out

    def _rows(self, values: Any, copy: bool = False) -> list[Tensor]:
        rows = [v for v in values if isinstance(v, Tensor) and v.shape == (self.size,)]
        rows = [row for row in rows if not row._is_zerotensor()]  # jvp's zeros have no memory
        return [row.clone() for row in rows] if copy else rows

    def _note(self, name: str, before: list[Tensor], out: Tensor) -> None:
        if out.dtype == torch.bool:
            self.breaks.append(out.numpy().copy())
            return
        if name in _CHOOSING:
            self.breaks.extend((out == each).numpy() for each in before)
        elif name in _SIGNED:
            self.breaks.extend((each > 0).numpy() for each in before)
        elif name in _STAIRS:
            self.breaks.append(out.numpy().copy())
        self.turns.append((out > 0).numpy())


Listen: TypeAlias = Callable[[Array], tuple[list[Pattern], ...]]


def changes(listen: Listen, grid: Array, bits: float = 46) -> Array:
    """Where a pattern changes between two points of a grid, to so many bits of the gap."""
    patterns = _flat(listen(grid))
    found = [(k, i) for k, p in enumerate(patterns) for i in np.flatnonzero(p[1:] != p[:-1])]
    if not found:
        return np.empty(0)
    which, interval = np.array(sorted(found, key=lambda each: abs(grid[each[1]]))[:MOST]).T
    ends = np.stack([grid[interval], grid[interval + 1]])
    first = np.array([patterns[k][i] for k, i in zip(which, interval, strict=True)])
    columns = np.arange(len(which))
    while bits > 0:
        cut = cuts(ends, ONE_THREAD)
        heard = _flat(listen(cut[1:-1].ravel()))
        if len(heard) != len(patterns):  # other operators for other points: nothing to compare
            break
        inner = np.stack(heard).reshape(len(heard), len(cut) - 2, -1)
        part = np.cumprod(first == inner[which, :, columns].T, axis=0).sum(0)
        ends = np.stack([cut[part, columns], cut[part + 1, columns]])
        bits -= np.log2(len(cut) - 1)
        if bits < 16:  # several operators tell of the same break: follow one
            once = np.unique(ends[0], return_index=True)[1]
            ends, which, first = ends[:, once], which[once], first[once]
            columns = columns[: len(once)]
    return ends.mean(0)


def _flat(heard: tuple[list[Pattern], ...]) -> list[Pattern]:
    return [pattern for patterns in heard for pattern in patterns]


def cuts(ends: Array, points: int = POINTS_AT_ONCE) -> Array:
    """Points that cut every interval into equal parts: the more, the fewer intervals."""
    parts = min(max(points // ends.shape[1], 4), 1024)
    t = np.arange(parts + 1)[:, None] / parts
    return ends[0] * (1 - t) + ends[1] * t
