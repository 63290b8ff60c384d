"""A packed network is its hard model's, not another's; and what happens to one leaves the other."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import proxbit as pb
from binarizing import binarize


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardtanh(), nn.Conv2d(8, 6, 3),
        nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 5), nn.LayerNorm(5), nn.PReLU(),
    )  # fmt: skip


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(24, 2, 32, batch_first=True)


def hard(model: nn.Module, task: Any = "BWA", **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.SettingsWarning)
        binarize(model, "bnn++", task, **({"only": "*"} | options))
    return pb.harden(model).eval()


# every weight is what its bits say ----------------------------------------------------------------

CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "one value": lambda w: w.view(-1)[3].mul_(1.0001),
    "an adapter": lambda w: w.add_(torch.randn(w.shape[0], 1) @ torch.randn(1, w.shape[1]) / 9),
    "a zero": lambda w: w.view(-1)[0].zero_(),
    "another network": lambda w: w.copy_(torch.randn_like(w)),
}


@pytest.mark.parametrize("way", ["swapped", "parametrized"])
@pytest.mark.parametrize("change", [*CHANGES])
@torch.no_grad()
def test_a_weight_that_is_not_its_scale_is_named(change: str, way: str) -> None:
    layers = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 8), nn.Linear(8, 4))
    model = hard(layers, "BW", **({"parametrize": "*"} if way == "parametrized" else {}))
    weight = pb.binary_weights(model)[1]
    CHANGES[change](weight.parameter)
    with pytest.raises(ValueError, match=r"\+scale or -scale .* 1\.weight are not: they were chan"):
        pb.pack(model)


@torch.no_grad()
def test_one_projection_of_attention_that_was_changed_is_named() -> None:
    model: Any = hard(attention())
    model.self_attn.in_proj_weight[30, 2] *= 2
    with pytest.raises(ValueError, match=r"in_proj_weight\[k\] are not"):
        pb.pack(model)


def test_a_scale_of_a_whole_layer_holds_for_all_of_its_rows() -> None:
    model = hard(nn.Sequential(nn.Linear(9, 8)), "BW", scale="layer")
    with torch.no_grad():
        model[0].weight[2] *= 2  # type: ignore[index,operator,union-attr]
    with pytest.raises(ValueError, match=r"0\.weight are not"):
        pb.pack(model)


def test_a_parametrization_on_top_of_ours_is_named() -> None:
    class Twice(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 2 * w

    model = hard(nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 8)), "BW", parametrize="*")
    parametrize.register_parametrization(model[1], "weight", Twice())  # type: ignore[index]
    with pytest.raises(ValueError, match=r"1\.weight are not"):
        pb.pack(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_cast_keeps_weights_binary(dtype: torch.dtype) -> None:
    pb.pack(hard(net()).to(dtype))


# two networks -------------------------------------------------------------------------------------


def state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a user could see change."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    modes = {f"{name} trains": m.training for name, m in model.named_modules()}
    held = {name: (t.clone(), t.dtype, t.device.type, t.requires_grad) for name, t in tensors}
    hooks = {f"{name} hooks": len(m._forward_hooks) for name, m in model.named_modules()}
    attributes = {f"{name} eps": getattr(m, "eps", None) for name, m in model.named_modules()}
    return modes | held | hooks | attributes


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def equal(x: Any, y: Any) -> bool:
        if isinstance(x, tuple):
            return x[1:] == y[1:] and (x[2] == "meta" or torch.equal(x[0], y[0]))
        return bool(x == y)

    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


def fill(model: nn.Module) -> None:
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            t.zero_()


def hook(model: nn.Module) -> None:
    for module in model.modules():
        module.register_forward_hook(lambda *_: None)


def set_eps(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 0.5


ACTS: dict[str, Callable[[nn.Module], object]] = {
    "train": lambda m: m.train(), "double": lambda m: m.double(), "half": lambda m: m.half(),
    "meta": lambda m: m.to("meta"), "freeze": lambda m: m.requires_grad_(False), "fill": fill,
    "hook": hook, "attributes": set_eps, "share": lambda m: m.share_memory(),
}  # fmt: skip


@pytest.mark.parametrize("make", [net, attention])
@pytest.mark.parametrize("act", [*ACTS])
def test_nothing_done_to_one_network_reaches_the_other(
    act: str, make: Callable[[], nn.Module]
) -> None:
    for turn in (0, 1):
        model = hard(make())
        both = [model, pb.pack(model)]
        before = state(both[1 - turn])
        ACTS[act](both[turn])
        assert same(state(both[1 - turn]), before)


def test_training_batch_norms_of_a_packed_network_leaves_the_hard_one() -> None:
    model = hard(net())
    packed, x = pb.pack(model), torch.randn(4, 3, 6, 6)
    before = model(x)
    packed.train()
    packed(x)
    assert not any(m.training for m in model.modules())
    assert torch.equal(model(x), before)


def test_restoring_a_copy_leaves_the_parametrized_original() -> None:
    model = hard(nn.Sequential(nn.Linear(9, 8), nn.Bilinear(8, 8, 2)), "BW", parametrize="*")
    before = model[0].weight.clone()  # type: ignore[index,operator,union-attr]
    pb.restore(copy.deepcopy(model))
    assert torch.equal(model[0].weight, before)  # type: ignore[index,union-attr,arg-type]
    assert parametrize.is_parametrized(model[1])  # type: ignore[index]


# what other code looks for ------------------------------------------------------------------------


class Reads(nn.Module):
    """Its forward reads attributes of its layers, as timm's DaViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, padding_mode="circular")
        self.fc = nn.Linear(4, 3)
        self.fc.temperature = 0.5  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        side = self.conv.kernel_size[0] * self.conv.padding[0] + self.conv.in_channels  # type: ignore[operator]
        assert self.conv.out_channels == 4 and self.conv.padding_mode == "circular"
        x = nn.functional.pad(x, (0, side, 0, 0))
        return self.fc(self.conv(x).mean((2, 3))) * self.fc.temperature  # type: ignore[operator]


