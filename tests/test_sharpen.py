"""A sharp network is the hard one, and its latent weights go on training."""

import copy

import pytest
import torch
from torch import nn

import proxbit as pb
from binarizing import binarize
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
    bits, scale = quantizer.hardened(w)
    assert not torch.allclose(quantizer.proximal(w), bits * scale)
    pb.sharpen(model)
    bits, scale = quantizer.hardened(w)
    torch.testing.assert_close(quantizer.proximal(w), bits * scale)


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


def attached(steps: int = 10, **options: object):
    """A network in BWA, its handle, and (strength, inputs' strength, sharp) of every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 3))
    binarize(model, "bnn++", "BWA", only=["2"], **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = pb.attach(model, optimizer, steps)
    weights, inputs = model[2].binary.weight_quantizer, model[2].binary.input_quantizer
    seen = []
    for _ in range(steps):
        assert weights.sharp == inputs.sharp
        seen.append((float(weights.strength), float(inputs.strength), weights.sharp))
        model(torch.randn(4, 5)).sum().backward()
        optimizer.step()
    return model, handle, seen


def test_attach_turns_to_signs_in_the_last_share_of_the_steps():
    _, _, seen = attached(sharp=0.4, schedule=pb.Linear(1, 6), input_schedule=pb.Linear(1, 10))
    assert [sharp for *_, sharp in seen] == [False] * 6 + [True] * 4
    strengths, inputs, _ = zip(*seen, strict=True)
    assert strengths == pytest.approx((1, 2, 3, 4, 5, 6, 6, 6, 6, 6))  # ends where signs begin
    assert inputs == pytest.approx(tuple(range(1, 11)))  # runs through


def test_signs_may_have_a_strength_of_their_own():
    _, _, seen = attached(sharp=0.4, schedule=pb.Linear(1, 6), sharp_strength=2.0)
    assert [strength for strength, *_ in seen] == pytest.approx([1, 2, 3, 4, 5, 6, 2, 2, 2, 2])


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
@pytest.mark.parametrize(("share", "expects"), [(0.0, 0), (1.0, 10), (0.04, 0), (0.06, 1)])
def test_the_share_of_signs_is_rounded_to_steps_and_none_is_none(share, expects):
    model, _, seen = attached(sharp=share)
    assert sum(sharp for *_, sharp in seen) == expects
    assert model[2].binary.weight_quantizer.sharp == (expects > 0)  # after the last step, too


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
def test_a_moment_of_ones_own_is_never_taken_back():
    model, handle, _ = attached(sharp=0.0)
    pb.sharpen(model)
    handle.remove()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pb.attach(model, optimizer, 10)
    assert model[2].binary.weight_quantizer.sharp


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused_and_nothing_changes(share):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"sharp= is a share of the steps"):
        pb.binarize(model, pb.method("bnn++", sharp=share), only="*")
    assert type(model[0]) is nn.Linear


def test_a_strength_of_signs_that_is_none_is_refused():
    with pytest.raises(ValueError, match="finite number"):
        pb.binarize(
            nn.Sequential(nn.Linear(2, 2)), pb.method("bnn++", sharp_strength=-1.0), only="*"
        )
