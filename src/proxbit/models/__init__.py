"""Models by name, and weights for them. They know torch and timm, and nothing about bits."""

from proxbit.models.bireal import bireal_resnet
from proxbit.models.building import build
from proxbit.models.from_timm import keeps_classes, pretrained_classes
from proxbit.models.resnet import (
    CifarResNet,
    cifar_resnet,
    resnet8,
    resnet20,
    resnet32,
    resnet44,
    resnet56,
)
from proxbit.models.structure import is_transformer
from proxbit.models.vit import tiny_vit
from proxbit.models.weight_loading import Loaded, load_weights
from proxbit.util.user_objects import user_object

__all__ = [
    "CifarResNet", "Loaded", "bireal_resnet", "build", "cifar_resnet", "is_transformer",
    "keeps_classes", "load_weights", "pretrained_classes", "resnet8", "resnet20", "resnet32",
    "resnet44", "resnet56", "tiny_vit", "user_object",
]  # fmt: skip
