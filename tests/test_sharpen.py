"""A sharp network is the hard one, and its latent weights go on training."""

import copy

import pytest
import torch
from torch import nn

import proxbit as pb
from proxbit.nn import InputQuantizer, WeightQuantizer

BINARY = [name for name, method in pb.METHODS.items() if method.binary]
SOFT = [name for name in BINARY if not pb.METHODS[name].pair.hard]


def network(method: str, task: str = "BW") -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 3))
    pb.binarize(model, method, task, only=["2"])
    pb.set_strength(model, 0.4)
    return model


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("method", BINARY)
def test_a_sharp_network_computes_what_the_hard_one_will(method, task):
    model, x = network(method, task).eval(), torch.randn(7, 5)
    pb.sharpen(model)
    torch.testing.assert_close(model(x), pb.hardened(model)(x))


@pytest.mark.parametrize("method", SOFT)
def test_hardening_a_soft_network_changes_it_and_a_sharp_one_not(method):
    model = network(method)
    quantizer = model[2].binary.weight_quantizer
    w = model[2].weight.detach()
    assert not torch.allclose(quantizer.proximal(w), quantizer.hardened(w))
    pb.sharpen(model)
    torch.testing.assert_close(quantizer.proximal(w), quantizer.hardened(w))


@pytest.mark.parametrize("method", SOFT)
def test_the_backward_map_stays(method):
    soft = network(method).train()
    sharp, x = pb.sharpen(copy.deepcopy(soft)), torch.randn(7, 5)
    grads = []
    for model in (soft, sharp):
        w, quantizer = model[2].weight, model[2].binary.weight_quantizer
        g = torch.ones_like(w)
        (grad,) = torch.autograd.grad(quantizer(w), w, g)
        factor = pb.METHODS[method].pair.backward(quantizer.units(w), quantizer.strength)
        torch.testing.assert_close(grad, factor)
        grads.append(grad)
    torch.testing.assert_close(*grads)
    sharp(x).sum().backward()
    assert sharp[2].weight.grad.abs().sum() > 0


def test_inputs_are_seen_as_signs_too():
    model = pb.sharpen(network("bnn++", "BWA"))
    quantizer = model[2].binary.input_quantizer
    assert isinstance(quantizer, InputQuantizer)
    assert set(quantizer(torch.randn(50)).unique().tolist()) == {-1.0, 1.0}


def test_sharpness_travels_with_the_state():
    model, other = pb.sharpen(network("bnn++")), network("bnn++")
    other.load_state_dict(model.state_dict())
    found = [m.sharp for m in other.modules() if isinstance(m, WeightQuantizer)]
    assert found == [True]


def test_the_float_baseline_stays_float_and_a_float_model_is_refused():
    model, x = network("fp").eval(), torch.randn(3, 5)
    before = model(x)
    torch.testing.assert_close(pb.sharpen(model)(x), before)
    with pytest.raises(ValueError, match=r"pb\.binarize"):
        pb.sharpen(nn.Linear(2, 2))


def test_then_runs_the_first_schedule_whole_and_stays():
    schedule = pb.schedules.Then(pb.Linear(1, 20), 0.8, 2.0)
    assert schedule(0.0) == 1
    assert schedule(0.4) == pytest.approx(10.5)
    assert schedule(0.8) == pytest.approx(20)
    assert schedule(0.81) == schedule(1.0) == 2.0
    assert "then 2" in str(schedule)
