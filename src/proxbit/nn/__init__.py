"""Binary layers, their quantizers and accumulators."""

from proxbit.core.weight_layout import Layout, is_conv1d, layout_of
from proxbit.nn.accumulators import WrapAccumulator, cyclic, overflow_penalty, wrap
from proxbit.nn.binary_attention import BinaryMultiheadAttention
from proxbit.nn.binary_layers import (
    BinaryConv1D,
    BinaryConv1d,
    BinaryConv2d,
    BinaryLayer,
    BinaryLinear,
    BinaryWeight,
)
from proxbit.nn.product import BinaryProduct, Form
from proxbit.nn.quantizers import InputQuantizer, Quantizer, WeightQuantizer
from proxbit.nn.step_counter import StepCounter

__all__ = [
    "BinaryConv1D", "BinaryConv1d", "BinaryConv2d", "BinaryLayer", "BinaryLinear",
    "BinaryMultiheadAttention", "BinaryProduct", "BinaryWeight", "Form", "InputQuantizer", "Layout",
    "Quantizer", "StepCounter", "WeightQuantizer", "WrapAccumulator", "cyclic", "is_conv1d",
    "layout_of", "overflow_penalty", "wrap",
]  # fmt: skip
