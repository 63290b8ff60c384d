"""Binary weights without a packed kernel: named, floats in memory, one bit each in a file."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine.packed import packed_layers
from proxbit.engine.packed_layers import PackedLinear
from proxbit.nn import BinaryLayer, BinaryLinear
from proxbit.packfile.file import read


class Conv1D(nn.Module):
    """As transformers has it: a linear layer with its inputs first."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, self.nx), self.weight).view(*x.shape[:-1], self.nf)


class Experts(nn.Module):
    def __init__(self, is_transposed: bool = False) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        self.up = nn.Parameter(torch.randn(3, 6, 10))

    def forward(self, x: Tensor) -> Tensor:
        w = self.up if self.is_transposed else self.up.transpose(1, 2)
        return x @ w  # type: ignore[no-any-return]


class Last(nn.Module):
    """The first of what an RNN returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: Last(nn.LSTM(8, 5, num_layers=2, bidirectional=True)), (4, 2, 8)),
    "gru": (lambda: Last(nn.GRU(8, 5, batch_first=True)), (2, 4, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "transposed groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (2, 4, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 5, 3), (2, 2, 4, 4, 4)),
    "experts": (Experts, (3, 4, 10)),
    "experts, inputs first": (lambda: Experts(True), (3, 4, 6)),
}
odd = pytest.mark.parametrize("name", [*ODD])


def hard(model: nn.Module, task: Any = "BW", **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        binarize(model, "bnn++", task, **options)
    return pb.harden(model).eval()


def quietly(model: nn.Module, *arguments: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.KernelWarning)
        return pb.pack(model, *arguments)


@odd
def test_what_cannot_be_packed_is_named_by_a_warning_and_in_the_summary(name: str) -> None:
    model = hard(nn.Sequential(nn.Linear(8, 8), ODD[name][0]()), only="*", parametrize="1*")
    names = [w.name for w in pb.binary_weights(model) if w.name.startswith("1")]
    with pytest.warns(pb.KernelWarning, match="one bit per weight") as seen:
        net = pb.pack(model)
    assert len(seen) == 1 and names[0] in str(seen[0].message)
    parts = {part.name: part for part in pb.summary(net).parts if part.bits == 1}
    for each in names:
        assert parts[each.removesuffix(".weight")].route == "float"
    assert "compute unpacked" in str(pb.summary(net))


@odd
@torch.no_grad()
def test_a_model_of_parametrized_weights_alone_has_one_bit_per_weight_on_disk(
    name: str, tmp_path: Path
) -> None:
    make, shape = ODD[name]
    model, x = hard(make(), parametrize="*"), torch.randn(shape)
    net = quietly(model, x)
    assert not list(packed_layers(net)) and not pb.binary_weights(net)
    pb.save(net, tmp_path / "a")
    held = read(tmp_path / "a")
    weights = pb.binary_weights(model)
    assert [w.name for w in held.weights] == [w.name for w in weights]
    for mine, theirs in zip(held.weights, weights, strict=True):
        assert mine.bits.nbytes == math.ceil(theirs.parameter.numel() / 8)
        assert torch.equal(mine.dense(), theirs.parameter)
    loaded = pb.load(tmp_path / "a", make())
    for found in (net, loaded):
        torch.testing.assert_close(found(x), model(x))
    assert str(pb.summary(loaded)) == str(pb.summary(net))
    pb.save(loaded, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@odd
def test_a_model_that_has_just_trained_can_be_packed(name: str) -> None:
    """An LSTM keeps its parametrized weights with their graph, which deepcopy refuses."""
    make, shape = ODD[name]
    model, x = make(), torch.randn(shape)
    pb.binarize(model, "bnn++", parametrize="*")
    model(x).sum().backward()
    pb.harden(model).eval()
    model(x).sum()
    assert torch.equal(quietly(model)(x), model(x))
    model(x).sum()  # and the hard one goes on


@torch.no_grad()
def test_a_saved_weight_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    net: Any = quietly(hard(nn.Sequential(nn.Conv3d(2, 5, 3)), parametrize="*"))
    net[0].weight[0, 0, 0, 0, 0] *= 1.5
    with pytest.raises(ValueError, match=r"'0\.weight' was binary when the network was packed"):
        pb.save(net, tmp_path / "a")


@torch.no_grad()
def test_a_file_holds_the_scales_that_were_loaded_since(tmp_path: Path) -> None:
    one, other = (
        quietly(hard(nn.Sequential(nn.Conv3d(2, 5, 3)), parametrize="*")) for _ in range(2)
    )
    one.load_state_dict(other.state_dict())
    for net, name in ((one, "a"), (other, "b")):
        pb.save(net, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("task", ["BW", "BWA"])
@torch.no_grad()
def test_a_linear_layer_with_inputs_first_is_packed(task: str, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(Conv1D(40, 30), nn.Tanh(), Conv1D(9, 40))

    model: Any = hard(make(), task, only="*", parametrize="*")
    net, x = pb.pack(model), torch.randn(2, 5, 30)
    pb.save(net, tmp_path / "a")
    loaded: Any = pb.load(tmp_path / "a", make())
    assert len([*packed_layers(loaded)]) == 2 and isinstance(loaded[0], PackedLinear)
    for found in (net, loaded):
        torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(loaded[0].weight, model[0].weight)
    assert (loaded[0].nf, loaded[0].nx) == (40, 30)
    assert read(tmp_path / "a").weights[0].shape == (40, 30)  # outputs first


@torch.no_grad()
def test_parametrized_linear_layers_and_convolutions_are_packed() -> None:
    model = hard(nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 5)), only="*",
                 parametrize="*")  # fmt: skip
    net, x = pb.pack(model), torch.randn(2, 4, 4, 4)
    assert len([*packed_layers(net)]) == 2
    torch.testing.assert_close(net(x), model(x), rtol=1e-4, atol=1e-5)


class Doubling(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class BinaryDoubling(BinaryLinear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("way", ["parametrize", "swaps"])
@torch.no_grad()
def test_a_layer_with_a_forward_of_its_own_keeps_it(way: str, tmp_path: Path) -> None:
    options: Any = {"parametrize": "*", "only": "*"}
    if way == "swaps":
        options = {"swaps": pb.SWAPS | {Doubling: BinaryDoubling}, "only": "*"}
    model, x = hard(nn.Sequential(Doubling(30, 8)), **options), torch.randn(2, 30)
    net = quietly(model)
    pb.save(net, tmp_path / "a")
    assert torch.equal(net(x), model(x))
    assert torch.equal(pb.load(tmp_path / "a", nn.Sequential(Doubling(30, 8)))(x), model(x))


def test_binary_inputs_that_no_skeleton_knows_are_refused_on_saving(tmp_path: Path) -> None:
    swaps: Any = pb.SWAPS | {Doubling: BinaryDoubling}
    net = quietly(hard(nn.Sequential(Doubling(30, 8)), "BWA", swaps=swaps, only="*"))
    with pytest.raises(ValueError, match=r"cannot hold '0\.weight': BinaryDoubling has binary"):
        pb.save(net, tmp_path / "a")
    assert isinstance(net[0], BinaryLayer)  # type: ignore[index]


@pytest.mark.parametrize("given", [Doubling, torch.zeros(1), "net.py"])
def test_load_says_what_a_skeleton_is(given: Any, tmp_path: Path) -> None:
    pb.save(pb.pack(hard(nn.Sequential(nn.Linear(30, 8)), only="*")), tmp_path / "a")
    with pytest.raises(TypeError, match=r"skeleton= is a float model"):
        pb.load(tmp_path / "a", given)


def test_load_refuses_a_skeleton_that_is_binary_itself(tmp_path: Path) -> None:
    model = hard(nn.Sequential(nn.Linear(30, 8)), only="*")
    pb.save(pb.pack(model), tmp_path / "a")
    for given in (model, pb.pack(model)):
        with pytest.raises(ValueError, match="binarized or packed"):
            pb.load(tmp_path / "a", given)
