from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l import likelihood as likelihoods
from p2l import metrics
from p2l.common.errors import ConfigError
from p2l.likelihood import get
from p2l.metrics import ScoredVotes, Standing, evaluate, leaderboard_metrics, simple_metrics, vote_values
from tests.p2l.worked_votes import COEFS, ETA, LABELS

SIMPLE = ("Loss", "BCELoss", "MSELoss", "Accuracy", "Tie_Loss", "Tie_Accuracy", "Tie_bb_Loss", "Tie_bb_Accuracy")
WORKED = {
    "bt": (0.7011, 0.7011, 0.2553, 0.6667, None, None, None, None),
    "bt-tie": (0.7486, 0.7011, 0.2526, 0.5833, None, None, None, None),
    "rk": (1.1014, 0.7011, 0.4104, 0.1667, 0.7016, 0.5, None, None),
    "rk-reparam": (1.2209, 0.7011, 0.4562, 0.1667, None, None, None, None),
    "bag": (1.5452, 0.7011, 0.5711, 0.3333, 0.8313, 0.5, 0.4532, 0.8333),
}
SPREADS = {
    "Mean-BT": 0.0875,
    "Std-BT": 0.6689,
    "Spread-BT": 2.5,
    "Mean-Spread-BT": 1.6333,
    "Mean-IQR-BT": 0.7333,
    "Mean-Std-BT": 0.7003,
}
EVERY = likelihoods.names()


def rounded(values):
    return {name: None if value is None else round(value, 4) for name, value in values.items()}


def scored(name: str, **changes) -> ScoredVotes:
    return ScoredVotes(
        **{"likelihood": get(name), "coefs": COEFS, "labels": LABELS, "eta": ETA, "gamma": ETA, **changes}
    )


