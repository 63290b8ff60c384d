"""The contract that every pair keeps: ours, the built ones, and a user's own two functions."""

import copy
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import proxbit as pb
from proxbit.core import maps, pairs, prox
from proxbit.core.maps import Strength
from proxbit.core.pairs import Pair
from proxbit.testing import check_pair

pytestmark = pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def squash(w: Tensor, s: Strength) -> Tensor:
    """A user's own smooth sign."""
    return s * w / (1 + (s * w).abs())


def hard_tanh(w: Tensor, s: Strength) -> Tensor:
    return w.clamp(-1, 1)


def prox_of_bnn(w: Tensor, s: Strength) -> Tensor:
    return prox.hubara(w, 1 + s)


OURS = {value.name: value for value in vars(pairs).values() if isinstance(value, Pair)}
BUILT = {
    "PC 0": pb.prox_connect(),
    "PC 0.3": pb.prox_connect(0.3),
    "PC 1": pb.prox_connect(1.0),
    "PC 7": pb.prox_connect(7.0),
    "PC tied": pb.prox_connect(None),
    "shifted BNN": pb.shifted(pb.bnn, 0.3),
    "shifted BNN++": pb.shifted(pb.bnn_plus_plus, -0.5),
    "shifted PC": pb.shifted(pb.prox_connect(None), 0.25),
    "scaled BC": pb.scaled(pb.binary_connect, 0.1),
    "scaled by one": pb.scaled(pb.bnn, 1.0),
    "scaled Poly+": pb.scaled(pb.poly_plus, 2.0),
    "scaled PC": pb.scaled(pb.prox_connect(), 0.5),
    "scaled and shifted EDE": pb.shifted(pb.scaled(pb.ede, 0.5), 0.1),
    "derivative of squash": pb.from_derivative(squash),
    "derivative of tanh": pb.from_derivative(maps.soft_sign),
    "T o P of BNN": pb.from_transform(hard_tanh, maps.inside, prox_of_bnn),
    "straight through L": pb.straight_through(partial(prox.linear_quantizer, varrho=0.5)),
    "straight through P of BNN": pb.straight_through(prox_of_bnn),
}
USERS = {
    "two lambdas": Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2),
    "two lambdas, hard": Pair(maps.sign, lambda w, s: (-s * w * w).exp(), hard=True),
}
EVERY = OURS | BUILT | USERS
NAMED = OURS | BUILT  # made of functions with names: these can be pickled
ONE_OF_EACH = [
    *("PC 0", "PC tied", "shifted BNN", "scaled Poly+", "derivative of squash"),
    *("T o P of BNN", "straight through L", "two lambdas"),
]
KINDS = OURS | {name: EVERY[name] for name in ONE_OF_EACH}


