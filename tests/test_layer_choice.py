"""Which layers become binary, and what the report says of them."""

import copy
import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import proxbit as pb
from small_models import (
    BINARY_METHODS,
    ReadsTheWeight,
    assert_unchanged,
    binary_names,
    cnn,
    images,
    mlp,
    snapshot,
)

# Which layers -------------------------------------------------------------------------------------


def test_the_first_convolution_and_the_classifier_stay_float() -> None:
    model = cnn()
    report = pb.binarize(model, "bnn++")
    why = {line.name: line.why for line in report.layers if not line.binary}
    assert why == {"0": "first convolution", "9": "last classifier"}
    assert binary_names(report) == ["3", "7"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("*", ["0", "3", "7", "9"]),
        ("7", ["7"]),
        (["0", "9"], ["0", "9"]),
        ("[37]", ["3", "7"]),
        (lambda name, module: isinstance(module, nn.Linear), ["7", "9"]),
        (lambda name, module: name == "0", ["0"]),
    ],
)
def test_only_binarizes_exactly_these(only: Any, expected: list[str]) -> None:
    model = cnn()
    report = pb.binarize(model, "bnn", only=only)
    assert binary_names(report) == expected
    assert [w.name.split(".")[0] for w in pb.binary_weights(model)] == expected
    others = [line for line in report.layers if not line.binary]
    assert all(line.why == "not in only=" for line in others)


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ("3", ["7"]),
        (["7"], ["3"]),
        (lambda name, module: isinstance(module, nn.Conv2d), ["7"]),
    ],
)
def test_skip_leaves_these_float(skip: Any, expected: list[str]) -> None:
    report = pb.binarize(cnn(), "bnn", skip=skip)
    assert binary_names(report) == expected
    assert "in skip=" in [line.why for line in report.layers]


def test_a_glob_covers_everything_inside_the_module_it_matches() -> None:
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(4, 4))
    model.add_module("body", nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))))
    assert binary_names(pb.binarize(model, "bc", only="body")) == ["body.0", "body.1.0"]


def test_only_and_skip_combine() -> None:
    assert binary_names(pb.binarize(cnn(), "bc", only="*", skip=["0", "9"])) == ["3", "7"]


@pytest.mark.parametrize("argument", ["only", "skip", "parametrize"])
@pytest.mark.parametrize("glob", ["encoder.*", ["3", "nothing"]])
def test_a_glob_that_matches_nothing_is_refused(argument: str, glob: Any) -> None:
    model = cnn()
    before = snapshot(model)
    name = glob if isinstance(glob, str) else glob[-1]
    with pytest.raises(ValueError, match=re.escape(f"{argument}={name!r} matches no module")):
        pb.binarize(model, "bnn", **{argument: glob})
    assert_unchanged(model, before)


def test_a_near_miss_is_answered_with_the_right_name() -> None:
    model = nn.Sequential()
    model.add_module("encoder", nn.Linear(4, 4))
    model.add_module("head", nn.Linear(4, 4))
    with pytest.raises(ValueError, match="did you mean 'encoder'"):
        pb.binarize(model, "bnn", only="encodr")


class OwnForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class RawParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table


class PlainSubclass(nn.Linear):
    """No forward of its own: as good as a Linear."""


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.ConvTranspose2d(4, 4, 3), "ConvTranspose2d has no binary form"),
        (nn.LSTM(4, 4), "LSTM"),
        (nn.Embedding(4, 4), "embedding"),
        (nn.Bilinear(4, 4, 4), "Bilinear has no binary form"),
        (OwnForward(4, 4), "OwnForward has a forward of its own"),
        (RawParameter(), "free parameters (table)"),
        (nn.LazyLinear(4), "LazyLinear is not initialized yet"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_binarized_is_listed_with_its_reason(module: nn.Module, why: str) -> None:
    model = nn.ModuleList([nn.Linear(4, 4), module, nn.Linear(4, 4)])
    kind = type(module)
    report = pb.binarize(model, "bnn")
    (line,) = [line for line in report.layers if line.name == "1"]
    assert not line.binary
    assert why in line.why
    assert line.why in str(report)
    assert type(module) is kind


def test_a_subclass_without_a_forward_of_its_own_is_binarized_and_restored() -> None:
    model = nn.Sequential(PlainSubclass(4, 4), nn.Linear(4, 4))
    assert binary_names(pb.binarize(model, "bnn")) == ["0"]
    assert isinstance(model[0], pb.nn.BinaryLinear)
    assert type(pb.restore(model)[0]) is PlainSubclass


class WithHelper(nn.Linear):
    """No forward of its own, but a method that the model around it calls."""

    def gain(self) -> float:
        return 3.0


class CallsHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = WithHelper(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)) * self.inner.gain()


