"""Binarize, restore, harden, probe, recalibrate and diagnose: what they do, say and refuse."""

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune

import proxbit as pb
from binarizing import binarize
from proxbit.binarization.hardening import Gap

BINARY_METHODS = [name for name, method in pb.METHODS.items() if method.binary]


def cnn() -> nn.Sequential:
    """First convolution 0, binary ones 3 and 7, classifier 9; ReLU in front of both binary ones."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


def mlp() -> nn.Sequential:
    """Binary 0 and 2, classifier 4; no ReLU."""
    return nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 4, 4)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a failed call must leave alone."""
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "types": [(name, type(module)) for name, module in model.named_modules()],
        "parameters": [(n, id(p), p.requires_grad) for n, p in model.named_parameters()],
        "buffers": [(n, id(b)) for n, b in model.named_buffers()],
        "training": [module.training for module in model.modules()],
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._state_dict_hooks)
            for m in model.modules()
        ],
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    now = snapshot(model)
    assert list(now["state"]) == list(before["state"])
    for name, value in before["state"].items():
        assert torch.equal(
            value.nan_to_num(nan=123.0, posinf=1e30), now["state"][name].nan_to_num(123.0, 1e30)
        ), name
    for part in ("types", "parameters", "buffers", "training", "hooks"):
        assert now[part] == before[part], part


def binary_names(report: Any) -> list[str]:
    return [line.name for line in report.binary]


# Which layers ------------------------------------------------------------------------------------


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


def test_shortcut_convolutions_are_binary_in_bw_and_float_in_bwa() -> None:
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
    assert binary_names(report) == ["conv", "shortcut"]
    assert "1x1 shortcut convolution (float in BWA)" in [line.why for line in report.layers]


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


class ReadsTheWeight(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(x, self.inner.weight, self.inner.bias))


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


# The report --------------------------------------------------------------------------------------


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


# ReLU in front of a binary input -----------------------------------------------------------------


class Functional(nn.Module):
    """A traceable forward with a functional ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(functional.relu(self.a(x)).reshape(-1, 4)))


class Untraceable(nn.Module):
    """A forward that depends on values: fx gives up, the order of modules decides."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.drop = nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1)
        self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 1e9):
            return self.head(x)
        return self.head(self.b(self.drop(self.act(self.a(x)))))


def relu_sequence() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 4), nn.Linear(4, 2)
    )


@pytest.mark.parametrize(
    ("build", "layer", "source"), [(relu_sequence, "3", "1"), (Untraceable, "b", "act")]
)
def test_a_relu_that_is_kept_in_front_is_noted(
    build: Callable[[], nn.Module], layer: str, source: str
) -> None:
    model = build()
    report = pb.binarize(model, "bnn", "BWA", relu="keep")
    note = report.notes[0]
    assert f"the input of '{layer}' comes from {source}" in note
    assert "sign is constant" in note
    assert f"note: {note}" in str(report)
    probe = pb.probe(model, torch.randn(9, 4))
    assert probe.constant == (layer,)
    assert not probe.unused


@pytest.mark.parametrize(("method", "kind"), [("bc", nn.Hardtanh), ("bnn++", nn.Identity)])
@pytest.mark.parametrize(("build", "source"), [(relu_sequence, "1"), (Untraceable, "act")])
def test_by_default_a_relu_in_front_is_replaced_by_what_suits_the_method(
    method: str, kind: type[nn.Module], build: Callable[[], nn.Module], source: str
) -> None:
    model = build()
    report = pb.binarize(model, method, "BWA")
    assert type(model.get_submodule(source)) is kind
    assert report.notes[0].startswith(f"replaced by {kind.__name__}: {source} (")
    assert pb.probe(model, torch.randn(9, 4)).ok


@pytest.mark.parametrize("relu", ["Keep", "identity", nn.ReLU(), 3])
def test_a_relu_that_is_neither_keep_nor_a_class_is_refused(relu: Any) -> None:
    model = relu_sequence()
    before = snapshot(model)
    with pytest.raises(TypeError, match="relu= is 'keep', or makes modules"):
        pb.binarize(model, "bnn", "BWA", relu=relu)
    assert_unchanged(model, before)


