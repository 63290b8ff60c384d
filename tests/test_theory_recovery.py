"""The hidden objective of an admitted pair, and the admitted neighbours of a refused one."""

import math
import pickle

import numpy as np
import pytest
import torch

import proxbit as pb
from binarizing import binarize
from proxbit.theory import Refused, check, recover, repair

ADMITTED = {
    "fp": pb.full_precision, "bc": pb.binary_connect, "pc": pb.prox_connect(),
    "pc-tied": pb.prox_connect(None), "pc-steep": pb.prox_connect(0.3), "bnn": pb.bnn,
    "bnn++": pb.bnn_plus_plus, "monotone": pb.monotone_bnn_plus_plus, "poly+": pb.poly_plus,
    "ede+": pb.ede_plus,
}  # fmt: skip
REFUSED = {"bnn+": pb.bnn_plus, "bi-real": pb.bi_real, "r-bnn": pb.r_bnn, "ede": pb.ede}


# Recovery ----------------------------------------------------------------------------------------


W = np.linspace(-2.5, 2.5, 401) + 0.00037  # off every jump


def test_binary_connect_is_the_sign_and_an_indicator():
    found = recover(pb.binary_connect)
    np.testing.assert_allclose(found.prox(W), np.sign(W), atol=1e-6)
    assert found.prox(0.0) == pytest.approx(1.0)
    z = np.array([-1.5, -1.0, -0.3, 0.0, 0.8, 1.0, 1.5])
    r = found.regularizer(z, gaps="infinite")
    np.testing.assert_allclose(r[[1, 5]], 0, atol=1e-6)
    assert np.isinf(r[[0, 2, 3, 4, 6]]).all()
    np.testing.assert_allclose(found.gaps, [(-1, 1)], atol=1e-6)
    np.testing.assert_allclose(found.domain, (-1, 1), atol=1e-6)
    assert found.free == ()


def _objective(found, w, z):
    return (w[:, None] - z) ** 2 / (2 * found.smoothing) + found.regularizer(z)


@pytest.mark.parametrize("smoothing", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("rho", "varrho"), [(0.2, 0.0), (0.5, 0.0), (0.5, 0.3), (0.3, None), (0.9, 0.1), (10.0, 0.0)]
)
def test_prox_connect_recovers_the_linear_quantizer(rho, varrho, smoothing):
    found = recover(pb.prox_connect(varrho), rho, smoothing)
    expected = pb.prox.linear_quantizer(torch.from_numpy(W), rho, varrho).numpy()
    np.testing.assert_allclose(found.prox(W), expected, atol=1e-5)
    z = np.linspace(-1, 1, 2001)
    np.testing.assert_allclose(found.transform(z), z, atol=1e-5)
    assert np.isinf(found.regularizer([-1.1, 1.1])).all()
    w = W[::7]
    brute = _objective(found, w, z)
    np.testing.assert_allclose(z[brute.argmin(1)], found.prox(w), atol=2.1e-3)


@pytest.mark.parametrize("rho", [0.2, 0.5, 0.8])
def test_the_regularizer_of_prox_connect_in_closed_form(rho):
    # L^-1(z) = (1 - rho) z on [-1, 1], so mu r' = -rho z.
    z = np.linspace(-1, 1, 101)
    r = recover(pb.prox_connect(), rho, smoothing=2.0).regularizer(z)
    np.testing.assert_allclose(r - r[50], -rho * z**2 / 4, atol=1e-6)


@pytest.mark.parametrize("mu", [1.0, 2.0, 5.0])
def test_bnn_recovers_the_objective_of_the_paper(mu):
    found = recover(pb.bnn, smoothing=mu)
    beyond = W / mu + np.sign(W) * (1 - 1 / mu)
    np.testing.assert_allclose(
        found.prox(W), np.where(np.abs(W) > 1, beyond, np.sign(W)), atol=1e-5
    )
    z = np.linspace(-2, 2, 161)
    np.testing.assert_allclose(found.transform(z), z.clip(-1, 1), atol=1e-5)
    inside = (1 - z**2) / (2 * mu)
    outside = (mu - 1) * (np.abs(z) - 1) ** 2 / (2 * mu)
    r = found.regularizer(z)
    expected = np.where(np.abs(z) > 1, outside, inside)
    np.testing.assert_allclose(r - r[120], expected - expected[120], atol=1e-5)  # z[120] = 1
    np.testing.assert_allclose(found.free, [(-np.inf, -1), (1, np.inf)], atol=1e-6)
    assert found.domain == (-np.inf, np.inf)


