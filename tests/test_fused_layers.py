"""Layers that compute in one pass learn as those of torch, and torch serves where it must."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from proxbit.core import maps, prox
from proxbit.core.methods import METHODS
from proxbit.kernels import library as kernels
from proxbit.kernels import training as fused

pytestmark = [
    pytest.mark.skipif(kernels.opened() is None, reason="the kernels are not built here"),
    pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def even_the_smallest_tensor() -> Iterator[None]:
    """Take the kernels for tensors of any size."""
    before, fused.SMALLEST = fused.SMALLEST, 1
    yield
    fused.SMALLEST = before


# Layers -------------------------------------------------------------------------------------------


def outcome(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of one step."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


LAYOUTS = pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"]
)


@LAYOUTS
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "fp"])
def test_a_layer_learns_the_same_with_and_without_kernels(
    name: str, task: str, layout: torch.memory_format, use_kernels: Callable[[str], None]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(80, 6))
    pb.binarize(model, name, task, only="*", relu=None)
    pb.set_strength(model, 0.6)
    shifts = [p for label, p in model.named_parameters() if label.endswith("shift")]
    for shift in shifts:
        nn.init.normal_(shift.data, std=0.05)
    model.to(memory_format=layout)
    x = torch.randn(2, 3, 4, 4).to(memory_format=layout)
    found = outcome(model, x)
    use_kernels("torch")
    for mine, theirs in zip(found, outcome(model, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


def used(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> set[str]:
    """Which kernels served while something ran."""
    served = set()

    def watch(name: str) -> None:
        before = getattr(fused, name)

        def after(*args: object, **options: object) -> object:
            result = before(*args, **options)
            if result is not None:
                served.add(name)
            return result

        monkeypatch.setattr(fused, name, after)

    for name in ("forward", "quantize_weight", "backward"):
        watch(name)
    run()
    return served


BY_KERNELS = ["pc", "bnn", "bnn+", "bnn++", "bi-real", "poly+", "ede+", "react"]


@pytest.mark.parametrize("name", BY_KERNELS)
def test_a_binary_layer_takes_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    pb.binarize(model, name, "BWA", only="*")
    served = used(monkeypatch, lambda: outcome(model, torch.randn(4, 6)))
    assert served == {"forward", "quantize_weight", "backward"} - (
        {"backward"} if name == "pc" else set()
    )


@LAYOUTS
@pytest.mark.parametrize("name", BY_KERNELS)
def test_a_convolution_takes_the_kernels_in_either_layout_and_keeps_it(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1))
    pb.binarize(model, name, "BWA", only="*")
    model.to(memory_format=layout)
    x, seen = torch.randn(2, 3, 4, 4).to(memory_format=layout), []
    quantizers = (model[0].binary.input_quantizer, model[0].binary.weight_quantizer)
    for quantizer in quantizers:
        quantizer.register_forward_hook(lambda _, given, made: seen.extend([*given, made]))
    served = used(monkeypatch, lambda: seen.extend(outcome(model, x)[1:2]))
    assert served == {"forward", "quantize_weight", "backward"} - (
        {"backward"} if name == "pc" else set()
    )
    assert len(seen) == 5
    assert all(each.is_contiguous(memory_format=layout) for each in seen)


@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_a_learned_shift_costs_no_copy(task: str) -> None:
    """What waits for the way back of ReAct is the weight, the input and their shifts themselves."""
    layer = nn.Linear(6, 5)
    model = nn.Sequential(layer)
    pb.binarize(model, "react", task, only="*")
    kept: list[Tensor] = []
    x = torch.randn(4, 6, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        model(x)
    known = {t.data_ptr() for t in (x, *model.parameters())}
    copies = [t for t in kept if t.numel() >= 20 and t.data_ptr() not in known]
    assert len({t.data_ptr() for t in copies}) == (1 if task == "BW" else 2)  # q, and q of x


# Where torch serves -------------------------------------------------------------------------------

ODD = {
    "double": lambda: torch.randn(4, 6, dtype=torch.float64),
    "bits": lambda: torch.ones(4, 6, dtype=torch.bool),
    "turned": lambda: torch.randn(6, 4).t(),
    "meta": lambda: torch.randn(4, 6, device="meta"),
    "a subclass": lambda: nn.Parameter(torch.randn(4, 6)).as_subclass(type("Own", (Tensor,), {})),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "sparse images": lambda: torch.ones(1, 2, 3, 4).to_sparse(),
}


@pytest.mark.parametrize("make", list(ODD.values()), ids=list(ODD))
def test_other_tensors_are_left_to_torch(make: Callable[[], Tensor]) -> None:
    x, s = make(), torch.tensor(2.0)
    measures = fused.Measures(pb.SCALES["channel"], False, None, True)
    assert fused.forward(maps.sign, x, s) is None
    assert fused.quantize_weight(maps.sign, x, s, None, False, measures) is None
    assert fused.backward(maps.inside, x, x, s) is None


def test_other_maps_and_many_strengths_are_left_to_torch() -> None:
    x, s = torch.randn(4, 6), torch.tensor(2.0)
    for f in (
        lambda w, s: w,
        partial(maps.sign),
        partial(prox.linear_quantizer, varrho=-1.0),
        partial(maps.at_strength, maps.poly, 2.0),
    ):
        assert fused.forward(f, x, s) is None
    assert fused.backward(maps.one, x, x, s) is None
    assert fused.forward(maps.poly, x, torch.rand(6)) is None


def test_the_environment_can_refuse_the_kernels(use_kernels: Callable[[str], None]) -> None:
    x, s = torch.randn(4, 6), torch.tensor(2.0)
    assert fused.forward(maps.sign, x, s) is not None
    use_kernels("torch")
    assert fused.forward(maps.sign, x, s) is None
    use_kernels("avx3")
    with pytest.raises(ValueError, match="avx3"):
        fused.forward(maps.sign, x, s)


@pytest.mark.filterwarnings("ignore")  # torch.jit warns of itself
def test_transforms_and_modes_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses import FakeTensorMode

    w = torch.randn(3, 4)

    def total(v: Tensor) -> Tensor:
        return pb.quantize(v, 2.0, pb.ede_plus).sum()

    def traced() -> None:
        torch.jit.trace(total, w, check_trace=False)

    def faked() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            total(w)

    assert not used(monkeypatch, lambda: torch.vmap(total)(w))
    assert not used(monkeypatch, lambda: torch.func.grad(total)(w))
    assert not used(monkeypatch, lambda: torch.compile(total, backend="eager")(w))
    assert not used(monkeypatch, faked)
    assert not used(monkeypatch, traced)


def test_a_batch_of_gradients_is_left_to_torch() -> None:
    w, many = torch.randn(3, 4, requires_grad=True), torch.randn(5, 3, 4)
    q = pb.quantize(w, 2.0, pb.poly_plus)
    (found,) = torch.autograd.grad(q, w, many, is_grads_batched=True)
    torch.testing.assert_close(found, many * maps.poly_slope(w.detach(), torch.tensor(2.0)))


def test_second_derivatives_remain() -> None:
    """Of EDE+: B = s (1 - tanh^2), so its derivative is -2 s B tanh."""
    w, s = torch.randn(3, 4, requires_grad=True), 2.0
    (g,) = torch.autograd.grad(pb.quantize(w, s, pb.ede_plus).sum(), w, create_graph=True)
    (found,) = torch.autograd.grad(g.sum(), w)
    t = np.tanh(s * w.detach().double().numpy())
    np.testing.assert_allclose(found, -2 * s * s * (1 - t * t) * t, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_views_are_taken() -> None:
    w = torch.randn(3, 4, requires_grad=True)
    for g in (torch.ones(()).expand(3, 4), torch.randn(4, 3).t()):
        (found,) = torch.autograd.grad(pb.quantize(w, 2.0, pb.bi_real), w, g)
        assert torch.equal(found, g * maps.triangle(w.detach()))
