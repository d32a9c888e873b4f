from __future__ import annotations

import numpy as np
import pytest
import torch

from p2l import likelihood as likelihoods
from p2l.common.errors import ConfigError
from p2l.leaderboard.newton import derivatives

EVERY = likelihoods.names() + likelihoods.names(evaluation_only=True)


def points(scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(5).normal(0, scale, (100, 4))


@pytest.mark.parametrize("name", EVERY)
def test_derivatives_agree_with_automatic_differentiation(name):
    likelihood, x = likelihoods.get(name), points()
    size = 2 + len(likelihood.parameters)
    values, gradients, hessians = derivatives(likelihood, *x.T)
    inputs = torch.tensor(x, requires_grad=True)
    log_probs = likelihood.log_probs(*inputs.T)
    np.testing.assert_allclose(values, log_probs.detach().numpy(), rtol=1e-12, atol=1e-13)
    for k in range(len(likelihood.outcomes)):
        (slopes,) = torch.autograd.grad(log_probs[:, k].sum(), inputs, create_graph=True)
        np.testing.assert_allclose(gradients[:, k], slopes.detach().numpy()[:, :size], rtol=1e-10, atol=1e-13)
        for p in range(size):
            (bends,) = torch.autograd.grad(slopes[:, p].sum(), inputs, retain_graph=True)
            np.testing.assert_allclose(hessians[:, k, p], bends.numpy()[:, :size], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", EVERY)
def test_derivatives_agree_with_finite_differences(name):
    likelihood, x, step = likelihoods.get(name), points(1.5), 1e-5
    _, gradients, hessians = derivatives(likelihood, *x.T)
    for p in range(gradients.shape[-1]):
        move = step * np.eye(4)[p]
        above, below = derivatives(likelihood, *(x + move).T), derivatives(likelihood, *(x - move).T)
        np.testing.assert_allclose(gradients[..., p], (above[0] - below[0]) / (2 * step), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(hessians[..., p], (above[1] - below[1]) / (2 * step), rtol=1e-7, atol=1e-9)


def test_inputs_broadcast():
    coefs = np.random.default_rng(0).normal(size=(3, 5))
    eta = np.arange(3.0)[:, None, None]
    values, gradients, hessians = derivatives(likelihoods.get("grk"), coefs[:, :, None], coefs[:, None, :], eta)
    assert (values.shape, gradients.shape, hessians.shape) == ((3, 5, 5, 4), (3, 5, 5, 4, 3), (3, 5, 5, 4, 3, 3))
    alone = derivatives(likelihoods.get("grk"), coefs[2, 1], coefs[2, 4], 2.0)
    np.testing.assert_allclose(hessians[2, 1, 4], alone[2], rtol=1e-13)
    np.testing.assert_allclose(np.swapaxes(hessians, -1, -2), hessians, rtol=0)


def test_expected_score_is_zero():
    likelihood, x = likelihoods.get("ba"), points(10.0)
    values, gradients, _ = derivatives(likelihood, *x.T)
    np.testing.assert_allclose(np.einsum("nk,nkp->np", np.exp(values), gradients), 0, atol=1e-12)


def test_derivatives_stay_finite_far_out():
    x = np.random.default_rng(1).uniform(-50, 50, (2_000, 4))
    for name in EVERY:
        assert all(np.isfinite(part).all() for part in derivatives(likelihoods.get(name), *x.T))


def test_a_missing_parameter_is_named():
    with pytest.raises(ConfigError, match="needs eta"):
        derivatives(likelihoods.get("rk"), 0.0, 0.0)