@pytest.mark.parametrize(("build", "source"), [(relu_sequence, "1"), (Untraceable, "act")])
def test_relu_replaces_it_and_restore_puts_it_back(
    build: Callable[[], nn.Module], source: str
) -> None:
    model, x = build().eval(), torch.randn(9, 4)
    expected, relu = model(x), model.get_submodule(source)
    report = pb.binarize(model, "bnn", "BWA", relu=nn.Hardtanh)
    assert isinstance(model.get_submodule(source), nn.Hardtanh)
    assert report.notes[0].startswith(f"replaced by Hardtanh: {source} (")
    assert pb.probe(model, x).ok
    pb.restore(model)
    assert model.get_submodule(source) is relu
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("relu", [None, nn.Hardtanh])
def test_a_functional_relu_cannot_be_replaced_and_is_warned_of_once(relu: Any) -> None:
    with pytest.warns(pb.SettingsWarning, match="use a module that can be negative") as caught:
        report = pb.binarize(Functional(), "bnn", "BWA", relu=relu)
    assert len(caught) == 1
    (note,) = report.notes
    assert "the input of 'b' comes from relu()" in note


def test_relu_leaves_those_alone_that_feed_float_layers() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )  # the second one feeds the classifier
    pb.binarize(model, "bnn", "BWA", relu=nn.Hardtanh)
    assert isinstance(model[1], nn.Hardtanh)
    assert isinstance(model[3], nn.ReLU)


def test_in_bw_a_relu_is_fine() -> None:
    model = relu_sequence()
    assert not pb.binarize(model, "bnn", "BW", relu=nn.Hardtanh).notes
    assert isinstance(model[1], nn.ReLU)


def test_a_shared_relu_is_replaced_wherever_it_stands() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(
        nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 4), nn.Linear(4, 2)
    )
    pb.binarize(model, "bnn", "BWA", relu=nn.Hardtanh)
    assert not [m for m in model.modules() if isinstance(m, nn.ReLU)]
    assert pb.probe(model, torch.randn(9, 4)).ok
    pb.restore(model)
    assert model[1] is relu
    assert model[3] is relu


def encoder_layer(activation: Any = "relu") -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=activation)
    return nn.Sequential(layer, nn.Linear(8, 2))


def decoder_layer() -> nn.Sequential:
    return nn.Sequential(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "build",
    [encoder_layer, decoder_layer, lambda: encoder_layer(nn.ReLU()), lambda: encoder_layer()[0]],
)
def test_the_activation_of_a_transformer_layer_is_found_and_replaced_and_put_back(
    build: Callable[[], nn.Module],
) -> None:
    note = pb.binarize(build(), "bnn", "BWA", relu="keep").notes[0]
    assert re.search(r"linear2' comes from .*activation", note)
    model = build().eval()
    layer = next(m for m in model.modules() if hasattr(m, "linear2"))
    old = layer.activation
    report = pb.binarize(model, "bnn", "BWA", relu=nn.Hardtanh)
    assert isinstance(layer.activation, nn.Hardtanh)
    assert report.notes[0].startswith("replaced by Hardtanh")
    pb.restore(model)
    assert layer.activation is old


def test_a_gelu_transformer_layer_is_not_warned_of() -> None:
    assert not pb.binarize(encoder_layer("gelu"), "bnn", "BWA").notes


# There and back ----------------------------------------------------------------------------------


def attention() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"), 2
    )


@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_restore_puts_everything_back(method: str, task: Any) -> None:
    model, x = cnn().eval(), images()
    expected, before = model(x), snapshot(model)
    pb.binarize(model, method, task, relu=nn.Hardtanh)
    assert pb.restore(model) is model
    assert_unchanged(model, before)
    assert torch.equal(model(x), expected)
    assert not [m for m in model.modules() if "_proxbit_undo" in m.__dict__]


@pytest.mark.parametrize("method", ["bnn++", "react"])
@pytest.mark.parametrize("route", ["swap", "parametrize"])
def test_restore_puts_attention_back(method: str, route: str) -> None:
    model, x = attention().eval(), torch.randn(2, 3, 8)
    expected, before = model(x), snapshot(model)
    chosen = "*.self_attn" if route == "parametrize" else None
    pb.binarize(model, method, parametrize=chosen)
    with torch.no_grad():
        assert not torch.equal(model(x), expected)
    pb.restore(model)
    assert not any(parametrize.is_parametrized(m) for m in model.modules())
    assert torch.equal(model(x), expected)
    now = snapshot(model)
    for part in ("types", "buffers", "training"):
        assert now[part] == before[part]
    assert sorted(now["parameters"]) == sorted(before["parameters"])


