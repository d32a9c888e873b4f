from __future__ import annotations

import numpy as np
import pytest

from p2l import likelihood as likelihoods
from p2l.evaluation.measure import Draws, aggregation_scale, random_subsets
from p2l.evaluation.subjects import Fixed, ModelAnswers
from p2l.leaderboard import Prior, aggregate, fit_labels
from p2l.likelihood import get
from p2l.metrics import Standing
from tests.p2l.evaluation.evaluation_helpers import BATTLES

MODELS = tuple("abcdef")
DRAWS = Draws((3, 40), (6, 5), ("L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs", "Top-k-fraction"), 0, "all")


def answers(name: str, prompts: int = 40) -> ModelAnswers:
    rng = np.random.default_rng(1)
    coefs = np.linspace(1, -1, len(MODELS)) + rng.normal(0, 0.7, (prompts, len(MODELS)))
    eta = rng.normal(-8.0 if name == "rk" else 0.0, 0.3, prompts)
    return ModelAnswers(get(name), MODELS, coefs.astype(np.float32), eta, rng.normal(0, 0.2, prompts))


def labels(count: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    pairs = rng.permuted(np.tile(np.arange(len(MODELS)), (count, 1)), axis=1)[:, :2]
    return np.concatenate([pairs, rng.integers(0, 3, (count, 1))], axis=1)


@pytest.mark.parametrize("name", likelihoods.names())
def test_subsets_have_the_leaderboards_that_are_fitted_one_by_one(name):
    said, rng = answers(name), np.random.default_rng(0)
    subsets = [rng.integers(0, 40, size) for size in (1, 2, 10, 40, 90)]
    for rows, found in zip(subsets, said.aggregates(subsets), strict=True):
        gamma = said.gamma[rows] if name == "ba" else None
        alone = aggregate(said.coefs[rows], said.eta[rows], gamma, name, models=MODELS, intervals=None)
        np.testing.assert_allclose(found.coefs, alone.coefs, atol=2e-5)
        assert alone.eta is None or found.eta == pytest.approx(alone.eta, abs=2e-4)


@pytest.mark.parametrize("name", likelihoods.names())
def test_votes_of_subsets_have_the_leaderboard_that_the_library_fits(name):
    votes = labels(200)
    truth = fit_labels(votes, models=MODELS, likelihood=name, intervals=None, prior=Prior())
    standing = Standing(truth.coefs, truth.eta, truth.gamma)
    whole = Draws((200,), (2,), ("L1-Dist-Prob", "Spearman-lbs"), 0, "all")
    (score,) = random_subsets(Fixed(get(name), MODELS, truth), votes, truth, whole)
    assert standing.coefs is truth.coefs
    assert score.values["L1-Dist-Prob"] == pytest.approx(0.0, abs=1e-5)
    assert score.values["Spearman-lbs"] == pytest.approx(1.0)


def test_a_leaderboard_without_a_best_fit_is_held():
    """Every vote is won by the lower index: without a prior no fit ends."""
    votes = np.array([(a, b, 0) for a in range(6) for b in range(a + 1, 6)])
    truth = fit_labels(votes, models=MODELS, likelihood="bt", intervals=None, prior=Prior())
    (score,) = random_subsets(
        Fixed(get("bt"), MODELS, truth), votes, truth, Draws((15,), (2,), ("L1-Dist-Prob",), 0, "x")
    )
    assert score.values["L1-Dist-Prob"] == pytest.approx(0.0, abs=1e-4)


def test_more_prompts_come_nearer_to_the_whole():
    said = answers("grk", 300)
    truth = aggregate(said.coefs, said.eta, None, "grk", models=MODELS, intervals=None)
    few, many = aggregation_scale(said, labels(300), Standing(truth.coefs, truth.eta), DRAWS)
    assert few.values["L1-Dist-Prob"] > 2 * many.values["L1-Dist-Prob"]
    assert few.intervals["L1-Dist-Prob"].lower < few.values["L1-Dist-Prob"] < few.intervals["L1-Dist-Prob"].upper
    assert set(many.values["Top-k-fraction"]) == {1, 3, 5, 10}
    assert (few.samples, many.samples) == (6, 5)


def test_subsets_larger_than_the_category_have_no_value():
    truth = fit_labels(np.array(list(BATTLES)), models=MODELS[:3], likelihood="grk", intervals=None)
    said = ModelAnswers(get("grk"), MODELS[:3], np.zeros((12, 3), np.float32), np.zeros(12))
    small, large = random_subsets(said, np.array(list(BATTLES)), truth, DRAWS)
    assert small.samples == 6
    assert (large.samples, large.values["L1-Dist-Prob"]) == (0, None)
