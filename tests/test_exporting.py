"""ONNX files of hard models compute what the hard models compute, down to the integer."""

import os
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from binarizing import binarize
from proxbit.export import onnx as exporting
from proxbit.export.onnx import export_onnx
from proxbit.models import build, tiny_vit
from proxbit.util.compat import allow_torchvision

onnx = pytest.importorskip("onnx", reason="needs onnx")
pytest.importorskip("onnxscript", reason="needs onnxscript")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
reference = pytest.importorskip("onnx.reference")
op_run = pytest.importorskip("onnx.reference.op_run")

# Exports take seconds: plain BW is left to the transformer below, bipolar BWAA adds no operator.
FILES = [("BWA", False), ("BWAA", False), ("BW", True), ("BWA", True)]
BITS, K = 4, 2.0


class BipolarQuant(op_run.OpRun):
    """QONNX's operator by its definition: scale where x >= 0, -scale elsewhere."""

    op_domain = "qonnx.custom_op.general"

    def _run(self, x: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray]:
        return (np.where(x >= 0, scale, -scale).astype(np.float32),)


@cache
def runner(path: Path) -> Any:
    """What runs a file: onnxruntime, or onnx's own evaluator where it is bipolar."""
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    if any(entry.domain for entry in proto.opset_import):
        return reference.ReferenceEvaluator(proto, new_ops=[BipolarQuant])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, **inputs: Tensor) -> list[Tensor]:
    outputs = runner(path).run(None, {name: t.numpy() for name, t in inputs.items()})
    return [torch.from_numpy(np.asarray(array)) for array in outputs]


def hard(model: nn.Module, method: str = "bnn", task: Any = "BWA", **options: Any) -> nn.Module:
    binarize(model, method, pb.Task(task, bits=BITS, k=K), **options)
    return pb.harden(model).eval()


class Branches(nn.Module):
    """One layer of each kind side by side, each with an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.plus = nn.Conv2d(4, 6, 3, padding=1, groups=2)
        self.minus = nn.Conv2d(4, 3, 3, padding=1, stride=2, bias=False)
        self.zero = nn.Conv2d(4, 3, (3, 2), padding=(2, 1), dilation=(2, 1))
        self.around = nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular", bias=False)
        self.line = nn.Conv1d(4, 3, 5, padding=2)
        self.flat = nn.Linear(100, 3, bias=False)
        self.last = nn.Linear(5, 3)
        self.read = nn.Linear(5, 2, bias=False)  # another module reads its weight
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, kdim=5, vdim=5)
        # Off zero: averages of a few integers cancel, and then rounding decides their sign.
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        images = (self.plus(x), self.minus(x), self.zero(x), self.around(x))
        lines = (self.line(x.flatten(2)), self.flat(x.flatten(1)), self.last(x))
        read, keys = functional.linear(x, self.read.weight), x[:, 0]
        return *images, *lines, read, self.attention(x[:, :, 0, :4], keys, keys)[0]


VIEWS = {"line": lambda x: x.flatten(2), "flat": lambda x: x.flatten(1)}
EXACT = ("plus", "minus", "zero", "around", "line", "flat", "last")


@cache
def branches(task: Any) -> nn.Module:
    """Hard branches; in BWA and BWAA with ReAct's shifts, whole numbers so that inputs hit them."""
    torch.manual_seed(0)
    model = Branches()
    hard(model, "bnn" if task == "BW" else "react", task, only="*", parametrize="read")
    model.minus.pad_value, model.zero.pad_value = -1.0, 0.0
    for module in model.modules():
        if isinstance(module, pb.nn.InputQuantizer):
            module.shift.data = torch.randint(-1, 2, module.shift.shape).float()
    return model


@pytest.fixture(scope="module")
def branches_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """The file of the branches, written once for each task and dialect."""

    @cache
    def write(task: str, bipolar: bool) -> Path:
        path = tmp_path_factory.mktemp("files") / "branches.onnx"
        operators = "qonnx" if bipolar else "standard"
        example = torch.ones(2, 4, 5, 5)
        return export_onnx(branches(task), path, example, operators=operators).path

    return write


def oracle(layer: Any, x: Tensor) -> Tensor:
    """A hard layer as a formula in double precision, where sums of small integers are exact."""
    w, shift = layer.weight.detach(), layer.binary.input_quantizer.shift.detach()
    one = torch.ones((), dtype=torch.float64)
    x, signs = (one.copysign(t) for t in (x - shift, w))
    sums = convolve(layer, x, signs, getattr(layer, "pad_value", 0.0))
    if isinstance(layer.binary.accumulator, pb.nn.WrapAccumulator):
        sums = register(sums)
    y = sums.float() * column(w.abs().flatten(1).amax(1), sums, layer)
    return y if layer.bias is None else y + column(layer.bias.detach(), y, layer)