def test_restore_keeps_the_order_of_the_parameters() -> None:
    """An optimizer's state_dict knows parameters by their order alone."""
    model = ReadsTheWeight()
    names = [name for name, _ in model.named_parameters()]
    pb.binarize(model, "bnn", parametrize="inner")
    pb.restore(model)
    assert [name for name, _ in model.named_parameters()] == names


def test_binarize_and_restore_may_alternate() -> None:
    model, x = ReadsTheWeight().eval(), torch.randn(3, 4)
    expected = model(x)
    for _ in range(3):
        pb.binarize(model, "bnn", parametrize="inner")
        keys = list(model.state_dict())
        model.load_state_dict(model.state_dict())
        pb.restore(model)
        assert sorted(keys) == sorted(model.state_dict())
        assert torch.equal(model(x), expected)


def test_restoring_a_hard_model_keeps_the_hard_weights_and_lets_them_train() -> None:
    model, x = cnn().eval(), images()
    pb.binarize(model, "bnn")
    pb.harden(model)
    hard = {name: value.clone() for name, value in model.state_dict().items()}
    pb.restore(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in hard.items())
    assert all(p.requires_grad for p in model.parameters())
    model(x).sum().backward()
    assert model[3].weight.grad is not None


def test_restore_does_not_thaw_what_was_frozen_before() -> None:
    model = cnn()
    model[3].weight.requires_grad_(False)
    with pytest.warns(pb.SettingsWarning, match=r"1 of 2 binary weights are frozen .*3\.weight"):
        pb.binarize(model, "bnn")
    pb.harden(model)
    pb.restore(model)
    assert not model[3].weight.requires_grad
    assert model[7].weight.requires_grad


def test_parameters_stay_the_same_objects() -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [id(p) for p in model.parameters()]
    pb.binarize(model, "bnn++")
    assert [id(p) for p in model.parameters()] == before
    assert [id(p) for p in pb.latent_parameters(model)] == [
        id(model[3].weight),
        id(model[7].weight),
    ]
    pb.attach(model, optimizer, steps=2)  # an optimizer built before stays valid


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bnn_plus_plus", "BNN++"), ("BNN++", "BNN++"), ("Bnn Plus Plus", "BNN++"),
        ("bnn-plus", "BNN+"), ("BiReal", "Bi-Real"), ("bi_real", "Bi-Real"), ("RBNN", "R-BNN"),
        ("BinaryConnect", "BC"), ("prox_connect", "PC"), ("ProxQuant", "PQ"), ("rPC", "rPC"),
        ("ReActNet", "ReAct"), ("poly plus", "Poly+"), ("EDE+", "EDE+"), ("float", "FP"),
    ],
)  # fmt: skip
def test_names_are_forgiving(given: str, name: str) -> None:
    assert pb.method(given).name == name
    assert pb.binarize(cnn(), given).method == name


def test_a_method_and_a_bare_pair_are_methods_too() -> None:
    assert pb.binarize(cnn(), pb.METHODS["bc"]).method == "BC"
    assert pb.binarize(cnn(), pb.bi_real).method == "Bi-Real"
    own = pb.Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2)
    model = cnn()
    assert pb.binarize(model, pb.method(own, schedule=pb.Linear(50, 500))).method == "custom"
    model(images()).sum().backward()
    assert all(p.grad is not None for p in pb.latent_parameters(model))


# Refusals: one clear error, and nothing changed --------------------------------------------------


def spoiled(value: float) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = cnn()
        with torch.no_grad():
            model[3].weight[0, 0, 0, 0] = value
        return model

    return build


