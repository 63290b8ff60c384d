"""Where the output channels of a weight lie in its Parameter, if not along the first dimension.

A scale belongs to an output channel. Quantizers see every weight with its output channels first;
a layout turns the Parameter there and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """How a Parameter holds its output channels.

    Attributes:
        groups: How many independent products it holds, one after the other.
        stacked: Whether these have a dimension of their own (experts), or share the first one.
        transposed: Whether inputs come before outputs.
    """

    groups: int = 1
    stacked: bool = False
    transposed: bool = False

    def rows(self, w: Tensor) -> Tensor:
        """The weight with its output channels first, those of all groups one after the other.

        >>> import torch
        >>> tuple(Layout(groups=2, transposed=True).rows(torch.zeros(6, 4, 3, 3)).shape)
        (8, 3, 3, 3)
        """
        w = w if self.stacked else w.unflatten(0, (self.groups, -1))
        return (w.transpose(1, 2) if self.transposed else w).flatten(0, 1)

    def back(self, rows: Tensor) -> Tensor:
        """The reverse."""
        w = rows.unflatten(0, (self.groups, -1))
        w = w.transpose(1, 2) if self.transposed else w
        return w if self.stacked else w.flatten(0, 1)


def layout_of(module: nn.Module, weight: Tensor) -> Layout | None:
    """The layout of one weight of a module; None where output channels come first as usual.

    Three dimensions outside PyTorch's own layers are one matrix per expert, and ``is_transposed``
    is what transformers calls matrices that have their inputs first.
    """
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return Layout(groups=module.groups, transposed=True)
    if is_conv1d(module):
        return Layout(transposed=True)
    if weight.dim() == 3 and not isinstance(module, nn.modules.conv._ConvNd | nn.Bilinear):
        transposed = getattr(module, "is_transposed", False) is True
        return Layout(groups=weight.shape[0], stacked=True, transposed=transposed)
    return None


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is transformers' ``Conv1D`` (GPT-2): a linear layer with its weight transposed.

    Known by its name and shape, since transformers need not be installed.
    """
    weight = getattr(module, "weight", None)
    named = type(module).__name__ == "Conv1D" and not isinstance(module, nn.modules.conv._ConvNd)
    return named and isinstance(weight, Tensor) and weight.shape[1:] == (getattr(module, "nf", 0),)
