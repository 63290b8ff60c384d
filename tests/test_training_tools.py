"""The training loop stays the user's: compile, autocast, scalers, schedulers, checkpoints."""

import copy
import math
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import proxbit as pb

TASKS = ("BW", "BWA", "BWAA")


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Hardtanh(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Hardtanh(),
        nn.Flatten(), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4), torch.randint(3, (6,))


def binary_cnn(method: str = "bnn++", task: Any = "BW") -> nn.Sequential:
    model = cnn()
    pb.binarize(model, method, task)
    return model


def strengths(model: nn.Module) -> list[float]:
    return [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# Compilation -------------------------------------------------------------------------------------


class Counting:
    """A backend that runs the graph as it is and counts how often it was asked to compile."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ptb", "pc", "pq", "bnn++", "react"])
@pytest.mark.parametrize("task", ["BW", "BWAA"])
def test_a_moving_strength_does_not_recompile(method: str, task: str) -> None:
    torch._dynamo.reset()
    model = binary_cnn(method, task)
    backend = Counting()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pb.attach(model, optimizer, steps=10)
    seen = set()
    for _ in range(5):
        seen.add(tuple(strengths(model)))
        x, y = batch()
        optimizer.zero_grad()
        functional.cross_entropy(compiled(x), y).backward()
        optimizer.step()
    assert backend.graphs == 1
    if method in ("pc", "pq", "bnn++"):
        assert len(seen) == 5
    for _ in range(5):
        functional.cross_entropy(compiled(x), y).backward()
        optimizer.step()
    assert all(w.quantizer.sharp for w in pb.binary_weights(model)) == (method == "bnn++")
    assert backend.graphs == 1  # the turn to signs is a value too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task"), [("bc", "BW"), ("bnn++", "BWA"), ("poly+", "BWAA"), ("react", "BWA")]
)
@pytest.mark.parametrize("sharp", [False, True])
def test_a_compiled_model_trains_as_the_eager_one(method: str, task: str, sharp: bool) -> None:
    torch._dynamo.reset()
    eager = binary_cnn(method, task)
    if sharp:
        pb.sharpen(eager)
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, y = batch()
    losses = [functional.cross_entropy(m(x), y) for m in (eager, compiled)]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    ours, theirs = gradients(model), gradients(eager)
    assert list(ours) == list(theirs)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, msg=name)


@pytest.mark.slow
def test_a_hard_model_compiles_too() -> None:
    torch._dynamo.reset()
    model = pb.harden(binary_cnn("bnn++", "BWA")).eval()
    x, _ = batch()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_gives_the_same_losses() -> None:
    torch._dynamo.reset()
    losses = []
    start = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(6, 8), torch.randint(3, (6,))
    for wrap in (torch.compile, lambda model: model):
        model = copy.deepcopy(start)
        pb.binarize(model, "bnn++")
        run = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pb.attach(model, optimizer, steps=3)
        for _ in range(3):
            optimizer.zero_grad()
            loss = functional.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-4)


# Precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("task", TASKS)
def test_autocast_to_bfloat16_trains_in_float32_latents(method: str, task: str) -> None:
    model = binary_cnn(method, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pb.attach(model, optimizer, steps=2)
    for _ in range(2):
        x, y = batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = functional.cross_entropy(out.float(), y)
        assert out.dtype == torch.bfloat16
        loss.backward()
        for weight in pb.binary_weights(model):
            assert weight.parameter.dtype == torch.float32
            assert weight.parameter.grad is not None
            assert bool(weight.parameter.grad.isfinite().all())
        optimizer.step()


def test_autocast_is_close_to_full_precision() -> None:
    model = binary_cnn("bnn++").eval()
    x, _ = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(x)
    torch.testing.assert_close(half.float(), model(x), rtol=0.05, atol=0.05)


def test_in_bwaa_the_sums_stay_exact_integers_under_autocast() -> None:
    model = nn.Sequential(nn.Linear(401, 3, bias=False))
    pb.binarize(model, pb.method("bnn", scale="none"), pb.Task("BWAA", bits=16), only="*")
    x = torch.randn(5, 401)
    seen: list[Tensor] = []
    model[0].binary.accumulator.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
    signs = [torch.where(t < 0, -1, 1) for t in (x, model[0].weight)]
    assert torch.equal(seen[0], (signs[0] @ signs[1].T).float())


@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_dtype_trains(method: str, dtype: torch.dtype) -> None:
    model = cnn().to(dtype)
    pb.binarize(model, method, "BWA")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pb.attach(model, optimizer, steps=2)
    x, y = batch()
    out = model(x.to(dtype))
    assert out.dtype == dtype
    functional.cross_entropy(out, y).backward()
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("method", ["bnn++", "pq"])
def test_a_step_that_the_scaler_skips_does_not_move_the_strength(method: str) -> None:
    model = binary_cnn(method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = pb.attach(model, optimizer, steps=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moved = []
    for spoil in (False, True, False):
        before = (strengths(model), [p.detach().clone() for p in pb.latent_parameters(model)])
        x, y = batch()
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        if spoil:
            model[9].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        same = all(
            torch.equal(a, b) for a, b in zip(before[1], pb.latent_parameters(model), strict=True)
        )
        assert same == spoil
        moved.append(strengths(model) != before[0])
    assert moved == [True, False, True]
    assert handle.step == 2
    assert scaler.get_scale() == 2.0


# Steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bnn++", "pq", "rpc"])
def test_gradient_accumulation_equals_the_whole_batch(method: str) -> None:
    start = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(8, 8), torch.randint(3, (8,))
    ends = []
    for parts in (1, 4):
        model = copy.deepcopy(start)
        pb.binarize(model, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = pb.attach(model, optimizer, steps=4)
        for _ in range(4):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                old = strengths(model)
                (functional.cross_entropy(model(xs), ys) / parts).backward()
                assert strengths(model) == old
            optimizer.step()
        assert handle.step == 4
        ends.append(model[0].weight.detach())
    torch.testing.assert_close(ends[0], ends[1])


def test_the_strength_runs_through_the_schedule_and_then_stays() -> None:
    model = binary_cnn("bnn++")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    handle = pb.attach(model, optimizer, steps=10)
    seen = []
    for _ in range(12):
        seen.append(strengths(model)[0])
        optimizer.step()
    assert seen == pytest.approx([3 ** (min(i, 4) / 4) for i in range(12)])
    assert (handle.step, handle.progress) == (12, 1.0)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("method", ["bc", "bnn++", "pq", "rpc"])
def test_every_optimizer_moves_the_strength_once_per_step(method: str, name: str) -> None:
    model = binary_cnn(method)
    optimizer = OPTIMIZERS[name](model.parameters())
    if name == "LBFGS" and method in ("pq", "rpc"):
        optimizer.param_groups[0]["max_iter"] = 1  # their step has one gradient
    handle = pb.attach(model, optimizer, steps=8)
    x, y = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    old = [p.detach().clone() for p in pb.latent_parameters(model)]
    seen = [strengths(model)]
    for step in range(3):
        optimizer.step(closure)
        assert handle.step == step + 1
        seen.append(strengths(model))
    if method != "bc":
        assert len({tuple(s) for s in seen}) == 4
    for before, now in zip(old, pb.latent_parameters(model), strict=True):
        assert not torch.equal(before, now)
        assert bool(now.isfinite().all())


def test_several_groups_may_hold_the_latents() -> None:
    model = binary_cnn("pq")
    first, second = pb.latent_parameters(model)
    rest = [p for p in model.parameters() if p is not first and p is not second]
    optimizer = torch.optim.SGD(
        [
            {"params": rest, "lr": 0.5},
            {"params": [first], "lr": 0.1},
            {"params": [second], "lr": 0.01},
        ]
    )
    handle = pb.attach(model, optimizer, steps=3)
    optimizer.step()
    weights = pb.binary_weights(model)
    lambdas = [float(w.quantizer.strength) * float(w.quantizer.unit) for w in weights]
    # The threshold is the learning rate of the weight's own group times lambda, 0.15 half way.
    assert handle.progress == 0.5
    assert lambdas == pytest.approx([0.1 * 0.15, 0.01 * 0.15])


@pytest.mark.parametrize("method", ["pq", "rpc"])
@pytest.mark.parametrize("tool", ["step", "cosine", "one cycle"])
def test_the_threshold_follows_the_learning_rate(method: str, tool: str) -> None:
    model = binary_cnn(method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = pb.attach(model, optimizer, steps=5)
    schedulers = torch.optim.lr_scheduler
    scheduler = {
        "step": lambda: schedulers.StepLR(optimizer, 1, gamma=0.5),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, 5),
        "one cycle": lambda: schedulers.OneCycleLR(optimizer, 0.2, total_steps=6),
    }[tool]()
    (weight, *_) = pb.binary_weights(model)
    unit = float(weight.quantizer.unit)
    rate = optimizer.param_groups[0]["lr"]
    for step in range(5):
        # What step `step` applies: lambda at its progress, the rate in force when it was set.
        expected = (0.3 * step / 4) * rate / unit
        assert float(weight.quantizer.strength) == pytest.approx(expected, rel=1e-5, abs=1e-9)
        rate = optimizer.param_groups[0]["lr"]  # the rate that step `step` itself will use
        x, y = batch()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    assert handle.step == 5


@pytest.mark.parametrize("method", ["pq", "rpc"])
def test_the_prox_after_a_step_has_the_rate_of_that_step(method: str) -> None:
    """Proximal gradient: w = prox of threshold eta lambda, of what a step at rate eta gave."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    pb.binarize(model, method, only="*")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 ** -(step % 2))
    pb.attach(model, optimizer, steps=4)
    (weight,) = pb.binary_weights(model)
    unit = float(weight.quantizer.unit)
    last = 0.0
    for step in range(4):
        w = model[0].weight.detach() / unit
        rho = (0.3 * step / 3) * last / unit
        towards = w.abs() + rho  # soft threshold towards +-1
        start = unit * w.sign() * torch.where(w.abs() >= 1 - rho, torch.ones_like(w), towards)
        last = optimizer.param_groups[0]["lr"]
        model[0].weight.grad = torch.ones_like(model[0].weight)
        optimizer.step()
        torch.testing.assert_close(model[0].weight.detach(), start - last)
        scheduler.step()


def test_clipping_the_gradient_norm_works_on_latents_as_on_any_parameter() -> None:
    model = binary_cnn("bnn++", "BWA")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pb.attach(model, optimizer, steps=2)
    x, y = batch()
    (1000 * functional.cross_entropy(model(x), y)).backward()
    total = torch.stack([g.norm() for g in gradients(model).values()]).norm()
    reported = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    torch.testing.assert_close(reported, total)
    old = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moved = [a - b.detach() for a, b in zip(old, model.parameters(), strict=True)]
    assert float(torch.stack([m.norm() for m in moved]).norm()) == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("task", TASKS)
def test_activation_checkpointing_gives_the_same_gradients(method: str, task: str) -> None:
    model = cnn()
    for norm in (model[1], model[4]):
        norm.track_running_stats = False  # else a second forward counts the batch twice
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    pb.binarize(model, method, task)
    twin = copy.deepcopy(model)
    x, y = batch()
    functional.cross_entropy(model(x), y).backward()
    middle = checkpoint(twin[3:6], twin[:3](x), use_reentrant=False)
    late = checkpoint(twin[6:], middle, use_reentrant=False)
    functional.cross_entropy(late, y).backward()
    ours, theirs = gradients(twin), gradients(model)
    assert list(ours) == list(theirs)
    for name, grad in theirs.items():
        assert torch.equal(ours[name], grad), name


def test_latents_may_have_a_group_of_their_own() -> None:
    model = binary_cnn("bnn++")
    latents = pb.latent_parameters(model)
    ids = {id(p) for p in latents}
    rest = [p for p in model.parameters() if id(p) not in ids]
    optimizer = torch.optim.AdamW(
        [{"params": latents, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.1}], lr=0.01
    )
    handle = pb.attach(model, optimizer, steps=2)
    x, y = batch()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert handle.step == 1


def test_a_second_optimizer_may_train_the_rest() -> None:
    model = binary_cnn("bnn++")
    latents = pb.latent_parameters(model)
    ids = {id(p) for p in latents}
    binary = torch.optim.Adam(latents, lr=0.01)
    other = torch.optim.SGD([p for p in model.parameters() if id(p) not in ids], lr=0.1)
    handle = pb.attach(model, binary, steps=3)
    x, y = batch()
    functional.cross_entropy(model(x), y).backward()
    other.step()
    assert handle.step == 0
    binary.step()
    assert handle.step == 1