@pytest.mark.parametrize(
    ("build", "arguments", "error", "words"),
    [
        (cnn, {"method": "bnn+++"}, ValueError, ["'bnn+++'", "known:", "bnn++"]),
        (cnn, {"method": "bbn"}, ValueError, ["'bbn'", "did you mean 'bnn'"]),
        (cnn, {"method": 3}, TypeError, ["not int", "bnn++"]),
        (cnn, {"method": None}, TypeError, ["NoneType"]),
        (cnn, {"task": "BWAAA"}, ValueError, ["'BWAAA'", "BW, BWA, BWAA"]),
        (cnn, {"scale": "chanel"}, ValueError, ["'chanel'", "did you mean 'channel'"]),
        (cnn, {"unit": "curent"}, ValueError, ["'curent'", "did you mean 'current'"]),
        (cnn, {"settings": "papers"}, ValueError, ["'papers'", "did you mean 'paper'"]),
        (cnn, {"pad_value": 2}, ValueError, ["1, -1 or 0", "not 2"]),
        (cnn, {"pad_value": math.nan}, ValueError, ["1, -1 or 0", "nan"]),
        (cnn, {"task": "BWAA", "bits": 1}, ValueError, ["2 to 24 bits", "not 1"]),
        (cnn, {"task": "BWAA", "bits": 8.5}, ValueError, ["2 to 24 bits", "8.5"]),
        (cnn, {"task": "BWAA", "k": 0}, ValueError, ["positive", "not 0"]),
        (cnn, {"task": "BWAA", "k": math.nan}, ValueError, ["positive", "nan"]),
        (cnn, {"schedule": 30.0}, (TypeError, ValueError), ["schedule", "30.0"]),
        (cnn, {"schedule": pb.Logarithmic(0, 1)}, ValueError, ["positive"]),
        (cnn, {"schedule": pb.Constant(math.nan)}, ValueError, ["strength", "nan"]),
        (cnn, {"schedule": pb.Linear(1, -1)}, ValueError, ["strength", "-1"]),
        (cnn, {"rule": "PQ"}, TypeError, ["rule", "PQ"]),
        (cnn, {"task": "BWA", "relu": nn.Hardtanh()}, TypeError, ["relu", "Hardtanh"]),
        (cnn, {"task": "BWA", "relu": "hardtanh"}, TypeError, ["relu", "hardtanh"]),
        (cnn, {"only": []}, ValueError, ["no layer", "not in only="]),
        (cnn, {"skip": "*"}, ValueError, ["no layer", "in skip="]),
        (spoiled(math.nan), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (spoiled(math.inf), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (spoiled(-math.inf), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (lambda: nn.Sequential(nn.ReLU()), {}, ValueError, ["no layer", "no weights"]),
        (lambda: nn.Sequential(nn.BatchNorm2d(3)), {}, ValueError, ["no layer"]),
        (lambda: nn.Sequential(nn.LSTM(3, 3)), {}, ValueError, ["no layer", "LSTM"]),
        (lambda: nn.Sequential(nn.Linear(3, 3)), {}, ValueError,
         ["no layer", "last classifier", "only='*'"]),
    ],
)  # fmt: skip
def test_a_bad_argument_is_one_clear_error_and_changes_nothing(
    build: Callable[[], nn.Module], arguments: dict[str, Any], error: Any, words: list[str]
) -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(error) as caught:
        binarize(model, **arguments)
    assert_unchanged(model, before)
    for word in words:
        assert word in str(caught.value)


def test_binarize_takes_a_module_only() -> None:
    with pytest.raises(TypeError, match="not dict"):
        pb.binarize({"weight": torch.ones(3)})  # type: ignore[arg-type]


def test_binarizing_twice_is_refused() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"binarized already: call pb\.restore"):
        pb.binarize(model, "bc")
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    "call",
    [
        pb.restore,
        pb.diagnose,
        lambda model: pb.harden(model),
        lambda model: pb.probe(model, images()),
        lambda model: pb.set_strength(model, 1.0),
        lambda model: pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3),
    ],
)
def test_what_needs_a_binarized_model_says_so(call: Callable[[nn.Module], object]) -> None:
    model = cnn()
    before = snapshot(model)
    with pytest.raises(ValueError, match="not binarized"):
        call(model)
    assert_unchanged(model, before)


@pytest.mark.parametrize("strength", [-1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_a_strength_must_be_finite_and_not_negative(strength: float) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    old = [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)]
    with pytest.raises(ValueError, match=re.escape(str(strength))):
        pb.set_strength(model, strength)
    assert [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)] == old


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_an_integer_tensor_is_not_quantized(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        pb.quantize(torch.ones(3, dtype=dtype), 1.0, pb.bnn)


@pytest.mark.parametrize("steps", [0, -5, 2.5, True, "ten", None])
def test_steps_is_a_positive_whole_number(steps: Any) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises((ValueError, TypeError), match=str(steps)):
        pb.attach(model, optimizer, steps=steps)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert_unchanged(model, before)
    pb.attach(model, optimizer, steps=5)  # the failure left nothing behind


@pytest.mark.parametrize("clip", [0, -1.0, "wide", math.nan])
def test_a_clip_is_a_positive_bound(clip: Any) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=str(clip)):
        pb.attach(model, optimizer, steps=3, clip=clip)
    assert not optimizer._optimizer_step_post_hooks


