"""Derivatives in closed form are those of the formulas, for every likelihood and wherever a fit may come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l import likelihood as likelihoods
from p2l.leaderboard.closed_forms import outcome_slopes, row_sums
from p2l.leaderboard.newton import derivatives

ROWS = 50


@pytest.mark.parametrize("name", likelihoods.names())
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(0.01, 9.0), eta=st.floats(-25.0, 25.0), shared=st.booleans())
def test_sums_are_those_of_the_formula(name: str, seed: int, spread: float, eta: float, shared: bool) -> None:
    rng, likelihood = np.random.default_rng(seed), likelihoods.get(name)
    a, b = np.clip(rng.normal(0, spread, (2, ROWS)), -29, 29)
    etas = None if not likelihood.parameters else eta if shared else np.clip(rng.normal(eta, 2.0, ROWS), -29, 29)
    masses = rng.random((ROWS, len(likelihood.outcomes))) * rng.integers(0, 1000, (ROWS, 1))
    sums = row_sums(likelihood, masses, a, b, etas, likelihood.board_gamma)
    assert sums is not None
    logs, slopes, bends = derivatives(likelihood, a, b, etas, likelihood.board_gamma)
    size = len(sums.slope)
    tolerance = 1e-12 * (1.0 + masses.sum(axis=1).max())
    np.testing.assert_allclose(sums.value, (masses * logs).sum(axis=1), rtol=1e-11, atol=tolerance)
    np.testing.assert_allclose(
        np.transpose(sums.slope), np.einsum("pk,pkq->pq", masses, slopes[..., :size]), rtol=1e-9, atol=tolerance
    )
    np.testing.assert_allclose(
        sums.matrix(), np.einsum("pk,pkqr->pqr", masses, bends[..., :size, :size]), rtol=1e-9, atol=tolerance
    )


@pytest.mark.parametrize("name", likelihoods.names())
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(0.01, 9.0), eta=st.floats(-25.0, 25.0), shared=st.booleans())
def test_slopes_of_outcomes_are_those_of_the_formula(
    name: str, seed: int, spread: float, eta: float, shared: bool
) -> None:
    rng, likelihood = np.random.default_rng(seed), likelihoods.get(name)
    a, b = np.clip(rng.normal(0, spread, (2, ROWS)), -29, 29)
    etas = None if not likelihood.parameters else eta if shared else np.clip(rng.normal(eta, 2.0, ROWS), -29, 29)
    slopes = outcome_slopes(likelihood, a, b, etas, likelihood.board_gamma)
    assert slopes is not None
    _, expected, _ = derivatives(likelihood, a, b, etas, likelihood.board_gamma)
    np.testing.assert_allclose(slopes, expected[..., : slopes.shape[-1]], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", likelihoods.names())
def test_far_out_the_formula_serves(name: str) -> None:
    likelihood = likelihoods.get(name)
    masses, far = np.ones((1, len(likelihood.outcomes))), np.array([800.0])
    assert row_sums(likelihood, masses, far, -far, 0.0, likelihood.board_gamma) is None
    assert row_sums(likelihood, masses, far * np.nan, far, 0.0, likelihood.board_gamma) is None
    assert outcome_slopes(likelihood, far, -far, 0.0, likelihood.board_gamma) is None


def test_a_form_goes_with_its_formula_and_not_with_a_name() -> None:
    old = likelihoods.get("bt")
    own = likelihoods.Likelihood("bt", "bt", old.outcomes, lambda xp, a, b, *_: (-xp.exp(b - a), -xp.exp(a - b)))
    assert row_sums(own, np.ones((1, 2)), np.zeros(1), np.zeros(1), None, None) is None