@pytest.mark.parametrize("s", [1.0, 5.0, 30.0])
def test_bnn_plus_plus_has_no_regularizer(s):
    found = recover(pb.bnn_plus_plus, s, smoothing=2.0)
    np.testing.assert_allclose(found.prox(W), W, atol=1e-3)
    np.testing.assert_allclose(found.regularizer(W), 0, atol=1e-3)
    np.testing.assert_allclose(found.envelope(W), 0, atol=1e-3)
    smooth = pb.maps.sign_swish(torch.from_numpy(W), s).numpy()
    np.testing.assert_allclose(found.transform(found.prox(W)), smooth, atol=1e-6)


@pytest.mark.parametrize("key", ADMITTED)
@pytest.mark.parametrize("s", [0.3, 1.0, 5.0])
def test_residuals_are_small_for_every_admitted_pair(key, s):
    found = recover(ADMITTED[key], s)
    largest = found.axis.most.max()
    assert set(found.residuals) == {"F = T o P", "B = T' o P"}
    assert found.residuals["F = T o P"] < 1e-4, found.residuals
    assert found.residuals["B = T' o P"] < 2e-2 * largest, found.residuals


@pytest.mark.parametrize("key", ADMITTED)
def test_the_decomposition_gives_back_forward(key):
    found = recover(ADMITTED[key], 0.7, smoothing=1.5)
    f = ADMITTED[key].forward(torch.from_numpy(W), torch.tensor(0.7, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(found.transform(found.prox(W)), f, atol=1e-4)


@pytest.mark.parametrize("key", ADMITTED)
@pytest.mark.parametrize("smoothing", [0.6, 2.0])
def test_prox_and_envelope_are_those_of_their_definition(key, smoothing):
    found = recover(ADMITTED[key], 0.4, smoothing)
    low, high = found.domain
    z = np.linspace(max(low, -6), min(high, 6), 6001)
    w = W[::5]
    brute = _objective(found, w, z)
    step = z[1] - z[0]
    np.testing.assert_allclose(found.envelope(w), brute.min(1), atol=1e-4)
    np.testing.assert_allclose(found.prox(w), z[brute.argmin(1)], atol=step + 1e-3)


@pytest.mark.parametrize("key", ADMITTED)
@pytest.mark.parametrize("smoothing", [0.6, 2.0])
def test_the_potential_is_the_regularizer_and_half_a_square(key, smoothing):
    found = recover(ADMITTED[key], 0.4, smoothing)
    z, potential = found.potential(W)
    np.testing.assert_allclose(z, found.prox(W))
    difference = potential - z**2 / 2 - smoothing * found.regularizer(z)
    np.testing.assert_allclose(difference, difference[0], atol=1e-7)


@pytest.mark.parametrize("key", ADMITTED)
def test_the_prox_minimizes_its_potential(key):
    found = recover(ADMITTED[key], 0.4)
    w = np.linspace(-900, 900, 301)
    z, potential = found.potential(np.concatenate([w, W]))
    value = potential[None, :] - z[None, :] * np.concatenate([w, W])[:, None]
    slack = value - np.diag(value)[:, None]  # R(z) - z w, less its least value
    assert slack.min() >= -1e-15 * np.abs(value).max()


@pytest.mark.parametrize("key", REFUSED)
def test_nothing_is_recovered_from_a_refused_pair(key):
    with pytest.raises(Refused, match="P is constant on") as error:
        recover(REFUSED[key])
    assert isinstance(error.value, ValueError)
    assert REFUSED[key].name in str(error.value)


@pytest.mark.parametrize("smoothing", [0.0, -1.0, math.nan, math.inf])
def test_bad_smoothing_is_a_mistake(smoothing):
    with pytest.raises(ValueError, match="smoothing is a positive number"):
        recover(pb.bnn, smoothing=smoothing)


def test_unknown_gaps_are_a_mistake():
    with pytest.raises(ValueError, match="'lowest' or 'infinite'"):
        recover(pb.bnn).regularizer(0.0, gaps="highest")


# Repairs -----------------------------------------------------------------------------------------


def _gauss(w, s):
    return torch.exp(-w * w)


def _sign_gauss_pair():
    return pb.Pair(pb.maps.sign, _gauss, "gauss")


def test_a_kept_backward_leads_to_the_known_neighbour():
    w = torch.linspace(-3, 3, 61, dtype=torch.float64)
    neighbours = [
        (pb.bnn_plus, 5.0, pb.bnn_plus_plus, 5.0),
        (pb.bi_real, 1.0, pb.poly_plus, math.sqrt(2)),
        (pb.ede, 3.0, pb.ede_plus, 3.0),
        (pb.r_bnn, 0.2, pb.poly_plus, 0.2),
    ]
    for refused, s, known, at in neighbours:
        first = repair(refused, s)[0]
        assert first.pair.name.startswith(known.name)
        assert "integrated into F" in first.how
        assert str(first) == f"{first.pair.name}: {first.how}"
        torch.testing.assert_close(first.pair.forward(w, s), known.forward(w, at))
        torch.testing.assert_close(first.pair.backward(w, s), refused.backward(w, s))


def test_a_monotone_variant_is_offered_where_backward_is_negative():
    pairs = [option.pair for option in repair(pb.bnn_plus, 5.0)]
    assert pb.monotone_bnn_plus_plus in pairs


@pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")  # of a strength that is too low
@pytest.mark.parametrize("key", [*REFUSED, "gauss"])
def test_every_option_is_admitted_and_ready_for_binarize(key):
    pair, s = {**REFUSED, "gauss": _sign_gauss_pair()}[key], 1.5
    options = repair(pair, s)
    assert len(options) >= 2
    assert len({option.pair.name for option in options}) == len(options)
    for option in options:
        assert option.verdict.admitted
        model = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False)).double()
        raw = {"scale": "none", "unit": "one", "schedule": pb.Constant(s)}
        binarize(model, option.pair, only="*", **raw)
        model = pickle.loads(pickle.dumps(model))
        x = torch.randn(2, 4, dtype=torch.float64)
        y = model(x)
        y.sum().backward()
        (w,) = pb.latent_parameters(model)
        forward, backward = option.pair.forward(w, s), option.pair.backward(w, s)
        torch.testing.assert_close(y, x @ forward.T)
        torch.testing.assert_close(w.grad, backward * x.sum(0))


