"""A float layer's product with one row: shared by the threads, with the bits of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import proxbit as pb
from plan_steps import steps_of
from proxbit.engine import one_row
from proxbit.engine.steps import RowStep
from proxbit.kernels import inference as kernels


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@given(
    seed=st.integers(0, 2**31), parts=st.integers(1, 5), each=st.integers(1, 9),
    inputs=st.integers(1, 70), bias=st.booleans(), lead=st.integers(0, 2),
)  # fmt: skip
def test_a_row_in_parts_is_the_product(
    seed: int, parts: int, each: int, inputs: int, bias: bool, lead: int
) -> None:
    torch.manual_seed(seed)
    weight, x = torch.randn(parts * each, inputs), torch.randn(*(1 for _ in range(lead)), inputs)
    added = torch.randn(parts * each) if bias else None
    found = one_row.in_parts(x, weight, added, parts)
    wanted = x.double() @ weight.double().t() + (0 if added is None else added.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), [(1000, 257), (600, 512), (7, 40000), (64, 16)])
@torch.no_grad()
def test_the_step_has_the_bits_of_the_layer_on_any_number_of_threads(
    outputs: int, inputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_row, "_is_faster", lambda *given: True)
    layer = nn.Linear(inputs, outputs, bias)
    step = RowStep(layer)
    for threads in (1, 2, 3, 4, 2):
        with on_threads(threads):
            for shape in ((1, inputs), (1, 1, inputs), (inputs,), (3, inputs), (2, 1, inputs)):
                x = torch.randn(shape)
                assert torch.equal(step.forward(x), layer(x))
                assert step.forward(x).shape == layer(x).shape
            doubled = layer.double()(x.double())
            assert torch.equal(step.forward(x.double()), doubled)
            layer.float()
    shared = outputs * inputs >= one_row.FEWEST_WEIGHTS
    assert set(step.parts) == ({2, 3, 4} if shared else set())
    assert all(outputs % parts == 0 and parts <= n for n, parts in step.parts.items())


@torch.no_grad()
def test_other_bits_or_a_slower_batch_leave_the_product_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, cut = nn.Linear(512, 400), one_row.in_parts
    monkeypatch.setattr(one_row, "_is_faster", lambda *given: False)
    assert one_row.find_parts(layer, 2) == 1
    monkeypatch.setattr(one_row, "_is_faster", lambda *given: True)
    monkeypatch.setattr(one_row, "in_parts", lambda *given: cut(*given).nextafter(torch.ones(1)))
    assert one_row.find_parts(layer, 2) == 1


@pytest.mark.skipif(kernels.library() is None, reason="no kernels here")
@torch.no_grad()
def test_a_plan_shares_its_classifier_and_keeps_the_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Hardtanh(), nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64),
        nn.Hardtanh(), nn.Conv2d(64, 256, 1), nn.BatchNorm2d(256), nn.Hardtanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 600),
    ).eval()  # fmt: skip
    pb.binarize(model, "bc", "BWA")
    net, x = pb.pack(pb.harden(model)), torch.randn(1, 3, 12, 12)
    for threads in (2, 1):
        with on_threads(threads):
            wanted = type(net).forward(net, x)
            assert torch.equal(net(x), wanted) and torch.equal(net(x), wanted)
    assert [type(step) for step in steps_of(net)].count(RowStep) == 1
