"""Judges' terms and people's leaderboard, fitted together to votes whose truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l.common.errors import InputError
from p2l.likelihood import get as likelihood_of
from p2l.likelihood import vote_losses
from p2l.people import SourceFit, fit_sources
from p2l.people.judges import Forecast
from tests.p2l.people.people_votes import LEANINGS, MODELS, SHARP, SIDED, TRUTH, cast, sourced


def votes_of(people: int, verdicts: int, likelihood: str = "grk", seed: int = 0) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    rows = cast(people, "human", rng, likelihood)
    for judge in (SHARP, SIDED):
        rows += cast(verdicts, judge, rng, likelihood)
    return rows


@pytest.mark.parametrize("likelihood", ["bt", "grk", "ba"])
def test_what_a_judge_leans_to_comes_back(likelihood: str) -> None:
    fit = fit_sources(sourced(votes_of(2000, 6000, likelihood)), likelihood)
    assert [one.judge for one in fit.judges] == [SHARP, SIDED]
    for one in fit.judges:
        truth = LEANINGS[one.judge]
        assert one.verdicts == 6000
        assert one.scale == pytest.approx(truth["scale"], rel=0.2)
        assert one.side == pytest.approx(truth["side"], abs=0.15)
        assert one.length == pytest.approx(truth["length"], abs=0.3)
        assert one.own == pytest.approx(truth["own"], abs=0.4)
    assert np.std(fit.coefs - TRUTH) < 0.15


def test_biased_verdicts_teach_where_pooling_misleads() -> None:
    """With few votes of people the judges' terms bring people's leaderboard nearer, and naive pooling takes it away."""
    rows = votes_of(400, 4000)
    errors = {}
    for name, votes in (
        ("people", rows[:400]),
        ("all", rows),
        ("pooled", [{**row, "source": "human"} for row in rows]),
    ):
        coefs = fit_sources(sourced([{**row, "voter": None} for row in votes]), "grk").coefs
        errors[name] = 1.0 - np.corrcoef(coefs, TRUTH)[0, 1]  # the scale is what few votes of people say of it
    assert errors["all"] < 0.3 * errors["people"]
    assert errors["all"] < 0.3 * errors["pooled"]


def test_a_judge_with_a_taste_for_each_model_does_not_decide_how_good_they_are() -> None:
    rng = np.random.default_rng(3)
    rows = cast(1500, "human", rng)
    disguise = dict(zip(MODELS, rng.permutation(MODELS), strict=True))
    # A judge who takes every model for another one, much the same on all prompts.
    verdicts = [
        {**row, "source": "odd", "model_a": disguise[row["model_a"]], "model_b": disguise[row["model_b"]]}
        for row in cast(6000, "nobody", rng)
    ]
    fit = fit_sources(sourced(rows + verdicts), "grk")
    alone = fit_sources(sourced(rows), "grk")
    assert fit.judges[0].taste > 0.4
    assert np.std(fit.coefs - TRUTH) < np.std(alone.coefs - TRUTH) + 0.05


def test_terms_turn_people_into_judges_and_leave_people_alone() -> None:
    votes = sourced(votes_of(500, 1500))
    fit = fit_sources(votes, "grk")
    terms = fit.terms(votes, "grk")
    assert (terms.scale[votes.by_people] == 1.0).all()
    assert (terms.shift[votes.by_people] == 0.0).all()
    labels, rows = votes.labels.astype(int), np.arange(len(votes))
    coefs = terms.scale[:, None] * fit.coefs[labels[:, :2]] + terms.shift[:, :2]
    ends = np.column_stack([np.zeros(len(rows)), np.ones(len(rows)), labels[:, 2]]).astype(int)
    eta = np.full(len(rows), fit.eta) + terms.shift[:, 2]
    losses = vote_losses(likelihood_of("grk"), coefs, ends, eta)
    plain = vote_losses(likelihood_of("grk"), fit.coefs[labels[:, :2]], ends, np.full(len(rows), fit.eta))
    for judge in (0, 1):
        own = votes.judge == judge
        assert losses[own].mean() < plain[own].mean() - 0.02
    again = SourceFit.from_dict(json.loads(json.dumps(fit.to_dict())))
    np.testing.assert_array_equal(again.terms(votes, "grk").shift, terms.shift)
    unknown = SourceFit(fit.coefs, fit.eta, (), ()).terms(votes, "grk")
    assert (unknown.scale == 1.0).all()


def test_forecasts_take_the_place_of_the_leaderboard() -> None:
    """With the truth as a forecast nothing has to be added, and scales are beside people's."""
    votes = sourced(votes_of(2000, 5000))
    forecast = Forecast(np.tile(TRUTH / 2.0, (len(votes), 1)), np.full(len(votes), -0.3))
    fit = fit_sources(votes, "grk", forecast)
    assert [one.scale for one in fit.judges] == pytest.approx([1.6, 0.7], rel=0.2)
    assert np.abs(fit.coefs).max() < 0.4


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 1000))
def test_who_is_shown_first_changes_the_side_alone(seed: int) -> None:
    rows = votes_of(200, 400, seed=seed)
    other = {"model_a": "model_b", "model_b": "model_a"}
    turned = [
        {
            **row,
            "model_a": row["model_b"],
            "model_b": row["model_a"],
            "winner": other.get(row["winner"], row["winner"]),
            "length_a": row["length_b"],
            "length_b": row["length_a"],
            "voter": None,
        }
        for row in rows
    ]
    plain = fit_sources(sourced([{**row, "voter": None} for row in rows]), "grk")
    mirrored = fit_sources(sourced(turned), "grk")
    np.testing.assert_allclose(mirrored.coefs, plain.coefs, atol=0.02)
    for one, two in zip(plain.judges, mirrored.judges, strict=True):
        assert two.side == pytest.approx(-one.side, abs=0.02)
        assert (two.scale, two.length, two.own) == pytest.approx((one.scale, one.length, one.own), abs=0.02)


def test_votes_that_do_not_count_are_refused() -> None:
    rows = [{**row, "winner": "tie"} for row in cast(20, "human", np.random.default_rng(0))]
    with pytest.raises(InputError, match="no vote counts"):
        fit_sources(sourced(rows), "bt")
