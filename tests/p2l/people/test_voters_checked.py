"""`p2l votes check` and `p2l leaderboard` name voters who do not vote like people, and weigh them where asked to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from p2l.commands.leaderboard import main as leaderboard
from p2l.commands.votes import main as votes_command
from p2l.common.errors import InputError
from p2l.votes.checking import check_votes
from tests.conftest import write_votes

MODELS = ["ant", "bee", "cat", "dog"]


def votes(seed: int, voters: int = 40, each: int = 40, name: str = "v") -> list[dict[str, object]]:
    """Votes of people: by the models' levels, a few minutes apart, with one vote in ten a tie."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for voter in range(voters):
        for number in range(each):
            a, b = rng.choice(4, 2, replace=False).tolist()
            wins = rng.random() < 1 / (1 + np.exp(0.6 * (b - a)))
            winner = "tie" if rng.random() < 0.1 else "model_a" if wins else "model_b"
            pair = {"model_a": MODELS[a], "model_b": MODELS[b], "winner": winner}
            rows.append(pair | {"voter": f"{name}{voter}", "tstamp": 1.7e9 + 900.0 * number + 20_000 * voter})
    return rows


def for_ant(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return votes of somebody for whom the weakest model always wins."""
    for row in rows:
        for side in ("model_a", "model_b"):
            if row[side] == "ant":
                row["winner"] = side
    return rows


def lefty(seed: int) -> list[dict[str, object]]:
    return [row | {"voter": "lefty", "winner": "model_a"} for row in votes(seed, 1, 60)]


def bot(seed: int) -> list[dict[str, object]]:
    return [row | {"voter": "bot", "tstamp": 1.7e9 + 2.0 * n} for n, row in enumerate(votes(seed, 1, 30))]


def printed(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert votes_command(["check", str(path), "--quiet"]) == 0
    return capsys.readouterr().out


def test_three_kinds_of_rigging_are_told_with_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fan = for_ant([row | {"voter": "fan"} for row in votes(1, 1, 120)])
    path = write_votes(tmp_path / "votes.jsonl", [*votes(0), *fan, *lefty(2), *bot(3)])
    out = printed(path, capsys)
    assert "2 of 43 voters, with 180 (9.9%) of the votes, do not vote like people" in out
    assert "fan, 120 votes:" in out
    assert "votes on ant" in out
    assert "lefty, 60 votes: 60 of 60 decided votes for the first answer" in out
    assert "bot: 30 votes within a minute" in out
    assert check_votes(path).voters == 43


def test_voters_with_few_votes_are_told_together_and_what_they_do_to_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    battles = [row for row in votes(5, 60, 24, "w") if "ant" in (row["model_a"], row["model_b"])]
    path = write_votes(tmp_path / "votes.jsonl", [*votes(0, 120, 12), *for_ant(battles)])
    out = printed(path, capsys)
    # The weakest of four, which loses most votes of people, is first with theirs.
    assert "do not vote like people" in out
    assert "ant is 4 in place of 1" in out
    board = tmp_path / "board.json"
    leaderboard(["--votes", str(path), "--output", str(board), "--quiet"])
    plain = json.loads(board.read_text())[0]
    assert plain["models"][0]["model"] == "ant"
    assert any("--weigh-voters weighs them" in note for note in plain["notes"])
    leaderboard(["--votes", str(path), "--output", str(board), "--quiet", "--weigh-voters"])
    weighed = json.loads(board.read_text())[0]
    assert [row["model"] for row in weighed["models"]] == ["dog", "cat", "bee", "ant"]
    assert any("Their votes count less" in note for note in weighed["notes"])


def test_few_votes_and_unknown_voters_accuse_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"voter": None} for row in lefty(0)] + [row | {"voter": "new"} for row in for_ant(votes(1, 1, 15))]
    path = write_votes(tmp_path / "votes.jsonl", rows)
    assert "voters:" not in printed(path, capsys)
    assert check_votes(path).voters == 1
    without = write_votes(tmp_path / "without.jsonl", [{k: v for k, v in row.items() if k != "voter"} for row in rows])
    assert check_votes(without).voters is None
    with pytest.raises(InputError, match="--weigh-voters needs a column 'voter'"):
        leaderboard(["--votes", str(without), "--weigh-voters", "--quiet"])


def test_a_voter_with_whom_nobody_can_be_compared_is_not_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = votes(0, 1, 400)
    for row in rows:
        row["winner"] = "model_a" if str(row["model_a"]) < str(row["model_b"]) else "model_b"
    assert "voters:" not in printed(write_votes(tmp_path / "alone.jsonl", rows), capsys)


def test_votes_on_answers_that_tell_their_model_are_left_out_and_told(tmp_path: Path) -> None:
    rows = votes(0, 20, 20)
    for row in rows[:30]:
        row |= {"winner": "model_a", "identity_revealed": True}
    path = write_votes(tmp_path / "votes.jsonl", rows)
    board = tmp_path / "board.json"
    leaderboard(["--votes", str(path), "--output", str(board), "--quiet"])
    content = json.loads(board.read_text())[0]
    assert sum(row["votes"] for row in content["models"]) == 2 * (len(rows) - 30)
    assert any(note.startswith("30 votes were left out: an answer tells its model") for note in content["notes"])
    leaderboard(["--votes", str(path), "--output", str(board), "--quiet", "--with-revealed"])
    content = json.loads(board.read_text())[0]
    assert sum(row["votes"] for row in content["models"]) == 2 * len(rows)


def test_names_of_voters_may_be_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, voters in (("lists", [["x", "y"]] * 40), ("numbers", [n % 3 for n in range(40)])):
        rows = [row | {"voter": voter} for row, voter in zip(votes(0, 1, 40), voters, strict=True)]
        assert "do not vote like people" not in printed(write_votes(tmp_path / f"{name}.jsonl", rows), capsys)
