"""How far votes let a model differ from one leaderboard, on forecasts whose worth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.likelihood import get
from p2l.training.forecasts import FACTORS, Forecast, ValidationVotes, blend


def drawn(count: int, truth: float, seed: int = 0, *, prompts: int | None = None) -> tuple[ValidationVotes, np.ndarray]:
    """Votes of two equal models, of which each prompt favours one by `truth`; and which one (count,)."""
    rng = np.random.default_rng(seed)
    number = np.arange(count) if prompts is None else rng.integers(0, prompts, count)
    side = np.where(number % 2, 1.0, -1.0)
    first = rng.random(count) < 1 / (1 + np.exp(-truth * side))
    labels = np.stack([np.where(first, 0, 1), np.where(first, 1, 0), np.zeros(count, int)], axis=1).astype(np.int32)
    return ValidationVotes(get("bt"), labels, number, np.ones(count)), side


def model(side: np.ndarray, strength: float) -> Forecast:
    return Forecast(np.stack([strength * side, np.zeros(len(side))], axis=1), None)


def board(count: int) -> Forecast:
    return Forecast(np.zeros((count, 2)), None)


def test_an_overconfident_model_is_shrunk_to_what_the_votes_bear() -> None:
    votes, side = drawn(20_000, 1.0)
    choice = votes.choose([votes.losses(model(side, 4.0), board(20_000))])
    assert choice.factor == pytest.approx(0.25, abs=0.03)
    assert choice.loss < np.log(2)


def test_a_model_that_is_right_is_hardly_shrunk() -> None:
    votes, side = drawn(20_000, 1.0)
    assert votes.choose([votes.losses(model(side, 1.0), board(20_000))]).factor > 0.9


@pytest.mark.parametrize("strength", [3.0, -1.0])
def test_what_knows_nothing_becomes_one_leaderboard(strength: float) -> None:
    votes, side = drawn(2_000, 0.0 if strength > 0 else 1.0)
    assert votes.choose([votes.losses(model(side, strength), board(2_000))]).factor == 0.0


def test_few_votes_speak_for_a_model_only_if_they_speak_clearly() -> None:
    """By chance alone a factor above zero comes out of one set of thirty votes in six; its harm is small."""
    factors = []
    for seed in range(200):
        votes, side = drawn(30, 0.0, seed)
        factors.append(votes.choose([votes.losses(model(side, 1.0), board(30))]).factor)
    assert np.mean(np.array(factors) > 0) < 0.25
    assert np.mean(factors) < 0.1


def test_few_votes_leave_the_factor_where_it_is() -> None:
    """Thirty votes cannot tell a model that is right from one leaderboard; thirty thousand can."""
    for count, kept in ((30, 0.9), (30_000, 0.0)):
        votes, side = drawn(count, 0.0)
        losses = votes.losses(model(side, 0.5), board(count))
        assert votes.choose([losses], near=1.0).factor >= kept
        assert votes.choose([losses], near=1.0).factor >= votes.choose([losses]).factor
    assert votes.choose([losses], near=1.0).factor < 0.2


def test_votes_on_one_prompt_say_nothing_of_others() -> None:
    votes, side = drawn(500, 1.0)
    alone = ValidationVotes(votes.likelihood, votes.labels, np.zeros(500, np.int64), votes.weights)
    assert alone.choose([alone.losses(model(side, 1.0), board(500))]).factor == 0.0


def test_the_point_is_the_one_that_is_best_when_it_is_shrunk() -> None:
    votes, side = drawn(5_000, 1.0)
    losses = [votes.losses(model(side, strength), board(5_000)) for strength in (-1.0, 0.2, 1.0, 0.1)]
    assert votes.choose(losses).point == 2


def test_votes_that_do_not_count_or_weigh_nothing_do_not_choose() -> None:
    votes, side = drawn(4_000, 1.0)
    ties, weights = votes.labels.copy(), np.ones(4_000)
    ties[:1000, 2], weights[1000:2000] = 1, 0.0
    mixed = ValidationVotes(votes.likelihood, ties, votes.prompts, weights)
    rest = ValidationVotes(votes.likelihood, votes.labels[2000:], votes.prompts[2000:] - 2000, np.ones(2_000))
    one = mixed.choose([mixed.losses(model(side, 2.0), board(4_000))])
    other = rest.choose([rest.losses(model(side[2000:], 2.0), board(2_000))])
    assert (one.factor, one.loss) == (other.factor, pytest.approx(other.loss))


@given(st.sampled_from(["bt", "bt-tie", "rk", "rk-reparam", "grk", "ba"]), st.integers(0, 10))
def test_every_likelihood_has_both_ends(likelihood: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.permutation(3)[:2] for _ in range(40)])
    labels = np.column_stack([pairs, rng.integers(0, 3, 40)]).astype(np.int32)

    def forecast() -> Forecast:
        return Forecast(rng.normal(size=(40, 3)), rng.normal(size=40), rng.normal(size=40))

    votes = ValidationVotes(get(likelihood), labels, np.arange(40), np.ones(40))
    one, other = forecast(), forecast()
    losses = votes.losses(one, other)
    assert losses.shape == (len(FACTORS), 40)
    np.testing.assert_allclose(losses[-1], votes.losses(one, one)[0])
    np.testing.assert_allclose(losses[0], votes.losses(other, other)[0])
    half = blend(one, other, 0.5)
    np.testing.assert_allclose(half.coefs, (one.coefs + other.coefs) / 2)
    assert half.eta is not None
    assert half.gamma is not None
