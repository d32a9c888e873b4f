"""The linear model of scores whose covariances over models are learned."""

from __future__ import annotations

import numpy as np

from route.evaluation.gaussian import Gaussian, fit_gaussian


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


def test_left_out_scores_are_those_of_the_ridge_regression_without_the_prompt() -> None:
    # Equal signal and noise for one model: the prior is that of a ridge whose precision is their ratio.
    features, _, scores = drawn(np.eye(1) * 0.5, np.eye(1), questions=60, width=5)
    fit = fit_gaussian(features, scores)
    centred = scores - scores.mean(axis=0)
    shrunk = fit.weights
    # weights = (F'F + r)^-1 F'y gives the precision r from any of its equations.
    precision = float(np.mean((features.T @ (centred - features @ shrunk)) / shrunk))
    rest = np.arange(1, 60)
    inner = features[rest].T @ features[rest] + precision * np.eye(5)
    without = scores.mean(axis=0) + features[0] @ np.linalg.solve(inner, features[rest].T @ centred[rest])
    np.testing.assert_allclose(fit.left_out[0], without, atol=1e-6)


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
    np.testing.assert_allclose(flat.left_out, np.tile([0.0, 1.0, 0.5], (300, 1)), atol=1e-6)
    same = fit_gaussian(np.zeros((5, 3)), rng.random((5, 2)))  # features of one prompt asked five times
    np.testing.assert_allclose(same.weights, 0.0)
