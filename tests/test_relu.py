"""A ReLU in front of a binary input: found, replaced, kept or warned of."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from small_models import (
    assert_unchanged,
    snapshot,
)


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
