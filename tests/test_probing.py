"""Proof by running: which binary weights are used, which inputs are alive."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from small_models import (
    assert_unchanged,
    cnn,
    images,
    snapshot,
)


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
