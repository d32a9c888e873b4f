"""Scaling laws fitted to losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling.law import FORMS, Law, Runs, fit_law, fit_with_intervals, leave_one_out
from p2l.common.errors import ConfigError, InputError

VOTES = np.array([1e3, 3e3, 1e4, 3e4, 1e5])
PARAMETERS = np.array([1e4, 1e5, 1e6, 1e7])


def grid(seeds=1):
    votes, parameters = (values.ravel() for values in np.meshgrid(VOTES, PARAMETERS))
    return np.tile(votes, seeds), np.tile(parameters, seeds)


def planted(law, noise=0.0, seeds=2, blocks=20, seed=0):
    """Runs of a law: noise of a run is shared by its blocks, and blocks differ in how hard they are."""
    rng = np.random.default_rng(seed)
    votes, parameters = grid(seeds)
    hardness = rng.normal(0, 3 * noise, blocks)
    losses = law.loss(votes, parameters) + rng.normal(0, noise, len(votes))
    return Runs(votes, parameters, losses[:, None] + hardness - hardness.mean())


@settings(max_examples=15)
@given(
    floor=st.floats(0.1, 1.5),
    alpha=st.floats(0.15, 0.9),
    beta=st.floats(0.15, 0.9),
    first=st.floats(0.05, 0.5),
    second=st.floats(0.05, 0.5),
)
def test_planted_exponents_are_found_again(floor, alpha, beta, first, second):
    law = Law("additive", floor, first * 1e4**alpha, alpha, second * 3e5**beta, beta)
    votes, parameters = grid()
    found = fit_law(votes, parameters, law.loss(votes, parameters))
    np.testing.assert_allclose([found.votes_exponent, found.parameters_exponent], [alpha, beta], rtol=0.02)
    np.testing.assert_allclose(found.floor, floor, atol=0.01)
    np.testing.assert_allclose(found.loss(3e5, 3e7), law.loss(3e5, 3e7), atol=2e-3)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_fits_its_own_losses_and_takes_a_known_floor(form):
    law = Law(form, 1.1, 4.0, 0.4, 0.0 if form != "additive" else 30.0, 0.0 if form == "votes alone" else 0.5)
    votes, parameters = grid()
    bent = replace(law, ceiling=1.4)
    for planted_law, known in ((law, {}), (law, {"floor": 1.1}), (bent, {"floor": 1.1, "ceiling": 1.4})):
        losses = planted_law.loss(votes, parameters)
        found = fit_law(votes, parameters, losses, form=form, **known)
        np.testing.assert_allclose(found.loss(votes, parameters), losses, atol=2e-4)
    assert found.floor == 1.1
    assert losses.max() < 1.4


def test_a_ceiling_without_a_floor_below_it_is_refused():
    for floor in (None, 1.5):
        with pytest.raises(ConfigError, match="above a known floor"):
            fit_law(*grid(), grid()[0], floor=floor, ceiling=1.4)


def test_the_form_that_made_the_losses_predicts_what_was_left_out_best():
    runs = planted(Law("additive", 1.1, 8.0, 0.5, 40.0, 0.5), noise=0.002)
    errors = {form: leave_one_out(runs, form=form) for form in FORMS}
    assert min(errors, key=errors.get) == "additive"
    assert errors["additive"] < 0.01


def test_intervals_hold_the_truth_and_narrow_with_the_noise():
    law = Law("additive", 1.1, 8.0, 0.4, 40.0, 0.5)
    wide, narrow = (
        fit_with_intervals(planted(law, noise), replicates=30, seed=1).intervals for noise in (0.004, 0.0004)
    )
    for name in ("floor", "votes_exponent", "parameters_exponent"):
        lower, upper = wide[name]
        assert lower <= getattr(law, name) <= upper
        assert narrow[name][1] - narrow[name][0] < upper - lower


def test_the_same_seed_gives_the_same_intervals_whatever_the_order_of_runs_says_of_the_fit():
    runs = planted(Law("product", 1.0, 5.0, 0.3, 0.0, 0.1), noise=0.001, seeds=1)
    first, second = (fit_with_intervals(runs, form="product", replicates=5, seed=3) for _ in range(2))
    assert first.intervals == second.intervals
    turned = runs.of(np.arange(len(runs.votes))[::-1])
    np.testing.assert_allclose(
        fit_law(turned.votes, turned.parameters, turned.loss, form="product").votes_exponent,
        first.law.votes_exponent,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("votes", "parameters", "loss", "message"),
    [
        ([1e3, 1e4], [1e4, 1e5], [1.0, 0.9], "at least 3 numbers of votes and 3 sizes of model, not 2 and 2"),
        ([1e3, 1e4, 1e5], [1e4, 1e5], [1.0, 0.9], "one number for each run"),
        ([1e3, 1e4, 1e5], [1e4, 1e5, 1e6], [1.0, float("nan"), 0.9], "finite"),
        ([0, 1e4, 1e5], [1e4, 1e5, 1e6], [1.0, 0.95, 0.9], "above zero"),
    ],
)
def test_what_no_law_can_be_fitted_to_is_refused_in_one_line(votes, parameters, loss, message):
    with pytest.raises(InputError, match=message) as caught:
        fit_law(votes, parameters, loss)
    assert "\n" not in str(caught.value)


def test_an_unknown_form_is_refused():
    with pytest.raises(ConfigError, match="additive"):
        fit_law(*grid(), grid()[0], form="cubic")
