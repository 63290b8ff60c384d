"""What ``diagnose`` counts: flips, dead and wrong-way gradients, saturation, overflow."""

import json
from typing import Any

import pytest
import torch
from torch import nn

import proxbit as pb
from binarizing import binarize
from small_models import (
    assert_unchanged,
    cnn,
    snapshot,
)


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
