"""Covariates: effects fitted together with the coefficients of a leaderboard."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.leaderboard import Covariates, Prior, fit

TRAINABLE = ["bt", "bt-tie", "rk", "rk-reparam", "grk", "ba"]
NO_PRIOR = Prior(sd=math.inf)
TRUTH = np.array([1.2, 0.6, 0.4, -0.1])
NAMES = ["ant", "bee", "cat", "dog"]


def draw(likelihood, number, rng, *, side=0.4, length=-0.8):
    """Votes whose outcomes side and length decide with the models; returns codes, winners and both covariates."""
    model = likelihoods.get(likelihood)
    a = rng.integers(0, 4, number)
    b = (a + rng.integers(1, 4, number)) % 4
    longer = rng.uniform(-1, 1, number).round(2)
    lean = 0.5 * (side + length * longer)
    eta, gamma = np.asarray(-6.0 if likelihood == "rk" else -0.3), np.asarray(0.0)
    probs = model.probs(TRUTH[a] + lean, TRUTH[b] - lean, eta, gamma)
    outcome = np.minimum((rng.random(number)[:, None] > probs.cumsum(axis=1)).sum(axis=1), probs.shape[1] - 1)
    return a, b, outcome, {"side": np.ones(number), "length": longer}


def difference_loss(theta, likelihood, votes, covariates):
    """The mean loss written out vote by vote, by the public formula alone."""
    model = likelihoods.get(likelihood)
    a, b, outcome = votes
    lean = 0.5 * (covariates["side"] * theta[-2] + covariates["length"] * theta[-1])
    swapped = outcome == 1
    first, second = (
        np.where(swapped, theta[b] - lean, theta[a] + lean),
        np.where(swapped, theta[a] + lean, theta[b] - lean),
    )
    labels = np.stack([np.zeros_like(a), np.ones_like(a), np.maximum(outcome - 1, 0)], axis=1)
    eta = np.full(len(a), theta[4]) if "eta" in model.parameters else None
    gamma = np.zeros(len(a)) if "gamma" in model.parameters else None
    return float(likelihoods.mean_loss(model, np.stack([first, second], axis=1), labels, eta, gamma))


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_a_fit_with_covariates_is_the_optimum_of_the_loss_written_out(likelihood):
    *votes, covariates = draw(likelihood, 400, np.random.default_rng(0))
    board = fit(*votes, models=NAMES, likelihood=likelihood, covariates=covariates, prior=Prior(sd=1e4))
    eta = [] if board.eta is None else [board.eta]
    theta = np.array([*board.coefs, *eta, *(effect.coef for effect in board.effects)])
    loss = difference_loss(theta, likelihood, votes, covariates)
    assert loss == pytest.approx(board.loss, abs=1e-9)
    best = minimize(difference_loss, theta, (likelihood, votes, covariates), tol=1e-10)
    assert loss <= best.fun + 1e-8
    log_probs = board.log_probs(
        *votes[:2], Covariates(tuple(covariates), ("difference",) * 2, np.stack([*covariates.values()], 1))
    )
    decided = votes[2] < 2
    assert np.exp(log_probs).sum(axis=1) == pytest.approx(1.0)
    assert log_probs[decided].shape[1] == len(likelihoods.get(likelihood).outcomes)


@pytest.mark.parametrize("likelihood", TRAINABLE)
@pytest.mark.parametrize("intervals", ["sandwich", "bootstrap"])
def test_planted_effects_lie_in_their_intervals_and_leave_the_coefficients(likelihood, intervals):
    *votes, covariates = draw(likelihood, 20_000, np.random.default_rng(1))
    options = {"models": NAMES, "likelihood": likelihood, "intervals": intervals, "level": 0.999, "replicates": 40}
    board = fit(*votes, covariates=covariates, **options)
    for effect, truth in zip(board.effects, (0.4, -0.8), strict=True):
        margin = 0.05 if intervals == "bootstrap" else 0.0  # forty draws have no tails
        assert effect.lower - margin < truth < effect.upper + margin
        assert effect.upper - effect.lower < 0.3
    differences = board.coefs - board.coefs.mean()
    np.testing.assert_allclose(differences, TRUTH - TRUTH.mean(), atol=0.1)
    assert board.loss < fit(*votes, **options).loss - 0.005


def test_sides_may_change_places_and_clusters_of_equal_votes_count_once():
    a, b, outcome, covariates = draw("grk", 2_000, np.random.default_rng(2))
    options = {"models": NAMES, "likelihood": "grk"}
    board = fit(a, b, outcome, covariates=covariates, **options)
    flipped = np.where(outcome < 2, 1 - outcome, outcome)
    turned = fit(b, a, flipped, covariates={name: -column for name, column in covariates.items()}, **options)
    np.testing.assert_allclose(board.coefs, turned.coefs, atol=1e-9)
    np.testing.assert_allclose([e[2:] for e in board.effects], [e[2:] for e in turned.effects], atol=1e-9)
    copies = [np.repeat(column, 4) for column in (a, b, outcome)]
    four = {name: np.repeat(column, 4) for name, column in covariates.items()}
    clustered = fit(*copies, covariates=four, clusters=np.repeat(np.arange(2_000), 4), **options)
    for mine, theirs in zip(board.effects, clustered.effects, strict=True):
        assert theirs.upper - theirs.lower == pytest.approx(mine.upper - mine.lower, rel=0.1)


def test_a_level_and_a_rate_of_ties_show_only_where_the_likelihood_has_them():
    rng = np.random.default_rng(3)
    model, number = likelihoods.get("grk"), 20_000
    a = rng.integers(0, 4, number)
    b = (a + rng.integers(1, 4, number)) % 4
    harsh = (rng.random(number) < 0.5).astype(float)
    probs = model.probs(TRUTH[a] - 0.7 * harsh, TRUTH[b] - 0.7 * harsh, -0.3 + 0.9 * harsh)
    outcome = (rng.random(number)[:, None] > probs.cumsum(axis=1)).sum(axis=1)
    judge = Covariates(("judge",) * 3, ("difference", "level", "ties"), np.repeat(harsh[:, None], 3, axis=1))
    effects = {e.role: e for e in fit(a, b, outcome, models=NAMES, covariates=judge, level=0.999).effects}
    for role, truth in (("difference", 0.0), ("level", -0.7), ("ties", 0.9)):
        assert effects[role].lower < truth < effects[role].upper
    for likelihood, roles in (("bt", {"difference"}), ("rk", {"difference", "ties"})):
        board = fit(a, b, outcome, models=NAMES, likelihood=likelihood, covariates=judge)
        assert {effect.role for effect in board.effects} == roles


def test_the_unit_of_a_covariate_does_not_matter():
    *votes, covariates = draw("bt", 500, np.random.default_rng(4))
    in_thousands = fit(*votes, models=NAMES, covariates={"length": covariates["length"] * 1000})
    plain = fit(*votes, models=NAMES, covariates={"length": covariates["length"]})
    np.testing.assert_allclose(in_thousands.coefs, plain.coefs, atol=1e-7)
    assert in_thousands.effects[0].coef * 1000 == pytest.approx(plain.effects[0].coef, rel=1e-6)


def test_a_covariate_that_never_varies_is_left_out_with_a_note_and_a_wrong_one_is_refused():
    a, b, outcome, covariates = draw("bt", 200, np.random.default_rng(5))
    board = fit(a, b, outcome, models=NAMES, covariates={**covariates, "bold": np.zeros(200)})
    assert [effect.name for effect in board.effects] == ["side", "length"]
    assert any("bold is zero in every vote" in note for note in board.notes)
    with pytest.raises(InputError, match="bold has values that are not finite numbers"):
        fit(a, b, outcome, models=NAMES, covariates={"bold": np.full(200, np.nan)})


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_what_is_known_to_be_added_needs_no_covariates(likelihood):
    """A leaderboard beside known shifts is that of the fit whose effects they are, with intervals by cluster."""
    rng = np.random.default_rng(3)
    *votes, covariates = draw(likelihood, 600, rng)
    board = fit(*votes, models=NAMES, likelihood=likelihood, covariates=covariates, prior=Prior(sd=1e4))
    lean = 0.5 * sum(effect.coef * covariates[effect.name] for effect in board.effects)
    offsets = np.column_stack([lean, -lean, np.zeros(len(lean))])
    clusters = rng.integers(200, size=len(lean))
    beside = fit(*votes, models=NAMES, likelihood=likelihood, offsets=offsets, clusters=clusters, prior=Prior(sd=1e4))
    np.testing.assert_allclose(beside.coefs, board.coefs, atol=1e-4)
    assert beside.loss == pytest.approx(board.loss, abs=1e-8)
    assert (beside.lower < beside.coefs).all()
    assert not beside.effects
    by_votes = fit(*votes, models=NAMES, likelihood=likelihood, offsets=offsets)
    np.testing.assert_allclose(by_votes.coefs, board.coefs, atol=0.2)
