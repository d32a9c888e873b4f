"""The linear model of scores whose covariances over models are learned."""

from __future__ import annotations

import numpy as np

from route.evaluation.gaussian import Gaussian, fit_gaussian, held_out


def drawn(signal: np.ndarray, noise: np.ndarray, *, questions: int = 3000, width: int = 40) -> tuple[np.ndarray, ...]:
    """Features, the scores that they foresee, and scores with noise."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((questions, width)) / np.sqrt(width)
    features -= features.mean(axis=0)
    weights = rng.standard_normal((width, len(signal))) @ np.linalg.cholesky(signal).T
    errors = rng.standard_normal((questions, len(noise))) @ np.linalg.cholesky(noise).T
    return features, features @ weights, features @ weights + errors + 0.5


def error(one: Gaussian, features: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.asarray(((one.expected(features) - one.mean - truth + truth.mean(axis=0)) ** 2).mean(axis=0))


def test_a_model_alone_is_a_ridge_regression() -> None:
    features, _, scores = drawn(np.eye(1) * 0.5, np.eye(1), questions=60, width=5)
    fit = fit_gaussian(features, scores)
    centred = scores - scores.mean(axis=0)
    # weights = (F'F + r)^-1 F'y gives the precision r from any of its equations.
    precisions = features.T @ (centred - features @ fit.weights) / fit.weights
    np.testing.assert_allclose(precisions, precisions.mean(), rtol=1e-6)


def test_a_part_is_expected_by_the_fit_to_the_others() -> None:
    features, _, scores = drawn(np.eye(2) * 0.5, np.eye(2), questions=60, width=5)
    parts = np.arange(60) % 3
    others = parts != 1
    centre = features[others].mean(axis=0)
    fit = fit_gaussian(features[others] - centre, scores[others])
    expected = held_out(features, scores, parts)
    np.testing.assert_allclose(expected[parts == 1], fit.expected(features[parts == 1] - centre))
    np.testing.assert_allclose(held_out(features, scores, np.zeros(60)), np.tile(scores.mean(axis=0), (60, 1)))


def test_differences_between_models_that_do_not_differ_are_not_foreseen() -> None:
    # Two models move together with the prompts, a third alone; all have as much noise.
    signal = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.0], [0.0, 0.0, 1.0]])
    features, truth, scores = drawn(signal, np.eye(3))
    fit = fit_gaussian(features, scores)
    ridge = [fit_gaussian(features, scores[:, [column]]) for column in range(3)]
    told = fit.expected(features) - fit.mean
    alone = np.concatenate([one.expected(features) - one.mean for one in ridge], axis=1)
    assert np.std(told[:, 0] - told[:, 1]) < 0.5 * np.std(alone[:, 0] - alone[:, 1])
    assert (error(fit, features, truth)[:2] < [error(one, features, truth[:, [0]])[0] for one in ridge[:2]]).all()


def test_features_that_say_nothing_and_scores_that_never_differ_leave_the_means() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 6))
    features -= features.mean(axis=0)
    scores = rng.integers(0, 2, (300, 4)).astype(np.float64)
    fit = fit_gaussian(features, scores)
    assert np.abs(fit.expected(features) - scores.mean(axis=0)).max() < 0.15
    flat = fit_gaussian(features, np.tile([0.0, 1.0, 0.5], (300, 1)))
    np.testing.assert_allclose(flat.expected(features), np.tile([0.0, 1.0, 0.5], (300, 1)), atol=1e-6)
    same = fit_gaussian(np.zeros((5, 3)), rng.random((5, 2)))  # features of one prompt asked five times
    np.testing.assert_allclose(same.weights, 0.0)
