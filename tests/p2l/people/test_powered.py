"""Prediction-powered leaderboards: what ppi-python says, and what holds whatever the forecasts are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l.commands.leaderboard import main
from p2l.common.errors import InputError
from p2l.leaderboard import Prior
from p2l.people.prediction_powered import Battles, Powered, fit_powered
from tests.conftest import write_votes
from tests.p2l.people.people_votes import MODELS, SHARP, cast

ABILITY = np.array([0.8, -0.4, 0.1, -0.5])
NAMES = ["a", "b", "c", "d"]


def drawn(count: int, rng: np.random.Generator, lean: float = 0.6) -> tuple[Battles, np.ndarray]:
    """Return votes under bt, and forecasts of them by a judge with a bias for the first model."""
    first = rng.integers(0, 4, count)
    second = (first + rng.integers(1, 4, count)) % 4
    taste = rng.normal(0.0, 1.5, count)  # of the question, which people and judges share
    lead = ABILITY[first] - ABILITY[second] + taste
    won = rng.random(count) < 1.0 / (1.0 + np.exp(-lead))
    said = 1.0 / (1.0 + np.exp(-(1.5 * lead + lean * (first == 0) - lean * (second == 0))))
    return Battles(first, second, np.column_stack([won, ~won]).astype(float)), np.column_stack([said, 1.0 - said])


def fitted(seed: int, votes: int = 300, others: int = 3000, **options: object) -> Powered:
    rng = np.random.default_rng(seed)
    own, forecasts = drawn(votes, rng)
    more, said = drawn(others, rng)
    return fit_powered(
        own,
        forecasts,
        replace(more, outcomes=said),
        models=NAMES,
        likelihood="bt",
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.filterwarnings("ignore:.*penalty.*:FutureWarning")
def test_point_and_interval_are_those_of_ppi_python() -> None:
    ppi = pytest.importorskip("ppi_py", reason="the oracle; benchmarks/requirements.txt names it")
    rng = np.random.default_rng(3)
    own, forecasts = drawn(400, rng)
    more, said = drawn(4000, rng)

    def design(battles: Battles) -> np.ndarray:
        columns = np.zeros((len(battles), 4))
        columns[np.arange(len(battles)), battles.first] += 1.0
        columns[np.arange(len(battles)), battles.second] -= 1.0
        return columns[:, 1:] - 0.0  # model a has the coefficient zero

    ours = fit_powered(
        own,
        forecasts,
        replace(more, outcomes=said),
        models=NAMES,
        likelihood="bt",
        weight=0.7,
        prior=Prior(sd=1e3),
    ).board
    parts = (design(own), own.outcomes[:, 0], forecasts[:, 0], design(more), said[:, 0])
    theirs = ppi.ppi_logistic_pointestimate(*parts, lam=0.7)
    np.testing.assert_allclose(ours.coefs[1:] - ours.coefs[0], theirs, atol=2e-3)
    low, high = ppi.ppi_logistic_ci(*parts, alpha=0.05, lam=0.7)
    assert ours.covariance is not None
    spread = ours.covariance + ours.covariance[0, 0] - ours.covariance[0] - ours.covariance[:, :1]
    widths = 2 * 1.96 * np.sqrt(np.diag(spread))[1:]
    np.testing.assert_allclose(widths, np.asarray(high) - np.asarray(low), rtol=0.06)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_intervals_are_narrower_and_weights_are_shares(seed: int) -> None:
    powered, alone = fitted(seed), fitted(seed, weight=0.0)
    assert 0.0 < powered.weight <= 1.0
    assert alone.worth == pytest.approx(1.0)
    assert powered.worth > 1.05
    widths = [board.upper - board.lower for board in (powered.board, alone.board)]
    assert widths[0].mean() < widths[1].mean()


def test_forecasts_that_say_nothing_change_nothing() -> None:
    rng = np.random.default_rng(0)
    own, _ = drawn(500, rng)
    more, _ = drawn(2000, rng)
    noise = [np.clip(rng.random((size, 1)), 0.01, 0.99) for size in (500, 2000)]
    said = [np.hstack([one, 1.0 - one]) for one in noise]
    powered = fit_powered(own, said[0], replace(more, outcomes=said[1]), models=NAMES, likelihood="bt")
    alone = fit_powered(own, said[0], replace(more, outcomes=said[1]), models=NAMES, likelihood="bt", weight=0.0)
    assert powered.weight < 0.15
    np.testing.assert_allclose(powered.board.coefs, alone.board.coefs, atol=0.05)


def test_biased_forecasts_bias_nothing() -> None:
    """The judge has a bias for one model; over many draws the leaderboard is that of people, and intervals hold it."""
    rng = np.random.default_rng(9)
    long = fit_powered(
        *drawn(100_000, rng), drawn(50, rng)[0], models=NAMES, likelihood="bt", weight=0.0
    ).board.coefs  # what people say on average over questions
    boards = [fitted(seed, votes=150, others=1000).board for seed in range(60)]
    errors = np.array([board.coefs - long for board in boards])
    held = np.array([(board.lower <= long) & (long <= board.upper) for board in boards])
    assert np.abs(errors.mean(axis=0)).max() < 4 * errors.std(axis=0).max() / np.sqrt(len(boards))
    assert held.mean() > 0.88


def test_too_few_votes_are_refused() -> None:
    with pytest.raises(InputError, match="forecasts narrow no intervals: 10 votes"):
        fitted(0, votes=10)
    with pytest.raises(InputError, match="0 other battles"):
        fitted(0, others=0)


def test_the_command_prints_what_verdicts_are_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    battles = cast(1500, SHARP, rng)
    people = [{**row, "source": "crowd", "voter": "v"} for row in cast(400, "human", rng)]
    for number, row in enumerate(battles):
        row["question_id"] = f"q{number}"
        if number < 400:
            people[number] |= {"question_id": f"q{number}", **{side: row[side] for side in ("model_a", "model_b")}}
    votes = write_votes(tmp_path / "votes.jsonl", [*people, *battles])
    main(["--votes", str(votes), "--people", "crowd", "--output", str(tmp_path / "board.json")])
    printed = capsys.readouterr().out
    assert "Prediction-powered: 400 votes of people and forecasts of 1,100 other battles" in printed
    assert all(name in printed for name in MODELS)
    assert "Prediction-powered" in json.dumps(json.loads((tmp_path / "board.json").read_text(encoding="utf-8")))


def test_verdicts_on_peoples_own_battles_alone_are_said_to_narrow_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    battles, people = cast(30, SHARP, rng), cast(30, "human", rng)
    for number, (row, said) in enumerate(zip(battles, people, strict=True)):
        row["question_id"] = said["question_id"] = f"q{number}"
        said |= {side: row[side] for side in ("model_a", "model_b")}
    votes = write_votes(tmp_path / "votes.jsonl", [*people, *battles])
    with pytest.raises(InputError, match="every verdict of a judge is on a battle that people voted on"):
        main(["--votes", str(votes), "--people", "human"])


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--people", "nobody"], "no vote has the source 'nobody'"),
        (["--people", "human", "--by", "source"], "--people does not go with --by"),
        (["--people", "human", "--intervals", "none"], "sandwich"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, flags: list[str], text: str) -> None:
    rows = [*cast(30, "human", np.random.default_rng(0)), *cast(30, SHARP, np.random.default_rng(1))]
    votes = write_votes(tmp_path / "votes.jsonl", rows)
    with pytest.raises(InputError, match=text):
        main(["--votes", str(votes), *flags])
