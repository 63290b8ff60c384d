"""A network computes by a plan with the bits of its own forward, or not by a plan."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import proxbit as pb
from plan_steps import steps_of
from proxbit.engine import packing
from proxbit.engine.packed import packed_layers
from proxbit.engine.plan import Planned
from proxbit.engine.steps import ConvStep, LinearStep, PoolStep
from proxbit.engine.tails import Line, find_line, follow, following
from proxbit.kernels import inference as kernels

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no kernels here")


class Block(nn.Module):
    def __init__(self, wide: int, out: int, step: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, 32, 1, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 32, 3, step, 1, bias=False), nn.BatchNorm2d(32)
        self.conv3, self.bn3 = nn.Conv2d(32, out, 1, bias=False), nn.BatchNorm2d(out)
        self.act1, self.act2, self.act3 = nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU()
        self.drop = nn.Identity()
        self.side = nn.Conv2d(wide, out, 1, step) if out != wide else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.act2(self.bn2(self.conv2(y)))
        y = self.drop(self.bn3(self.conv3(y)))
        y += x if self.side is None else self.side(x)
        return self.act3(y)


class Net(nn.Module):
    """A small ResNet with bottlenecks, and a residual of linear layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(32, 24), Block(24, 24), Block(24, 40, 2))
        self.mean, self.one, self.two = (
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(40, 32),
            nn.Linear(32, 40),
        )
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.mean(self.blocks(self.pool(self.act(self.norm(self.stem(x)))))).flatten(1)
        return self.head(y + self.two(self.one(y))) * scale


