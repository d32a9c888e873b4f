"""Coefficients as scores, and scores as one coefficient: the identities that tie them to the likelihoods."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from p2l import likelihood
from route.routing.optimizers import Opponents, grounded_scores, grounded_strength, scores_against, strength_against

coefs = st.lists(st.floats(-30, 30), min_size=1, max_size=8).map(np.array)


def field(values: np.ndarray, seed: int = 0) -> Opponents:
    """Opponents with uneven weights."""
    weights = np.random.default_rng(seed).random(len(values)) + 0.1
    return Opponents(values, weights / weights.sum())


@given(coefs, coefs)
def test_scores_are_the_winning_chances_of_the_likelihood(ours: np.ndarray, theirs: np.ndarray) -> None:
    opponents = field(theirs)
    wins = likelihood.get("bt").probs(ours[:, None], theirs[None, :])[..., 0]
    np.testing.assert_allclose(scores_against(ours, opponents), wins @ opponents.weights, rtol=1e-12, atol=1e-300)


@given(coefs)
def test_grounded_scores_are_the_winning_chances_against_zero(ours: np.ndarray) -> None:
    np.testing.assert_allclose(grounded_scores(ours), likelihood.get("bt").probs(ours, 0.0)[..., 0], atol=1e-15)


def test_coefficients_as_far_apart_as_floats_go_have_scores() -> None:
    opponents = Opponents(np.array([-2000.0, 0.0, 2000.0]), np.full(3, 1 / 3))
    np.testing.assert_allclose(scores_against(np.array([-2000.0, 0.0, 2000.0]), opponents), [1 / 6, 0.5, 5 / 6])
    assert grounded_scores(np.array([-2000.0, 2000.0])).tolist() == [0.0, 1.0]
    strength = strength_against(np.array([-2000.0, 2000.0]), np.array([0.5, 0.5]), opponents)
    assert strength == pytest.approx(0.0, abs=1e-6)


@given(coefs, coefs, st.integers(0, 99))
def test_the_strength_is_the_root_that_another_solver_finds(ours: np.ndarray, theirs: np.ndarray, seed: int) -> None:
    opponents, shares = field(theirs), field(ours, seed).weights
    target = shares @ scores_against(ours, opponents)

    def excess(t: float) -> float:
        return float(opponents.weights @ expit(t - theirs) - target)

    strength = strength_against(ours, shares, opponents)
    assert ours.min() <= strength <= ours.max()
    assert excess(strength) == pytest.approx(0.0, abs=1e-11)
    if ours.max() - ours.min() > 1e-6 and excess(ours.min() - 1) * excess(ours.max() + 1) < 0.0:
        root = brentq(excess, ours.min() - 1, ours.max() + 1, xtol=1e-13)
        slope = float(opponents.weights @ (expit(strength - theirs) * expit(theirs - strength)))
        assert (strength - root) * slope == pytest.approx(0.0, abs=1e-11)


def test_the_strength_of_one_model_is_its_coefficient() -> None:
    one, opponents = np.array([0.7]), field(np.array([-1.0, 2.0]))
    assert strength_against(one, np.ones(1), opponents) == 0.7
    assert grounded_strength(one, np.ones(1)) == 0.7


def test_the_strength_moves_with_the_shares_from_one_model_to_the_other() -> None:
    ours, opponents = np.array([-1.0, 3.0]), field(np.linspace(-2, 2, 9))
    for strength in (lambda p: strength_against(ours, p, opponents), lambda p: grounded_strength(ours, p)):
        path = [strength(np.array([1 - share, share])) for share in np.linspace(0.001, 0.999, 50)]
        assert (np.diff(path) > 0).all()
        assert path[0] == pytest.approx(-1.0, abs=0.01)
        assert path[-1] == pytest.approx(3.0, abs=0.05)


def test_adding_a_constant_to_all_coefficients_adds_it_to_the_strength() -> None:
    ours, theirs, shares = np.array([-1.0, 0.5]), np.array([0.0, 1.0, 4.0]), np.array([0.4, 0.6])
    here = strength_against(ours, shares, field(theirs))
    for shift in (-500.0, 80.0, 1e4):
        there = strength_against(ours + shift, shares, field(theirs + shift))
        assert there - shift == pytest.approx(here, abs=1e-9)


@given(coefs, st.integers(0, 99))
def test_the_grounded_strength_is_the_logit_of_the_mean_score(ours: np.ndarray, seed: int) -> None:
    shares = field(ours, seed).weights
    mean, rest = float(shares @ expit(ours)), float(shares @ expit(-ours))
    assert grounded_strength(ours, shares) == pytest.approx(math.log(mean / rest), abs=1e-9)
