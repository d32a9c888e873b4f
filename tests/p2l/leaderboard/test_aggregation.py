"""Leaderboards aggregated from per-prompt coefficients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.leaderboard import aggregate, win_rates

TRAINABLE = ["bt", "bt-tie", "rk", "rk-reparam", "grk", "ba"]


def names(number):
    return [f"m{index}" for index in range(number)]


def prompts_of(likelihood, number, models, rng):
    """Coefficients, eta and gamma of simulated prompts."""
    model = likelihoods.get(likelihood)
    coefs = rng.normal(0.3, 1.0, models) + rng.normal(0, 0.7, (number, models))
    eta = rng.normal(-6.0 if likelihood == "rk" else -0.2, 0.4, number) if "eta" in model.parameters else None
    gamma = rng.normal(0.5, 0.3, number) if "gamma" in model.parameters else None
    return coefs, eta, gamma


def direct_loss(likelihood, theta, coefs, eta, gamma):
    """Mean cross-entropy over prompts and pairs, with nothing streamed."""
    model, size = likelihoods.get(likelihood), coefs.shape[1]
    i, j = np.triu_indices(size, 1)
    rows = [None if value is None else value[:, None] for value in (eta, gamma)]
    target = model.probs(coefs[:, i], coefs[:, j], *rows)
    own = np.asarray(theta[-1]), np.asarray(0.0)
    return -np.sum(target * model.log_probs(theta[i], theta[j], *own)) / target[..., 0].size


def numerical_derivatives(function, at):
    """Gradient and Hessian by central differences."""
    moves = np.eye(len(at))
    gradient = [(function(at + 1e-4 * move) - function(at - 1e-4 * move)) / 2e-4 for move in moves]

    def mixed(one, two, step=1e-3):
        return sum(s * t * function(at + step * (s * one + t * two)) for s in (-1, 1) for t in (-1, 1)) / (4 * step**2)

    return np.array(gradient), np.array([[mixed(one, two) for two in moves] for one in moves])


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_streamed_aggregation_is_the_direct_optimum(likelihood):
    rng = np.random.default_rng(8)
    coefs, eta, gamma = prompts_of(likelihood, 70, 5, rng)
    whole = aggregate(coefs, eta, gamma, likelihood, models=names(5), intervals=None)
    blocks = aggregate([coefs[:3], coefs[3:50], coefs[50:]], eta, gamma, likelihood, models=names(5), intervals=None)
    np.testing.assert_allclose(whole.coefs, blocks.coefs, atol=1e-10)
    theta = np.append(whole.coefs, [] if whole.eta is None else whole.eta)
    assert direct_loss(likelihood, theta, coefs, eta, gamma) == pytest.approx(whole.loss, abs=1e-8)
    # Numerical derivatives of the direct loss say how far its optimum is; no second optimiser has to find it.
    gradient, hessian = numerical_derivatives(lambda x: direct_loss(likelihood, x, coefs, eta, gamma), theta)
    curvatures, directions = np.linalg.eigh(hessian)
    slopes = directions.T @ gradient
    steep = curvatures > (0.01 if likelihood == "rk-reparam" else 1e-6)
    assert steep.sum() == len(theta) - (likelihood in ("bt", "bt-tie", "rk", "rk-reparam"))
    # The flat direction is the common level, which under rk-reparam shows in the ties alone.
    np.testing.assert_allclose(slopes[steep] / curvatures[steep], 0.0, atol=1e-6)
    np.testing.assert_allclose(slopes[~steep], 0.0, atol=1e-8)
    if likelihood == "rk-reparam":
        np.testing.assert_allclose(slopes[~steep] / curvatures[~steep], 0.0, atol=2e-5)


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_the_aggregate_of_equal_prompts_is_the_prompt(likelihood):
    coefs, eta, gamma = prompts_of(likelihood, 1, 6, np.random.default_rng(9))
    same = [None if value is None else np.repeat(value, 40) for value in (eta, gamma)]
    board = aggregate(np.repeat(coefs, 40, axis=0), *same, likelihood, models=names(6))
    expected = coefs[0] - (coefs[0].mean() if likelihood in ("bt", "bt-tie", "rk") else 0.0)
    if likelihood == "ba":
        expected = coefs[0] - gamma[0]
    np.testing.assert_allclose(board.coefs, expected, atol=1e-6)
    np.testing.assert_allclose(board.upper - board.lower, 0.0, atol=1e-5)
    if eta is not None:
        assert board.eta == pytest.approx(eta[0], abs=1e-5)


@pytest.mark.parametrize("likelihood", ["bt", "grk", "ba"])
def test_intervals_over_prompts_agree(likelihood):
    coefs, eta, gamma = prompts_of(likelihood, 300, 5, np.random.default_rng(10))
    widths = []
    for kind in ("sandwich", "bootstrap"):
        board = aggregate(coefs, eta, gamma, likelihood, models=names(5), intervals=kind, replicates=150)
        widths.append(board.upper - board.lower)
    np.testing.assert_allclose(widths[0], widths[1], rtol=0.25)
    # The coefficient of a model varies by 0.7 between prompts.
    assert widths[0].mean() == pytest.approx(2 * 1.96 * 0.7 / math.sqrt(300), rel=0.35)


def test_float32_coefficients_and_one_eta_for_all_will_do():
    coefs, _, _ = prompts_of("grk", 50, 4, np.random.default_rng(11))
    exact = aggregate(coefs, -0.2, models=names(4))
    single = aggregate(coefs.astype(np.float32), np.full(50, -0.2, np.float32), models=names(4))
    np.testing.assert_allclose(exact.coefs, single.coefs, atol=1e-5)


@pytest.mark.parametrize("seed", [191, 365])
def test_level_and_eta_that_stand_in_for_each_other_are_found(seed):
    """Under rk-reparam the optimum of such prompts lies in a flat curved valley."""
    rng = np.random.default_rng(seed)
    models, number = int(rng.integers(2, 12)), int(rng.integers(1, 60))
    coefs = rng.normal(0, rng.choice([0.1, 1, 3, 10, 50]), (number, models))
    eta = rng.normal(0, rng.choice([0.3, 2, 10]), number)
    board = aggregate(coefs, eta, None, "rk-reparam", models=names(models), intervals=None)
    assert np.isfinite(board.coefs).all()


@given(st.integers(0, 10_000), st.sampled_from(TRAINABLE), st.sampled_from([0.1, 3.0, 50.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_prompts_have_an_aggregate(seed, likelihood, spread):
    rng = np.random.default_rng(seed)
    coefs = rng.normal(0, spread, (int(rng.integers(1, 30)), int(rng.integers(2, 8))))
    eta = rng.normal(rng.choice([-40.0, 0.0, 20.0]) if likelihood == "rk" else 0.0, rng.choice([0.3, 10.0]), len(coefs))
    board = aggregate(coefs, eta, rng.normal(size=len(coefs)), likelihood, models=names(coefs.shape[1]))
    assert np.isfinite(board.coefs).all()
    assert (board.lower <= board.upper).all()


@pytest.mark.parametrize("likelihood", TRAINABLE)
@pytest.mark.parametrize("models", [1, 2])
def test_one_or_two_models_can_be_aggregated(likelihood, models):
    coefs, eta, gamma = prompts_of(likelihood, 9, models, np.random.default_rng(12))
    for kind in ("sandwich", "bootstrap", None):
        board = aggregate(coefs, eta, gamma, likelihood, models=names(models), intervals=kind, replicates=5)
        assert np.isfinite(board.coefs).all()
        assert len(board.to_frame()) == models


def test_extreme_coefficients_can_be_aggregated():
    coefs = np.array([[30.0, 0.0, -30.0], [-40.0, 0.0, 35.0], [0.0, 20.0, -20.0]])
    for likelihood in ("bt", "grk"):
        assert np.isfinite(aggregate(coefs, 0.0, None, likelihood, models=names(3)).coefs).all()


@pytest.mark.parametrize(
    ("coefs", "eta", "message"),
    [
        (np.array([[0.0, 1.0], [0.0, math.nan]]), 0.0, "prompt 2"),
        (np.array([[0.0, math.inf]]), 0.0, "prompt 1"),
        (np.zeros((0, 2)), 0.0, "no prompts"),
        (np.zeros((3, 3)), 0.0, "shape"),
        (np.zeros((3, 2)), None, "needs eta"),
        (np.zeros((3, 2)), np.zeros(2), "eta has 2 values"),
        (np.zeros((3, 2)), np.zeros(4), "eta has 4 values"),
        (np.zeros((1, 2)), math.nan, "eta"),
    ],
)
def test_what_is_no_prompt_is_refused(coefs, eta, message):
    with pytest.raises(InputError, match=message):
        aggregate(coefs, eta, models=names(2))


def test_a_generator_of_blocks_serves_the_point_but_not_the_intervals():
    coefs, eta, _ = prompts_of("grk", 20, 3, np.random.default_rng(13))
    board = aggregate((coefs[k : k + 7] for k in range(0, 20, 7)), eta, models=names(3), intervals=None)
    np.testing.assert_allclose(board.coefs, aggregate(coefs, eta, models=names(3)).coefs, atol=1e-9)
    with pytest.raises(InputError, match="twice"):
        aggregate((coefs for _ in range(1)), eta, models=names(3))


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_win_rates_are_mean_points_against_the_field(likelihood):
    rng = np.random.default_rng(14)
    coefs, eta, gamma = prompts_of(likelihood, 6, 4, rng)
    model = likelihoods.get(likelihood)
    rates = win_rates(coefs.reshape(2, 3, 4), model, *(None if v is None else v.reshape(2, 3) for v in (eta, gamma)))
    assert rates.shape == (2, 3, 4)
    np.testing.assert_allclose(rates.mean(axis=-1), 0.5, atol=1e-12)
    prompt, me = 4, 2
    points = []
    for other in (0, 1, 3):
        own = (None if value is None else value[prompt] for value in (eta, gamma))
        probs = dict(zip(model.outcomes, model.probs(coefs[prompt, me], coefs[prompt, other], *own), strict=True))
        points.append(probs["win"] + 0.5 * (probs.get("tie", 0.0) + probs.get("bothbad", 0.0)))
    assert rates.reshape(6, 4)[prompt, me] == pytest.approx(np.mean(points), abs=1e-12)
    assert (np.argsort(rates.reshape(6, 4)[0]) == np.argsort(coefs[0])).all()


def test_a_model_alone_has_even_chances():
    assert win_rates([[1.0], [2.0]], likelihoods.get("bt")).tolist() == [[0.5], [0.5]]
