"""ResNets with a shortcut around every convolution, for one-bit inputs.

A sign leaves one bit of each value. The shortcut of an ordinary block passes two convolutions, so
what the first one finds reaches the second as bits alone; here it goes on as a number as well.
Liu et al., 2018 (Bi-Real Net). Parameters are named as in the ordinary ResNets of their kind.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from proxbit.models.resnet import CifarResNet, PaddedShortcut, blocks_for, conv3x3, he_normal, stage

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class AveragedShortcut(PaddedShortcut):
    """The means of 2x2 pixels, and zeros for the channels that are new; it has no parameters.

    >>> import torch
    >>> AveragedShortcut(1, 3)(torch.arange(4.0).view(1, 1, 2, 2)).flatten()
    tensor([0.0000, 1.5000, 0.0000])
    """

    def halve(self, x: Tensor) -> Tensor:
        """The means of 2x2 pixels."""
        return F.avg_pool2d(x, 2, ceil_mode=True)


def projection(in_channels: int, out_channels: int) -> nn.Sequential:
    """The means of 2x2 pixels through a 1x1 convolution, named as the one of a ResNet-18."""
    parts: dict[str, nn.Module] = {
        "pool": nn.AvgPool2d(2, ceil_mode=True),
        "0": nn.Conv2d(in_channels, out_channels, 1, bias=False),
        "1": nn.BatchNorm2d(out_channels),
    }
    return nn.Sequential(OrderedDict(parts))


class BiRealBlock(nn.Module):
    """Two 3x3 convolutions, each beside a shortcut. The parts are registered as they run."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        shortcut: Callable[[int, int], nn.Module] = AveragedShortcut,
    ) -> None:
        """Build the block; a stride of 2 halves the image, and its shortcut is made by one."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.downsample = nn.Identity() if stride == 1 else shortcut(in_channels, out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add to its input what each convolution makes of it, one after the other."""
        x = self.relu1(self.bn1(self.conv1(x)) + self.downsample(x))
        out: Tensor = self.relu2(self.bn2(self.conv2(x)) + x)
        return out


class BiRealResNet(nn.Module):
    """Four stages for large images, of ``width``, 2, 4 and 8 times ``width`` channels."""

    def __init__(
        self, blocks: tuple[int, ...], classes: int = 1000, in_channels: int = 3, width: int = 64
    ) -> None:
        """Build the stages, with He-normal weights."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        block = partial(BiRealBlock, shortcut=projection)
        self.layer1 = stage(block, width, width, blocks[0], stride=1)
        self.layer2 = stage(block, width, 2 * width, blocks[1], stride=2)
        self.layer3 = stage(block, 2 * width, 4 * width, blocks[2], stride=2)
        self.layer4 = stage(block, 4 * width, 8 * width, blocks[3], stride=2)
        self.fc = nn.Linear(8 * width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, ``(n, classes)``, for images of any size."""
        x = self.maxpool(self.relu1(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean((2, 3)))
        return scores


def bireal_resnet(
    depth: int, classes: int = 10, in_channels: int = 3, width: int | None = None
) -> nn.Module:
    """The ResNet with ``depth`` layers and a shortcut around every convolution.

    8, 20, 32, 44 and 56 layers are for images of CIFAR's size (``width`` 16), 18 and 34 for those
    of ImageNet's (64).

    >>> from proxbit.models import cifar_resnet
    >>> same = cifar_resnet(20).state_dict().keys()
    >>> bireal_resnet(20).state_dict().keys() == same
    True
    """
    if depth in STAGES:
        return BiRealResNet(STAGES[depth], classes, in_channels, width or 64)
    return CifarResNet(blocks_for(depth), classes, in_channels, width or 16, BiRealBlock)
