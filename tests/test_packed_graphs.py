"""Packed networks in the graphs of torch: traced, scripted, symbolic, ONNX."""

import io
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.engine.packed import packed_layers
from proxbit.kernels import inference as kernels

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.skipif(kernels.library() is None, reason="the kernels are not built"),
]
tasks = pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x, x, x)[0])  # type: ignore[no-any-return]


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.Hardtanh(), nn.Conv2d(12, 30, 3, 2),
        nn.BatchNorm2d(30), nn.ReLU(), nn.Flatten(), nn.Linear(30 * 9, 33), nn.GELU(),
        nn.Linear(33, 4),
    )  # fmt: skip


NETS = {
    "cnn": (cnn, (2, 3, 8, 8)),
    "attention": (Attention, (2, 5, 24)),
    "conv1d": (lambda: nn.Conv1d(3, 9, 3, padding=1, padding_mode="reflect"), (2, 3, 8)),
    "rows": (lambda: nn.Linear(30, 5), (2, 3, 4, 30)),
}
nets = pytest.mark.parametrize("name", [*NETS])


def example(name: str, task: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A hard network, its packed twin and an input."""
    make, shape = NETS[name]
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        pb.binarize(model, "bnn++", task, only="*")  # type: ignore[arg-type]
    hard = pb.harden(model).eval()
    return hard, pb.pack(hard), torch.randn(shape)


@pytest.mark.parametrize("route", ["bits", "float"])
@tasks
@nets
@torch.no_grad()
def test_a_traced_network_computes_on_new_inputs_what_the_hard_one_does(
    name: str, task: str, route: str
) -> None:
    hard, net, x = example(name, task)
    for _, layer in packed_layers(net):
        layer.take("bits" if layer.sources else route)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(net, x), file)
    file.seek(0)
    traced = torch.jit.load(file)
    for rows in (1, 2, 5):
        y = torch.randn(rows, *x.shape[1:])
        if task == "BW":
            torch.testing.assert_close(traced(y), hard(y), rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(traced(y), hard(y))


@torch.no_grad()
def test_a_traced_network_refuses_inputs_that_its_kernels_cannot_read() -> None:
    for name, wrong in (("rows", (2, 60)), ("cnn", (1, 6, 8, 8))):
        _, net, x = example(name, "BWA")
        traced = torch.jit.trace(net, x)
        with pytest.raises(RuntimeError, match=r"channels on the CPU, not torch.float32 of shape"):
            traced(torch.randn(wrong))
        with pytest.raises(RuntimeError, match=r"float32 inputs .* not torch.float64"):
            traced(x.double())


@nets
def test_script_refuses_in_one_sentence(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"use torch\.jit\.trace\(net, example\)"):
        torch.jit.script(example(name, "BWA")[1])


@tasks
@nets
@torch.no_grad()
def test_fx_takes_packed_layers_for_single_nodes(name: str, task: str) -> None:
    _, net, x = example(name, task)
    outer = nn.Sequential(net)
    graph = torch.fx.symbolic_trace(outer)
    assert torch.equal(graph(x), net(x))
    kinds = {type(graph.get_submodule(str(n.target))) for n in graph.graph.nodes
             if n.op == "call_module"}  # fmt: skip
    assert any(kind.__module__.startswith("proxbit.engine") for kind in kinds)


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript")
@nets
def test_the_legacy_onnx_exporter_is_sent_to_export_onnx(name: str, tmp_path: Path) -> None:
    _, net, x = example(name, "BWA")
    with pytest.raises(NotImplementedError, match=r"give the network to pb\.export_onnx"):
        torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=False)
