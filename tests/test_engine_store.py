"""Packed networks in files: what is loaded is what was saved, or one sentence says why not."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine.packing import packed_layers
from proxbit.models import build
from proxbit.packfile.file import read
from proxbit.util.compat import allow_torchvision

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning:timm.*"
)
TASKS = ["BW", "BWA", "BWAA"]
tasks = pytest.mark.parametrize("task", TASKS)


def settled(model: nn.Module) -> nn.Module:
    """Norms as after a training: every channel its own."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return model


def hard(model: nn.Module, task: Any = "BWA", method: str = "bnn++", **options: Any) -> nn.Module:
    options = {"only": "*"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        binarize(model, method, task, **options)
    for quantizer in model.modules():
        if isinstance(quantizer, pb.nn.InputQuantizer) and quantizer.shift is not None:
            nn.init.normal_(quantizer.shift, std=0.3)
    return pb.harden(settled(model)).eval()


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding="same"), nn.BatchNorm2d(12), nn.Hardtanh(),
        nn.Conv2d(12, 12, 3, 2, 1, groups=12, bias=False), nn.BatchNorm2d(12),
        nn.Conv2d(12, 10, 3, padding=1, padding_mode="reflect"), nn.Flatten(2),
        nn.Conv1d(10, 6, 3, dilation=2), nn.Flatten(), nn.Linear(6 * 12, 4),
    )  # fmt: skip


class Attentions(nn.Module):
    """PyTorch's attention with one weight for all projections, and with three."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.MultiheadAttention(24, 3, batch_first=True)
        self.three = nn.MultiheadAttention(24, 2, kdim=8, vdim=8, add_bias_kv=True)
        for attention in (self.one, self.three):
            nn.init.normal_(attention.in_proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x, x, x)[0]
        return self.three(y, x[..., :8], x[..., :8])[0]  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One layer under two names, another called twice, and two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(25, 25)
        self.b = self.a
        self.c, self.d = nn.Linear(25, 25), nn.Linear(25, 25)
        self.d.weight = self.c.weight
        self.norm = nn.LayerNorm(25)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.b(self.norm(self.a(x))))
        return self.d(self.norm(self.c(self.norm(self.c(y)))))  # type: ignore[no-any-return]


class Reader(nn.Module):
    """Reads the weight of a layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(25, 25), nn.Linear(25, 5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.a(x).tanh(), self.b.weight, self.b.bias)


def transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(24, 3, 30, batch_first=True)
    return nn.TransformerEncoder(block, 2, enable_nested_tensor=False)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(33, 5), (4, 33)), "convolutions": (convolutions, (2, 3, 8, 8)),
    "attention": (lambda: nn.Sequential(Attentions()), (2, 4, 24)), "shared": (Shared, (3, 25)),
    "transformer": (transformer, (2, 4, 24)),
}  # fmt: skip
nets = pytest.mark.parametrize("name", [*NETS])


def need_timm() -> None:
    allow_torchvision()
    pytest.importorskip("timm", reason="needs timm")


