"""A robust fit is not moved by few colluders, and costs little."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.collusion import MODELS, Field, chosen, honest, names_of
from p2l.commands.leaderboard import main
from p2l.people import cast_votes, examine
from p2l.people.robust import robust_factors, share_left
from tests.conftest import write_votes


def rows_of(votes: object) -> list[dict[str, object]]:
    names, winners = names_of(MODELS), ["model_a", "model_b", "tie", "tie (bothbad)"]
    columns = (votes.first, votes.second, votes.winner, votes.voter)  # type: ignore[attr-defined]
    return [
        {"model_a": names[a], "model_b": names[b], "winner": winners[won], "voter": voter}
        for a, b, won, voter in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("each", [4, 8])
def test_one_vote_in_a_hundred_moves_no_model_beyond_its_interval(tmp_path: Path, each: int) -> None:
    rng = np.random.default_rng([each, 48])
    truth, people = honest(Field(votes=6000), rng)
    votes = people.and_those_of(chosen(truth, each, rng, colluders=60 // each))
    boards = {}
    for name, rows, flags in (("clean", people, []), ("robust", votes, ["--robust"])):
        path = tmp_path / f"{name}.json"
        main(["--votes", str(write_votes(tmp_path / f"{name}.jsonl", rows_of(rows))), "--output", str(path), *flags])
        boards[name] = json.loads(path.read_text())[0]
    clean = {row["model"]: row for row in boards["clean"]["models"]}
    for row in boards["robust"]["models"]:
        assert clean[row["model"]]["coef_lower"] <= row["coef"] <= clean[row["model"]]["coef_upper"]
    assert any(note.startswith("Robust: votes of ") for note in boards["robust"]["notes"])


def test_it_costs_honest_votes_little() -> None:
    _, people = honest(Field(votes=6000), np.random.default_rng(3))
    cast = people.cast(MODELS)
    weights = examine(cast).weights
    assert share_left(cast, weights, robust_factors(cast, weights)) > 0.95


def test_votes_that_cannot_be_fitted_have_no_factors() -> None:
    ties = cast_votes(names_of(2), np.zeros(9, int), np.ones(9, int), np.full(9, 2), ["v"] * 9)
    assert robust_factors(ties, {}) == {}
    empty = np.zeros(0, dtype=np.int64)
    nobody = cast_votes(names_of(2), empty, empty, empty, [])
    assert robust_factors(nobody, {}) == {}
    assert share_left(nobody, {}, {}) == 1.0