def drawn_votes(name: str, count: int, seed: int = 0) -> ScoredVotes:
    """Votes drawn from the very probabilities that are scored, sides at random."""
    rng = np.random.default_rng(seed)
    coefs, eta = rng.normal(0, 1, (count, 6)), rng.normal(0, 1, count)
    pairs = rng.permuted(np.tile(np.arange(6), (count, 1)), axis=1)[:, :2]
    rows = np.arange(count)
    probs = get(name).probs(coefs[rows, pairs[:, 0]], coefs[rows, pairs[:, 1]], eta, eta)
    outcome = (rng.random(count)[:, None] > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    lost, tie = outcome == 1, np.maximum(outcome - 1, 0)
    winner, loser = np.where(lost, pairs[:, 1], pairs[:, 0]), np.where(lost, pairs[:, 0], pairs[:, 1])
    return ScoredVotes(get(name), coefs, np.stack([winner, loser, tie], axis=1), eta, eta)


@pytest.mark.parametrize("name", WORKED)
def test_worked_example(name):
    values = simple_metrics(COEFS, LABELS, ETA, likelihood=name)
    assert rounded({key: values[key] for key in SIMPLE}) == dict(zip(SIMPLE, WORKED[name], strict=True))
    assert rounded({key: values[key] for key in SPREADS}) == SPREADS


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_the_training_loss(name):
    far = 30 * COEFS
    for coefs in (COEFS, far, 30 * far):
        expected = float(likelihoods.mean_loss(get(name), coefs, LABELS, ETA, ETA))
        assert evaluate("Loss", scored(name, coefs=coefs)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_one_leaderboard_is_the_same_as_its_rows_repeated(name):
    single = simple_metrics(COEFS[0], LABELS, 0.3, 0.1, likelihood=name)
    repeated = simple_metrics(np.tile(COEFS[0], (6, 1)), LABELS, np.full(6, 0.3), np.full((6, 1), 0.1), likelihood=name)
    assert single.keys() == metrics.METRICS.keys()
    for key, value in single.items():
        assert value == (None if value is None else pytest.approx(repeated[key], rel=1e-12))


@pytest.mark.parametrize("name", EVERY)
def test_a_weight_of_two_counts_as_the_vote_twice(name):
    twice = [0, 0, 1, 2, 2, 3, 4, 5]
    weighted = scored(name, weights=np.array([2, 1, 2, 1, 1, 1]))
    repeated = scored(name, coefs=COEFS[twice], labels=LABELS[twice], eta=ETA[twice], gamma=ETA[twice])
    for key, metric in metrics.METRICS.items():
        if not key.endswith("-BT"):
            assert metric.applies(get(name)) == (evaluate(key, weighted) is not None)
            assert evaluate(key, weighted) == (
                pytest.approx(evaluate(key, repeated)) if metric.applies(get(name)) else None
            )


def test_votes_on_models_without_a_coefficient_are_left_out():
    missing = COEFS.copy()
    missing[:, 3] = np.nan
    keep = [0, 1, 5]
    some = simple_metrics(missing, LABELS, ETA, likelihood="grk")
    rest = simple_metrics(COEFS[keep][:, :3], LABELS[keep], ETA[keep], likelihood="grk")
    for key in metrics.METRICS:
        if not key.endswith("-BT"):
            assert some[key] == pytest.approx(rest[key])
    assert np.isnan(vote_values("Loss", scored("grk", coefs=missing))).tolist() == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("name", EVERY)
def test_no_votes_give_no_numbers(name):
    nothing = simple_metrics(np.empty((0, 4)), np.empty((0, 3), dtype=int), np.empty(0), np.empty(0), likelihood=name)
    assert set(nothing.values()) == {None}


def test_bt_counts_decided_votes_only():
    ties = LABELS[LABELS[:, 2] > 0]
    assert evaluate("Loss", scored("bt", coefs=COEFS[:3], labels=ties, eta=None)) is None
    assert evaluate("ECE", scored("bt", coefs=COEFS[:3], labels=ties, eta=None)) is None


def test_equal_coefficients_never_earn_a_win():
    for name in EVERY:
        votes = scored(name, coefs=np.zeros((1, 2)), labels=np.array([[0, 1, 0]]), eta=np.array([-9.0]), gamma=-9.0)
        assert evaluate("Accuracy", votes) == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(EVERY))
def test_proper_scores_are_within_their_bounds_and_prefer_the_truth(seed, name):
    votes = drawn_votes(name, 400, seed)
    for key, most in (("Brier", 2.0), ("RPS", 1.0), ("MSELoss", 1.0)):
        values = vote_values(key, votes)
        counted = values[~np.isnan(values)]
        assert ((counted >= 0) & (counted <= most)).all()


@pytest.mark.parametrize("name", ["bt", "rk", "grk", "ba"])
def test_the_truth_scores_best_and_is_calibrated(name):
    truth = drawn_votes(name, 20_000)
    boasting = ScoredVotes(truth.likelihood, 2 * truth.coefs, truth.labels, truth.eta, truth.gamma)
    for key in ("Loss", "Brier", "RPS", "ECE", "ECE-win"):
        assert evaluate(key, truth) < evaluate(key, boasting)
    assert evaluate("ECE", truth) < 0.02


def test_brier_by_hand():
    votes = scored("grk", coefs=np.zeros((1, 2)), labels=np.array([[0, 1, 1]]), eta=np.array([-50.0]))
    # t = 1.000001: a third each to win, loss and both bad, next to nothing to the tie that happened.
    assert evaluate("Brier", votes) == pytest.approx(3 / 9 + 1, abs=1e-5)
    assert evaluate("RPS", votes) == pytest.approx(1 / 9, abs=1e-5)
    assert evaluate("MSELoss", votes) == pytest.approx(1, abs=1e-5)


def test_a_constant_predictor_is_calibrated_when_its_shares_are_right():
    labels = np.array([(0, 1, 0)] * 2 + [(1, 0, 0)] * 2)
    even = ScoredVotes(get("bt"), np.zeros(2), labels)
    assert evaluate("ECE", even) == pytest.approx(0)
    sure = ScoredVotes(get("bt"), np.array([np.log(3.0), 0.0]), labels)  # says 3/4 where half is right
    assert evaluate("ECE", sure) == pytest.approx(0.25)


def test_reliability_data_describe_all_votes():
    votes = drawn_votes("grk", 2_000)
    diagram = metrics.reliability(votes, bins=10)
    assert diagram.outcomes == ("win", "tie", "bothbad")
    assert diagram.mass.shape == (3, 10)
    np.testing.assert_allclose(diagram.mass.sum(axis=1), 1)
    filled = diagram.mass > 0
    assert (np.isnan(diagram.observed) == ~filled).all()
    lower, upper = np.broadcast_to(diagram.edges[:-1], (3, 10)), np.broadcast_to(diagram.edges[1:], (3, 10))
    assert ((diagram.predicted >= lower) & (diagram.predicted <= upper))[filled].all()


def test_skill():
    assert metrics.skill([1.0, 2.0, np.nan], [2.0, 4.0, 9.0]) == pytest.approx(0.5)
    assert metrics.skill([2.0, 3.0], [2.0, 1.0], weights=[1.0, 0.0]) == pytest.approx(0.0)
    assert metrics.skill([np.nan], [1.0]) is None


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="did you mean 'Loss'"):
        evaluate("Los", scored("bt"))
    with pytest.raises(ConfigError, match="not a mean over votes"):
        vote_values("Std-BT", scored("bt"))
    with pytest.raises(ConfigError, match="is not defined under likelihood bt"):
        vote_values("Tie_Loss", scored("bt"))
    with pytest.raises(ConfigError, match="did you mean 'Spearman-lbs'"):
        leaderboard_metrics(Standing(COEFS[0]), Standing(COEFS[1]), "abcd", likelihood="bt", names=["Spearman"])


