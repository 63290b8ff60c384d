"""Presets of runs: from a check of the machinery to the paper's own size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """How large the runs are.

    Attributes:
        text: What it is, in a few words.
        models: From the paper's names to what trains; where that depends on the images, from
            "model, data set".
        epochs: By pipeline.
        common: Options of every run.
        transformers: Further options of runs with attention.
        imagenet: Further options of runs on ImageNet.
        data: The images where none are given; None asks for them.
        float_epochs: Epochs of the float network that fine-tuning starts from; 0 asks for weights.
        measure: Whether packed networks are timed.
    """

    text: str
    models: dict[str, str]
    epochs: dict[str, int]
    common: dict[str, Any]
    transformers: dict[str, Any] = field(default_factory=dict)
    imagenet: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    float_epochs: int = 0
    measure: bool = True

    def model(self, name: str, dataset: str) -> str:
        """The model that stands in for a model of the paper on its images."""
        return self.models.get(f"{name}, {dataset}", self.models.get(name, ""))


_VITS = ("ViT-B", "DeiT-T")
_MINI = {"Swin-T": "mini_swin", "NesT-T": "mini_nest"}
PRESETS: dict[str, Preset] = {
    "smoke": Preset(
        "seconds per cell: embedded images, tiny models of the same family, four steps",
        models={
            "ResNet20": "resnet8", "ResNet50": "mini_bottleneck", **_MINI,
            **dict.fromkeys(_VITS, "mini_vit"),
        },
        epochs={"FT": 1, "E2E": 1},
        common={"max_steps_per_epoch": 4, "batch_size": 64, "recalibrate": 2},
        transformers={"augment": "crop"}, data="fashion", float_epochs=1, measure=False,
    ),
    "small": Preset(
        "minutes per cell on two cores: real images, few epochs",
        models={
            "ResNet20": "resnet20", "ResNet50": "timm/resnet50", **_MINI,
            **dict.fromkeys(_VITS, "tiny_vit"),
        },
        epochs={"FT": 2, "E2E": 4}, common={"max_steps_per_epoch": 400},
        transformers={"augment": "crop", "lr": 1e-3},
        imagenet={"image_size": 64, "max_steps_per_epoch": 25}, float_epochs=10,
    ),
    "paper": Preset(
        "the paper's models and epochs: a cluster of GPUs",
        models={
            "ResNet20": "resnet20", "ResNet50": "timm/resnet50.a1_in1k",
            # The paper's files: what knows ImageNet-1K for CIFAR, what knows 21K for ImageNet-1K.
            "ViT-B": "timm/vit_base_patch16_224.augreg_in21k_ft_in1k",
            "ViT-B, ImageNet-1K": "timm/vit_base_patch16_224.augreg_in21k",
            "DeiT-T": "timm/deit_tiny_patch16_224.fb_in1k",
            "DeiT-S": "timm/deit_small_patch16_224.fb_in1k",
            "DeiT-B": "timm/deit_base_patch16_224.fb_in1k",
            "Swin-T": "timm/swin_tiny_patch4_window7_224.ms_in1k",
            "NesT-T": "timm/nest_tiny_jx.goog_in1k",
        },
        epochs={"FT": 100, "E2E": 300}, common={"settings": "paper"},
        transformers={"image_size": 224, "batch_size": 512, "pretrain": 5},
        imagenet={"image_size": 224, "batch_size": 256, "workers": 8},
    ),
}  # fmt: skip
