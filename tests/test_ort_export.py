"""Networks exported with our operators: ONNX Runtime gives what the packed network gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.export.onnx import export_onnx

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ort_nodes import session


def hard(model: nn.Module, task: Any, x: Any, method: str = "bnn", **options: Any) -> nn.Module:
    """A hard network with batch statistics of its own."""
    pb.binarize(model, method, task, **options)
    with torch.no_grad():
        model(x)
    return pb.harden(model).eval()


def run(path: Path, *inputs: Tensor) -> Any:
    net = session(path)
    names = [entry.name for entry in net.get_inputs()]
    return torch.from_numpy(net.run(None, dict(zip(names, map(_array, inputs), strict=True)))[0])


def _array(x: Tensor) -> Any:
    return x.numpy()


def nodes(path: Path) -> list[Any]:
    import onnx

    return list(onnx.load(path).graph.node)


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in nodes(path)]


class Odd(nn.Module):
    """Every kind of layer: channels that fill no byte, groups, strides, a residual, a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.one, self.norm1 = nn.Conv2d(12, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.two, self.norm2 = nn.Conv2d(20, 12, 1), nn.BatchNorm2d(12)
        self.act = nn.Hardtanh()
        self.grouped = nn.Conv2d(12, 18, 3, stride=2, groups=3, dilation=2, padding=2)
        self.ring = nn.Conv2d(18, 9, 3, padding=1, padding_mode="circular")
        self.line = nn.Conv1d(9, 30, 3, padding=1)
        self.first, self.second = nn.Linear(30, 41), nn.Linear(41, 26)
        self.head = nn.Linear(26, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm0(self.stem(x)))
        x = self.act(x + self.norm2(self.two(self.act(self.norm1(self.one(x))))))
        x = self.ring(self.act(self.grouped(x)))
        x = self.line(x.flatten(2)).mean(2)
        return self.head(self.second(self.act(self.first(x))))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bnn", "react"])
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_every_kind_of_layer_agrees_with_the_packed_network(
    task: str, method: str, tmp_path: Path
) -> None:
    if method == "react" and task == "BW":
        pytest.skip("ReAct shifts inputs, and BW leaves them as they are")
    x = torch.randn(3, 3, 8, 8)
    model = hard(Odd(), task, x, method)
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    with torch.no_grad():
        wanted = pb.pack(model)(x)
    torch.testing.assert_close(run(written.path, x), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run(written.path, x[:1]), wanted[:1], rtol=1e-4, atol=1e-5)


class Chain(nn.Module):
    """Nothing but binary layers, and what they fold: every number of it is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10), nn.Hardtanh(),
            nn.Conv2d(10, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.Hardtanh(),
            nn.Conv2d(16, 6, 3),
        )  # fmt: skip
        self.top = nn.Sequential(nn.Linear(6, 37), nn.Hardtanh(), nn.Linear(37, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return x, self.top(x.flatten(2).transpose(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["BWA", "BWAA"])
def test_sums_and_bits_are_the_same_to_the_last_one(task: str, tmp_path: Path) -> None:
    x = torch.randn(4, 3, 9, 9)
    model = hard(Chain(), task, x, only="*")
    with torch.no_grad():
        model.body[1].running_mean.copy_(torch.randn(10))
        model.body[4].weight.copy_(torch.randn(16))  # some fall, and flip
        wanted = pb.pack(model)(x)
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    found = session(written.path).run(None, {"x": x.numpy()})
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(torch.from_numpy(one), other)
    assert kinds(written.path).count("BinaryConv") == 3
    assert not {"BatchNormalization", "Clip", "Gelu", "Erf"} & set(kinds(written.path))


@pytest.mark.slow
def test_images_between_binary_convolutions_keep_their_channels_last(tmp_path: Path) -> None:
    x = torch.randn(2, 8, 6, 6)
    model = hard(Residual(), "BWA", x, only="*")
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    with torch.no_grad():
        torch.testing.assert_close(run(written.path, x), model(x), rtol=1e-4, atol=1e-5)
    convolutions = [node for node in nodes(written.path) if node.op_type == "BinaryConv"]
    layouts = [{a.name for a in node.attribute} for node in convolutions]
    assert sum("output_layout" in each for each in layouts) == 3
    assert sum("input_layout" in each for each in layouts) == 2
    assert kinds(written.path).count("Transpose") == 1  # of the mean, which keeps its dimensions


class Residual(nn.Module):
    """Two blocks around which the images go unchanged, with a slope for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.act, self.pool = nn.PReLU(8), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = self.act(x + self.two(x))
        return self.pool(self.act(x + self.three(x))) * 2


def tiny(task: str = "BW") -> tuple[nn.Module, Tensor]:
    x = torch.randn(2, 6)
    layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3))
    return hard(layers, task, x, only="*"), x


@pytest.mark.parametrize("operators", ["standard", "qonnx", "matmulnbits"])
def test_a_packed_network_exports_like_the_hard_one(operators: str, tmp_path: Path) -> None:
    model, x = tiny("BWA")
    net = pb.pack(model)
    one = export_onnx(model, tmp_path / "hard.onnx", x, operators=operators)
    two = export_onnx(net, tmp_path / "packed.onnx", x, operators=operators)
    assert kinds(one.path) == kinds(two.path)
    with torch.no_grad():
        torch.testing.assert_close(net(x), pb.pack(model)(x))  # it is still fused
        if operators != "qonnx":
            torch.testing.assert_close(run(two.path, x), model(x))


