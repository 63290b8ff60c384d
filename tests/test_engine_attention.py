"""Attention by a kernel: its formula on every backend, and the bits of torch or none at all."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from every_backend import on_each
from plan_steps import steps_of
from proxbit.engine.attention import Way, attend, find_way
from proxbit.engine.steps import AttentionStep, HeadsStep
from proxbit.kernels import inference as kernels

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
attention = functional.scaled_dot_product_attention


def heads(batch: int, count: int, rows: int, width: int, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values as a projection leaves them: next to each other."""
    x = torch.randn(
        batch, rows, 3, count, width, generator=torch.Generator().manual_seed(seed)
    ).permute(2, 0, 3, 1, 4)
    return list(x.unbind(0))


def way_of(q: Tensor, k: Tensor, v: Tensor, lanes: int, run: int) -> Way:
    strides = [(ctypes.c_int64 * 3)(*x.stride()[:3]) for x in (q, k, v)]
    batch, count, rows, width = q.shape
    how = kernels.Attention(
        batch, count, rows, k.shape[2], width, *strides, width**-0.5, lanes, run
    )
    return Way(how, tuple((x.shape, x.stride()) for x in (q, k, v)))  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(1, 2), count=st.integers(1, 3), rows=st.integers(1, 40),
    keys=st.integers(1, 40), width=st.sampled_from([16, 48]), lanes=st.sampled_from([8, 16]),
    run=st.integers(1, 50), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_is_the_formula_and_the_same_bits_everywhere(
    batch: int, count: int, rows: int, keys: int, width: int, lanes: int, run: int, seed: int
) -> None:
    q = heads(batch, count, rows, width, seed)[0]
    _, k, v = heads(batch, count, keys, width, seed + 1)
    way = way_of(q, k, v, lanes, run)
    found = on_each(lambda: attend(way, q, k, v))
    scores = q.double() @ k.double().transpose(2, 3) * width**-0.5
    torch.testing.assert_close(
        found[0].double(), scores.softmax(-1) @ v.double(), rtol=0, atol=1e-5
    )
    assert all(torch.equal(each, found[0]) for each in found)
    torch.set_num_threads(2)
    try:
        assert torch.equal(attend(way, q, k, v), found[0])
    finally:
        torch.set_num_threads(1)


@settings(max_examples=20, deadline=None)
@given(keys=st.integers(1, 40), run=st.integers(1, 45), seed=st.integers(0, 99))
def test_sums_are_those_of_runs_one_after_the_other(keys: int, run: int, seed: int) -> None:
    q, k, v = heads(1, 1, keys, 16, seed)
    k = torch.zeros_like(k)  # every key counts the same
    total = torch.zeros(16)
    for first in range(0, keys, run):
        part = torch.zeros(16)
        for row in v[0, 0, first : first + run]:
            part = part + row
        total = part if first == 0 else total + part
    wanted = total * (torch.ones(1) / keys)
    assert torch.equal(attend(way_of(q, k, v, 16, run), q, k, v)[0, 0, 0], wanted)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("keys", [50, 192])
def test_where_a_way_is_found_torch_has_its_bits(keys: int, bad: float) -> None:
    q, k, v = heads(1, 3, keys, 64)
    way = find_way(q, k, v)
    if way is None:
        pytest.skip("torch sums in another order here, or is faster")
    other = heads(1, 3, keys, 64, seed=5)
    assert torch.equal(attend(way, *other), attention(*other))
    other[1][0, 1, 7, 3] = bad
    assert torch.equal(attend(way, *other).nan_to_num(9), attention(*other).nan_to_num(9))


def test_no_way_for_other_shapes_types_and_options() -> None:
    q, k, v = heads(1, 2, 20, 24)
    assert find_way(q, k, v) is None  # 24 is no multiple of 16
    q, k, v = heads(1, 2, 20, 16)
    assert find_way(q.double(), k.double(), v.double()) is None
    assert find_way(q[0], k[0], v[0]) is None
    assert find_way(q, k[:, :1], v[:, :1]) is None
    step, mask = AttentionStep(), torch.randn(20, 20)
    for options in ({"attn_mask": mask}, {"is_causal": True}, {"scale": 0.5}):
        assert torch.equal(step.forward(q, k, v, **options), attention(q, k, v, **options))
        assert step.way is None
    assert torch.equal(step.forward(q, k, v, mask), attention(q, k, v, mask))


def test_a_way_takes_what_it_was_made_for() -> None:
    q, k, v = heads(1, 2, 20, 16)
    way = way_of(q, k, v, 16, 20)
    assert way.takes(q, k, v)
    assert not way.takes(q.contiguous(), k, v)
    v.requires_grad_()
    assert not way.takes(q, k, v)
    with torch.no_grad():
        assert way.takes(q, k, v)


@pytest.mark.parametrize(
    "wrong", [{"width": 24}, {"width": 0}, {"run": 0}, {"lanes": 4}, {"keys": 0}, {"heads": 0}]
)
def test_a_wrong_structure_is_refused(wrong: dict[str, int]) -> None:
    q, k, v = heads(1, 2, 20, 16)
    way = way_of(q, k, v, 16, 20)
    for name, value in wrong.items():
        setattr(way.heads, name, value)
    with pytest.raises(ValueError):
        attend(way, q, k, v)


class Attending(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.stem, self.head = nn.Linear(8, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 2, 32)).permute(2, 0, 3, 1, 4).unbind(0)
        y = attention(q, k, v, dropout_p=0.0).transpose(1, 2).flatten(2)
        return self.head((x + self.out(y)).mean(1))


@torch.no_grad()
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_attention_is_a_step_of_a_plan(task: str) -> None:
    torch.manual_seed(0)
    model, x = Attending(), torch.randn(2, 21, 8)
    pb.binarize(model, "bnn", task)
    hard = pb.harden(model).eval()
    net = pb.pack(hard)
    first, second = net(x), net(x)
    assert any(isinstance(step, AttentionStep) for step in steps_of(net))
    assert torch.equal(first, second) and torch.equal(second, type(net).forward(net, x))
    if task == "BWA":
        assert torch.equal(second, hard(x))


class Cut(Attending):
    """The same as timm writes it, with numbers that follow from shapes."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.stem(x)
        batch, rows, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, rows, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = attention(q, k, v, attn_mask=mask, dropout_p=0.0, is_causal=False)
        return self.head((x + self.out(y.transpose(1, 2).reshape(batch, rows, width))).mean(1))


@torch.no_grad()
@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_heads_are_cut_and_joined_in_one_step(
    task: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Cut(), torch.randn(2, 21, 8)
    pb.binarize(model, "bnn", task)
    net = pb.pack(pb.harden(model).eval())
    if not found:
        monkeypatch.setattr("proxbit.engine.steps.find_way", lambda *_: None)
    first, second = net(x), net(x)
    (step,) = (step for step in steps_of(net) if isinstance(step, HeadsStep))
    assert step.sizes == (2, 21, 3, 2, 32) and (found or step.way is None)
    assert torch.equal(first, second) and torch.equal(second, type(net).forward(net, x))
    masked = torch.zeros(21, 21)
    assert torch.equal(net(x, masked), type(net).forward(net, x, masked))
