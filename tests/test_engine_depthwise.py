"""Depthwise convolutions on bits, and norms that carry an activation: mobile networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from every_backend import on_each
from plan_steps import steps_of
from proxbit.engine.forms import ConvGeometry, Kernel, PackedForm, lay_out, read_out
from proxbit.engine.fusing import Folded, FoldedNorm
from proxbit.engine.norms import is_split
from proxbit.engine.packed import packed_layers
from proxbit.kernels import inference as kernels

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no kernels here")


@settings(max_examples=60, deadline=None)
@example(64, (3, 3), (1, 1), (1, 1), 1, 7, 0, True, 0)
@example(16, (3, 3), (1, 1), (1, 1), 1, 9, 0, False, 0)
@example(72, (5, 5), (2, 2), (1, 1), 2, 9, 4, True, 0)
@given(
    channels=st.integers(2, 150), kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)), pad=st.integers(0, 2),
    side=st.integers(9, 14), register=st.sampled_from([0, 0, 3, 8]), last=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_is_the_formula_on_every_backend(
    channels: int, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int],
    pad: int, side: int, register: int, last: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    taps = kernel[0] * kernel[1]
    form = PackedForm(1, taps, channels, True, register, 2.0, 1, taps=taps)
    assert form.depthwise
    rows = torch.randint(0, 2, (channels, taps), dtype=torch.uint8)
    laid = lay_out(rows, form)
    assert laid.shape == (taps, -(-channels // 8))
    assert torch.equal(read_out(laid, form, kernels.library()), rows)
    scale, bias, shift = torch.randn(3, channels).unbind(0)
    x = torch.randn(2, channels, side, side)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    signs = torch.where(torch.signbit(x - shift.view(-1, 1, 1)), -1.0, 1.0)
    weight = (2.0 * rows - 1).reshape(channels, 1, *kernel)
    sums = functional.conv2d(
        functional.pad(signs, (pad,) * 4, value=1.0), weight, None, stride, 0, dilation, channels
    )
    if register:
        half = 2.0 ** (register - 1)
        held = (sums + half) % (2 * half) - half
        sums = torch.maximum(torch.minimum(held, -2 * held + 2 * half), -2 * held - 2 * half)
    wanted = sums * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)
    window = ConvGeometry(kernel, stride, dilation, (pad,) * 4)
    own = scale.clone(), bias.clone(), shift.clone()
    for found in on_each(lambda: Kernel(form, laid, *own).convolve(x, window)):
        assert torch.equal(found, wanted)


class NormAct(nn.BatchNorm2d):
    """A norm that carries its activation, as timm has it."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act
        for tensor in (self.weight.data, self.bias.data, self.running_mean):
            tensor.normal_()
        self.running_var.uniform_(0.5, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert x.ndim == 4
        y = functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1,
            self.eps,
        )  # fmt: skip
        return self.act(self.drop(y))


class Inverted(nn.Module):
    """Wide, depthwise, narrow, and a sum: the block of mobile networks."""

    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(3, 24, 3), NormAct(24, act())
        self.wide, self.bn1 = nn.Conv2d(24, 72, 1, bias=False), NormAct(72, act())
        self.deep = nn.Conv2d(72, 72, 3, 1, 1, groups=72, bias=False)
        self.bn2 = NormAct(72, act())
        self.narrow, self.bn3 = nn.Conv2d(72, 24, 1, bias=False), NormAct(24, nn.Identity())
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn0(self.stem(x))
        y = self.bn2(self.deep(self.bn1(self.wide(x))))
        return self.head((x + self.bn3(self.narrow(y))).mean((2, 3)))


ACTIVATIONS = [nn.Hardtanh, nn.Hardswish, nn.ReLU, nn.SiLU]


def packed(task: str, act: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(1)
    model = Inverted(act)
    pb.binarize(model, "bc", task, relu="keep")
    hard = pb.harden(model).eval()
    return hard, pb.pack(hard), torch.randn(2, 3, 11, 11)


@pytest.mark.filterwarnings("ignore::UserWarning")  # a ReLU in front of binary inputs
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@torch.no_grad()
def test_a_mobile_block_is_its_hard_twin(
    task: str, act: Callable[[], nn.Module], last: bool, tmp_path: Path
) -> None:
    hard, net, x = packed(task, act)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    pb.save(net, tmp_path / "net.safetensors")
    loaded = pb.load(tmp_path / "net.safetensors", Inverted(act))
    for each in (net, copy.deepcopy(net), loaded):
        first, second = each(x), each(x)
        assert list(steps_of(each)) and torch.equal(first, second)
        assert torch.equal(second, type(each).forward(each, x))
        if task == "BW":
            torch.testing.assert_close(first, hard(x), rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(first, hard(x))


@pytest.mark.parametrize("task", ["BWA", "BWAA"])
def test_bits_pass_through_a_depthwise_layer(task: str) -> None:
    _, net, _ = packed(task, nn.Hardtanh)
    assert net.wide.target == (net.deep,) and net.deep.target == (net.narrow,)
    assert {layer.route for _, layer in packed_layers(net)} == {"bits"}
    assert isinstance(net.bn1, FoldedNorm) and isinstance(net.bn1.inner.act, Folded)


@torch.no_grad()
def test_new_values_and_types_reach_a_norm_that_is_folded() -> None:
    hard, net, x = packed("BW", nn.Hardswish)
    assert isinstance(net.bn1, FoldedNorm) and isinstance(net.bn1.inner.act, nn.Hardswish)
    before, state = net(x), copy.deepcopy(net.state_dict())
    torch.testing.assert_close(net.double()(x.double()).float(), before, rtol=1e-4, atol=1e-4)
    net.float()
    for changed, prefix in ((hard, "bn1."), (net, "bn1.inner.")):
        held = state if changed is net else hard.state_dict()
        held = held | {f"{prefix}bias": held[f"{prefix}bias"] + 1}
        changed.load_state_dict(held)
    assert not torch.allclose(net(x), before)
    torch.testing.assert_close(net(x), hard(x), rtol=1e-4, atol=1e-4)


def test_a_norm_is_split_only_if_it_is_norm_and_activation() -> None:
    class Doubled(NormAct):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    norm = NormAct(6, nn.ReLU())
    assert not is_split(norm)  # in training
    assert is_split(norm.eval()) and not is_split(Doubled(6, nn.ReLU()).eval())
    assert not is_split(nn.BatchNorm2d(6).eval())
    norm.register_forward_hook(lambda *_: None)
    assert not is_split(norm)


@pytest.mark.parametrize(
    "wrong",
    [{"outputs": 2}, {"products": 8}, {"row_bytes": 8}, {"groups": 15}, {"panel_bytes": 17}],
)
def test_a_wrong_structure_is_refused(wrong: dict[str, int]) -> None:
    form = PackedForm(1, 9, 16, True, taps=9)
    laid = torch.zeros(9, 2, dtype=torch.uint8)
    kernel = Kernel(form, laid, torch.ones(16), None, None)
    for name, value in wrong.items():
        setattr(kernel.layer, name, value)
    with pytest.raises(ValueError):
        kernel.convolve(torch.randn(1, 16, 5, 5), ConvGeometry((3, 3), (1, 1), (1, 1), (0,) * 4))
