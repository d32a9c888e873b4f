from pathlib import Path

import numpy as np
import pytest

from p2l.leaderboard import fit_labels
from p2l.training.forecasts import marginal_board
from p2l.votes import open_votes
from tests.conftest import vote_rows, write_votes


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
