"""Accumulators in one pass: what the kernels give is the formula, on every instruction set."""

from collections.abc import Iterator
from ctypes import byref, c_int64

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import proxbit as pb
from every_backend import SUPPORTED, using
from proxbit.kernels import training as fused
from proxbit.nn import WrapAccumulator, cyclic, wrap
from proxbit.nn.accumulators import turns

LIBRARY = fused._library()
if LIBRARY is None:
    pytest.skip("the kernels are not built: pip install -e .", allow_module_level=True)

OK, BAD_ARGUMENT = 0, 1
often = settings(max_examples=4 * settings.default.max_examples)
bits_of = st.integers(2, 24)
slopes = st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0])
# Sums of signs, and the halves and quarters of soft inputs; far beyond what a layer reaches.
sums = st.integers(-(2**24), 2**24).map(lambda v: v / 4) | st.sampled_from(
    [0.0, -0.0, 2.0**23 - 0.5, 2.0**24, -(2.0**31), 3e9, 1e20, -1e38]
)


@pytest.fixture(autouse=True, scope="module")
def even_the_smallest_tensor() -> Iterator[None]:
    before, fused.SMALLEST = fused.SMALLEST, 1
    yield
    fused.SMALLEST = before


def on_every_isa(z: Tensor, g: Tensor, bits: int, k: float) -> tuple[Tensor, int, Tensor]:
    """The same bits from all of them."""
    found = []
    for name in SUPPORTED:
        with using(name):
            held, alone = (fused.wrap(z, bits, k, keep=keep) for keep in (True, False))
            assert held is not None
            assert alone is not None
            out, falls, over = held
            assert falls is not None
            assert torch.equal(alone[0], out)
            assert alone[1:] == (None, over)
            pulled = fused.wrap_backward(falls, g, k)
            assert pulled is not None
            found.append((out, over, pulled))
    for out, over, pulled in found[1:]:
        assert torch.equal(out, found[0][0])
        assert over == found[0][1]
        assert torch.equal(pulled, found[0][2])
    return found[0]


@often
@given(st.lists(sums, min_size=1, max_size=40), bits_of, slopes)
@example([2.0**23 + 1.0, -0.25, 8388607.5], 2, 3.0)
def test_the_one_pass_is_the_passes_of_torch(values: list[float], bits: int, k: float) -> None:
    z = torch.tensor(values, dtype=torch.float32)
    g = torch.linspace(-2, 3, len(values))
    out, over, pulled = on_every_isa(z, g, bits, k)
    m = wrap(z, bits).requires_grad_()
    expected = cyclic(m, bits, k)
    assert torch.equal(out, expected.detach())
    assert over == int(turns(z, bits).count_nonzero())
    assert torch.equal(pulled, torch.autograd.grad(expected, m, g)[0])


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=40), st.integers(2, 12))
def test_whole_sums_follow_integer_arithmetic(values: list[int], bits: int) -> None:
    half, k = 2 ** (bits - 1), 2
    z = np.array(values)
    m = (z + half) % (2 * half) - half
    inner = (k + 1) * np.abs(m) <= k * half
    read = np.where(inner, m, np.sign(m) * k * (half - np.abs(m)))
    floats = torch.tensor(values, dtype=torch.float32)
    out, over, pulled = on_every_isa(floats, torch.ones(len(values)), bits, k)
    assert out.tolist() == read.tolist()
    assert over == int((m != z).sum())
    assert pulled.tolist() == np.where(inner, 1, -k).tolist()


def test_what_is_no_number_stays_so() -> None:
    z = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    held = fused.wrap(z, 8, 2.0, keep=True)
    assert held is not None
    assert held[0].isnan().tolist() == cyclic(wrap(z, 8), 8, 2.0).isnan().tolist()


