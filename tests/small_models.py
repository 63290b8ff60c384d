"""Small models for tests of conversion, and a look at everything that a call may change."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb

BINARY_METHODS = [name for name, method in pb.METHODS.items() if method.binary]


def cnn() -> nn.Sequential:
    """First convolution 0, binary ones 3 and 7, classifier 9; ReLU in front of both binary ones."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


def mlp() -> nn.Sequential:
    """Binary 0 and 2, classifier 4; no ReLU."""
    return nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 4, 4)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a failed call must leave alone."""
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "types": [(name, type(module)) for name, module in model.named_modules()],
        "parameters": [(n, id(p), p.requires_grad) for n, p in model.named_parameters()],
        "buffers": [(n, id(b)) for n, b in model.named_buffers()],
        "training": [module.training for module in model.modules()],
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._state_dict_hooks)
            for m in model.modules()
        ],
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    now = snapshot(model)
    assert list(now["state"]) == list(before["state"])
    for name, value in before["state"].items():
        assert torch.equal(
            value.nan_to_num(nan=123.0, posinf=1e30), now["state"][name].nan_to_num(123.0, 1e30)
        ), name
    for part in ("types", "parameters", "buffers", "training", "hooks"):
        assert now[part] == before[part], part


def binary_names(report: Any) -> list[str]:
    return [line.name for line in report.binary]


class ReadsTheWeight(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(x, self.inner.weight, self.inner.bias))
