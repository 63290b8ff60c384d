"""The structure of a model: attention blocks, and the classifier at its end."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

# One layer for all three projections (timm), or one each (transformers and many others). Layers
# called q, k, v are left out: in timm those are the pools at the end of a convolutional network.
_PROJECTIONS = (("qkv",), ("query", "key", "value"), ("q_proj", "k_proj", "v_proj"))


def is_transformer(model: nn.Module) -> bool:
    """Whether the model has attention blocks, those of PyTorch, timm or others.

    >>> is_transformer(nn.TransformerEncoderLayer(8, 2)), is_transformer(nn.Linear(8, 2))
    (True, False)
    """
    return any(_attends(module) for module in model.modules())


def _attends(module: nn.Module) -> bool:
    parts = {name for name, _ in module.named_children()}
    projects = any(parts.issuperset(names) for names in _PROJECTIONS)
    return projects or isinstance(module, nn.MultiheadAttention)


def layers(model: nn.Module) -> list[str]:
    """Names of the linear layers and convolutions, in the order they are registered.

    >>> layers(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    ['0', '2']
    """
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def stated_classifiers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that give the scores of a timm model; none for other models."""
    settings = getattr(model, "pretrained_cfg", None)
    said = settings.get("classifier") if isinstance(settings, Mapping) else None
    return (said,) if isinstance(said, str) else tuple(said or ())