@pytest.mark.parametrize("task", ["BW", "BWA"])
@torch.no_grad()
def test_a_packed_layer_keeps_the_public_attributes_of_its_layer(task: str, tmp_path: Any) -> None:
    float_model = Reads()
    model, x = hard(copy.deepcopy(float_model), task), torch.randn(2, 4, 7, 7)
    packed: Any = pb.pack(model)
    pb.save(packed, tmp_path / "a")
    for found in (packed, pb.load(tmp_path / "a", Reads())):
        torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-5)
        for name in ("conv", "fc"):
            public = {k for k in vars(getattr(float_model, name)) if not k.startswith("_")}
            for key in public | {"weight", "bias"}:
                ours, theirs = (getattr(getattr(m, name), key) for m in (found, model))
                assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs


def test_an_attribute_that_cannot_be_kept_is_one_error() -> None:
    model: Any = hard(nn.Sequential(nn.Linear(9, 8)), "BW")
    model[0].route = "north"
    with pytest.raises(ValueError, match=r"'0' has an attribute 'route' of its own.*another name"):
        pb.pack(model)


@torch.no_grad()
def test_tensors_and_modules_beside_the_weight_go_along(tmp_path: Any) -> None:
    def make() -> nn.Sequential:
        layer: Any = nn.Linear(30, 8)
        layer.register_buffer("scaler", torch.ones(1))
        layer.extra = nn.Parameter(torch.ones(2))
        return nn.Sequential(layer)

    model: Any = hard(make(), "BW", only="0")
    model[0].scaler.fill_(3.0)
    packed: Any = pb.pack(model)
    pb.save(packed, tmp_path / "a")
    loaded: Any = pb.load(tmp_path / "a", make())
    assert packed[0].scaler.item() == loaded[0].scaler.item() == 3.0
    assert torch.equal(loaded[0].extra, model[0].extra)


@torch.no_grad()
def test_a_layer_whose_forward_was_replaced_keeps_it() -> None:
    model: Any = hard(nn.Sequential(nn.Linear(30, 8)), "BW")
    old = model[0].forward
    model[0].forward = lambda x: old(x) + 1
    with pytest.warns(pb.KernelWarning, match=r"0\.weight"):
        packed = pb.pack(model)
    x = torch.randn(2, 30)
    assert torch.equal(packed(x), model(x))