def test_linear_layers_in_two_bits_need_no_library(tmp_path: Path) -> None:
    import onnxruntime

    model, x = tiny()
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="matmulnbits")
    assert kinds(written.path).count("MatMulNBits") == 3
    net = onnxruntime.InferenceSession(str(written.path), providers=["CPUExecutionProvider"])
    (out,) = net.run(None, {net.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(out), model(x), rtol=1e-4, atol=1e-5)


def test_labels_and_input_travel_in_the_metadata(tmp_path: Path) -> None:
    model, x = tiny()
    form = {"shape": [1, 2, 3], "mean": [0.5], "std": [0.25]}
    net = pb.pack(model)
    pb.save(net, tmp_path / "net", labels=["one", "two", "größer"], input=form)
    loaded = pb.load(tmp_path / "net", nn.Sequential(*(_float(m) for m in model)))
    written = export_onnx(loaded, tmp_path / "net.onnx", x, operators="proxbit")
    facts = session(written.path).get_modelmeta().custom_metadata_map
    assert json.loads(facts["proxbit.labels"]) == ["one", "two", "größer"]
    assert json.loads(facts["proxbit.input"]) == form


def _float(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        return nn.Linear(module.in_features, module.out_features)
    return nn.ReLU()


def test_nodes_have_the_names_of_their_layers(tmp_path: Path) -> None:
    x = torch.randn(2, 6)
    norm = nn.LayerNorm(9)  # at two places, and one of the same content at a third
    layers = [nn.Linear(6, 9), norm, nn.Linear(9, 9), norm, nn.LayerNorm(9), nn.Linear(9, 3)]
    model = hard(nn.Sequential(*layers), "BW", x, only="*")
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    assert [node.name for node in nodes(written.path) if node.domain] == ["", "0", "2", "5"]
    names = [node.name for node in nodes(written.path) if node.name]
    assert len(names) == len(set(names)) > 3  # ONNX Runtime refuses two of a name
    with torch.no_grad():
        torch.testing.assert_close(run(written.path, x), model(x), rtol=1e-4, atol=1e-5)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path) -> None:
    import onnxruntime

    model, x = tiny()
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    with pytest.raises(Exception, match="pip_install_proxbit_runtime"):
        onnxruntime.InferenceSession(str(written.path), providers=["CPUExecutionProvider"])


def test_a_layer_of_few_products_is_unpacked_for_a_standard_operator(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 8, 7, 7)
    model = hard(layers, "BW", x, only="*")
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit")
    assert {"Conv", "WeightConv"} <= set(kinds(written.path))
    with torch.no_grad():
        torch.testing.assert_close(run(written.path, x), model(x), rtol=1e-4, atol=1e-5)


class Bare(nn.Module):
    """A weight without a layer, one whose outputs do not come first, one with five dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.randn(40, 30))
        self.turned = nn.ConvTranspose1d(40, 33, 1)
        self.deep, self.head = nn.Conv3d(1, 8, (33, 3, 3)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.turned(nn.functional.linear(x, self.plain).unsqueeze(2))
        x = x.reshape(-1, 3, 3, 33).movedim(3, 1).unsqueeze(1)
        return self.head(self.deep(x).flatten(1))


def test_weights_without_a_packed_layer_are_held_in_bits_turned_or_not(tmp_path: Path) -> None:
    x = torch.randn(18, 30)
    model = hard(Bare(), "BW", x, only="*", parametrize="*")
    written = export_onnx(model, tmp_path / "net.onnx", x, operators="proxbit", fixed_batch=True)
    assert largest_floats(written.path) <= 40
    assert kinds(written.path).count("Where") == 3
    with torch.no_grad():
        torch.testing.assert_close(run(written.path, x), model(x), rtol=1e-4, atol=1e-5)


def largest_floats(path: Path) -> int:
    import onnx

    held = [t for t in onnx.load(path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    return max(int(np.prod(t.dims)) for t in held)


def test_a_batch_of_one_is_an_example_and_is_fixed_on_request(tmp_path: Path) -> None:
    model, x = tiny()
    free = export_onnx(model, tmp_path / "free.onnx", x[:1], operators="proxbit")
    fixed = export_onnx(model, tmp_path / "fixed.onnx", x, operators="proxbit", fixed_batch=True)
    assert [*free.inputs.values()] == [("batch", 6)]
    assert [*fixed.inputs.values()] == [(2, 6)]
    with torch.no_grad():
        torch.testing.assert_close(run(free.path, x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run(fixed.path, x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="Got: 1 Expected: 2"):
        run(fixed.path, x[:1])


def test_a_network_that_takes_one_input_alone_keeps_its_batch(tmp_path: Path) -> None:
    model, x = tiny()
    alone = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, 6)), *model)
    written = export_onnx(alone, tmp_path / "net.onnx", x[:1], operators="proxbit")
    assert [*written.inputs.values()] == [(1, 6)]


def test_unknown_operators_and_a_missing_example_are_told(tmp_path: Path) -> None:
    model, x = tiny()
    with pytest.raises(ValueError, match="unknown operators 'onnx'"):
        export_onnx(model, tmp_path / "net.onnx", x, operators="onnx")
    with pytest.raises(ValueError, match="does not know its input: give an example"):
        export_onnx(model, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    assert np.isfinite(x.numpy()).all()
