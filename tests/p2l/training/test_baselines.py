from pathlib import Path

import numpy as np
import pytest

from p2l.leaderboard import fit_labels
from p2l.training.forecasts import marginal, marginal_board, per_category
from p2l.votes import open_votes
from tests.conftest import vote_rows, write_votes

MODELS = ["ant", "bee", "cat"]


def labels(rng: np.random.Generator, best: int, count: int) -> np.ndarray:
    """Votes that `best` wins nine times in ten."""
    other = (best + rng.integers(1, 3, count)) % 3
    won = rng.random(count) < 0.9
    return np.stack([np.where(won, best, other), np.where(won, other, best), np.zeros(count, int)], axis=1)


def test_the_marginal_forecast_is_the_fit_repeated() -> None:
    train = labels(np.random.default_rng(0), 0, 300)
    forecast = marginal(train, 5, MODELS, "grk")
    board = fit_labels(train, models=MODELS, likelihood="grk", intervals=None)
    np.testing.assert_array_equal(forecast.coefs, np.tile(board.coefs, (5, 1)))
    assert forecast.eta == pytest.approx(np.full(5, board.eta))
    assert forecast.gamma is None


def test_each_category_has_its_own_best_model_and_a_new_one_gets_the_marginal() -> None:
    rng = np.random.default_rng(1)
    train = np.concatenate([labels(rng, best, 300) for best in range(3)])
    seen = np.repeat(np.array(["math", "poetry", "code"], dtype=object), 300)
    asked = np.array(["code", "math", "law", "poetry"], dtype=object)
    forecast = per_category(train, seen, asked, MODELS, "grk")
    assert forecast.coefs.argmax(axis=1)[[0, 1, 3]].tolist() == [2, 0, 1]
    np.testing.assert_allclose(forecast.coefs[2], marginal(train, 1, MODELS, "grk").coefs[0])


def test_the_leaderboard_of_a_store_is_the_fit_of_its_labels(tmp_path: Path) -> None:
    write_votes(tmp_path / "votes.jsonl", vote_rows(300))
    with open_votes(str(tmp_path / "votes.jsonl")) as votes:
        board = marginal_board(votes, "grk")
        fitted = fit_labels(votes.labels(), models=votes.model_list, likelihood="grk", intervals=None)
    assert board.models == fitted.models
    np.testing.assert_allclose(board.coefs, fitted.coefs, atol=1e-9)
    assert board.eta == pytest.approx(fitted.eta)


def test_a_model_without_votes_is_at_zero_on_the_leaderboard_of_a_store(tmp_path: Path) -> None:
    write_votes(tmp_path / "votes.jsonl", vote_rows(60))
    with open_votes(str(tmp_path / "votes.jsonl")) as votes:
        names = [*votes.model_list, "unseen"]
    with open_votes(str(tmp_path / "votes.jsonl"), model_list=names) as votes:
        assert marginal_board(votes, "bt").coefs[-1] == 0.0
