r"""Proximal maps of one-bit regularizers, elementwise: the P of F = T o P."""

from __future__ import annotations

import torch
from torch import Tensor

from proxbit.core.maps import Strength, sign


def linear_quantizer(w: Tensor, s: Strength, varrho: float | None = 0.0) -> Tensor:
    """The piecewise-linear quantizer L of ProxConnect, with rho = s.

    sign(w) from ``|w| = 1 - rho`` on; below, a line that leaves 0 at height ``varrho``.
    ``varrho=None`` ties it to rho: then L is ProxQuant's soft threshold towards +-1.
    Both are cut at 1, so rho = 10 means exactly the sign. Dockhorn et al., 2021.

    >>> linear_quantizer(torch.tensor([-0.3, -0.05, 0.0, 0.9]), 0.2, varrho=0.2)
    tensor([-0.5000, -0.2500,  0.2000,  1.0000])
    """
    rho = torch.as_tensor(s, dtype=w.dtype, device=w.device).clamp(max=1)
    height = rho if varrho is None else torch.full_like(rho, min(varrho, 1.0))
    room = 1 - rho
    # At rho = 1 there is no room for a line: a height of 1 and no slope make the exact sign.
    slope = torch.where(room > 0, (1 - height) / room, torch.zeros_like(room))
    height = torch.where(room > 0, height, torch.ones_like(room))
    line = w.clamp(-1, 1) * slope  # inf * 0 would be nan
    return torch.addcmul(line, sign(w), height).clamp(-1, 1)


def hubara(w: Tensor, smoothing: Strength) -> Tensor:
    """The prox behind BNN: sign(w) on [-1, 1], w / mu + sign(w) (1 - 1 / mu) beyond.

    ``smoothing`` is the mu of dual averaging, 1 plus the sum of the steps, not a strength.
    """
    return sign(w) * (1 + (w.abs() - 1).clamp_min(0) / smoothing)