@pytest.mark.parametrize("n", [1, 7, 8, 16 * 1024, 16 * 1024 + 5, 300_001])
def test_parts_and_threads_change_nothing_and_touch_nothing_else(n: int) -> None:
    z = torch.randint(-600, 600, (n,)).float()
    g = torch.randn(n)
    for threads in (1, 2):
        out, back, over = torch.full((n + 2,), 7.0), torch.full((n + 2,), 7.0), c_int64()
        falls = torch.full((n + 2,), 7, dtype=torch.uint8)
        places = z.data_ptr(), g.data_ptr(), out[1:].data_ptr(), back[1:].data_ptr()
        (at_z, at_g, at_out, at_back), at_falls = places, falls[1:].data_ptr()
        assert LIBRARY.pb_wrap(at_z, n, 8, 2.0, at_out, at_falls, byref(over), threads) == OK
        assert LIBRARY.pb_wrap_pull(at_falls, at_g, n, 2.0, at_back, threads) == OK
        m = wrap(z, 8).requires_grad_()
        expected = cyclic(m, 8, 2.0)
        assert torch.equal(out[1:-1], expected.detach())
        assert torch.equal(back[1:-1], torch.autograd.grad(expected, m, g)[0])
        assert over.value == int(turns(z, 8).count_nonzero())
        for written in (out, back, falls):
            assert written[[0, -1]].tolist() == [7, 7]
        assert bool((falls[1:-1] <= 1).all())


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, gradients and overflow of one step."""
    model.zero_grad()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    overflow = [m.overflow.clone() for m in model.modules() if isinstance(m, WrapAccumulator)]
    grads = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return [y.detach(), *grads, *overflow]


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("method", ["bc", "bnn++"])
def test_a_layer_trains_as_with_torch_alone(
    method: str, memory: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(40, 24, 3), nn.Conv2d(24, 30, 3)).to(memory_format=memory)
    pb.binarize(model, method, pb.Task("BWAA", bits=4), only="*")
    x = torch.randn(5, 40, 12, 12).to(memory_format=memory)
    ours = trained(model, x)
    monkeypatch.setattr(fused, "wrap", lambda *_, **__: None)
    plain = trained(model, x)
    assert ours[-2] > 0  # overflow of the first layer
    for mine, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_a_register_keeps_a_byte_for_a_sum() -> None:
    kept: list[int] = []

    def note(t: Tensor) -> Tensor:
        kept.append(t.numel() * t.element_size())
        return t

    z = torch.linspace(-300, 300, 5000).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        WrapAccumulator(8)(z)
    assert kept == [5000]


def test_a_second_derivative_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.linspace(-300, 300, 5000)

    def twice() -> Tensor:
        x = z.clone().requires_grad_()
        read = WrapAccumulator(8)(x)
        (first,) = torch.autograd.grad((read**2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    ours = twice()
    monkeypatch.setattr(fused, "wrap", lambda *_, **__: None)
    assert ours.abs().sum() > 0
    torch.testing.assert_close(ours, twice())


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"n": -3}, {"bits": 1}, {"bits": 25}, {"k": 0.0}, {"k": float("nan")}],
    ids=str,
)  # fmt: skip
def test_wrong_arguments_are_refused_and_nothing_is_written(wrong: dict[str, float]) -> None:
    z, out, over = torch.ones(4), torch.full((4,), 7.0), c_int64(7)
    how = {"n": 4, "bits": 8, "k": 2.0} | wrong
    at, to = z.data_ptr(), out.data_ptr()
    shape = how["n"], how["bits"], how["k"]
    assert LIBRARY.pb_wrap(at, *shape, to, None, byref(over), 1) == BAD_ARGUMENT
    if "bits" not in wrong:
        assert LIBRARY.pb_wrap_pull(at, at, how["n"], how["k"], to, 1) == BAD_ARGUMENT
    for places in [(None, to, byref(over)), (at, None, byref(over)), (at, to, None)]:
        start, out_place, count = places
        assert LIBRARY.pb_wrap(start, 4, 8, 2.0, out_place, None, count, 1) == BAD_ARGUMENT
    for places in [(None, at, to), (at, None, to), (at, at, None)]:
        falls, g, out_place = places
        assert LIBRARY.pb_wrap_pull(falls, g, 4, 2.0, out_place, 1) == BAD_ARGUMENT
    assert out.tolist() == [7.0] * 4
    assert over.value == 7
