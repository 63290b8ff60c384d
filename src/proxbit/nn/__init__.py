"""Binary layers, their quantizers and accumulators."""

from proxbit.nn.accumulators import WrapAccumulator, cyclic, overflow_penalty, wrap
from proxbit.nn.attention import BinaryMultiheadAttention
from proxbit.nn.layers import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear, BinaryWeight
from proxbit.nn.product import TASKS, BinaryProduct, Form, Task
from proxbit.nn.quantizers import InputQuantizer, Quantizer, WeightQuantizer

__all__ = [
    "TASKS",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryLayer",
    "BinaryLinear",
    "BinaryMultiheadAttention",
    "BinaryProduct",
    "BinaryWeight",
    "Form",
    "InputQuantizer",
    "Quantizer",
    "Task",
    "WeightQuantizer",
    "WrapAccumulator",
    "cyclic",
    "overflow_penalty",
    "wrap",
]
