"""torchvision's families, narrowed where their constructors allow it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from entry import Entry
from torch import nn

_IMAGES = "classify images"
_SEGMENT = "segment images"


def _entry(name: str, side: int = 64, job: str = _IMAGES, **options: Any) -> Entry:
    def build() -> nn.Module:
        made = getattr(import_module(f"torchvision.models{_WHERE.get(job, '')}"), name)
        return made(num_classes=5, **options)  # type: ignore[no-any-return]

    return Entry("torchvision", name, job, build, lambda: torch.randn(2, 3, side, side))


_WHERE = {_SEGMENT: ".segmentation"}
_NO_WEIGHTS: dict[str, Any] = {"weights": None, "weights_backbone": None}
_SWIN: dict[str, Any] = {
    "patch_size": [4, 4], "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4],
    "window_size": [4, 4],
}  # fmt: skip

ENTRIES = (
    _entry("resnet18"),
    _entry("shufflenet_v2_x0_5"),
    _entry("squeezenet1_1"),
    _entry("mobilenet_v2", width_mult=0.25),
    _entry("mobilenet_v3_small"),
    _entry("mnasnet0_5"),
    _entry("efficientnet_b0"),
    _entry("regnet_y_400mf"),
    _entry("googlenet", aux_logits=False, init_weights=False),
    _entry("DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16),
    _entry("SwinTransformer", 32, **_SWIN),
    _entry(
        "VisionTransformer",
        32,
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        mlp_dim=64,
    ),
    _entry(
        "MaxVit",
        64,
        input_size=(64, 64),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.1,
    ),
    _entry("lraspp_mobilenet_v3_large", 64, _SEGMENT, **_NO_WEIGHTS),
    _entry("deeplabv3_mobilenet_v3_large", 64, _SEGMENT, **_NO_WEIGHTS),
)