def test_attaching_twice_is_refused() -> None:
    model, other = cnn(), cnn()
    pb.binarize(model, "bnn++")
    pb.binarize(other, "bnn++")
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    handle = pb.attach(model, optimizer, steps=3)
    with pytest.raises(ValueError, match="this optimizer is attached already"):
        pb.attach(model, optimizer, steps=3)
    with pytest.raises(ValueError, match="this model is attached to another optimizer"):
        pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    handle.remove()
    pb.attach(model, optimizer, steps=3)


def test_a_dropped_optimizer_does_not_block_the_next_one() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    for taken in range(3):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # a cycle: freed by gc only
        handle = pb.attach(model, optimizer, steps=3)
        optimizer.step()
        scheduler.step()
        assert handle.step == taken + 1  # goes on where the last one was
        del optimizer, scheduler


@pytest.mark.parametrize("method", ["bnn++", "react"])
def test_an_optimizer_without_the_latent_parameters_is_refused(method: str) -> None:
    model = cnn()
    stale = torch.optim.SGD(copy.deepcopy(model).parameters(), 0.1)
    before_binarize = torch.optim.SGD(model.parameters(), 0.1)
    partial = torch.optim.SGD(model[9].parameters(), 0.1)
    pb.binarize(model, method)
    total = 4 if method == "react" else 2
    for optimizer in (stale, partial):
        with pytest.raises(ValueError, match=f"lacks {total} of {total} latent.*'3.weight'"):
            pb.attach(model, optimizer, steps=3)
    if method == "react":  # its shifts were not there yet
        with pytest.raises(ValueError, match=r"lacks 2 of 4 latent.*shift"):
            pb.attach(model, before_binarize, steps=3)
    else:
        pb.attach(model, before_binarize, steps=3)


def test_a_failed_load_of_a_handle_changes_nothing() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    handle = pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    old = handle.state_dict()
    with pytest.raises(ValueError, match="of another model"):
        handle.load_state_dict({"elsewhere": {"strength": 1.0, "step": 3, "hard": False}})
    assert handle.state_dict() == old


# Hardening ---------------------------------------------------------------------------------------


def assert_hard(model: nn.Module) -> None:
    for weight in pb.binary_weights(model):
        w, scale = weight.latent, weight.quantizer.method.scale
        sizes = w.abs()
        expected = sizes.amax(scale.dims(w), keepdim=True).expand_as(w)
        assert torch.equal(sizes, expected), weight.name
        if scale.kind == "none":
            assert torch.equal(sizes, torch.ones_like(w))
        else:
            assert bool((sizes > 0).all())


@pytest.mark.parametrize("method", BINARY_METHODS)
@pytest.mark.parametrize("scale", ["none", "layer", "channel", "ls"])
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_hard_weights_are_exactly_plus_or_minus_the_scale(
    method: str, scale: str, task: Any
) -> None:
    model, x = cnn(), images()
    pb.binarize(model, pb.method(method, scale=scale), task, relu=nn.Hardtanh)
    assert pb.harden(model) is model
    assert_hard(model)
    model.eval()
    seen: list[Tensor] = []
    handle = model[3].binary.register_forward_pre_hook(lambda m, args: seen.append(args[1]))
    first = model(x)
    handle.remove()
    assert torch.equal(seen[0], model[3].weight)
    assert torch.equal(model.train().eval()(x), first)


@pytest.mark.parametrize("method", BINARY_METHODS)
def test_the_hard_scale_is_the_least_squares_match_of_the_quantized_weight(method: str) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))
    pb.binarize(model, method)
    pb.set_strength(model, 0.7)
    (weight,) = pb.binary_weights(model)
    q = weight.quantizer.proximal(weight.latent).clone()
    pb.harden(model)
    bits = torch.where(q < 0, -1.0, 1.0)
    dims = weight.quantizer.method.scale.dims(q)
    expected = bits * ((q * bits).sum(dims, keepdim=True) / (bits * bits).sum(dims, keepdim=True))
    torch.testing.assert_close(weight.latent, expected)
    assert torch.equal(weight.latent < 0, q < 0)


def test_hardening_twice_is_fine() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    pb.harden(model)
    before = snapshot(model)
    assert pb.harden(model) is model
    assert_unchanged(model, before)


