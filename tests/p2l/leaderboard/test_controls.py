"""Covariates of a file of votes: the same values in other votes, and fits around a forecast."""

import math

import numpy as np
import pyarrow as pa
import pytest

from p2l import likelihood as likelihoods
from p2l.common.errors import VoteError
from p2l.leaderboard import Prior, fit
from p2l.leaderboard.controls import MAX_TEXTS, Controls
from tests.p2l.leaderboard.test_covariates import NAMES, TRAINABLE, draw

COLUMNS = {
    "length_a": [3.0, None, 0.0, 4.0],
    "length_b": [1.0, 2.0, 0.0, 4.0],
    "hour": [1.0, 2.5, None, -4.0],
    "judge": ["ann", "bob", "ann", None],
}


def controls(*names, columns=COLUMNS):
    batch = pa.RecordBatch.from_pydict(columns)
    made = Controls(names, batch.schema.names, "votes.csv")
    made.add(batch)
    return made, batch


@pytest.mark.parametrize("names", [["side,length,hour,judge"], ["judge"], ["side"]])
def test_a_design_reads_what_its_own_votes_had(names):
    made, batch = controls(*names)
    design, covariates, missing = made.design(), made.covariates(), {}
    np.testing.assert_array_equal(design.read(batch, "votes.csv", missing), covariates.values)
    assert missing == made.missing
    assert [(term.name, term.role) for term in design.terms] == list(
        zip(covariates.names, covariates.roles, strict=True)
    )
    rows = [{name: column[number] for name, column in COLUMNS.items()} for number in range(4)]
    np.testing.assert_array_equal(design.read_rows(rows, "votes.jsonl", {}), covariates.values)
    assert design.read_rows([], "votes.jsonl", {}).shape == (0, len(design.terms))


def test_a_vote_without_a_value_has_no_difference_and_is_counted_once():
    made, _ = controls("length", "hour")
    assert made.covariates().values.tolist() == [[0.5, 1.0], [0.0, 2.5], [0.0, 0.0], [0.0, -4.0]]
    assert made.missing == {"length": 1, "hour": 1}


def test_a_judge_that_is_new_counts_as_none_of_them():
    design, missing = controls("side", "judge")[0].design(), {}
    rows = [{"judge": "cid"}, {"judge": "bob"}, {"judge": 7}]
    values = design.read_rows(rows, "more.jsonl", missing)
    leans = [place for place, term in enumerate(design.terms) if term.name == "judge = bob"]
    assert values[:, leans].tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
    assert missing == {"judge": 2}


def test_lines_may_hold_anything():
    values = (
        controls("length", "hour")[0]
        .design()
        .read_rows(
            [{"length_a": "6", "length_b": 2, "hour": [1]}, {"length_a": True, "hour": math.inf}], "votes.jsonl", {}
        )
    )
    assert values.tolist() == [[0.5, 0.0], [0.0, 0.0]]


def test_what_cannot_be_read_is_named():
    design = controls("length")[0].design()
    with pytest.raises(VoteError, match=r"other.csv: covariate length needs a column length_a"):
        design.read(pa.RecordBatch.from_pydict({"length_b": [1.0]}), "other.csv", {})
    many = {"judge": [f"j{number}" for number in range(MAX_TEXTS + 1)]}
    with pytest.raises(VoteError, match=f"control judge has more than {MAX_TEXTS} texts"):
        controls("judge", columns=many)
    for listed in ([["ann", "bob"], None], [[1.0], [2.0, 3.0]]):
        with pytest.raises(VoteError, match="control judges needs a number or a text in each row, not a list"):
            controls("judges", columns={"judges": listed})
    with pytest.raises(VoteError, match="--control names nothing; give side, length, format or a column"):
        controls("")


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_a_fit_around_a_forecast_finds_what_is_left(likelihood):
    a, b, outcome, covariates = draw(likelihood, 600, np.random.default_rng(8))
    options = {"models": NAMES, "likelihood": likelihood, "prior": Prior(sd=1e4, eta=0.0)}
    whole = fit(a, b, outcome, covariates=covariates, **options)
    forecast = np.array([0.5, -0.2, 0.1, 0.3])
    eta = -6.5 if likelihood == "rk" else 0.2
    offsets = np.stack([forecast[a], forecast[b], np.full(len(a), eta)], axis=1)
    size = 4 + (whole.eta is not None)
    rest = fit(a, b, outcome, covariates=covariates, offsets=offsets, start=np.zeros(size), **options)
    left = whole.coefs - forecast
    centre = 0.0 if likelihood in ("rk-reparam", "grk", "ba") else left.mean()
    np.testing.assert_allclose(rest.coefs, left - centre, atol=1e-5)
    if whole.eta is not None:
        assert rest.eta == pytest.approx(whole.eta - eta, abs=1e-4)
    for mine, theirs in zip(rest.effects, whole.effects, strict=True):
        assert mine[2:] == pytest.approx(theirs[2:], abs=1e-5)


@pytest.mark.parametrize("likelihood", TRAINABLE)
def test_a_shift_moves_the_loss_as_coefficients_do(likelihood):
    rng, model = np.random.default_rng(9), likelihoods.get(likelihood)
    coefs, shift = rng.normal(size=(50, 4)), rng.normal(size=(50, 3))
    labels = np.stack([rng.permutation(4)[:2] for _ in range(50)])
    labels = np.column_stack([labels, rng.integers(0, 3, 50)])
    eta, gamma = np.full(50, -6.0 if likelihood == "rk" else 0.1), np.full(50, 0.2)
    moved, rows = coefs.copy(), np.arange(50)
    moved[rows, labels[:, 0]] += shift[:, 0]
    moved[rows, labels[:, 1]] += shift[:, 1]
    plain = likelihoods.vote_losses(model, moved, labels, eta + shift[:, 2], gamma)
    np.testing.assert_array_equal(likelihoods.vote_losses(model, coefs, labels, eta, gamma, shift), plain)


def test_the_order_of_the_two_models_does_not_matter_around_a_forecast():
    a, b, outcome, covariates = draw("grk", 500, np.random.default_rng(10))
    rng = np.random.default_rng(11)
    offsets = rng.normal(size=(500, 3)) * 0.3
    options = {"models": NAMES, "likelihood": "grk", "prior": Prior(sd=0.5, eta=0.0, broad=5.0)}
    one = fit(a, b, outcome, covariates=covariates, offsets=offsets, **options)
    flipped = np.where(outcome < 2, 1 - outcome, outcome)
    turned = {name: -column for name, column in covariates.items()}
    other = fit(b, a, flipped, covariates=turned, offsets=offsets[:, [1, 0, 2]], **options)
    np.testing.assert_allclose(one.coefs, other.coefs, atol=1e-8)
    np.testing.assert_allclose([e[2:] for e in one.effects], [e[2:] for e in other.effects], atol=1e-8)