MODELS = ["ant", "bee", "cat", "dog"]


def board(truth, model, names=None, likelihood="grk", **extra):
    sides = (
        side if isinstance(side, Standing) else Standing(np.asarray(side, dtype=float), 0.0, 0.0)
        for side in (truth, model)
    )
    return leaderboard_metrics(*sides, MODELS, likelihood=likelihood, names=names, **extra)


@pytest.mark.parametrize("name", EVERY)
def test_equal_leaderboards_have_no_distance(name):
    values = board(COEFS[0], COEFS[0], likelihood=name, labels=LABELS)
    assert values["L1-Dist-Prob"] == 0
    assert values["Spearman-lbs"] == values["Kendall-lbs"] == pytest.approx(1)
    assert values["Top-k-fraction"] == dict.fromkeys((1, 3, 5, 10), 1.0)
    assert values["Top-k-displace"] == dict.fromkeys((1, 3, 5, 10), 0.0)
    assert values["Aggr_Loss"]["ground-truth"] == values["Aggr_Loss"]["model-aggr"]
    assert values.keys() == metrics.LEADERBOARD_METRICS.keys()


def test_the_distance_is_a_mean_over_different_pairs():
    truth, model = np.array([1.0, 0.0, -1.0, np.nan]), np.array([0.0, 0.5, 0.2, 0.0])
    for name, outcomes in (("bt", 2), ("rk", 3), ("grk", 4)):
        total = 0.0
        for i, j in ((0, 1), (0, 2), (1, 2)):
            p, q = (get(name).probs(side[i], side[j], 0.0) for side in (truth, model))
            total += float(np.abs(p - q).sum())
        assert board(truth, model, ["L1-Dist-Prob"], name)["L1-Dist-Prob"] == pytest.approx(total / 3 / outcomes)


def test_the_distance_falls_back_to_bt_without_an_eta():
    sides = (Standing(COEFS[0], 0.0), Standing(COEFS[1]))
    without = board(*sides, ["L1-Dist-Prob"])
    assert without == board(*sides, ["L1-Dist-Prob"], "bt")


def test_ranks_and_tops():
    values = board([4, 3, 2, 1], [1, 2, 3, 4])
    assert values["Spearman-lbs"] == values["Kendall-lbs"] == pytest.approx(-1)
    assert values["Top-k-fraction"] == {1: 0.0, 3: pytest.approx(2 / 3), 5: 1.0, 10: 1.0}
    assert values["Top-k-displace"] == {1: 3.0, 3: pytest.approx(5 / 3), 5: 2.0, 10: 2.0}
    assert values["Leaderboard"]["model-aggr"] == ["dog: 4.0000", "cat: 3.0000", "bee: 2.0000", "ant: 1.0000"]
    assert values["IQR-BT"] == {"ground-truth": 1.5, "model-aggr": 1.5}


def test_models_that_one_side_does_not_know_are_left_out_of_both():
    values = board([4, np.nan, 2, 1], [1, 2, 3, np.nan], labels=LABELS)
    assert values["Leaderboard"]["ground-truth"] == ["ant: 4.0000", "cat: 2.0000"]
    assert values["Spread-BT"] == {"ground-truth": 2.0, "model-aggr": 2.0}
    loss = likelihoods.mean_loss(get("grk"), np.array([[4.0, 0, 2, 1]]), LABELS[1:2], np.zeros(1))
    assert values["Aggr_Loss"]["ground-truth"] == pytest.approx(float(loss))


def test_a_single_shared_model_has_nothing_to_compare():
    values = board([1, np.nan, np.nan, np.nan], [1, 2, 3, 4])
    assert values["L1-Dist-Prob"] is values["Spearman-lbs"] is values["Aggr_Loss"] is None
    assert values["Std-BT"] == {"ground-truth": None, "model-aggr": None}
    nothing = board([np.nan] * 4, [1, 2, 3, 4])
    assert nothing["Top-k-fraction"][10] is None


def test_aggregate_metrics_mean_nothing_where_the_simple_ones_do_not():
    assert board(COEFS[0], COEFS[1], labels=LABELS, likelihood="rk")["Aggr_Tie_bb_Loss"] == {
        "ground-truth": None,
        "model-aggr": None,
    }