def test_an_unknown_backward_is_integrated_by_quadrature():
    kept = [o for o in repair(_sign_gauss_pair()) if o.how == "B kept, and integrated into F"]
    assert kept, "the integral of B is not among the options"
    w = torch.linspace(-5, 5, 101, dtype=torch.float64)
    expected = math.sqrt(math.pi) / 2 * torch.erf(w)
    torch.testing.assert_close(kept[0].pair.forward(w, 1.0), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("far", [30.0, 300.0, 1e3])
def test_the_quadrature_is_right_far_out(far):
    forward = pb.theory.repairs.primitive(_gauss)[1]
    w = torch.tensor([-far, far], dtype=torch.float64)
    expected = math.sqrt(math.pi) / 2 * torch.erf(w)
    torch.testing.assert_close(forward(w, 1.0), expected, atol=1e-6, rtol=0)


def test_a_smooth_forward_is_kept_and_differentiated():
    crooked = pb.Pair(lambda w, s: torch.tanh(w), lambda w, s: torch.cos(w), "crooked")
    assert not check(crooked).admitted
    kept = [o for o in repair(crooked) if o.how == "F kept, and differentiated into B"]
    assert len(kept) == 1
    w = torch.linspace(-2, 2, 21, dtype=torch.float64)
    torch.testing.assert_close(kept[0].pair.backward(w, 1.0), 1 - torch.tanh(w) ** 2)


def test_the_prox_to_compose_with_can_be_chosen():
    def steep(w, s):
        return pb.prox.linear_quantizer(w, 0.8)

    w = torch.linspace(-1, 1, 21, dtype=torch.float64)
    last = repair(pb.ede, 2.0, proximal=steep)[-1]
    torch.testing.assert_close(last.pair.forward(w, 2.0), pb.maps.soft_sign(steep(w, 2.0), 2.0))
