"""The contracts that others may run: ours keep them, and each law catches who breaks it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.core import maps
from proxbit.testing import (
    available_backends,
    check_layer,
    check_method,
    check_pair,
    use_backend,
)

TASKS = ("BW", "BWA", "BWAA")


def tanh(w: Tensor, s: Tensor) -> Tensor:
    return torch.tanh(s * w)


def slope(w: Tensor, s: Tensor) -> Tensor:
    return s * (1 - torch.tanh(s * w) ** 2)


def in_place(w: Tensor, s: Tensor) -> Tensor:
    return w.clamp_(-1, 1)


def stateful() -> pb.Pair:
    calls = [0]

    def forward(w: Tensor, s: Tensor) -> Tensor:
        calls[0] += 1
        return w + calls[0]

    return pb.Pair(forward, maps.one)


@pytest.mark.parametrize(
    ("pair", "law"),
    [
        (pb.Pair(lambda w, s: w.double(), maps.one), "F must keep shape and dtype"),
        (pb.Pair(maps.sign, lambda w, s: w.sum()), "B must keep shape and dtype"),
        (pb.Pair(lambda w, s: 1 / w, maps.one), r"F must be finite.* at w = 0 F = inf"),
        (pb.Pair(lambda w, s: w.exp(), maps.one), r"F must be finite.* at w = 100 F = inf"),
        (pb.Pair(in_place, maps.one), "changes the weight that it is given"),
        (stateful(), "must give the same twice"),
        (pb.Pair(lambda w, s: w - w.roll(1), maps.one), "F must be elementwise"),
        (pb.Pair(lambda w, s: w.sign(), maps.one, hard=True),
         r"declared hard.* at w = 0 F = 0"),
        (pb.Pair(maps.sign, maps.one, knots=lambda s: ()), r"may jump at its knots \(\) only"),
        (pb.Pair(tanh, slope, limit=lambda w: -maps.sign(w)), "must tend to its limit"),
    ],
)  # fmt: skip
def test_a_pair_that_breaks_a_law_is_told_which(pair: pb.Pair, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_pair(pair)


def test_a_sentence_names_the_pair_and_the_values() -> None:
    broken = pb.Pair(lambda w, s: torch.where(w > 6, w * torch.inf, w), maps.one, "mine")
    with pytest.raises(AssertionError) as caught:
        check_pair(broken, [2.0])
    assert str(caught.value) == (
        "mine: F must be finite up to |w| = 1e4, and at w = 7 F = inf (strength 2, float32)"
    )


def test_a_kernel_that_disagrees_with_its_formula_is_caught(monkeypatch) -> None:
    """The kernels know maps by function: a wrong answer for one of them is seen."""
    from proxbit.kernels import training

    def wrong(f, x, *rest):
        return None if training.watched() else x * 0.5

    monkeypatch.setattr(training, "forward", wrong)
    with pytest.raises(AssertionError, match=r"the network must see F.*kernels torch"):
        check_pair(pb.bnn, backends=["torch"])


def test_only_pairs_are_checked_as_pairs() -> None:
    with pytest.raises(TypeError, match=r"takes a proxbit\.Pair, not str"):
        check_pair("bnn")


def test_backends_are_chosen_and_given_back() -> None:
    from proxbit.kernels.library import backends
    from proxbit.kernels.training import SMALLEST

    before = backends()
    assert available_backends() == (*before.supported, "torch")
    for name in available_backends():
        with use_backend(name):
            assert backends().chosen == name
    assert backends() == before
    with pytest.raises(ValueError, match="PROXBIT_KERNELS"), use_backend("abacus"):
        pass
    assert backends() == before
    from proxbit.kernels import training

    assert training.SMALLEST == SMALLEST


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", list(pb.METHODS))
def test_every_method_of_ours_goes_its_whole_way(name: str, task: str) -> None:
    """Each method in each task; the backends take turns, so that each of them meets them all."""
    backends = available_backends()
    turn = list(pb.METHODS).index(name) + TASKS.index(task)
    check_method(name, [task], backends=[backends[turn % len(backends)]])


def test_a_method_of_two_lambdas_goes_it_too() -> None:
    mine = pb.Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2)
    check_method(pb.method(mine, schedule=pb.Linear(1, 5), sharp=0.5, scale="ls"), ["BWA"])


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (pb.Method("M", pb.bnn, schedule=lambda p: 1.0 if p in (0, 1) else -p), "gives -0.05"),
        (pb.Method("M", pb.Pair(maps.sign, lambda w, s: w * torch.inf)), "everything stays finite"),
        (pb.Method("M", stateful()), "continues bit for bit"),
    ],
)
def test_a_method_that_breaks_a_law_is_told_which(method: pb.Method, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_method(method, ["BW"], backends=["torch"])


LAYERS = {
    "linear": (nn.Linear(6, 4), torch.randn(3, 6)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1, groups=2), torch.randn(2, 4, 5, 5)),
    "conv1d": (
        nn.Conv1d(3, 5, 3, stride=2, padding=2, padding_mode="circular"),
        torch.randn(2, 3, 9),
    ),
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 5, 8),) * 3),
}


@pytest.mark.parametrize("method", ["bnn++", "bc"])
@pytest.mark.parametrize("kind", list(LAYERS))
def test_every_layer_of_ours_keeps_the_contract(kind: str, method: str) -> None:
    check_layer(*LAYERS[kind], method)


class Doubled(nn.Linear):
    """A stranger's layer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * functional.linear(x, self.weight, self.bias)


class BinaryDoubled(pb.nn.BinaryLayer, Doubled):
    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias
        return 2 * self.binary(x, self.weight, bias, functional.linear)


class Forgetful(BinaryDoubled):
    """Reads its weight itself."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * functional.linear(x, self.weight, self.bias)


class Single(BinaryDoubled):
    """Another function than the float layer's."""

    def forward(self, x: Tensor) -> Tensor:
        return self.binary(x, self.weight, self.bias, functional.linear)


class Leaky(BinaryDoubled):
    """Looks at the size of its input beside the binary product."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True)


def test_a_layer_of_ones_own_is_checked_through_swaps() -> None:
    layer, x = Doubled(6, 4), torch.randn(3, 6)
    swaps = pb.SWAPS | {Doubled: BinaryDoubled}
    check_layer(layer, x, swaps=swaps)
    with pytest.raises(ValueError, match="a forward of its own"):
        check_layer(layer, x)


@pytest.mark.parametrize(
    ("binary", "task", "law"),
    [
        (Forgetful, "BW", "every binary weight reaches the output"),
        (Single, "BW", "what the float layer computes with the quantized weights"),
        (Leaky, "BWA", "sees the signs of its input only"),
    ],
)
def test_a_layer_that_breaks_a_law_is_told_which(binary, task: str, law: str) -> None:
    swaps = pb.SWAPS | {Doubled: binary}
    with pytest.raises(AssertionError, match=law):
        check_layer(Doubled(6, 4), torch.randn(3, 6), swaps=swaps, tasks=[task])


def test_the_layer_that_is_checked_stays_float() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    before = layer(x)
    check_layer(layer, x)
    assert type(layer) is nn.Linear
    assert torch.equal(layer(x), before)
