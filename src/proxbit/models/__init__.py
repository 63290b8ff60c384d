"""The networks of the paper that no other library has. They know torch, and nothing of bits."""

from proxbit.models.resnet import (
    CifarResNet,
    cifar_resnet,
    resnet8,
    resnet20,
    resnet32,
    resnet44,
    resnet56,
)

__all__ = [
    "CifarResNet",
    "cifar_resnet",
    "resnet8",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
]