def over(table: dict[str, Pair]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", list(table.values()), ids=list(table))


strengths = st.floats(0.01, 100)
sizes = st.one_of(st.floats(-1e4, 1e4), st.floats(-2, 2), st.sampled_from([0.0, -0.0, 1e4, -1e4]))
values = st.lists(sizes, min_size=1, max_size=12)


def test_the_catalogue_has_every_pair_of_the_paper() -> None:
    names = {"FP", "BC", "BNN", "BNN+", "BNN++", "monotone BNN++", "Bi-Real", "R-BNN", "Poly+",
             "EDE", "EDE+"}  # fmt: skip
    assert names == set(OURS)


@over(EVERY)
def test_it_keeps_the_contract_on_every_backend(pair: Pair) -> None:
    check_pair(pair)


@over(EVERY)
@given(w=values, s=strengths)
def test_forward_and_backward_are_finite(pair: Pair, w: list[float], s: float) -> None:
    for dtype in DTYPES:
        x, strength = torch.tensor([*w, 0.0, -0.0, 1e4, -1e4], dtype=dtype), torch.tensor(s)
        assert pair.forward(x, strength).isfinite().all()
        assert pair.backward(x, strength).isfinite().all()


@over(OURS)
def test_strength_zero_is_a_strength(pair: Pair) -> None:
    """``set_strength`` takes 0 (PC starts there), so 0 must not make NaN."""
    w, zero = torch.tensor([-2.0, -0.0, 0.0, 0.3]), torch.tensor(0.0)
    assert pair.forward(w, zero).isfinite().all()
    assert pair.backward(w, zero).isfinite().all()


@over(EVERY)
@given(w=values, s=strengths)
def test_the_gradient_is_backward_times_upstream(pair: Pair, w: list[float], s: float) -> None:
    for dtype in DTYPES:
        x = torch.tensor(w, dtype=dtype, requires_grad=True)
        upstream = torch.randn(len(w)).to(dtype)
        q = pb.quantize(x, s, pair)
        (g,) = torch.autograd.grad(q, x, upstream)
        strength = torch.tensor(s)
        assert torch.equal(q, pair.forward(x.detach(), strength))
        assert torch.equal(g, upstream * pair.backward(x.detach(), strength))


@over({name: pair for name, pair in OURS.items() if pair.hard})
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zero_becomes_its_sign_bit(pair: Pair, dtype: torch.dtype) -> None:
    assert pb.quantize(torch.tensor([0.0, -0.0], dtype=dtype), 3.0, pair).tolist() == [1.0, -1.0]


@over(OURS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_number_stays_none(pair: Pair, dtype: torch.dtype) -> None:
    w, s = torch.full((3,), torch.nan, dtype=dtype), torch.tensor(0.6)
    assert pair.forward(w, s).isnan().all()
    if pair.backward is not maps.one:
        assert pair.backward(w, s).isnan().all()


@over({name: pair for name, pair in OURS.items() if pair.forward is not maps.identity})
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("s", [0.0, 0.3, 1.0, 30.0])
def test_infinite_weights_have_the_limits(pair: Pair, dtype: torch.dtype, s: float) -> None:
    """They are those of the largest numbers, where every map is flat."""
    largest, strength = torch.finfo(dtype).max, torch.tensor(s)
    far, infinite = (torch.tensor([v, -v], dtype=dtype) for v in (largest, torch.inf))
    for f in (pair.forward, pair.backward):
        torch.testing.assert_close(f(infinite, strength), f(far, strength))


@over(OURS)
def test_a_pair_of_ours_that_is_always_hard_says_so(pair: Pair) -> None:
    w = torch.linspace(-3, 3, 601, dtype=torch.float64)
    sizes = [pair.forward(w, torch.tensor(s)).abs() for s in (0.01, 0.5, 2.0, 50.0)]
    assert pair.hard == all(bool((size == 1).all()) for size in sizes)


@over({name: pair for name, pair in EVERY.items() if pair.hard and pair.knots is not None})
def test_a_hard_pair_declares_where_it_flips(pair: Pair) -> None:
    assert pair.knots is not None
    flips = [
        knot
        for knot in pair.knots(2.0)
        if pair.forward(torch.tensor(knot - 1e-6), 2.0)
        != pair.forward(torch.tensor(knot + 1e-6), 2.0)
    ]
    assert len(flips) == 1


# Laws of the builders -----------------------------------------------------------------------------


@over(OURS)
@given(w=values, s=strengths, by=st.floats(-2, 2))
def test_shifted_moves_everything(pair: Pair, w: list[float], s: float, by: float) -> None:
    moved, x = pb.shifted(pair, by), torch.tensor(w, dtype=torch.float64)
    strength = torch.tensor(s)
    assert torch.equal(moved.forward(x, strength), pair.forward(x - by, strength))
    assert torch.equal(moved.backward(x, strength), pair.backward(x - by, strength))
    assert moved.knots(s) == tuple(knot + by for knot in pair.knots(s))
    assert moved.hard == pair.hard


@over(OURS)
@given(w=values, s=strengths, by=st.floats(0.01, 4))
def test_scaled_is_the_pair_of_the_scaled_set(
    pair: Pair, w: list[float], s: float, by: float
) -> None:
    grown, x = pb.scaled(pair, by), torch.tensor(w, dtype=torch.float64)
    strength = torch.tensor(s)
    torch.testing.assert_close(grown.forward(x, strength), by * pair.forward(x / by, strength))
    torch.testing.assert_close(grown.backward(x, strength), pair.backward(x / by, strength))
    assert grown.knots(s) == tuple(knot * by for knot in pair.knots(s))


@given(w=values, s=st.floats(0.01, 30))
def test_from_derivative_finds_the_slopes_that_the_papers_print(w: list[float], s: float) -> None:
    x, strength = torch.tensor(w, dtype=torch.float64), torch.tensor(s, dtype=torch.float64)
    for pair in (pb.bnn_plus_plus, pb.poly_plus, pb.ede_plus):
        found = pb.from_derivative(pair.forward).backward(x, strength)
        torch.testing.assert_close(
            found, pair.backward(x, strength), rtol=1e-9, atol=1e-9 * max(s, 1)
        )


@given(w=values, s=strengths)
def test_from_transform_rebuilds_bnn(w: list[float], s: float) -> None:
    x, strength = torch.tensor(w, dtype=torch.float64), torch.tensor(s)
    built = BUILT["T o P of BNN"]
    assert torch.equal(built.forward(x, strength), pb.bnn.forward(x, strength))
    clear = (x.abs() <= 1) | (x.abs() > 1 + 1e-9)
    assert torch.equal(built.backward(x, strength)[clear], pb.bnn.backward(x, strength)[clear])


def test_quantize_refuses_what_cannot_be_latent() -> None:
    with pytest.raises(TypeError, match="int64"):
        pb.quantize(torch.arange(3), 1.0, pb.bnn)


# Transforms of PyTorch ----------------------------------------------------------------------------


@over(EVERY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_vmaps(pair: Pair, dtype: torch.dtype) -> None:
    w, s = torch.randn(4, 3).to(dtype), torch.tensor(2.0)

    def loss(row: Tensor) -> Tensor:
        return (pb.quantize(row, s, pair) ** 2).sum()

    mapped = torch.vmap(lambda row: pb.quantize(row, s, pair))(w)
    assert mapped.dtype == dtype
    assert torch.equal(mapped, pb.quantize(w, s, pair))
    per_row = torch.vmap(torch.func.grad(loss))(w)
    x = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad((pb.quantize(x, s, pair) ** 2).sum(), x)
    torch.testing.assert_close(per_row, expected, rtol=0, atol=0)


@over(EVERY)
def test_it_vmaps_over_strengths(pair: Pair) -> None:
    w, strengths = torch.randn(5), torch.tensor([0.1, 0.7, 5.0])
    mapped = torch.vmap(lambda s: pb.quantize(w, s, pair))(strengths)
    expected = torch.stack([pb.quantize(w, s, pair) for s in strengths])
    torch.testing.assert_close(mapped, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@over(KINDS)
def test_it_compiles_in_one_graph_for_every_strength(pair: Pair) -> None:
    check_pair(pair, [0.3, 2.0, 9.0], backends=[], compile=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task"), [("bnn++", "BW"), ("pc", "BWA"), ("react", "BWA"), ("ede+", "BWAA")]
)
def test_a_layer_compiles_once_for_a_whole_run(method: str, task: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = nn.Sequential(nn.Linear(5, 3))
    pb.binarize(model, method, task, only="*")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x = torch.randn(2, 5)
    for strength in (0.2, 0.5, 4.0):
        pb.set_strength(model, strength)
        torch.testing.assert_close(compiled(x), model(x))
        compiled(x).sum().backward()
    assert counter.frame_count == 1


# Copies -------------------------------------------------------------------------------------------


def layer_with(pair: Pair) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 3))
    pb.binarize(model, pair, "BWA", only="*")
    pb.set_strength(model, 1.7)
    return model


def outcome(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return (y.detach(), *(p.grad.clone() for p in model.parameters()))


@over(EVERY)
def test_a_deep_copy_of_a_layer_computes_the_same_and_is_its_own(pair: Pair) -> None:
    model, x = layer_with(pair), torch.randn(4, 5)
    twin = copy.deepcopy(model)
    for mine, other in zip(outcome(model, x), outcome(twin, x), strict=True):
        assert torch.equal(mine, other)
    pb.set_strength(twin, 0.3)
    assert float(pb.binary_weights(model)[0].quantizer.strength) == pytest.approx(1.7)


@over(NAMED)
def test_a_pickled_layer_computes_the_same(pair: Pair) -> None:
    model, x = layer_with(pair), torch.randn(4, 5)
    twin = pickle.loads(pickle.dumps(model))
    for mine, other in zip(outcome(model, x), outcome(twin, x), strict=True):
        assert torch.equal(mine, other)
