"""Other runtimes for a whole float network: ONNX Runtime and OpenVINO, in float32 and in 8 bits.

The network is exported to ONNX once. Static quantization gets scales from a few images of noise, as
the weights are random too: its speed does not depend on them. OpenVINO runs the very file that ONNX
Runtime quantized, with its scales per output channel.
"""

import importlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pairing import Call
from torch import Tensor, nn

CALIBRATION = 4  # images


@dataclass
class Exported:
    """A float network as ONNX files, each made when it is first asked for."""

    model: nn.Module
    x: Tensor

    @cached_property
    def folder(self) -> Path:
        self._kept = tempfile.TemporaryDirectory()
        return Path(self._kept.name)

    @cached_property
    def plain(self) -> Path:
        path = self.folder / "float.onnx"
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            x = self.x.clone()
            torch.onnx.export(
                self.model, (x,), str(path), input_names=["x"], output_names=["y"],
                opset_version=18, dynamo=False,
            )  # fmt: skip
        return path

    @cached_property
    def prepared(self) -> Path:
        shape = importlib.import_module("onnxruntime.quantization.shape_inference")
        path = self.folder / "prepared.onnx"
        shape.quant_pre_process(str(self.plain), str(path))
        return path

    @cached_property
    def dynamic(self) -> Path:
        quantization = importlib.import_module("onnxruntime.quantization")
        path = self.folder / "dynamic.onnx"
        quantization.quantize_dynamic(str(self.prepared), str(path), per_channel=True)
        return path

    @cached_property
    def static(self) -> Path:
        q = importlib.import_module("onnxruntime.quantization")
        path = self.folder / "static.onnx"
        q.quantize_static(
            str(self.prepared), str(path), noise(self.x), quant_format=q.QuantFormat.QDQ,
            per_channel=True, activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
        )  # fmt: skip
        return path


def noise(x: Tensor) -> Any:
    """Inputs to calibrate with."""
    base = importlib.import_module("onnxruntime.quantization").CalibrationDataReader

    class Noise(base):  # type: ignore[misc, valid-type]
        left = CALIBRATION

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            return {"x": torch.randn(x.shape).numpy()} if self.left >= 0 else None

    return Noise()


def onnx_call(path: Path, x: Tensor, threads: int) -> Call:
    """A call of ONNX Runtime; input and output stay where they are."""
    ort = importlib.import_module("onnxruntime")
    choices = ort.SessionOptions()
    choices.intra_op_num_threads, choices.log_severity_level = threads, 3
    session = ort.InferenceSession(str(path), choices, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    given = x.contiguous().numpy()
    binding.bind_cpu_input("x", given)
    binding.bind_output("y", "cpu")

    def call(keep: Any = given) -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    return call


def openvino_call(path: Path, x: Tensor, threads: int) -> Call:
    openvino = importlib.import_module("openvino")
    choices = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    choices["INFERENCE_PRECISION_HINT"] = "f32"
    model = openvino.Core().read_model(str(path))
    model.reshape(list(x.shape))
    request = openvino.compile_model(model, "CPU", choices).create_infer_request()
    given = x.contiguous().numpy()
    request.set_input_tensor(openvino.Tensor(given, shared_memory=True))

    def call(keep: Any = given) -> Any:
        request.infer()
        return request.get_output_tensor().data

    return call


# Name, package, which file, who runs it.
RUNTIMES: tuple[tuple[str, str, str, Callable[[Path, Tensor, int], Call]], ...] = (
    ("ORT float", "onnxruntime", "plain", onnx_call),
    ("ORT int8 dynamic", "onnxruntime", "dynamic", onnx_call),
    ("ORT int8", "onnxruntime", "static", onnx_call),
    ("OpenVINO float", "openvino", "plain", openvino_call),
    ("OpenVINO int8", "openvino", "static", openvino_call),
)


def run_by(
    kind: str, run: Callable[[Path, Tensor, int], Call], exported: Exported
) -> tuple[Call, int]:
    """A call, and the bytes of the file that it runs."""
    path: Path = getattr(exported, kind)
    call = run(path, exported.x, torch.get_num_threads())
    return partial(call), path.stat().st_size
