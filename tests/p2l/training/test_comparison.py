"""Whether a model reads prompts, on forecasts whose answer is known."""

import numpy as np
import pytest

from p2l.leaderboard import fit_labels
from p2l.training.forecasts import Forecast, compare
from p2l.training.run_records import HeldOutComparison

WON = np.array([[0, 1, 0], [1, 0, 0]] * 100, dtype=np.int32)
"""Sums are won by the first model, poems by the second: half of the votes each."""
BOARD = Forecast(np.zeros(2), None)


def compared(strength: float, *, noise: float = 0.0, prompts: np.ndarray | None = None) -> HeldOutComparison:
    """The comparison of a model that says `strength` for the right model of each vote."""
    rng = np.random.default_rng(0)
    right = np.where(WON[:, 0] == 0, strength, -strength) + noise * rng.standard_normal(len(WON))
    model = Forecast(np.stack([right, np.zeros(len(WON))], axis=1), None)
    return compare(model, BOARD, WON, np.arange(len(WON)) if prompts is None else prompts, "bt")


def test_a_model_that_reads_prompts_is_said_to() -> None:
    found = compared(2.0)
    assert found.votes == found.prompts == 200
    assert found.one_leaderboard["Loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert found.model["Loss"] == pytest.approx(np.log1p(np.exp(-2)), abs=1e-6)
    assert found.gain.estimate == pytest.approx(found.one_leaderboard["Loss"] - found.model["Loss"])
    assert found.model["Accuracy"] == 1.0
    assert "The model reads prompts" in found.to_text()
    assert found.to_dict()["gain"]["estimate"] == found.gain.estimate


def test_a_model_that_is_worse_is_called_worse() -> None:
    text = compared(-2.0).to_text()
    assert "worse than one leaderboard" in text
    assert "do not use it" in text


def test_a_model_that_may_be_lucky_is_not_praised() -> None:
    found = compared(0.0, noise=0.05)
    assert found.gain.lower < 0 < found.gain.upper
    assert "do not show" in found.to_text()


def test_how_far_a_model_is_shrunk_is_said() -> None:
    model = Forecast(np.zeros((len(WON), 2)), None)
    prompts = np.arange(len(WON))
    none = compare(model, BOARD, WON, prompts, "bt", factor=0.0, folds=5).to_text()
    assert "200 votes, in 5 folds, on 200 prompts" in none
    assert "it is one leaderboard" in none
    assert (
        "coefficients keep 40 % of their distance from it"
        in compare(model, BOARD, WON, prompts, "bt", factor=0.4).to_text()
    )


def test_votes_on_one_prompt_are_one_draw() -> None:
    alone, together = compared(0.1, noise=1.0), compared(0.1, noise=1.0, prompts=np.arange(len(WON)) % 2)
    assert together.prompts == 2
    assert together.gain.estimate == pytest.approx(alone.gain.estimate)


def test_chance_in_a_leaderboard_is_no_merit_of_the_model() -> None:
    """Few votes on many equal models: what calls all of them equal knows nothing, and must not beat one leaderboard."""
    rng = np.random.default_rng(1)
    models = [f"m{number:02}" for number in range(40)]

    def drawn(count: int) -> np.ndarray:
        return np.array([[*rng.choice(40, 2, replace=False), 0] for _ in range(count)], dtype=np.int32)

    board = fit_labels(drawn(200), models=models, likelihood="bt", intervals=None)
    held = drawn(200)
    model = Forecast(np.zeros((200, 40)), None)
    found = compare(model, Forecast(board.coefs, None), held, np.arange(200), "bt")
    assert found.one_leaderboard["Loss"] < np.log(2) + 0.01
    assert "do not show" in found.to_text()
