"""Layer scales: the float that goes with the bits, and the unit a pair measures weights in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from proxbit.util.text import require_known

Unit: TypeAlias = Literal["one", "current", "initial"]

# The pair sees the raw weight; w / mean|w|, measured at every step; or measured once, at first.
UNITS: tuple[Unit, ...] = get_args(Unit)


@dataclass(frozen=True)
class Scale:
    """How the scale of a layer follows from its latent weight w and the pair's output f.

    Attributes:
        kind: "none" (1), "mean" (mean|w|), "least_squares" (<w, f> / <f, f>; equals the mean for a
            hard pair, and makes a soft pair start at the float network) or "unit" (the pair's own
            unit, so that a weight may be replaced by its quantized value again and again).
        per: One scale for the whole "layer" or one per output "channel".
        gradient: What the gradient of w is multiplied by. "pass": B only (Bi-Real, ReActNet);
            "chain": B times the detached scale (IR-Net); "full": as "chain" and also through the
            scale itself (XNOR-Net).
    """

    kind: Literal["none", "mean", "least_squares", "unit"] = "mean"
    per: Literal["layer", "channel"] = "channel"
    gradient: Literal["pass", "chain", "full"] = "pass"

    def __call__(self, w: Tensor, f: Tensor, unit: Tensor | None) -> Tensor | None:
        """The scale, shaped to multiply f = F(w / unit); None where there is none."""
        if self.kind == "none":
            return None
        if self.kind == "unit":
            return unit
        if self.kind == "mean":
            return self.mean_size(w)
        dims = self.dims(w)
        # Means, not sums: those overflow in half. The norm is one pass where f * f would be two.
        size = torch.linalg.vector_norm(f, dim=dims, keepdim=True)
        power = (size / (f.numel() / size.numel()) ** 0.5).square()
        return (w * f).mean(dims, keepdim=True) / power.clamp_min(torch.finfo(f.dtype).tiny)

    def mean_size(self, w: Tensor) -> Tensor:
        """mean|w| over a layer or over each output channel, kept broadcastable."""
        return w.abs().mean(self.dims(w), keepdim=True)

    def dims(self, w: Tensor) -> tuple[int, ...]:
        """The dimensions that share one scale."""
        return tuple(range(0 if self.per == "layer" else 1, w.dim()))

    def __str__(self) -> str:
        """A few words for reports."""
        if self.kind == "none":
            return "none"
        return f"{self.kind.replace('_', ' ')} per {self.per}"


SCALES: dict[str, Scale] = {
    "none": Scale("none"),
    "layer": Scale("mean", "layer"),
    "channel": Scale("mean", "channel"),
    "ls": Scale("least_squares", "channel"),
    "ls-layer": Scale("least_squares", "layer"),
}


def find_scale(scale: Scale | str) -> Scale:
    """A scale by name, or the scale itself."""
    if isinstance(scale, Scale):
        return scale
    require_known("scale", scale, SCALES)
    return SCALES[scale]


def floor_at_tiny(scale: Tensor) -> Tensor:
    """Replace a scale of 0, which stops every gradient; 1e-19 is as good and lets them through.

    float16 has no such number: there a layer of zeros stays at its bias.
    """
    if scale.dtype == torch.float16:
        return scale
    return torch.where(scale == 0, torch.finfo(scale.dtype).tiny ** 0.5, scale)