def test_hardening_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    pb.gap(model, images())
    pb.harden(model)
    assert capsys.readouterr() == ("", "")


def test_the_gap_is_what_hardening_then_changes() -> None:
    model, x = cnn().eval(), images(16)
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    gap = pb.gap(model, x)
    assert_unchanged(model, before)
    soft_out = model(x).detach()
    soft = {w.name: w.quantizer.proximal(w.latent).clone() for w in pb.binary_weights(model)}
    pb.harden(model)
    hard_out = model(x).detach()
    hard = {w.name: w.latent for w in pb.binary_weights(model)}
    gaps = {n: float((hard[n] - soft[n]).norm() / soft[n].norm()) for n in soft}
    assert gap.method == "BNN++"
    assert gap.layers == pytest.approx(gaps)
    assert gap.mean == pytest.approx(sum(gaps.values()) / 2)
    assert gap.worst == max(gaps, key=gaps.__getitem__)
    assert gap.outputs == pytest.approx(float((hard_out - soft_out).norm() / soft_out.norm()))
    assert gap.agreement == float((hard_out.argmax(1) == soft_out.argmax(1)).float().mean())
    assert pb.gap(model).layers == dict.fromkeys(gaps, 0.0)


def test_the_gap_prints_as_one_line() -> None:
    gap = Gap("BNN++", {"a": 0.1, "b": 0.3}, 0.25, 0.5)
    assert str(gap) == (
        "hardening changes 2 weights (BNN++) by 20 % on average, 30 % at most (b); outputs by "
        "25 %, 50 % of the decisions stay"
    )


def test_a_hard_pair_has_no_gap() -> None:
    model, x = cnn().eval(), images()
    pb.binarize(model, "bc")
    expected, gap = model(x), pb.gap(model, x)
    torch.testing.assert_close(pb.harden(model)(x), expected)
    assert gap.mean < 1e-6 and gap.agreement == 1


def test_hardened_is_a_copy_and_leaves_the_model_soft() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    hard = pb.hardened(model)
    assert_hard(hard)
    assert not hard.training
    assert_unchanged(model, before)
    assert not any(w.quantizer.hard for w in pb.binary_weights(model))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
}


def train_a_little(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, none: bool = True
) -> None:
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=none)
        model(images()).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("method", ["bnn++", "pq", "rpc", "react"])
def test_after_hardening_signs_stay_and_the_rest_trains(
    method: str, name: str, set_to_none: bool, task: Any
) -> None:
    model = cnn()
    pb.binarize(model, method, task, relu=nn.Hardtanh)
    optimizer = OPTIMIZERS[name](model.parameters())
    pb.attach(model, optimizer, steps=10)
    train_a_little(model, optimizer, 3, set_to_none)
    pb.harden(model)
    hard = {w.name for w in pb.binary_weights(model)}
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    train_a_little(model, optimizer, 3, set_to_none)
    for n, p in model.named_parameters():
        if n in hard:
            assert torch.equal(p, old[n]), n
        elif not n.endswith("weight_quantizer.shift"):  # nothing is left for it to shift
            assert not torch.equal(p, old[n]), n


# Batch-norm statistics ---------------------------------------------------------------------------


