"""Folding what stands behind a packed layer into its kernel changes nothing but the speed."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import proxbit as pb
from binarizing import binarize
from proxbit.engine.bounds import intervals, possible_sums
from proxbit.engine.forms import PackedForm
from proxbit.engine.fusing import Folded
from proxbit.kernels import inference as kernels

needs_kernels = pytest.mark.skipif(
    kernels.library() is None, reason="the kernels are not built or not chosen here"
)
ACTIVATIONS = [
    nn.Identity, nn.Hardtanh, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.ELU,
    lambda: nn.PReLU(12),
]  # fmt: skip


def between(activation, norm=True):
    """Two binary convolutions with a norm and an activation between them, and float ends."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12) if norm else nn.Identity(), activation(), nn.Dropout2d(0.5),
        nn.Conv2d(12, 10, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(10 * 16, 5),
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)  # half of the gains are negative
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean, std=5)
            nn.init.uniform_(module.running_var, 0.5, 9)
    return model


def hard(model, task, **options):
    binarize(model, "bc", task, **options)
    return pb.harden(model).eval()


def folded(net):
    return sum(isinstance(module, Folded) for module in net.modules())


@needs_kernels
@pytest.mark.parametrize("task", ["BWA", "BWAA"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: getattr(a, "__name__", "PReLU"))
def test_bits_between_layers_are_those_of_the_hard_network(activation, task):
    model = hard(between(activation), task)
    net, x = pb.pack(model), torch.randn(6, 3, 8, 8)
    with torch.no_grad():
        expected, given_back = model[:6](x), net[:6](x)
    assert torch.equal(given_back, expected)


@needs_kernels
@pytest.mark.parametrize("activation", [nn.Identity, nn.Hardtanh, nn.Tanh, nn.LeakyReLU])
def test_monotone_activations_are_folded_with_their_norm(activation):
    net = pb.pack(hard(between(activation), "BWA"))
    assert folded(net) == (1 if activation is nn.Identity else 2)
    assert net[1].target == (net[5],)


@needs_kernels
def test_linear_layers_hand_on_bits_behind_a_gelu():
    model = nn.Sequential(
        nn.Linear(9, 30), nn.Linear(30, 40), nn.GELU(), nn.Linear(40, 30), nn.Linear(30, 2)
    )
    model[1].weight.data.mul_(40)  # far below -5 a GELU gives a zero
    model = hard(model, "BWA")
    net, x = pb.pack(model), torch.randn(3, 5, 9)
    with torch.no_grad():
        assert folded(net) == 1
        assert net[1](net[0](x)).dtype == torch.uint8
        assert torch.equal(net[:4](x), model[:4](x))


@needs_kernels
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Hardtanh, nn.SiLU])
def test_a_norm_and_an_activation_behind_float_inputs_stay_within_rounding(activation):
    model = hard(between(activation), "BW")
    net, x = pb.pack(model), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected, given_back = model(x), net(x)
    assert folded(net) == (1 if activation is nn.SiLU else 2)
    assert (given_back - expected).norm() <= 1e-5 * expected.norm()


@needs_kernels
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_what_others_look_at_is_not_folded(task):
    hooked = hard(between(nn.Hardtanh), task)
    hooked[3].register_forward_hook(lambda *_: None)
    twice = between(nn.Hardtanh)
    twice.append(twice[3])
    moving = hard(between(nn.Hardtanh), task)
    moving[2].train()
    # A norm in front of a hooked activation may still be folded.
    assert folded(pb.pack(hooked)) == 1
    assert folded(pb.pack(hard(twice, task))) == 1
    assert folded(pb.pack(moving)) == 0


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.norm(self.first(x))
        return y + self.second(y)


@needs_kernels
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_a_residual_keeps_its_floats(task):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Branch(), nn.Flatten(), nn.Linear(64, 2))
    model = hard(model, task)
    net, x = pb.pack(model), torch.randn(2, 3, 4, 4)
    assert net[1].first.target == ()
    with torch.no_grad():
        torch.testing.assert_close(net(x), model(x), rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_loading_other_tensors_makes_the_folded_step_anew(task):
    one, other = (pb.pack(hard(between(nn.Hardtanh), task)) for _ in range(2))
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for tensor in (other[2].inner.running_mean, other[2].inner.bias):
            tensor.add_(3.0)
        other[1].forget()
        before = one(x)
        one.load_state_dict(other.state_dict())
        assert torch.equal(one(x), other(x))
        assert not torch.equal(one(x), before)


@needs_kernels
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_other_inputs_pass_through_the_folded_modules(task):
    model = hard(between(nn.Hardtanh), task)
    net, x = pb.pack(model).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(x), copy.deepcopy(model).double()(x), rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("norm", [True, False])
def test_a_norm_without_fixed_statistics_stays(norm):
    model = between(nn.Hardtanh)
    model[2] = nn.BatchNorm2d(12, track_running_stats=not norm)
    assert folded(pb.pack(hard(model, "BWA"))) == (0 if norm else 2)


@given(st.integers(2, 30), st.data())
@settings(max_examples=60)
def test_an_interval_is_what_it_was_made_of(count, data):
    sums = torch.arange(-count, count + 1, 2, dtype=torch.int32)
    begin = data.draw(st.integers(0, len(sums)))
    end = data.draw(st.integers(begin, len(sums)))
    flip = data.draw(st.booleans())
    inside = torch.arange(len(sums))
    column = ((inside >= begin) & (inside < end)) != flip
    found = intervals(sums, column[:, None])
    assert found is not None
    low, high, turned = (int(part[0]) for part in found)
    assert torch.equal(((sums >= low) & (sums < high)) != bool(turned), column)


def test_two_intervals_are_refused():
    sums = torch.arange(-4, 5, 2, dtype=torch.int32)
    column = torch.tensor([False, True, False, True, False])
    assert intervals(sums, column[:, None]) is None


@given(st.integers(1, 40), st.integers(0, 10))
def test_every_sum_is_possible(products, bits):
    form = PackedForm(1, products, binary=True, register_bits=0 if bits < 2 else bits)
    sums = possible_sums(form)
    assert sums is not None
    reached = {sum(1 if i < ones else -1 for i in range(products)) for ones in range(products + 1)}
    if form.register_bits:
        half = 2 ** (bits - 1)
        reached = {(s + half) % (2 * half) - half for s in reached}
        assert reached <= set(sums.tolist()) and len(sums) == 2 * half
    else:
        assert sums.tolist() == sorted(reached)