def register(sums: Tensor) -> Tensor:
    """Two's complement in BITS bits, then back to zero with slope -K at the ends."""
    half = 2 ** (BITS - 1)
    m = (sums + half) % (2 * half) - half
    inside = m.abs() <= K / (K + 1) * half
    return torch.where(inside, m, m.sign() * K * (half - m.abs()))


def column(values: Tensor, y: Tensor, layer: nn.Module) -> Tensor:
    return values if isinstance(layer, nn.Linear) else values.reshape(-1, *[1] * (y.dim() - 2))


def convolve(layer: Any, x: Tensor, w: Tensor, value: float) -> Tensor:
    """A product with an explicit border, for every kind of layer."""
    if isinstance(layer, nn.Linear):
        return x @ w.T
    border = [p for pad in reversed(layer.padding) for p in (pad, pad)]
    around = {"mode": "circular"} if layer.padding_mode == "circular" else {"value": value}
    op = functional.conv1d if isinstance(layer, nn.Conv1d) else functional.conv2d
    padded = functional.pad(x, border, **around)
    return op(padded, w, None, layer.stride, 0, layer.dilation, layer.groups)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "bipolar"), FILES)
@given(batch=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_every_layer_of_a_file_is_the_formula(
    task: str, bipolar: bool, batch: int, seed: int, branches_file: Callable[[str, bool], Path]
) -> None:
    """Whole inputs, zeros of both signs among them, on and beside the shifts; any batch."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (batch, 4, 5, 5), generator=draw).float()
    if not bipolar:  # BipolarQuant takes -0.0 for +1
        x = torch.where((x == 0) & (torch.rand(x.shape, generator=draw) < 0.5), -0.0, x)
    model = branches(task)
    outputs = run(branches_file(task, bipolar), x=x)
    with torch.no_grad():
        eager = model(x)
    for (name, layer), out, own in zip(model.named_children(), outputs, eager, strict=True):
        if task == "BW" or name not in EXACT:
            torch.testing.assert_close(out, own, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(out, own), name
            assert torch.equal(out, oracle(layer, VIEWS.get(name, lambda x: x)(x))), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["BWA", "BWAA"])
def test_a_plain_file_has_standard_operators_only_and_weighs_what_floats_weigh(
    task: str, branches_file: Callable[[str, bool], Path]
) -> None:
    path = branches_file(task, False)
    proto = onnx.load(path)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert {node.domain for node in proto.graph.node} == {""}
    counts = Counter(node.op_type for node in proto.graph.node)
    assert counts["Reciprocal"] <= counts["Floor"]  # no sign is written by a comparison
    # One for each integer sum, of all weights but ``read``; and one for each register.
    assert counts["Floor"] == (22 if task == "BWAA" else 11)
    floats = sum(p.numel() for p in branches(task).parameters())
    stored = sum(np.prod(t.dims, dtype=int) for t in proto.graph.initializer)
    assert floats <= stored < 1.3 * floats
    folder = Path(exporting.__file__).parent
    assert str(folder).encode() not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_a_bipolar_file_says_of_every_binary_tensor_that_it_is(
    task: str, branches_file: Callable[[str, bool], Path]
) -> None:
    graph = onnx.load(branches_file(task, True)).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "BipolarQuant"]
    assert {node.domain for node in nodes} == {"qonnx.custom_op.general"}
    assert all(node.input[1] in constants for node in nodes)  # tools ask for a constant scale
    weights = [node for node in nodes if node.input[0] in constants]
    for node in weights:
        values, scale = (constants[name] for name in node.input)
        assert np.array_equal(np.abs(values), np.broadcast_to(scale, values.shape))
        float_input = task == "BW" or values.shape == (2, 5)  # ``read``
        assert float_input or np.all(scale == 1)
    assert len(weights) == len(pb.binary_weights(branches(task))) == 12
    assert len(nodes) - len(weights) == (0 if task == "BW" else 11)


NETWORKS = {
    "resnet8": lambda: (build("resnet8", image_size=16), torch.randn(3, 3, 16, 16)),
    "tiny_vit": lambda: (tiny_vit(image_size=14, embed_dim=24, depth=1), torch.randn(3, 3, 14, 14)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), [("resnet8", "BWA"), ("tiny_vit", "BW")])
def test_whole_networks_keep_their_outputs(name: str, task: str, tmp_path: Path) -> None:
    if name == "tiny_vit":
        allow_torchvision()
        pytest.importorskip("timm", reason="needs timm")
    model, x = NETWORKS[name]()
    pb.binarize(model, "bnn++", task, relu=nn.Hardtanh)
    model(x)  # batch statistics of its own
    pb.harden(model).eval()
    written = export_onnx(model, tmp_path / "network.onnx", x[:2])
    (out,) = run(written.path, x=x)
    with torch.no_grad():
        torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.BatchNorm1d(3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.a(a) + self.b(b)


@pytest.mark.slow
def test_the_model_stays_and_however_it_is_called_the_file_is_the_same(tmp_path: Path) -> None:
    model = hard(Two(), only="a").train()
    before, parts = {k: v.clone() for k, v in model.state_dict().items()}, str(model)
    pair = (torch.randn(4, 5), torch.randn(4, 3))
    first = export_onnx(model, tmp_path / "first.onnx", pair)
    named = {"a": torch.randn(1, 5), "b": torch.randn(1, 3)}
    second = export_onnx(model, tmp_path / "second.onnx", named)
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.inputs == {"a": ("batch", 5), "b": ("batch", 3)}
    assert model.training and str(model) == parts
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(run(first.path, a=pair[0], b=pair[1])[0], model.eval()(*pair))


@pytest.mark.slow
def test_the_float_baseline_is_a_float_file_and_what_has_no_batch_gets_none(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    pb.binarize(model, "fp")
    x = torch.randn(5)
    written = export_onnx(model.eval(), tmp_path / "float.onnx", x, opset=23)
    with torch.no_grad():
        torch.testing.assert_close(run(written.path, input=x)[0], model(x))
    assert [entry.version for entry in onnx.load(written.path).opset_import] == [23]
    count = written.path.stat().st_size
    assert str(written) == f"{written.path}: {count} B, opset 23, takes input (5)"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(b"old")
    model = hard(nn.Sequential(nn.Linear(5, 4)), only="*")
    empty = onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], []))
    exported = SimpleNamespace(range_constraints={})
    program = SimpleNamespace(model_proto=empty, exported_program=exported)
    monkeypatch.setattr(exporting, "translate_freely", lambda *_: program)

    def full(_: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as during, pytest.raises(OSError, match="no space left"):
        during.setattr(os, "fsync", full)
        export_onnx(model, path, torch.randn(2, 5))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    export_onnx(model, path, torch.randn(2, 5))
    assert path.read_bytes() != b"old"


@pytest.mark.slow
def test_the_snippets_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pb, "export_onnx", export_onnx, raising=False)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip
    names = {"torch": torch, "pb": pb, "model": model, "example": torch.randn(2, 1, 8, 8)}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    *_, line, operators = capsys.readouterr().out.splitlines()
    assert f"print(written)  # {line}\n" in text
    assert operators == str(["BipolarQuant"] * 4)


def soft_model() -> nn.Module:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))
    pb.binarize(model, "bnn++")
    return model


def test_mistakes_are_answered_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "m.onnx", torch.randn(2, 3)
    fine = hard(nn.Sequential(nn.Linear(3, 3)), only="*")
    with pytest.raises(ValueError, match=r"not binarized: call pb\.binarize"):
        export_onnx(nn.Linear(3, 3), path, x)
    with pytest.raises(ValueError, match=r"not hard \(0\.weight, 1\.weight, 2\.weight and 2 more"):
        export_onnx(soft_model(), path, x)
    with pytest.raises(ValueError, match=r"not hard \(0\.weight\): call pb\.harden\(model\) first"):
        few = nn.Sequential(nn.Linear(3, 3))
        pb.binarize(few, only="*")
        export_onnx(few, path, x)
    with pytest.raises(ValueError, match="opset is 18 to 23, not 11"):
        export_onnx(fine, path, x, opset=11)
    with pytest.raises(ValueError, match="there is no folder"):
        export_onnx(fine, tmp_path / "none" / "m.onnx", x)
    with pytest.raises(ValueError, match="it is a folder"):
        export_onnx(fine, tmp_path, x)
    with pytest.raises(ValueError, match=r"float32, this model has torch\.float64"):
        export_onnx(hard(nn.Sequential(nn.Linear(3, 3)), only="*").double(), path, x.double())
    monkeypatch.setattr(exporting, "LIMIT", 40)
    with pytest.raises(ValueError, match=r"below 40 B, this model has \d+ B"):
        export_onnx(fine, path, x)
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"need onnx and onnxscript: pip install proxbit\[onnx\]"):
        export_onnx(fine, path, x)
    assert not list(tmp_path.iterdir())
