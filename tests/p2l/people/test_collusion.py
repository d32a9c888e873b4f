"""The one test of voters: who is accused alone, together, in a group, and when nothing can be told."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.collusion import ATTACKS, Field, Votes, attacked, chosen, honest, names_of, weights_of
from p2l.people import cast_votes, examine

MODELS = 8


def people(seed: int, votes: int = 3000) -> tuple[np.ndarray, Votes]:  # type: ignore[type-arg]
    return honest(Field(votes=votes), np.random.default_rng([seed, 47]))


@pytest.mark.parametrize(("each", "honest_votes"), [(8, 3000), pytest.param(19, 1900, marks=pytest.mark.slow)])
def test_colluders_leave_each_model_within_its_clean_interval(each: int, honest_votes: int) -> None:
    row = attacked(chosen, each, Field(votes=honest_votes), 4)
    assert row[0] == "0 of 4", "as they are, the votes of colluders decide"
    assert row[1] == "4 of 4"
    assert row[4] in {"1", "2"}
    assert row[5] == "8"


def test_honest_votes_keep_their_weight() -> None:
    accused = 0
    for seed in range(12):
        _, votes = people(seed, 5000)
        examination = examine(votes.cast(MODELS))
        accused += bool(examination.suspects)
        assert weights_of(votes, examination).mean() >= 0.95
    assert accused == 0


def test_the_accused_have_reasons_and_ranks_beside_them() -> None:
    truth, votes = people(0)
    votes = votes.and_those_of(chosen(truth, 8, np.random.default_rng(1)))
    examination = examine(votes.cast(MODELS))
    target = f"m{truth.argmin()}"
    colluders = [voter for voter in examination.suspects if voter.name.startswith("colluder")]
    assert len(colluders) >= 98
    assert all(voter.reason.startswith(f"8 wins of 8 votes on {target}") for voter in colluders)
    move = next(move for move in examination.moves if move.model == target)
    assert (move.rank, move.unweighed) in {(8, 1), (8, 2)}
    assert examination.to_dict()["suspect_votes"] == examination.suspect_votes >= 784


def test_beyond_the_breakdown_point_no_side_is_taken() -> None:
    truth, votes = people(0, 600)
    votes = votes.and_those_of(chosen(truth, 30, np.random.default_rng(1)))
    examination = examine(votes.cast(MODELS))
    assert examination.is_beyond
    assert examination.weights == {}
    assert "nothing tells which side is honest" in examination.verdict


def test_a_network_is_seen_where_its_voters_are_too_new_to_be() -> None:
    truth, votes = people(0)
    rng = np.random.default_rng(2)
    target = int(truth.argmin())
    other = (target + rng.integers(1, MODELS, 12)) % MODELS
    few = Votes(np.full(12, target), other, np.zeros(12, dtype=np.int64), [f"x{n}" for n in range(12)], ["den"] * 12)
    all_votes = votes.and_those_of(few)
    with_network = {voter.name: voter for voter in examine(all_votes.cast(MODELS)).suspects}
    assert {f"x{n}" for n in range(12)} <= set(with_network)
    assert with_network["x0"].reason.endswith("like others of the same network")
    without = cast_votes(names_of(MODELS), *all_votes.columns, all_votes.voter)
    assert not {f"x{n}" for n in range(12)} & {voter.name for voter in examine(without).suspects}


@pytest.mark.parametrize(
    "name", [pytest.param("new name each vote, ten networks", marks=pytest.mark.slow), "new name and network each vote"]
)
def test_names_thrown_away_after_each_vote_do_not_hide_colluders(name: str) -> None:
    attack = next(entry[1] for entry in ATTACKS if entry[0] == name)
    row = attacked(attack, 8, Field(votes=3000), 2)
    assert row[4] in {"1", "2"}, "as they are, the votes of colluders decide"
    assert row[5] == "8"
    assert float(row[7].rstrip("%")) < 5.0, "weight that is left to colluders"


def test_voters_who_cast_one_honest_vote_each_are_not_accused() -> None:
    for seed in range(5):
        votes = honest(Field(votes=3000, per_voter=1.3), np.random.default_rng([seed, 47]))[1]
        assert not examine(votes.cast(MODELS)).suspects


def test_votes_without_voters_or_an_outcome_accuse_nobody() -> None:
    _, votes = people(0, 300)
    nameless = cast_votes(names_of(MODELS), *votes.columns, [None] * 300)
    assert examine(nameless).suspects == ()
    ties = cast_votes(names_of(2), np.zeros(30, int), np.ones(30, int), np.full(30, 2), ["v"] * 30)
    assert examine(ties).suspects == ()
    empty = np.zeros(0, dtype=np.int64)
    assert examine(cast_votes(names_of(2), empty, empty, empty, [])).verdict == ""


def test_every_attack_of_the_benchmark_makes_votes() -> None:
    truth, _ = people(0, 300)
    for _, attack, each, _ in ATTACKS:
        votes = attack(truth, each, np.random.default_rng(0))
        assert len(votes.winner) == 100 * each
        assert (votes.first != votes.second).all()
