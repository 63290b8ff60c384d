"""Learning rate and optimizer of a run. The rate is a function of the step: it has no memory."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import Optimizer

from proxbit.nn.model_weights import latent_parameters
from proxbit.train.config import Config


def lr_at(step: int, steps: int, warmup: float, lr_schedule: str) -> float:
    """The learning rate of a step as a share of the highest one.

    It rises linearly over the first ``warmup`` of the steps and falls to 0 afterwards. A function
    of the step alone, so that a resumed run cannot differ.

    >>> [round(lr_at(step, 10, 0.2, "linear"), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    progress = min((step - rising) / max(steps - rising, 1), 1.0)
    if lr_schedule == "constant":
        return 1.0
    return 1 - progress if lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give every group of parameters the same learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """The optimizer, in three groups: latent weights, other matrices, norms and biases.

    Weight decay pulls latent weights towards 0, where they flip: they have a decay of their own.
    """
    latent = {id(p) for p in latent_parameters(model)}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        matrix = config.weight_decay if parameter.dim() > 1 else 0.0
        decay = config.latent_decay if id(parameter) in latent else matrix
        groups.setdefault(decay or 0.0, []).append(parameter)
    given = [{"params": params, "weight_decay": decay} for decay, params in groups.items()]
    lr = config.lr or 1e-3
    if config.optimizer == "sgd":
        return torch.optim.SGD(given, lr=lr, momentum=0.9, nesterov=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(given, lr=lr)