def close(task: str, ours: Tensor, theirs: Tensor) -> bool:
    if task != "BW":
        return torch.equal(ours, theirs)
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bnn++", "react"])
@tasks
@nets
@torch.no_grad()
def test_what_is_loaded_is_what_was_saved(
    name: str, task: str, method: str, tmp_path: Path
) -> None:
    make, shape = NETS[name]
    model = hard(make(), task, method)
    net, x = pb.pack(model), torch.randn(shape)
    path, again = tmp_path / "net.safetensors", tmp_path / "again.safetensors"
    pb.save(net, path)
    skeleton = make()
    before = {n: t.clone() for n, t in skeleton.state_dict().items()}
    loaded = pb.load(path, skeleton)
    assert torch.equal(loaded(x), net(x))
    assert close(task, loaded(x), model(x))
    assert all(torch.equal(t, before[n]) for n, t in skeleton.state_dict().items())
    assert not any(module.training for module in loaded.modules())
    pb.save(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    for other in (pb.load(path, make()), pb.load(again, make(), example=x)):
        assert close(task, other(x), model(x))


@torch.no_grad()
def test_an_attention_alone_is_saved_and_loaded(tmp_path: Path) -> None:
    model = hard(nn.MultiheadAttention(8, 2))
    pb.save(pb.pack(model), tmp_path / "a")
    x = torch.randn(4, 2, 8)
    loaded = pb.load(tmp_path / "a", nn.MultiheadAttention(8, 2))
    assert torch.equal(loaded(x, x, x)[0], model(x, x, x)[0])


def test_a_shared_layer_is_stored_once(tmp_path: Path) -> None:
    pb.save(pb.pack(hard(Shared())), tmp_path / "a")
    held = read(tmp_path / "a")
    assert [w.name for w in held.weights] == ["a.weight", "c.weight"]
    assert held.tied == {"b.weight": "a.weight", "b.bias": "a.bias", "d.weight": "c.weight"}
    assert sorted(held.floats) == ["a.bias", "c.bias", "d.bias", "norm.bias", "norm.weight"]


@tasks
@torch.no_grad()
def test_weights_that_others_read_stay_readable(task: str, tmp_path: Path) -> None:
    model = hard(Reader(), task, parametrize="b")
    net, x = pb.pack(model), torch.randn(3, 25)
    pb.save(net, tmp_path / "a")
    loaded = pb.load(tmp_path / "a", Reader())
    assert [w.name for w in read(tmp_path / "a").weights] == ["a.weight", "b.weight"]
    for found in (net(x), loaded(x)):
        assert torch.allclose(found, model(x), rtol=1e-4, atol=1e-5)


ARCHITECTURES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "resnet8": ({"width": 4, "classes": 3}, (2, 3, 16, 16)),
    "tiny_vit": ({"image_size": 14, "channels": 1, "depth": 1}, (2, 1, 14, 14)),
    "timm/resnet10t": ({"classes": 4, "image_size": 32}, (1, 3, 32, 32)),
}


@pytest.mark.parametrize("name", [*ARCHITECTURES])
@torch.no_grad()
def test_known_architectures_need_no_skeleton(name: str, tmp_path: Path) -> None:
    if name != "resnet8":
        need_timm()
    options, shape = ARCHITECTURES[name]
    model = hard(build(name, **options), only=None)
    x = torch.randn(shape)
    net = pb.pack(model)
    pb.save(net, tmp_path / "a")
    loaded = pb.load(tmp_path / "a")
    assert torch.equal(loaded(x), net(x))
    # Packed convolutions keep channels last in memory, where a float mean sums in another order.
    assert torch.allclose(loaded(x), model(x), rtol=1e-5, atol=1e-5)
    pb.save(loaded, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_the_users_own_architecture_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(4, 3))\n")
    pb.save(pb.pack(hard(build(f"{file}:net"))), tmp_path / "a")
    file.write_text("raise SystemExit('it ran')\n")
    with pytest.raises(ValueError, match=r"mine\.py.*not run.*skeleton="):
        pb.load(tmp_path / "a")
    loaded = pb.load(tmp_path / "a", nn.Sequential(nn.Linear(4, 3)))
    assert loaded(torch.ones(4)).shape == (3,)


# what binarize and training change beside weights -------------------------------------------------


def with_relu(kind: str) -> nn.Module:
    if kind == "transformer":
        return transformer()
    one = nn.ReLU()
    norm = nn.BatchNorm1d(25)
    return nn.Sequential(nn.Linear(6, 25), one, nn.Linear(25, 25), norm, one, nn.Linear(25, 5))


RELUS: dict[str, Callable[[], nn.Module]] = {
    "hardtanh": nn.Hardtanh, "prelu": nn.PReLU, "slopes": lambda: nn.PReLU(25),
    "identity": nn.Identity, "tanh": nn.Tanh,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["relu", "transformer"])
