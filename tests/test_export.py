"""Hard models leave PyTorch: torch.export and ONNX give what eager gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb

TASKS = ("BW", "BWA", "BWAA")


class Cnn(nn.Module):
    """Wide enough (16 x 9 = 144 products) for an 8-bit accumulator to overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv, self.norm2 = nn.Conv2d(16, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.hardtanh(self.norm1(self.stem(x)))
        x = functional.hardtanh(self.norm2(self.conv(x)))
        return self.head(self.pool(x + self.depthwise(x)).flatten(1))


class Encoder(nn.Module):
    """A transformer block in plain modules, as timm writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 16)
        self.norm1, self.qkv, self.proj = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        x = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return self.head(x.mean(1))


class TorchEncoder(nn.Module):
    """PyTorch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.body, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "cnn": (Cnn, (4, 1, 6, 6)),
    "encoder": (Encoder, (4, 7, 5)),
    "torch encoder": (TorchEncoder, (4, 7, 16)),
}

CASES = [(name, task) for name in ("cnn", "encoder") for task in TASKS] + [("torch encoder", "BWA")]


def hard_model(name: str, task: Any, method: str = "bnn++") -> tuple[nn.Module, Tensor]:
    kind, shape = MODELS[name]
    model, x = kind(), torch.randn(shape)
    pb.binarize(model, method, task)
    model(x)  # batch statistics of its own
    return pb.harden(model).eval(), x


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), CASES)
def test_an_exported_program_equals_eager(name: str, task: str) -> None:
    model, x = hard_model(name, task)
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x))
    keys = {key for key in program.state_dict if "binary" in key}
    assert not keys  # no strength, no unit: only what the float model has


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bc", "pq", "react", "ede+"])
def test_every_kind_of_method_exports(method: str) -> None:
    model, x = hard_model("cnn", "BWA", method)
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.slow
def test_a_program_exported_with_a_free_batch_size_takes_any() -> None:
    model, x = hard_model("cnn", "BWA")
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    more = torch.randn(9, *x.shape[1:])
    with torch.no_grad():
        torch.testing.assert_close(program.module()(more), model(more))


def run_onnx(model: nn.Module, x: Tensor, path: Path) -> list[Tensor]:
    pytest.importorskip("onnx", reason="needs onnx")
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return [torch.from_numpy(array) for array in session.run(None, {entry.name: x.numpy()})]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "task"), CASES)
def test_onnx_runtime_gives_what_pytorch_gives(name: str, task: str, tmp_path: Path) -> None:
    model, x = hard_model(name, task)
    (out,) = run_onnx(model, x, tmp_path / "model.onnx")
    with torch.no_grad():
        torch.testing.assert_close(out, model(x), rtol=1e-5, atol=1e-5)


class Sums(nn.Module):
    """One binary layer alone: without scale and bias its outputs are the integer sums."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("task", ["BWA", "BWAA"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_the_integer_sums_are_exact_in_onnx_runtime(task: Any, kind: str, tmp_path: Path) -> None:
    layer, x = {
        "linear": (nn.Linear(400, 6, bias=False), torch.randn(9, 400)),
        "conv": (nn.Conv2d(40, 6, 3, padding=1, bias=False), torch.randn(2, 40, 5, 5)),
    }[kind]
    with torch.no_grad():
        layer.weight[0] = 1.0
        x[0] = x[0].abs()  # sums of 400 and 360: beyond 8 bits
    model = Sums(layer)
    pb.binarize(model, pb.method("bnn", scale="none"), task, only="*")
    pb.harden(model).eval()
    (out,) = run_onnx(model, x, tmp_path / "sums.onnx")
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(out, expected)
    assert torch.equal(out, out.round())
    if task == "BWA":
        assert float(out.max()) == (400 if kind == "linear" else 360)