def test_a_subclass_keeps_its_other_methods_or_stays_float() -> None:
    model = CallsHelper()
    pb.binarize(model, "bnn", only="*")
    assert model(torch.randn(3, 4)).shape == (3, 2)


class OwnConvolution(nn.Conv2d):
    """Its forward is inherited; what it calls is not."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * super()._conv_forward(x, weight, bias)


def test_a_convolution_of_ones_own_is_not_silently_replaced() -> None:
    model, x = nn.Sequential(OwnConvolution(2, 2, 1, bias=False)), torch.randn(1, 2, 3, 3)
    model.add_module("spare", nn.Conv2d(2, 2, 1))
    report = pb.binarize(model, "bc", only="*")
    line = report.layers[0]
    w = model[0].weight.detach()
    hard = torch.where(w < 0, -1.0, 1.0) * w.abs().mean((1, 2, 3), keepdim=True)
    expected = 2 * functional.conv2d(x, hard if line.binary else w)
    torch.testing.assert_close(model[0](x), expected)


class Refuses(pb.nn.BinaryLinear):
    def make_binary(self, form: Any) -> None:
        raise RuntimeError("not today")


def test_a_binary_form_that_fails_leaves_the_model_as_it_was() -> None:
    model = cnn()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="not today"):
        pb.binarize(model, "bnn", swaps=pb.SWAPS | {nn.Linear: Refuses})
    assert_unchanged(model, before)


def test_a_pruned_layer_is_refused_or_listed_but_never_half_converted() -> None:
    model = mlp()
    prune.l1_unstructured(model[2], "weight", 0.5)
    before = snapshot(model)
    try:
        report = pb.binarize(model, "bnn")
    except (ValueError, TypeError) as error:
        assert "2" in str(error)
        assert_unchanged(model, before)
    else:
        (line,) = [line for line in report.layers if line.name == "2"]
        assert line.why


def test_a_layer_tied_to_a_float_module_stays_float() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(6, 4), "inner": nn.Linear(4, 4)})
    model["out"] = nn.Linear(4, 6, bias=False)
    model["out"].weight = model["words"].weight
    report = pb.binarize(model, "bnn", only="*")
    why = {line.name: line.why for line in report.layers}
    assert why["out"] == "shares its weight with 'words', which stays float"
    assert binary_names(report) == ["inner"]


def test_shortcut_convolutions_are_binary_in_every_task() -> None:
    def model() -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "stem": nn.Conv2d(3, 4, 3),
                "conv": nn.Conv2d(4, 8, 3),
                "downsample": nn.Conv2d(4, 8, 1),
                "shortcut": nn.Conv2d(4, 8, 3),
            }
        )

    assert binary_names(pb.binarize(model(), "bnn")) == ["conv", "downsample", "shortcut"]
    report = pb.binarize(model(), "bnn", "BWA")
    assert binary_names(report) == ["conv", "downsample", "shortcut"]
    report = pb.binarize(model(), "bnn", "BWA", skip="downsample")
    assert binary_names(report) == ["conv", "shortcut"]


class Twice(nn.Linear):
    """A float layer of the user's own kind."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class BinaryTwice(pb.nn.BinaryLinear):
    """Its binary form."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_swaps_adds_a_binary_form_for_a_layer_of_ones_own() -> None:
    model, x = nn.Sequential(Twice(4, 4), nn.Linear(4, 2)), torch.randn(3, 4)
    report = pb.binarize(model, "bc", swaps=pb.SWAPS | {Twice: BinaryTwice})
    assert binary_names(report) == ["0"]
    assert type(model[0]) is BinaryTwice
    w = model[0].weight
    expected = 2 * (x @ (w.sign() * w.abs().mean(1, keepdim=True)).T + model[0].bias)
    torch.testing.assert_close(model[0](x), expected)
    assert type(pb.restore(model)[0]) is Twice


class ReadsUnseen(ReadsTheWeight):
    """Reads it through a variable, where its source does not show it."""

    def forward(self, x: Tensor) -> Tensor:
        layer = self.inner
        return self.head(functional.linear(x, layer.weight, layer.bias))


def test_a_bypassed_swap_is_found_by_probe() -> None:
    model, x = ReadsUnseen(), torch.randn(3, 4)
    pb.binarize(model, "bnn")
    probe = pb.probe(model, x)
    assert not probe.ok
    assert probe.unused == ("inner.weight",)
    assert "pass parametrize=" in str(probe)


@pytest.mark.parametrize("method", BINARY_METHODS)
def test_parametrize_reaches_a_weight_that_is_read_directly(method: str) -> None:
    model, x = ReadsTheWeight(), torch.randn(3, 4)
    report = pb.binarize(model, method, parametrize="inner")
    assert {line.name: line.why for line in report.binary} == {"inner": "parametrized"}
    assert pb.probe(model, x).ok
    pb.harden(model)
    assert pb.probe(model, x).ok
    w = model.inner.weight
    assert torch.equal(w.abs(), w.abs().amax(1, keepdim=True).expand_as(w))


def test_parametrize_says_that_the_input_stays_float_in_bwa() -> None:
    report = pb.binarize(ReadsTheWeight(), "bnn", "BWA", parametrize="inner")
    assert report.binary[0].why == "parametrized; its input stays float"


@pytest.mark.parametrize(
    "module", [RawParameter(), nn.Bilinear(4, 4, 4), nn.LSTM(4, 4)], ids=lambda m: type(m).__name__
)
def test_parametrize_binarizes_what_has_no_binary_layer(module: nn.Module) -> None:
    model = nn.ModuleDict({"odd": copy.deepcopy(module), "head": nn.Linear(4, 2)})
    pb.binarize(model, "bc", parametrize="odd")
    assert {w.name.split(".")[0] for w in pb.binary_weights(model)} == {"odd"}
    x = torch.randn(3, 2, 4)
    inputs = (x, x) if isinstance(module, nn.Bilinear) else (x,)
    float_twin = copy.deepcopy(module)
    with torch.no_grad():
        for p in float_twin.parameters():
            if p.dim() >= 2:
                scale = p.abs().mean(tuple(range(1, p.dim())), keepdim=True)
                p.copy_(torch.where(p < 0, -scale, scale))
    got, expected = model["odd"](*inputs), float_twin(*inputs)
    if isinstance(got, tuple):
        got, expected = got[0], expected[0]
    torch.testing.assert_close(got, expected)


# The report ---------------------------------------------------------------------------------------


def test_the_bytes_count_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    report = pb.binarize(model, "bc")
    # 15 + 5 of the binary layer, 5 + 5 + 5 + 5 of the norm and its counter, 10 + 2 of the head.
    assert report.bytes_float == 4 * (15 + 5 + 20 + 12) + 8


def test_tied_weights_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 1))
    model[1].weight = model[0].weight
    report = pb.binarize(model, pb.method("bc", scale="none"))
    assert report.bytes_float == 4 * (16 + 5)


def test_half_precision_weights_count_two_bytes() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)).bfloat16()
    assert pb.binarize(model, pb.method("bc", scale="layer")).bytes_float == 2 * 20


def test_the_report_says_everything_as_text_and_as_data() -> None:
    report = pb.binarize(cnn(), "bnn++")
    text = str(report)
    assert text.startswith("BNN++, BW: 2 of 4 layers binary, 984 of 1,044 weights\n")
    assert f"{report.bytes_float / report.bytes_packed:.1f}x smaller" in text, text
    assert re.search(r"^ *0 +Conv2d +36 +float: first convolution$", text, re.MULTILINE)
    assert re.search(r"^ *3 +Conv2d +216 +binary$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100
    data = json.loads(json.dumps(report.to_dict()))
    assert data["layers"][1] == {
        "name": "3", "kind": "Conv2d", "weights": 216, "binary": True, "why": "",
    }  # fmt: skip
    assert data["bytes_packed"] == report.bytes_packed


def test_repeated_blocks_share_a_line() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(12)))
    text = str(pb.binarize(model, "bc", only="*"))
    assert re.search(r"^\*\.0 +Linear +12x +192 +binary$", text, re.MULTILINE)


def test_the_float_baseline_reports_no_binary_layer() -> None:
    model, x = cnn().eval(), images()
    expected = model(x)
    report = pb.binarize(model, "fp", "BWA")
    assert not report.binary
    assert report.bytes_packed == report.bytes_float
    assert torch.equal(model(x), expected)
    assert str(pb.gap(model, x)) == "FP is the float baseline: there is nothing to harden"
    assert pb.gap(model).worst == "" and pb.gap(model).mean == 0
    pb.harden(model)
    assert torch.equal(model(x), expected)