def test_recalibrate_is_the_plain_average_over_the_batches() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Dropout(0.5), nn.Tanh(),
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip
    pb.binarize(model, "bnn")
    pb.harden(model)
    train_mode = {m: m.training for m in model.modules()}
    batches = [images(n) for n in (4, 7, 5)]
    assert pb.recalibrate(model, batches) is model

    def statistics(z: Tensor) -> tuple[Tensor, Tensor]:
        return z.mean((0, 2, 3)), z.transpose(0, 1).flatten(1).var(1)

    first, second = [], []
    with torch.no_grad():
        for batch in batches:
            z = model[0](batch)
            first.append(statistics(z))
            norm = model[1]
            z = functional.batch_norm(z, None, None, norm.weight, norm.bias, training=True)
            second.append(statistics(model[4](torch.tanh(z))))  # no dropout
    for norm, seen in ((model[1], first), (model[5], second)):
        torch.testing.assert_close(norm.running_mean, torch.stack([m for m, _ in seen]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([v for _, v in seen]).mean(0))
    assert (model[1].momentum, model[5].momentum) == (0.3, 0.1)
    assert {m: m.training for m in model.modules()} == train_mode


def test_recalibrate_takes_what_a_loader_yields() -> None:
    models = [cnn(), cnn(), cnn()]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    x = [images(), images()]
    labels = torch.zeros(5)
    pb.recalibrate(models[0], x)
    pb.recalibrate(models[1], [(batch, labels) for batch in x])
    pb.recalibrate(models[2], ({"input": batch} for batch in x))
    for model in models[1:]:
        for name, value in model.state_dict().items():
            assert torch.equal(value, models[0].state_dict()[name])


@pytest.mark.parametrize("batches", [[], [images(), torch.randn(3, 2, 4, 4)]])
def test_recalibrate_restores_the_statistics_if_it_fails(batches: list[Tensor]) -> None:
    model = cnn()
    model(images())
    model[4].eval()
    before = snapshot(model)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        pb.recalibrate(model, batches)
    if not batches:
        assert "no batches" in str(caught.value)
    assert_unchanged(model, before)
    assert model[1].momentum == 0.1


# Diagnosis ---------------------------------------------------------------------------------------


def by_hand(method: Any, values: list[list[float]], **arguments: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(values))
    binarize(model, method, only="*", **arguments)
    return model


def test_flips_count_from_the_last_look() -> None:
    model = by_hand("bnn", [[0.5, -0.5], [2.0, -3.0]])
    assert pb.diagnose(model).layers[0].flips is None
    assert pb.diagnose(model).layers[0].flips == 0.0
    with torch.no_grad():
        model[0].weight[0, 0] = -0.5
    assert pb.diagnose(model).layers[0].flips == 0.25
    with torch.no_grad():
        model[0].weight.mul_(-1)
    assert pb.diagnose(model).layers[0].flips == 1.0


def test_dead_and_saturated_weights_of_bnn_are_counted() -> None:
    (layer,) = pb.diagnose(by_hand("bnn", [[0.5, -0.5], [2.0, -3.0]])).layers
    assert (layer.name, layer.weights) == ("0.weight", 4)
    assert (layer.dead, layer.wrong_way, layer.saturated) == (0.5, 0.0, 1.0)
    assert layer.overflow is None


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
def test_wrong_way_and_saturated_weights_of_bnn_plus_plus_are_counted() -> None:
    # SS_5: 0.479922 at 0.1, 1.198802 at 0.5, 1.053095 at 1 and 1.0009 at 2; beyond 0.48 B < 0.
    model = by_hand("bnn++", [[0.1, -0.5], [1.0, -2.0]], unit="one", scale="none")
    pb.set_strength(model, 5.0)
    (layer,) = pb.diagnose(model).layers
    assert layer.strength == 5.0
    assert (layer.wrong_way, layer.dead, layer.saturated) == (0.75, 0.0, 0.25)


def test_the_overflow_of_the_last_batch_is_counted() -> None:
    model = nn.Sequential(nn.Linear(200, 2, bias=False))
    with torch.no_grad():
        model[0].weight[0] = 1.0  # its sum is 200: too much for 8 bits
        model[0].weight[1, :100], model[0].weight[1, 100:] = 1.0, -1.0  # 0: fits
    pb.binarize(model, "bnn", "BWAA", only="*")
    assert pb.diagnose(model).layers[0].overflow == 0.0
    model(torch.ones(3, 200))
    assert pb.diagnose(model).layers[0].overflow == 0.5


def test_a_hard_weight_is_saturated_and_does_not_move() -> None:
    model = by_hand("bnn++", [[0.1, -0.5], [1.0, -2.0]])
    pb.harden(model)
    (layer,) = pb.diagnose(model).layers
    assert (layer.saturated, layer.dead, layer.wrong_way) == (1.0, 1.0, 0.0)


def test_looking_changes_nothing_and_reads_as_text_and_data() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    seen = pb.diagnose(model)
    assert_unchanged(model, before)
    text = str(seen)
    assert [line.split()[0] for line in text.splitlines()] == [
        "weight", "3.weight", "7.weight", "all",
    ]  # fmt: skip
    data = json.loads(json.dumps(seen.to_list()))
    assert [row["weights"] for row in data] == [216, 768]
    share = (216 * data[0]["dead"] + 768 * data[1]["dead"]) / 984
    assert seen.total.dead == pytest.approx(share)


# Probing -----------------------------------------------------------------------------------------


def test_probe_leaves_the_model_as_it_was() -> None:
    model = cnn()
    pb.binarize(model, "bnn", "BWA", relu=nn.Hardtanh)
    model[4].eval()
    before = snapshot(model)
    assert pb.probe(model, images()).ok
    assert_unchanged(model, before)
    assert all(p.grad is None for p in model.parameters())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.spare(x)  # computed, but it reaches no output
        return {"logits": self.head(self.a(x) + self.b(y)), "count": torch.tensor(3)}


@pytest.mark.parametrize("form", ["tuple", "list", "dict"])
def test_probe_takes_several_inputs_and_finds_what_reaches_no_output(form: str) -> None:
    model = TwoInputs()
    pb.binarize(model, "bnn++")
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    example = {"tuple": (x, y), "list": [x, y], "dict": {"y": y, "x": x}}[form]
    probe = pb.probe(model, example)
    assert probe.used == ("a.weight", "b.weight")
    assert probe.unused == ("spare.weight",)
    assert str(probe).startswith("2 of 3 binary weights were used")


@dataclass
class Answer:
    logits: Tensor
    note: str = ""


class ReturnsRecord(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Answer:
        return Answer(self.head(self.inner(x)))


def test_probe_looks_into_a_record() -> None:
    model = ReturnsRecord()
    pb.binarize(model, "bnn++")
    assert pb.probe(model, torch.randn(3, 4)).ok


class Overwriting(nn.Module):
    """Keeps a state and overwrites it in the midst of a forward, as RWKV's cache."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.idle = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        state = self.one(x).exp()
        out = self.two(state)
        state.zero_()
        return out


def test_probe_counts_calls_where_a_model_overwrites_its_state() -> None:
    model = Overwriting()
    pb.binarize(model, "bnn++", only="*")
    found = pb.probe(model, torch.randn(2, 4))
    assert found.used == ("one.weight", "two.weight")
    assert found.unused == ("idle.weight",)


class Branching(nn.Module):
    """Cannot be traced, and its ReLU is registered where it does not run (as in OPT and T5)."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.head = nn.ReLU(), nn.Linear(4, 2)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.two(self.act(self.one(x)))
        return self.head(hidden if bool((x > 1e9).any()) else -hidden)


def test_relus_that_cannot_be_followed_are_noted_or_found_with_an_example() -> None:
    asking = "this model cannot be traced: pass example="
    report = pb.binarize(Branching(), "bnn", "BWA", only=["one", "two"])
    assert any(note.startswith(asking) for note in report.notes)
    with pytest.warns(pb.SettingsWarning, match="the sign of the input of two is constant"):
        report = pb.binarize(
            Branching(), "bnn", "BWA", only=["one", "two"], example=torch.randn(9, 4)
        )
    assert not any(note.startswith(asking) for note in report.notes)
    assert not any("traced" in note for note in pb.binarize(Branching(), "bnn", "BW").notes)


def test_probe_reports_an_input_of_one_sign() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    pb.binarize(model, "bnn", "BWA")
    assert pb.probe(model, torch.rand(3, 4)).constant == ("0",)
    assert pb.probe(model, -torch.rand(3, 4) - 0.1).constant == ("0",)
    assert pb.probe(model, torch.tensor([[1.0, -1.0, 1.0, 1.0]])).ok


def test_a_constant_input_of_attention_is_named_as_a_projection() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    pb.binarize(model, "bnn", "BWA")
    (name, *_) = pb.probe(model, torch.rand(2, 3, 8)).constant
    assert name.startswith("self_attn")
    assert "quantizer" not in name


def test_two_methods_live_in_one_model() -> None:
    """Each part keeps its own schedule, rule and clipping under one attach, and hardens once."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 2)})
    pb.binarize(model["a"], pb.method("bnn++", schedule=pb.Linear(1, 21), sharp=0), only="*")
    pb.binarize(model["b"], pb.method("pq", scale="none"), only="*")
    pb.binarize(model["c"], "fp", only="*")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pb.attach(model, optimizer, steps=3)
    before = model["b"].weight.detach().clone()
    expected = model["b"].binary.weight_quantizer.proximal(before)
    optimizer.step()  # without gradients: only the rule acts
    assert torch.equal(model["b"].weight.detach(), expected.clamp(-1, 1))
    assert float(model["a"].binary.weight_quantizer.strength) == 11.0
    assert pb.gap(model).method == "BNN++, PQ"
    pb.harden(model)
    assert model["c"].weight.detach().abs().unique().numel() > 2
