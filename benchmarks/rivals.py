"""Who takes part in the kernel benchmark: torch, proxbit, onnxruntime, OpenVINO.

Each takes layers (several copies where weights are to come from memory), one input and a number of
threads, and gives every way it has to compute (one per layout) as calls without arguments.
"""

import copy
import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from pairing import Call, Calls
from torch import Tensor, nn

import proxbit as pb

Layers = Sequence[nn.Linear | nn.Conv2d]
Ways = Sequence[Calls]

LINEAR, CONV, BOTH = ("linear", "gemv"), ("conv",), ("linear", "gemv", "conv")


@dataclass(frozen=True)
class Contender:
    """An engine with a way to store weights.

    Attributes:
        like: Whose output it must give: the float layer, or the hard layer of a task.
        error: The largest deviation from that output, relative to its largest value.
        kinds: The kinds of layers that it has.
        isa: The instructions that our kernels are to use; "" for the best.
        streams: With up to so many threads it takes part with many copies of a layer; the threads
            of many sessions would disturb each other.
    """

    name: str
    like: str
    error: float
    ways: Callable[[Layers, Tensor, int], Ways]
    kinds: tuple[str, ...] = BOTH
    package: str = "torch"
    isa: str = ""
    streams: float = math.inf


def hard_layers(layers: Layers, task: Any) -> Layers:
    """The same layers with hard binary weights."""
    model = nn.Sequential(*(copy.deepcopy(layer) for layer in layers))
    pb.binarize(model, "bc", task, only="*")
    return list(pb.harden(model).eval())  # type: ignore[call-overload]


def layouts(x: Tensor) -> Iterator[Tensor]:
    yield x
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)


# --- proxbit and torch ----------------------------------------------------------------------


def ours(precision: str, layers: Layers, x: Tensor, threads: int) -> Ways:
    """Each layer is packed alone: neighbours would hand each other bits instead of floats."""
    alone: list[Any] = [pb.pack(nn.Sequential(layer), precision=precision) for layer in layers]
    return [[partial(packed[0], given) for packed in alone] for given in layouts(x)]


def torch_float(layers: Layers, x: Tensor, threads: int) -> Ways:
    """Both layouts of the weight: outputs first or inputs first, channels first or last."""
    plain = [partial(layer, x) for layer in layers]
    if x.dim() == 2:
        turned = [(layer.bias, layer.weight.t().contiguous()) for layer in layers]
        return [plain, [partial(torch.addmm, bias, x, weight) for bias, weight in turned]]
    last = x.contiguous(memory_format=torch.channels_last)
    return [plain, [partial(channels_last(layer), last) for layer in layers]]


def channels_last(module: Any) -> Any:
    return copy.deepcopy(module).to(memory_format=torch.channels_last)


def torch_int8(layers: Layers, x: Tensor, threads: int) -> Ways:
    """Dynamic quantization, a scale per output.

    Inputs get 7 bits: with 8, the 16-bit sums of AVX2 saturate, and results are off by a fifth.
    """
    dynamic = torch.ops.quantized.linear_dynamic
    return [[partial(dynamic, x, int8_weight(layer), True) for layer in layers]]


def int8_weight(layer: nn.Linear | nn.Conv2d) -> Any:
    weight, zeros = layer.weight.detach(), torch.zeros(len(layer.weight), dtype=torch.int64)
    steps = weight.abs().amax(1).double() / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop these tensors one day
        quantized = torch.quantize_per_channel(weight, steps, zeros, 0, torch.qint8)
    assert layer.bias is not None
    return torch.ops.quantized.linear_prepack(quantized, layer.bias.detach())


# --- onnxruntime ----------------------------------------------------------------------------

BLOCK = 64  # weights that share a scale; of 16 to 256, onnxruntime is fastest with this
INPUTS = {  # MatMulNBits has places for zero points and an order of groups, empty here
    "Gemm": ["x", "w", "b"],
    "MatMulNBits": ["x", "w", "s", "", "", "b"],
    "DynamicQuantizeMatMul": ["x", "w", "s", "", "b"],
}


