"""Averaged weights: a mean over the recent steps, in which each model's row counts its own."""

import io

import numpy as np
import pytest
import torch
from torch import Tensor

from p2l.common.errors import CheckpointError, ConfigError
from p2l.online_training.averaging import AveragedWeights


def weights(value: float, rows: int = 3) -> dict[str, Tensor]:
    return {"body": torch.full((2, 2), value), "head": torch.full((rows, 2), value), "bias": torch.full((rows,), value)}


def averaged(values: list[float], horizon: int = 20) -> AveragedWeights:
    means = AveragedWeights(horizon, ["head", "bias"])
    for value in values:
        means.update(weights(value))
    return means


def test_the_first_step_is_taken_as_it_is() -> None:
    assert all(torch.equal(mean, weights(3.0)[name]) for name, mean in averaged([3.0]).means.items())


def test_the_mean_follows_its_recursion() -> None:
    values = [float(value) for value in np.random.default_rng(0).normal(size=90)]
    body = rows = 0.0
    for step, value in enumerate(values):
        body += (value - body) / min(4, 1 + step / 10)
        rows += (value - rows) / min(4, 1 + step / 20)
    means = averaged(values, horizon=4).means
    assert means["body"].flatten().tolist() == pytest.approx([body] * 4, rel=1e-4)
    assert means["bias"].tolist() == pytest.approx([rows] * 3, rel=1e-4)


def test_the_mean_of_noise_is_quieter_than_the_noise() -> None:
    values = np.random.default_rng(0).normal(size=2000).tolist()
    means = averaged(values, horizon=200)
    assert abs(float(means.means["body"][0, 0])) < 0.2


def test_a_new_row_counts_its_own_steps() -> None:
    means = AveragedWeights(1000, ["head", "bias"])
    for _ in range(500):
        means.update(weights(0.0), models=2)
    for _ in range(5):
        means.update(weights(1.0), models=3)
    assert means.means["head"][2].tolist() == [1.0, 1.0]
    assert float(means.means["head"][1, 0]) < 0.25
    assert float(means.means["bias"][2]) == 1.0


def test_a_row_that_is_set_begins_its_mean_anew() -> None:
    mean = AveragedWeights(100, ["head"])
    head = torch.ones(2, 3, requires_grad=True)
    for _ in range(50):
        mean.update({"head": head}, 2)
    with torch.no_grad():
        head[1] = 5.0
    mean.restart(1, {"head": head})
    assert mean.means["head"].tolist() == [[1.0] * 3, [5.0] * 3]
    with torch.no_grad():
        head[:] = 7.0
    mean.update({"head": head}, 2)
    assert mean.means["head"][1].tolist() == [7.0] * 3  # as after the first step
    assert mean.means["head"][0, 0] < 3.0
    mean.state_dict()  # as a checkpoint saves it


def test_the_weights_of_a_trained_model_count_as_a_hundred_steps() -> None:
    means = AveragedWeights(500, ["head", "bias"])
    means.begin(weights(0.0), models=2)
    for _ in range(20):
        means.update(weights(1.0), models=3)
    body = rows = 0.0
    for step in range(20):
        body += (1 - body) / (101 + step / 10)
        rows += (1 - rows) / (101 + step / 20)
    assert means.means["body"].flatten().tolist() == pytest.approx([body] * 4, rel=1e-4)
    assert means.means["bias"].tolist() == pytest.approx([rows, rows, 1.0], rel=1e-4)  # the third joined later


def test_a_row_that_is_set_forgets_the_trained_model() -> None:
    means = AveragedWeights(500, ["head"])
    means.begin({"head": torch.zeros(2, 3)}, models=2)
    means.restart(1, {"head": torch.ones(2, 3)})
    means.update({"head": torch.full((2, 3), 2.0)}, models=2)
    assert means.means["head"][1].tolist() == [2.0] * 3
    assert float(means.means["head"][0, 0]) < 0.1


def test_rows_that_join_when_the_head_grows_start_as_they_are() -> None:
    means = AveragedWeights(1000, ["head", "bias"])
    for _ in range(100):
        means.update(weights(0.0))
    means.update(weights(2.0, rows=5))
    assert means.means["head"].shape == (5, 2)
    assert means.means["head"][4].tolist() == [2.0, 2.0]
    assert float(means.means["head"][0, 0]) < 0.5


def test_a_saved_mean_goes_on_as_if_it_had_never_stopped() -> None:
    values = np.random.default_rng(1).normal(size=40).tolist()
    whole = averaged(values)
    saved = io.BytesIO()
    np.savez(saved, **averaged(values[:17]).state_dict())
    saved.seek(0)
    resumed = AveragedWeights(20, ["head", "bias"])
    resumed.load_state_dict(np.load(saved))
    for value in values[17:]:
        resumed.update(weights(value))
    assert all(torch.equal(mean, whole.means[name]) for name, mean in resumed.means.items())


def test_a_saved_mean_that_began_with_a_trained_model_goes_on() -> None:
    def begun() -> AveragedWeights:
        means = AveragedWeights(500, ["head", "bias"])
        means.begin(weights(0.0), models=2)
        for value in (1.0, 3.0):
            means.update(weights(value))
        return means

    whole, saved = begun(), io.BytesIO()
    np.savez(saved, **begun().state_dict())
    saved.seek(0)
    resumed = AveragedWeights(500, ["head", "bias"])
    resumed.load_state_dict(np.load(saved))
    for means in (whole, resumed):
        means.update(weights(2.0))
    assert all(torch.equal(mean, whole.means[name]) for name, mean in resumed.means.items())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="horizon"):
        AveragedWeights(0)
    with pytest.raises(CheckpointError, match="20 steps, not 30"):
        AveragedWeights(30).load_state_dict(averaged([1.0]).state_dict())