@pytest.mark.parametrize("relu", [*RELUS])
@torch.no_grad()
def test_replaced_relus_come_back(kind: str, relu: str, tmp_path: Path) -> None:
    if kind == "transformer" and relu == "slopes":
        pytest.skip("its PReLU would take tokens for channels")
    model = hard(with_relu(kind), relu=RELUS[relu])
    for module in model.modules():
        if isinstance(module, nn.PReLU):
            nn.init.normal_(module.weight)
    x = torch.randn(2, 4, 24) if kind == "transformer" else torch.randn(7, 6)
    pb.save(pb.pack(model), tmp_path / "a")
    assert torch.equal(pb.load(tmp_path / "a", with_relu(kind))(x), model(x))


def test_a_replacement_that_a_file_cannot_name_is_refused_on_saving(tmp_path: Path) -> None:
    class Mine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - 0.5

    for relu in (Mine, lambda: nn.Hardtanh(-0.1, 0.2)):
        model = hard(with_relu("relu"), relu=relu)
        with pytest.raises(ValueError, match="in the place of a ReLU"):
            pb.save(pb.pack(model), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["transformer", "tiny_vit"])
@torch.no_grad()
def test_extra_norms_behind_attention_come_back(kind: str, tmp_path: Path) -> None:
    from proxbit.nn.attention_norm import add_attention_norms

    if kind == "tiny_vit":
        need_timm()
    make = transformer if kind == "transformer" else lambda: build(
        "tiny_vit", image_size=14, embed_dim=24, depth=2)  # fmt: skip
    model = make()
    for name in add_attention_norms(model):
        nn.init.normal_(model.get_submodule(name).weight)  # type: ignore[arg-type]
    model = hard(model, only=None if kind == "tiny_vit" else "*")
    x = torch.randn(2, 4, 24) if kind == "transformer" else torch.randn(1, 3, 14, 14)
    net = pb.pack(model)
    assert torch.equal(net(x), model(x))
    pb.save(net, tmp_path / "a")
    assert torch.equal(pb.load(tmp_path / "a", make())(x), model(x))


# what a file knows --------------------------------------------------------------------------------


def test_labels_and_input_are_kept(tmp_path: Path) -> None:
    net = pb.pack(hard(nn.Linear(4, 2)))
    about = {"shape": [3, 8, 8], "mean": [0.5], "std": [0.2]}
    pb.save(net, tmp_path / "a", labels=["cat", "dog"], input=about)
    loaded = pb.load(tmp_path / "a", nn.Linear(4, 2))
    pb.save(loaded, tmp_path / "b")
    for path in (tmp_path / "a", tmp_path / "b"):
        known = read(path).about
        assert (known.labels, known.input) == (("cat", "dog"), about)
        assert (known.method, known.task) == ("BNN++", "BWA")
    pb.save(loaded, tmp_path / "c", labels=["x", "y"])
    assert read(tmp_path / "c").about.labels == ("x", "y")


@pytest.mark.parametrize(
    ("options", "room"), [({"float_rest": "float16"}, 1e-3), ({"tables": "int8"}, 1e-2)]
)
@torch.no_grad()
def test_smaller_floats_change_floats_only(
    options: dict[str, str], room: float, tmp_path: Path
) -> None:
    make = lambda: nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 80))  # noqa: E731
    model = hard(make(), only="0")
    pb.save(pb.pack(model), tmp_path / "a")
    pb.save(pb.pack(model), tmp_path / "b", **options)
    plain, small = read(tmp_path / "a"), read(tmp_path / "b")
    assert (tmp_path / "b").stat().st_size < (tmp_path / "a").stat().st_size
    for one, other in zip(plain.weights, small.weights, strict=True):
        assert torch.equal(one.bits, other.bits)
        assert torch.equal(one.scale, other.scale)  # type: ignore[arg-type]
    changed = [n for n in plain.floats if not torch.equal(plain.floats[n], small.floats[n])]
    assert changed == (["2.weight"] if "tables" in options else ["2.weight", "2.bias", "0.bias"])
    for name in changed:
        assert torch.allclose(plain.floats[name], small.floats[name], atol=room)
    x, rounded = torch.randn(3, 64), copy.deepcopy(model)
    rounded.load_state_dict(small.floats, strict=False)
    torch.testing.assert_close(pb.load(tmp_path / "b", make())(x), rounded(x))


