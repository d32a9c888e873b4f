"""Covariates of people's votes beside verdicts of judges and voters who are rigged, fitted together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from p2l.leaderboard import Covariates, Leaderboard, fit
from p2l.people import SourceFit
from p2l.people.runs import board_of, sources_of
from p2l.votes import WINNERS, VoteStore, open_votes
from tests.p2l.people.people_votes import MODELS, SHARP, SIDED, TRUTH, cast

SIDE = 0.7
RIGGED = {"voter-3", "voter-11", "voter-20", "voter-31", "voter-40"}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    people: str | None = "human"
    weigh_voters: bool = True
    weighted_loss: bool = False
    loss_type: str = "grk"
    covariates: tuple[str, ...] = ("side",)


def rows_of(seed: int = 0, likelihood: str = "grk") -> Rows:
    """Votes of people, of whom some always take the second answer, and verdicts of judges."""
    rng = np.random.default_rng(seed)
    people = cast(1_500, "human", rng, likelihood, side=SIDE)
    for row in people:
        if row["voter"] in RIGGED:
            row["winner"] = "model_b"
    return [*people, *cast(3_000, SHARP, rng, likelihood), *cast(3_000, SIDED, rng, likelihood)]


def store_of(rows: Rows) -> VoteStore:
    return open_votes(pd.DataFrame(rows))


def loss(board: Leaderboard, rows: Rows) -> float:
    """The mean loss of votes by a leaderboard, with the side counted in as far as it knows it."""
    a, b = (np.array([board.models.index(row[name]) for row in rows]) for name in ("model_a", "model_b"))
    side = Covariates(("side",), ("difference",), np.ones((len(a), 1)))
    logs = board.log_probs(a, b, side if board.effects else None)
    return float(-logs[np.arange(len(a)), [WINNERS.index(row["winner"]) for row in rows]].mean())


@pytest.mark.parametrize("likelihood", ["grk", "ba"])
def test_side_judges_and_voters_are_all_told(likelihood: str) -> None:
    with store_of(rows_of(likelihood=likelihood)) as votes:
        fitted = sources_of(votes, Settings(loss_type=likelihood))
    (effect,) = fitted.effects
    assert (effect.name, effect.role) == ("side", "difference")
    assert effect.coef == pytest.approx(SIDE, abs=0.25)
    sharp, sided = fitted.judges
    assert sharp.side == pytest.approx(0.0, abs=0.3)
    assert sided.side == pytest.approx(0.9, abs=0.3)
    weights = {voter.name: voter.weight for voter in fitted.voters}
    assert max(weights[name] for name in RIGGED) < 0.1 < 0.9 < np.median(list(weights.values()))
    level = fitted.coefs - fitted.coefs.mean()
    assert np.std(level - (TRUTH[[MODELS.index(name) for name in sorted(MODELS)]] - TRUTH.mean())) < 0.2


def test_together_they_forecast_better_than_either_alone() -> None:
    held_out = cast(4_000, "human", np.random.default_rng(9), side=SIDE)
    with store_of(rows_of()) as votes:
        together = board_of(votes, Settings())
        labels, pairs = votes.labels(), votes.pairs()
        winner = np.where(labels[:, 2] > 0, labels[:, 2] + 1, labels[:, 0] != pairs[:, 0])
        side_alone = fit(
            pairs[:, 0],
            pairs[:, 1],
            winner,
            models=votes.model_list,
            likelihood="grk",
            intervals=None,
            covariates={"side": np.ones(len(winner))},
        )
    with store_of(rows_of()) as votes:
        judges_alone = board_of(votes, Settings(covariates=()))
    losses = [loss(board, held_out) for board in (together, side_alone, judges_alone)]
    assert losses[0] < min(losses[1:]) - 0.002


def test_verdicts_have_no_covariates_of_people() -> None:
    """A column that only judges fill, and a side that only they have, leave people's effects as they are."""
    rows = rows_of()
    with store_of(rows) as votes:
        plain = sources_of(votes, Settings())
    marked = [row | {"pages": 0.0 if row["source"] == "human" else 3.0} for row in rows]
    with store_of(marked) as votes:
        fitted = sources_of(votes, Settings(covariates=("side", "pages")))
    assert [effect.name for effect in fitted.effects] == ["side"]
    assert fitted.effects[0].coef == pytest.approx(plain.effects[0].coef, abs=1e-6)


def test_the_unit_of_a_column_changes_nothing_but_the_unit() -> None:
    rows = [row | {"seconds": float(number % 7)} for number, row in enumerate(rows_of())]
    effects = []
    for scale in (1.0, 1e4):
        with store_of([row | {"seconds": row["seconds"] * scale} for row in rows]) as votes:
            effects.append(sources_of(votes, Settings(covariates=("seconds",))).effects[0].coef * scale)
    assert effects[0] == pytest.approx(effects[1], rel=1e-3)


def test_a_file_keeps_them() -> None:
    with store_of(rows_of()) as votes:
        fitted = sources_of(votes, Settings())
    again = SourceFit.from_dict(fitted.to_dict())
    assert [effect[:3] for effect in again.effects] == [effect[:3] for effect in fitted.effects]
    without = {key: value for key, value in fitted.to_dict().items() if key != "covariates"}
    assert SourceFit.from_dict(without).effects == ()
