"""The CIFAR ResNets of He et al., 2015 (section 4.2): three stages of 3x3 blocks, 6n + 2 layers.

Parameters are named as in akamaster/pytorch_resnet_cifar10, so its public weights load strictly.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

DEPTHS = (8, 20, 32, 44, 56)


class PaddedShortcut(nn.Module):
    """The shortcut "A" of He et al.: every second pixel, and zeros for the channels that are new.

    It has no parameters. The zeros go half before and half after the old channels.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        """Work out how many channels of zeros go on either side."""
        super().__init__()
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Halve the image and pad the channels."""
        return F.pad(self.halve(x), (0, 0, 0, 0, self.before, self.after))

    def halve(self, x: Tensor) -> Tensor:
        """Every second pixel.

        Pools of one pixel are x[:, :, ::2, ::2], but their gradient keeps the layout of x. That of
        a slice does not, and every norm before it pays for channels that are no longer last.
        """
        return F.avg_pool2d(x, 1, 2)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias that keeps the size of the image at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut. The parts are registered in the order they run."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        """Build the block; a stride of 2 halves the image."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        same = stride == 1
        self.shortcut = nn.Identity() if same else PaddedShortcut(in_channels, out_channels)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the two convolutions make of the input to the shortcut's view of it."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu2(y + self.shortcut(x))
        return out


def stage(
    block: Callable[[int, int, int], nn.Module],
    in_channels: int,
    out_channels: int,
    blocks: int,
    stride: int,
) -> nn.Sequential:
    """``blocks`` blocks; the first changes channels and image size."""
    first = block(in_channels, out_channels, stride)
    rest = (block(out_channels, out_channels, 1) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


def he_normal(model: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers as He et al. do."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)


class CifarResNet(nn.Module):
    """Three stages of ``blocks`` blocks each, of ``width``, 2 and 4 times ``width`` channels.

    Activations are ``nn.ReLU`` modules, so that a tool may find and replace them.
    """

    def __init__(
        self,
        blocks: int,
        classes: int,
        in_channels: int,
        width: int,
        block: Callable[[int, int, int], nn.Module] = BasicBlock,
    ) -> None:
        """Build the stages, with He-normal weights."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.layer1 = stage(block, width, width, blocks, stride=1)
        self.layer2 = stage(block, width, 2 * width, blocks, stride=2)
        self.layer3 = stage(block, 2 * width, 4 * width, blocks, stride=2)
        self.linear = nn.Linear(4 * width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, ``(n, classes)``, for images of any size."""
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.linear(x.mean((2, 3)))
        return scores


def cifar_resnet(
    depth: int, classes: int = 10, in_channels: int = 3, width: int = 16
) -> CifarResNet:
    """The CIFAR ResNet with ``depth`` layers: 8, 20, 32, 44 or 56.

    >>> sum(p.numel() for p in cifar_resnet(20).parameters())
    269722
    """
    return CifarResNet(blocks_for(depth), classes, in_channels, width)


def blocks_for(depth: int) -> int:
    """Blocks per stage of the CIFAR ResNet with ``depth`` layers."""
    if depth not in DEPTHS:
        known = ", ".join(map(str, DEPTHS))
        raise ValueError(f"no CIFAR ResNet has depth {depth!r}: choose one of {known}")
    return (depth - 2) // 6


def resnet8(classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """One block per stage: small enough to train in a minute on a laptop."""
    return cifar_resnet(8, classes, in_channels, width)


def resnet20(classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """Three blocks per stage, the network of the paper's CIFAR tables."""
    return cifar_resnet(20, classes, in_channels, width)


def resnet32(classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """Five blocks per stage."""
    return cifar_resnet(32, classes, in_channels, width)


def resnet44(classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """Seven blocks per stage."""
    return cifar_resnet(44, classes, in_channels, width)


def resnet56(classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """Nine blocks per stage."""
    return cifar_resnet(56, classes, in_channels, width)
