"""Models of single nodes of ours, made by hand, and sessions that run them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from proxbit.kernels.library import library_file

Arrays = Mapping[str, Any]
BINARY = ("x", "x_bits", "bits", "scale", "bias", "threshold", "low", "high", "flip")
WEIGHT = ("x", "bits", "scale", "bias")
# The Python type of each attribute, as onnx takes it.
ATTRIBUTES: dict[str, type] = {
    "shape": list, "format": int, "activation": str, "register_bits": int, "slope": float,
    "precision": str, "group": int, "strides": list, "dilations": list, "pads": list,
    "pad_value": int, "input_layout": str, "output_layout": str,
}  # fmt: skip
_KINDS = {np.dtype("f4"): TensorProto.FLOAT, np.dtype("u1"): TensorProto.UINT8}


def pack(signs: Any) -> Any:
    """Signs in row-major order, the first one in the lowest bit."""
    return np.packbits(np.asarray(signs).ravel() > 0, bitorder="little")


def places(op: str) -> tuple[str, ...]:
    return BINARY if op.startswith("Binary") else WEIGHT


def is_read(op: str, attribute: str) -> bool:
    """Whether an operator looks at an attribute."""
    of_binary, of_weight = {"register_bits", "slope"}, {"precision"}
    of_conv = set(ATTRIBUTES) - of_binary - of_weight - {"shape", "format", "activation", "group"}
    other = (of_weight if op.startswith("Binary") else of_binary) | (
        set() if op.endswith("Conv") else of_conv
    )
    return attribute not in other


def model(
    op: str, x: Arrays, constants: Arrays, bits_out: bool = False, rank: int = 2, **attributes: Any
) -> bytes:
    """One node between ``x`` and its output."""
    names = [name if name in x or name in constants else "" for name in places(op)]
    while names and not names[-1]:
        names.pop()
    outputs = ["", "y"] if bits_out else ["y"]
    node = helper.make_node(op, names, outputs, name="layer", domain="proxbit", **attributes)
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    feeds = [
        helper.make_tensor_value_info(k, _KINDS[v.dtype], [f"{k}{i}" for i in range(v.ndim)])
        for k, v in x.items()
    ]
    kind = TensorProto.UINT8 if bits_out else TensorProto.FLOAT
    out = helper.make_tensor_value_info("y", kind, [f"y{i}" for i in range(rank)])
    graph = helper.make_graph([node], "net", feeds, [out], held)
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("proxbit", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8).SerializeToString()


def session(content: Any, threads: int = 1, entries: Mapping[str, str] | None = None) -> Any:
    """A session with our operators; ``content`` is a model or the path of one."""
    options = onnxruntime.SessionOptions()
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(library_file())
    content = content if isinstance(content, bytes) else str(content)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(op: str, x: Arrays, constants: Arrays, threads: int = 1, **options: Any) -> Any:
    """The output of one node."""
    feeds = dict(x)
    (out,) = session(model(op, x, constants, **options), threads).run(None, feeds)
    return out


def check_model(content: bytes) -> None:
    """Whether the file is well formed for others, who do not know our operators."""
    onnx.checker.check_model(onnx.load_from_string(content))
