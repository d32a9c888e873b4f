"""Voters who do not vote like people are listed, and honest ones with tastes hardly ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2l.commands.votes import main
from p2l.votes.checking import check_votes
from tests.conftest import write_votes

MODELS = ["ant", "bee", "cat", "dog"]


def votes(seed: int, voters: int = 40, each: int = 40) -> list[dict[str, object]]:
    """Votes of people: by the models' levels, a few minutes apart, with one vote in ten a tie."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for voter in range(voters):
        for number in range(each):
            a, b = rng.choice(4, 2, replace=False).tolist()
            wins = rng.random() < 1 / (1 + np.exp(0.6 * (b - a)))
            winner = "tie" if rng.random() < 0.1 else "model_a" if wins else "model_b"
            pair = {"model_a": MODELS[a], "model_b": MODELS[b], "winner": winner}
            rows.append(pair | {"voter": f"v{voter}", "tstamp": 1.7e9 + 200.0 * number + voter})
    return rows


def fan(seed: int) -> list[dict[str, object]]:
    """Somebody for whom the weakest model always wins."""
    rows = [row | {"voter": "fan"} for row in votes(seed, 1, 60)]
    for row in rows:
        for side in ("model_a", "model_b"):
            if row[side] == "ant":
                row["winner"] = side
    return rows


def lefty(seed: int) -> list[dict[str, object]]:
    return [row | {"voter": "lefty", "winner": "model_a"} for row in votes(seed, 1, 40)]


def bot(seed: int) -> list[dict[str, object]]:
    return [row | {"voter": "bot", "tstamp": 1.7e9 + 2.0 * n} for n, row in enumerate(votes(seed, 1, 30))]


def test_three_kinds_of_rigging_are_told_with_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*votes(0), *fan(1), *lefty(2), *bot(3)]
    path = write_votes(tmp_path / "votes.jsonl", rows)
    report = check_votes(path)
    reasons = {one.voter: one.reason for one in report.odd_voters}
    assert set(reasons) == {"fan", "lefty", "bot"}
    assert "points for ant" in reasons["fan"]
    assert "40 of 40 decided votes for the first answer" in reasons["lefty"]
    assert "30 votes within a minute" in reasons["bot"]
    assert report.voters == 43
    assert report.is_fit
    main(["check", str(path), "--quiet"])
    out = capsys.readouterr().out
    assert "3 of 43 voters" in out
    assert "fan, 60 votes:" in out


def test_honest_voters_are_hardly_ever_listed(tmp_path: Path) -> None:
    listed = sum(len(check_votes(write_votes(tmp_path / f"{n}.jsonl", votes(n, 20))).odd_voters) for n in range(10))
    assert listed <= 2


def test_few_votes_and_unknown_voters_accuse_nobody(tmp_path: Path) -> None:
    rows = [row | {"voter": None} for row in lefty(0)] + [row | {"voter": "new"} for row in fan(1)[:15]]
    report = check_votes(write_votes(tmp_path / "votes.jsonl", rows))
    assert report.odd_voters == []
    assert report.voters == 1
    without = write_votes(tmp_path / "without.jsonl", [{k: v for k, v in row.items() if k != "voter"} for row in rows])
    assert check_votes(without).voters is None


def test_a_voter_with_whom_nobody_can_be_compared_is_not_accused(tmp_path: Path) -> None:
    rows = votes(0, 1, 400)
    for row in rows:
        row["winner"] = "model_a" if str(row["model_a"]) < str(row["model_b"]) else "model_b"
    alone = write_votes(tmp_path / "alone.jsonl", rows)
    assert check_votes(alone).odd_voters == []
    # Two honest voters tell each other's shares, though not well.
    listed = sum(len(check_votes(write_votes(tmp_path / f"{n}.jsonl", votes(n, 2, 200))).odd_voters) for n in range(20))
    assert listed <= 1
