"""Whether a model reads prompts, on forecasts whose answer is known."""

import numpy as np
import pytest

from p2l.leaderboard import fit_labels
from p2l.likelihood import get
from p2l.training.forecasts import Forecast, ValidationVotes, blend, compare
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


def of_two_sets(rng: np.random.Generator, count: int = 3000) -> tuple[np.ndarray, Forecast, Forecast]:
    """Return votes of two sets under grk, of which one marks higher, with a forecast of prompts and one leaderboard."""
    level = np.where(rng.integers(2, size=count), 2.5, 0.0)
    is_poem = rng.integers(2, size=count).astype(bool)
    coefs = np.where(is_poem[:, None], [0.8, -0.8], [-0.8, 0.8])
    shift = np.column_stack([level, level, np.zeros(count)])
    eta = np.full(count, -0.5)
    probs = get("grk").probs(coefs[:, 0] + level, coefs[:, 1] + level, eta)
    outcome = (rng.random(count)[:, None] > probs.cumsum(axis=1)).sum(axis=1)
    names = np.array(get("grk").outcomes)[outcome]
    lost = names == "loss"
    tie = np.where(names == "tie", 1, np.where(names == "bothbad", 2, 0))
    labels = np.column_stack([np.where(lost, 1, 0), np.where(lost, 0, 1), tie]).astype(np.int32)
    return labels, Forecast(coefs, eta, None, shift), Forecast(np.zeros((count, 2)), eta, None, shift)


def test_losses_are_those_of_votes_with_their_covariates() -> None:
    """What makes one set mark higher counts in both forecasts, so that the figure is the loss of what was fitted."""
    labels, model, board = of_two_sets(np.random.default_rng(1))
    found = compare(model, board, labels, np.arange(len(labels)), "grk")
    rows, shift = np.arange(len(labels)), np.asarray(model.shift)
    pair = [model.coefs[rows, labels[:, side]] + shift[:, side] for side in (0, 1)]
    probs = get("grk").probs(*pair, model.eta)
    happened = [get("grk").outcomes.index(name) for name in ("win", "tie", "bothbad")]
    loss = -np.log(probs[rows, np.array(happened)[labels[:, 2]]]).mean()
    assert found.model["Loss"] == pytest.approx(loss, abs=1e-6)
    bare = compare(
        Forecast(model.coefs, model.eta), Forecast(board.coefs, board.eta), labels, np.arange(len(labels)), "grk"
    )
    for side in ("model", "one_leaderboard"):
        assert getattr(bare, side)["Loss"] > getattr(found, side)["Loss"] + 0.05
    assert found.gain.lower > 0


def test_a_share_of_a_model_has_that_share_of_its_covariates() -> None:
    labels, model, board = of_two_sets(np.random.default_rng(2), 40)
    board = Forecast(board.coefs, board.eta, None, np.zeros((40, 3)))
    none, half = blend(model, board, 0.0), blend(model, board, 0.5)
    np.testing.assert_array_equal(none.shift, board.shift)
    np.testing.assert_allclose(half.shift, 0.5 * np.asarray(model.shift))
    assert compare(none, board, labels, np.arange(40), "grk").gain.estimate == 0.0


def test_what_is_kept_of_a_model_is_chosen_by_votes_with_their_covariates() -> None:
    """Left out, the level of a set looks like a fault of the model, which is then shrunk for it."""
    labels, model, board = of_two_sets(np.random.default_rng(3))
    votes = ValidationVotes(get("grk"), labels, np.arange(len(labels)), np.ones(len(labels)))
    assert votes.choose([votes.losses(model, board)]).factor > 0.85
    np.testing.assert_allclose(
        votes.losses(model, board)[-1].mean(),
        compare(model, board, labels, np.arange(len(labels)), "grk").model["Loss"],
    )