def onnx_float(layers: Layers, x: Tensor, threads: int) -> Ways:
    return [[onnx_call("Gemm", gemm_inputs(layer), x, threads, transB=1) for layer in layers]]


def gemm_inputs(layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    assert layer.bias is not None
    return {"w": layer.weight.detach().numpy(), "b": layer.bias.detach().numpy()}


def onnx_int8(layers: Layers, x: Tensor, threads: int) -> Ways:
    """Weights in 8 bits with a scale per output; inputs are rounded when they come."""
    op, domain = "DynamicQuantizeMatMul", "com.microsoft"
    return [[onnx_call(op, int8_inputs(layer), x, threads, domain=domain) for layer in layers]]


def int8_inputs(layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    weight = layer.weight.detach().numpy()
    scales = np.abs(weight).max(1) / 127
    codes = np.rint(weight / scales[:, None]).astype(np.int8)
    return {"w": np.ascontiguousarray(codes.T), "s": scales, "b": gemm_inputs(layer)["b"]}


def onnx_2bit(layers: Layers, x: Tensor, threads: int) -> Ways:
    """With float inputs (accuracy level 0), or rounded to 8 bits (4): the faster one counts."""
    return [[nbits_call(layer, x, threads, level) for layer in layers] for level in (0, 4)]


def nbits_call(layer: nn.Linear | nn.Conv2d, x: Tensor, threads: int, level: int) -> Call:
    n, k = layer.weight.shape
    numbers = {"N": n, "K": k, "bits": 2, "block_size": BLOCK, "accuracy_level": level}
    given = nbits_inputs(layer)
    return onnx_call("MatMulNBits", given, x, threads, domain="com.microsoft", **numbers)


def nbits_inputs(layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    """Signs in two bits: the zero point is 2, so -1 is 1 and +1 is 3; four to a byte."""
    weight = layer.weight.detach().numpy()
    n, k = weight.shape
    codes = np.where(weight >= 0, 3, 1).astype(np.uint8).reshape(n, k // BLOCK, BLOCK // 4, 4)
    packed = np.bitwise_or.reduce(codes << np.array([0, 2, 4, 6], np.uint8), axis=-1)
    scales = np.abs(weight).reshape(n, k // BLOCK, BLOCK).mean(-1)
    return {"w": packed, "s": scales, "b": gemm_inputs(layer)["b"]}


def onnx_call(op: str, given: dict[str, Any], x: Tensor, threads: int, **attributes: Any) -> Call:
    onnx, ort = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    make, n = onnx.helper, len(given["b"])
    node = make.make_node(op, INPUTS[op], ["y"], **attributes)
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in given.items()]
    ends = [
        [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [len(x), size])]
        for name, size in (("x", x.shape[1]), ("y", n))
    ]
    graph = make.make_graph([node], "layer", *ends, tensors)
    versions = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
    model = make.make_model(graph, opset_imports=versions, ir_version=10)
    choices = ort.SessionOptions()
    choices.intra_op_num_threads, choices.log_severity_level = threads, 3
    session = ort.InferenceSession(
        model.SerializeToString(), choices, providers=["CPUExecutionProvider"]
    )
    return bound(session, x.numpy(), np.empty((len(x), n), np.float32))


def bound(session: Any, x: Any, out: Any) -> Call:
    """Input and output stay where they are: no copies, no dictionaries."""
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "x", x), (binding.bind_output, "y", out)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def call(keep: Any = x) -> Any:
        session.run_with_iobinding(binding)
        return out

    return call


# --- OpenVINO -------------------------------------------------------------------------------


def openvino_float(layers: Layers, x: Tensor, threads: int) -> Ways:
    if x.dim() == 2:
        return [[openvino_call(affine(layer), x, threads) for layer in layers]]
    return [
        [openvino_call(convolution(layer), x, threads, last, last) for layer in layers]
        for last in (False, True)
    ]


def openvino_binary(layers: Layers, x: Tensor, threads: int) -> Ways:
    """Channels last in the output only: on such an input, OpenVINO 2026.4 crashes."""
    return [
        [openvino_call(binary_convolution(layer), x, threads, False, last) for layer in layers]
        for last in (False, True)
    ]


def affine(layer: Any) -> Callable[[Any, Any], Any]:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return lambda ops, x: ops.add(ops.matmul(x, weight, False, True), bias[None])


def window(layer: Any) -> list[list[int]]:
    return [list(v) for v in (layer.stride, layer.padding, layer.padding, layer.dilation)]


def convolution(layer: Any) -> Callable[[Any, Any], Any]:
    return lambda ops, x: ops.convolution(x, layer.weight.detach().numpy(), *window(layer))


def binary_convolution(layer: Any) -> Callable[[Any, Any], Any]:
    """Sign, products of bits padded with +1, scale per output."""

    def graph(ops: Any, x: Any) -> Any:
        openvino = importlib.import_module("openvino")
        weight = layer.weight.detach().numpy()
        bits = openvino.Tensor(openvino.Type.u1, openvino.Shape(weight.shape))
        bits.data[:] = np.packbits(weight.reshape(-1) >= 0, bitorder="little")
        zero, one = (np.full((1, 1, 1, 1), value, np.float32) for value in (0, 1))
        signs = ops.fake_quantize(x, zero, zero, zero, one, 2)
        filters = openvino.op.Constant(bits)
        sums = ops.binary_convolution(signs, filters, *window(layer), "xnor-popcount", 1.0)
        return ops.multiply(sums, np.abs(weight).mean((1, 2, 3)).reshape(1, -1, 1, 1))

    return graph


def openvino_call(
    graph: Callable[[Any, Any], Any],
    x: Tensor,
    threads: int,
    last_in: bool = False,
    last_out: bool = False,
) -> Call:
    """A graph of one layer; ``last_in`` and ``last_out``: images lie channels last in memory."""
    openvino, ops = importlib.import_module("openvino"), importlib.import_module("openvino.opset1")
    given = (x.permute(0, 2, 3, 1) if last_in else x).contiguous().numpy()
    source = ops.parameter(list(given.shape), np.float32)
    out = graph(ops, ops.transpose(source, np.array([0, 3, 1, 2])) if last_in else source)
    end = ops.transpose(out, np.array([0, 2, 3, 1])) if last_out else out
    choices = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(openvino.Model([end], [source]), "CPU", choices)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(given, shared_memory=True))
    result = request.get_output_tensor().data
    seen = np.moveaxis(result, -1, 1) if last_out else result

    def call(keep: Any = given) -> Any:
        request.infer()
        return seen

    return call


# --- the field ------------------------------------------------------------------------------

FLOAT = Contender("float", "float", 1e-4, torch_float)
PORTABLE = (
    Contender("BW portable", "BW", 1e-5, partial(ours, "exact"), isa="portable"),
    Contender("BWA portable", "BWA", 0.0, partial(ours, "exact"), isa="portable"),
)
FIELD = (
    FLOAT,
    Contender("int8", "float", 0.05, torch_int8, LINEAR),
    Contender("BW", "BW", 1e-5, partial(ours, "exact")),
    Contender("BW input8", "BW", 0.03, partial(ours, "input8")),
    Contender("BWA", "BWA", 0.0, partial(ours, "exact")),
    Contender("BWAA", "BWAA", 0.0, partial(ours, "exact")),
    Contender("ORT float", "float", 1e-4, onnx_float, LINEAR, "onnxruntime", streams=0),
    Contender("ORT int8", "float", 0.05, onnx_int8, LINEAR, "onnxruntime", streams=1),
    Contender("ORT 2-bit", "BW", 0.03, onnx_2bit, LINEAR, "onnxruntime", streams=1),
    Contender("OpenVINO float", "float", 1e-4, openvino_float, BOTH, "openvino", streams=0),
    Contender("OpenVINO binary", "BWA", 1e-5, openvino_binary, CONV, "openvino"),
)