# mistakes -----------------------------------------------------------------------------------------


def two(hidden: int = 8, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(6, hidden, bias), nn.LayerNorm(hidden), nn.Linear(hidden, 5))


MISMATCHES: list[tuple[nn.Module, str]] = [
    (two(9), r"'0\.weight' has the shape \(8, 6\).*skeleton \(9, 6\)"),
    (nn.Sequential(nn.Linear(6, 8)), r"a weight '2\.weight', and the skeleton has none"),
    (nn.Sequential(*two(), nn.Linear(5, 2)), r"skeleton has a tensor '3\.weight', and it has none"),
    (two(bias=False), r"a tensor '0\.bias', and the skeleton has none"),
    (
        nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 5)),
        r"a tensor '1\.weight', and the skeleton has none",
    ),
    (
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(4), nn.Linear(8, 5)),
        r"'1\.weight' has the shape \(8,\).*skeleton \(4,\)",
    ),
    (nn.Sequential(nn.Conv1d(6, 8, 1), nn.LayerNorm(8), nn.Linear(8, 5)), r"'0\.weight'"),
]


@pytest.mark.parametrize(("skeleton", "words"), MISMATCHES)
def test_another_skeleton_is_refused_and_the_first_difference_named(
    skeleton: nn.Module, words: str, tmp_path: Path
) -> None:
    pb.save(pb.pack(hard(two())), tmp_path / "a")
    before = str(skeleton)
    with pytest.raises(ValueError, match=rf"cannot load '.*a': .*{words}") as caught:
        pb.load(tmp_path / "a", skeleton)
    assert "\n" not in str(caught.value)
    assert str(skeleton) == before


def test_an_attention_of_other_widths_is_refused(tmp_path: Path) -> None:
    pb.save(pb.pack(hard(nn.Sequential(nn.MultiheadAttention(8, 2)))), tmp_path / "a")
    with pytest.raises(ValueError, match=r"'0\.\w+.* has the shape"):
        pb.load(tmp_path / "a", nn.Sequential(nn.MultiheadAttention(12, 2)))
    with pytest.raises(ValueError, match="in_proj_weight"):
        pb.load(tmp_path / "a", nn.Sequential(nn.MultiheadAttention(8, 2, kdim=4)))


def test_mistakes_on_saving_are_one_sentence(tmp_path: Path) -> None:
    net = pb.pack(hard(two()))
    for model in (two(), hard(two())):
        with pytest.raises(ValueError, match=r"not packed: call pb\.pack"):
            pb.save(model, tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="create it"):
        pb.save(net, tmp_path / "no" / "a")
    with pytest.raises(ValueError, match="is a folder"):
        pb.save(net, tmp_path)
    with pytest.raises(ValueError, match="float8"):
        pb.save(net, tmp_path / "a", float_rest="float8")
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_an_architecture_asks_for_a_skeleton(tmp_path: Path) -> None:
    pb.save(pb.pack(hard(two())), tmp_path / "a")
    with pytest.raises(ValueError, match=r"cannot load '.*a': .*skeleton="):
        pb.load(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        pb.load(tmp_path / "b")


@torch.no_grad()
def test_a_loaded_network_is_packed_and_copies(tmp_path: Path) -> None:
    model = hard(convolutions())
    pb.save(pb.pack(model), tmp_path / "a")
    loaded = pb.load(tmp_path / "a", convolutions())
    assert len([*packed_layers(loaded)]) == 5
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(copy.deepcopy(loaded)(x), model(x))
    assert pb.summary(loaded).to_dict() == pb.summary(pb.pack(model)).to_dict()