def packed(task: str, last: bool = False) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(3)
    model, x = Net(), torch.randn(2, 3, 17, 17)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean):
                tensor.normal_()
            module.running_var.uniform_(0.5, 2)
    pb.binarize(model, "bnn", task, relu=None if task == "BW" else nn.Hardtanh)
    hard = pb.harden(model).eval()
    if last:
        hard, x = (
            hard.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    net = pb.pack(hard)
    return hard, net, x


def own(net: nn.Module, *given: Any) -> Any:
    return type(net).forward(net, *given)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
@torch.no_grad()
def test_a_plan_gives_the_bits_of_the_network(task: str, last: bool) -> None:
    hard, net, x = packed(task, last)
    first, second = net(x), net(x)
    kinds = {type(step) for step in steps_of(net)}
    assert kinds == {ConvStep, LinearStep, PoolStep}
    assert torch.equal(first, second) and torch.equal(second, own(net, x))
    if task == "BW":
        torch.testing.assert_close(second, hard(x), rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(second, hard(x))
    other = torch.randn(1, 3, 9, 9)
    assert torch.equal(net(other), own(net, other)) and torch.equal(net(other), own(net, other))


@torch.no_grad()
def test_sums_and_activations_are_steps_and_signs_are_handed_on() -> None:
    _, net, x = packed("BWA")
    net(x)
    steps = [step for step in steps_of(net) if isinstance(step, ConvStep)]
    assert sum(step.activation == 3 for step in steps) == 3
    assert sum(step.signs for step in steps) == 2  # from block to block


@torch.no_grad()
def test_no_plan_where_anything_differs() -> None:
    _, net, x = packed("BWA")
    expected = net(x)
    seen: list[Tensor] = []
    hook = net.blocks[0].bn3.register_forward_hook(lambda *given: seen.append(given[2]))
    assert torch.equal(net(x), expected) and len(seen) == 1
    hook.remove()
    assert torch.equal(net(x), expected)
    assert torch.equal(net(x, 2.0), 2 * expected) and torch.equal(net(x, scale=2.0), 2 * expected)
    net.head = nn.Linear(40, 3)
    assert net(x).shape == net(x).shape == (2, 3)


@torch.no_grad()
def test_new_values_reach_the_plan() -> None:
    _, net, x = packed("BWA")
    before, state = net(x), copy.deepcopy(net.state_dict())
    for name in state:
        if name.endswith(("bn3.inner.bias", "scale")):
            state[name] = state[name] + 0.5
    assert torch.equal(net(x), before)
    net.load_state_dict(state)
    changed = own(net, x)
    assert not torch.equal(changed, before)
    assert torch.equal(net(x), changed) and torch.equal(net(x), changed)


@torch.no_grad()
def test_copies_and_other_processes_make_plans_of_their_own() -> None:
    _, net, x = packed("BWA")
    expected = net(x)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(twin.forward, Planned) and twin.forward.net is twin
        assert torch.equal(twin(x), expected) and torch.equal(twin(x), expected)
        assert list(steps_of(twin)) and not set(steps_of(twin)) & set(steps_of(net))


@torch.no_grad()
def test_another_type_takes_the_way_of_torch() -> None:
    _, net, x = packed("BW")
    expected = net(x)
    net.double()
    torch.testing.assert_close(net(x.double()).float(), expected, rtol=1e-4, atol=1e-4)
    net.float()
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("contracted", [False, True])
@pytest.mark.parametrize("width", [5, 8, 40])
def test_follow_is_its_formula(width: int, contracted: bool, activation: int) -> None:
    rows, other = torch.randn(7, width), torch.randn(7, width)
    rows[0, 0], other[1, 1] = torch.nan, -0.0
    line = Line(torch.randn(width), torch.randn(width), contracted)
    y = rows * line.gain + line.shift
    if contracted:  # exact in float64 but for a last rounding, which these values do not meet
        y = (rows.double() * line.gain.double() + line.shift.double()).float()
    y = y + other
    y = y.clamp(-1, 1) if activation == 3 else torch.where(y < 0, 0.0, y) if activation else y
    found, bits = rows.clone(), torch.empty(7, -(-width // 8), dtype=torch.uint8)
    follow(found, following(line, other, activation, bits))
    assert torch.equal(found.nan_to_num(9), y.nan_to_num(9))
    signs = torch.where(torch.signbit(found) & ~found.isnan(), -1.0, 1.0)
    seen = np.unpackbits(bits.numpy(), axis=1, count=width, bitorder="little")
    assert torch.equal(2.0 * torch.from_numpy(seen) - 1, signs)


@torch.no_grad()
def test_the_line_of_a_norm_is_found_or_refused() -> None:
    norm = nn.BatchNorm2d(6).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        tensor.normal_()
    values = torch.arange(-40.0, 41).unsqueeze(1) * torch.rand(6)
    line = find_line(norm, values)
    assert line is not None
    found = values.clone()
    follow(found, following(line))
    assert torch.equal(found, norm(values.reshape(-1, 6, 1, 1)).flatten(1))

    class Bent(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (x < 8)

    bent = Bent(6).eval()
    bent.load_state_dict(norm.state_dict())
    assert find_line(bent, values) is None


@torch.no_grad()
def test_layers_without_images_have_no_plan_to_make() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 2))
    pb.binarize(model, "bnn", "BWA")
    net = pb.pack(pb.harden(model).eval())
    x = torch.randn(3, 32)
    assert torch.equal(net(x), net(x)) and not list(steps_of(net))
    assert [layer.route for _, layer in packed_layers(net)] == ["bits"]


class Constant(nn.Module):
    """Makes a tensor in its forward, which a graph holds as a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(y + self.inner(y)) * torch.tensor([1.0, 2.0])


@torch.no_grad()
def test_a_graph_with_constants_is_no_plan() -> None:
    model, x = Constant(), torch.randn(3, 32)
    pb.binarize(model, "bnn", "BWA")
    net = pb.pack(pb.harden(model).eval())
    assert torch.equal(net(x), own(net, x)) and torch.equal(net(x), own(net, x))


class Switched(nn.Module):
    """A forward that looks at a switch and at a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.negative, self.shift = Block(32, 32), False, nn.Parameter(torch.zeros(1))
        self.stem = nn.Conv2d(3, 32, 3)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.block(self.stem(x)).mean((2, 3))) + self.shift
        return -y if self.negative else y


def test_a_plan_ends_with_the_settings_and_tensors_that_it_was_made_for():
    torch.manual_seed(0)
    model, x = Switched(), torch.randn(2, 3, 9, 9)
    pb.binarize(model, "bnn", "BWA")
    net = pb.pack(pb.harden(model).eval())
    with torch.no_grad():
        before = net(x)
        assert list(steps_of(net)) and torch.equal(net(x), before)
        net.negative = True
        assert torch.equal(net(x), -before) and torch.equal(net(x), -before)
        net.negative = False
        net.shift = nn.Parameter(torch.ones(1))
        assert torch.equal(net(x), before + 1) and torch.equal(net(x), before + 1)
        assert list(steps_of(net))


@torch.no_grad()
@pytest.mark.parametrize(
    ("times", "kept"),
    [((4, 5, 8), "float"), ((9, 8.5, 9), "bits"), ((9, 5), "bits"), ((9, 8.5, 8), "float")],
)
def test_the_network_as_a_whole_is_timed_at_last(
    times: tuple[float, ...], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of torch, of bits, and of torch again where bits do not win clearly."""
    given = iter(times)
    monkeypatch.setattr(packing, "time_unpacked", lambda *_: next(given))
    monkeypatch.setattr(packing, "time_of", lambda *_: next(given))
    monkeypatch.setattr(packing, "choose_routes", lambda *_: None)
    torch.manual_seed(3)
    model, x = Net(), torch.randn(2, 3, 17, 17)
    pb.binarize(model, "bnn", "BWA")
    hard = pb.harden(model).eval()
    net = pb.pack(hard, x)
    assert {layer.route for _, layer in packed_layers(net)} == {kept}
    assert not list(given)
    assert torch.equal(net(x), hard(x)) and torch.equal(net(x), hard(x))
    assert bool(list(steps_of(net))) == (kept == "bits")


def _set_head(net: Any) -> None:
    net.head = nn.Linear(32, 5)


def _set_shift(net: Any) -> None:
    net.shift = nn.Parameter(torch.ones(1))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook": lambda net: net.block.bn3.register_forward_hook(lambda *_: None),
    "a pre-hook": lambda net: net.block.conv1.register_forward_pre_hook(lambda *_: None),
    "training": lambda net: net.block.drop.train(),
    "training of the network alone": lambda net: setattr(net, "training", True),
    "a forward": lambda net: setattr(net.block.bn3, "forward", lambda x: x),
    "a module": _set_head,
    "a module taken away": lambda net: delattr(net.block, "drop"),
    "a tensor": _set_shift,
    "a switch": lambda net: setattr(net, "negative", True),
    "a switch of an activation": lambda net: setattr(net.block.act3, "inplace", True),
    "a route": lambda net: net.block.conv1.take("float"),
    "a kernel": lambda net: net.block.conv3.prepare(),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_whoever_watches_a_network_notices(change: str) -> None:
    torch.manual_seed(0)
    model, x = Switched(), torch.randn(2, 3, 9, 9)
    pb.binarize(model, "bc", "BWA")
    net = pb.pack(pb.harden(model).eval())
    net(x)
    watch = vars(net)["forward"].watch
    assert watch.holds()
    net.register_forward_hook(lambda *_: None)  # around the forward, with or without a plan
    assert watch.holds()
    CHANGES[change](net)
    assert not watch.holds()


@torch.no_grad()
def test_hooks_on_all_modules_of_the_process_are_called() -> None:
    _, net, x = packed("BWA")
    expected, seen = net(x), []
    assert list(steps_of(net)) and torch.equal(net(x), expected)
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        assert torch.equal(net(x), expected) and net.blocks[0].conv1 in seen
    finally:
        hook.remove()


class Choosing(nn.Module):
    """A forward whose shapes follow from the input's values, beside some that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        rows, _ = y.shape
        y = (y + self.inner(y)).reshape(rows, 32)
        few = y[x[:, 0] > 0]
        return self.head(y).sum() * few.shape[0] + rows


@torch.no_grad()
def test_numbers_that_follow_from_values_are_not_written_down() -> None:
    torch.manual_seed(0)
    model = Choosing()
    pb.binarize(model, "bnn", "BWA")
    net = pb.pack(pb.harden(model).eval())
    for x in torch.randn(6, 5, 32):
        assert torch.equal(net(x), own(net, x))
    assert list(steps_of(net))


@torch.no_grad()
def test_numbers_that_follow_from_shapes_are_written_down() -> None:
    torch.manual_seed(0)
    model = Choosing()
    pb.binarize(model, "bnn", "BWA")
    net, x = pb.pack(pb.harden(model).eval()), torch.randn(5, 32)
    net(x)
    (plan,) = vars(net)["forward"].plans.values()
    assert plan is not None and ".reshape(5, 32)" in plan.source and ".shape" in plan.source
