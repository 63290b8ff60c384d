"""One-bit neural networks in ONNX Runtime, without PyTorch.

>>> options = onnxruntime.SessionOptions()  # doctest: +SKIP
>>> options.register_custom_ops_library(proxbit_runtime.library())  # doctest: +SKIP
"""

from proxbit_runtime.networks import Network, load
from proxbit_runtime.operators import library

__all__ = ["Network", "library", "load"]
