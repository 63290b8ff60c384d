"""Weights of timm's transformers at other image, patch and window sizes, by timm's functions."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

from torch import Tensor, nn

from proxbit.models.weight_files import Tensors
from proxbit.models.weight_fitting import misfit


def resampled(model: nn.Module, own: Tensors, given: Tensors) -> dict[str, Tensor]:
    """The given weights with position and patch embeddings at the model's sizes.

    Tensors that timm cannot fit come back as they are: the misfit will tell.
    """
    if not type(model).__module__.startswith("timm."):
        return dict(given)
    module = sys.modules[type(model).__module__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's ways of indexing are no concern of the user
        filtered = _filtered(module, model, given)
        wrong = {name for name, _, _ in misfit(own, filtered).shapes}
        for name in wrong:
            known = given.get(name, filtered[name])
            filtered[name] = _helped(module, name, known, own[name])
        return filtered


def _filtered(module: ModuleType, model: nn.Module, given: Tensors) -> dict[str, Tensor]:
    """Convert the weights with the function that timm has for files of this family."""
    adapt = getattr(module, "checkpoint_filter_fn", None)
    if adapt is None:
        return dict(given)
    try:
        return dict(adapt(dict(given), model))
    except Exception:  # it was written for the files of timm, and these may hold anything
        return dict(given)


def _helped(module: ModuleType, name: str, given: Tensor, own: Tensor) -> Tensor:
    """A tensor that the family's function left alone: the one for NesT knows old names only."""
    from timm.layers.patch_embed import resample_patch_embed

    try:
        if name == "patch_embed.proj.weight":
            tensor: Tensor = resample_patch_embed(given, list(own.shape[2:]))
        elif name.endswith(".pos_embed"):
            tensor = module.resize_pos_embed(given, own)
        else:
            return given
    except Exception:
        return given
    return tensor if tensor.shape == own.shape else given
