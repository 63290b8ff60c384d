"""Steps on some of a vision transformer's patches: each costs less, so that more of them fit.

As in PatchDropout (Liu et al., 2022), patches keep the position they have in the whole image, so
nothing else changes, and the whole image can be seen at any time. A student and its teacher see the
same ones, and what they compute there can be compared token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


class PatchDrop:
    """Hooks that leave out a share of the patches, the same ones in each of several networks.

    Args:
        share: The share of the patches that is left out, from 0 to below 1.
        models: The networks, timm's vision transformers.

    Attributes:
        handles: The hooks, to be removed with ``remove()``.
    """

    _kept: Tensor | None

    def __init__(self, share: float, *models: nn.Module) -> None:
        """Put a hook on each model; it does nothing outside of :meth:`dropping`."""
        self.share, self.on, self._kept = share, False, None
        self.handles = [
            place.register_forward_hook(partial(self._drop, prefix))
            for place, prefix in map(place_of_patches, models)
        ]

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Leave out the same patches in every call: the first one draws them."""
        self.on = True
        try:
            yield
        finally:
            self.on, self._kept = False, None

    def _drop(self, prefix: int, _: nn.Module, args: object, tokens: Tensor) -> Tensor:
        if not self.on:
            return tokens
        first, patches = tokens[:, :prefix], tokens[:, prefix:]
        if self._kept is None:
            count = max(round(patches.shape[1] * (1 - self.share)), 1)
            order = torch.rand(patches.shape[:2], device=patches.device).argsort(1)
            self._kept = order[:, :count, None]
        kept = patches.gather(1, self._kept.expand(-1, -1, patches.shape[2]))
        return torch.cat((first, kept), 1)


def place_of_patches(model: nn.Module) -> tuple[nn.Module, int]:
    """The module that all tokens pass before the blocks, and how many of them are no patches."""
    place, prefix = getattr(model, "patch_drop", None), getattr(model, "num_prefix_tokens", None)
    if not isinstance(place, nn.Module) or not isinstance(prefix, int):
        raise ValueError(
            f"patches can be dropped in timm's vision transformers, and {type(model).__name__} is "
            "none: leave --patch-drop at 0"
        )
    return place, prefix
