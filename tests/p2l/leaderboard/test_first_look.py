"""What votes show beyond chance: planted effects are told, and what only looks like one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.commands.votes import main
from p2l.leaderboard import first_look
from p2l.leaderboard.first_look import FirstLook, Observation, side_to_control
from p2l.votes.checking import check_votes
from tests.conftest import write_votes

MODELS = ["ant", "bee", "cat", "dog", "elk"]
STRENGTHS = np.array([1.5, -0.5, 0.8, -1.2, 0.0])
Rows = list[dict[str, Any]]


def cast(count: int, *, side: float = 0.0, stronger_first: float = 0.5, length: float = 0.0, seed: int = 0) -> Rows:
    """Votes in which being shown first and being longer are worth this much; strong models are shown first so often."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    for number in range(count):
        a, b = rng.choice(len(MODELS), 2, replace=False).tolist()
        if (STRENGTHS[a] > STRENGTHS[b]) != (rng.random() < stronger_first):
            a, b = b, a
        longer = rng.integers(10, 900, 2).tolist()
        lead = STRENGTHS[a] - STRENGTHS[b] + side + length * (longer[0] - longer[1]) / sum(longer)
        wins = rng.random() < 1.0 / (1.0 + np.exp(-lead))
        row = {"prompt": f"prompt {number % 700}", "model_a": MODELS[a], "model_b": MODELS[b], "tstamp": float(number)}
        row |= {"winner": "tie" if rng.random() < 0.1 else "model_a" if wins else "model_b"}
        rows.append(row | {"length_a": longer[0], "length_b": longer[1]})
    return rows


def look(folder: Path, rows: Rows, people: str | None = None) -> dict[str, Observation]:
    """Return the observations on a file of these rows, by kind."""
    looks: list[FirstLook] = []

    def observe(source: Any) -> Any:
        looks.append(FirstLook(source.columns, source.name))
        return looks[0].add

    report = check_votes(write_votes(folder / "votes.jsonl", rows), observe=observe)
    return {seen.kind: seen for seen in looks[0].observations(list(report.models), people)}


def covers(seen: Observation, truth: float) -> bool:
    assert seen.lower is not None
    assert seen.upper is not None
    return seen.lower < truth < seen.upper


@pytest.mark.parametrize("stronger_first", [0.5, 0.9])
@pytest.mark.parametrize("side", [0.0, 0.4])
def test_a_side_is_told_from_uneven_models_whatever_their_order(
    tmp_path: Path, side: float, stronger_first: float
) -> None:
    seen = look(tmp_path, cast(5_000, side=side, stronger_first=stronger_first))
    # Ties, each half a win of both, make any lead smaller by as much.
    assert covers(seen["side"], 0.9 * side)
    assert seen["side"].is_notable == (side > 0)
    assert (side_to_control(seen.values()) is not None) == (side > 0)
    assert ("no more than chance" in seen["side"].text) == (side == 0)


@pytest.mark.slow
def test_intervals_cover_and_are_no_wider_than_needed(tmp_path: Path) -> None:
    sides = [look(tmp_path, cast(1_000, stronger_first=0.8, seed=seed))["side"] for seed in range(40)]
    scores = np.array([seen.estimate / ((seen.upper - seen.lower) / 5.15) for seen in sides])  # type: ignore[operator]
    assert 0.75 < scores.std() < 1.3
    assert abs(scores.mean()) < 0.5


def test_votes_of_one_prompt_count_together(tmp_path: Path) -> None:
    rows = cast(2_000, side=0.5)
    alone = look(tmp_path, [row | {"prompt": str(number)} for number, row in enumerate(rows)])["side"]
    repeated = look(tmp_path, [row | {"prompt": str(number)} for number, row in enumerate(rows) for _ in range(4)])
    assert repeated["side"].lower == pytest.approx(alone.lower, abs=0.01)


def test_an_order_of_names_or_of_winners_says_nothing_of_sides(tmp_path: Path) -> None:
    by_name: Rows = []
    for row in cast(2_000, side=0.5):
        swapped = row["model_a"] > row["model_b"]
        names = sorted([row["model_a"], row["model_b"]])
        other = {"model_a": "model_b", "model_b": "model_a"}
        winner = other.get(row["winner"], row["winner"]) if swapped else row["winner"]
        by_name.append(row | {"model_a": names[0], "model_b": names[1], "winner": winner})
    seen = look(tmp_path, by_name)
    assert "models stand in the order of their names, so" in seen["side"].text
    assert seen["side"].estimate is None
    assert side_to_control(seen.values()) is None

    by_winner = []
    for row in cast(2_000):
        lost = row["winner"] == "model_b"
        names = [row["model_b"], row["model_a"]] if lost else [row["model_a"], row["model_b"]]
        winner = row["winner"] if row["winner"] == "tie" else "model_a"
        by_winner.append(row | {"model_a": names[0], "model_b": names[1], "winner": winner})
    for rows in (by_winner, [row for row in by_winner if row["winner"] != "tie"]):
        seen = look(tmp_path, rows)
        assert "the winner stands first nearly always" in seen["side"].text
        assert seen["side"].is_notable
        assert side_to_control(seen.values()) is None


def test_length_is_told_beside_the_side(tmp_path: Path) -> None:
    seen = look(tmp_path, cast(4_000, side=0.4, length=1.2))
    assert covers(seen["length"], 1.2)
    assert seen["length"].text.startswith("longer answers win more votes: twice the length is worth ")
    assert not look(tmp_path, cast(4_000, side=0.4, seed=1))["length"].is_notable


def test_one_voter_is_named_and_does_not_make_a_side(tmp_path: Path) -> None:
    rows = [row | {"voter": f"v{number % 50}"} for number, row in enumerate(cast(2_000))]
    assert "voter" not in look(tmp_path, rows)
    rigged = [row | {"voter": "lefty", "winner": "model_a"} for row in cast(800, seed=1)]
    seen = look(tmp_path, rows + rigged)
    assert seen["voter"].text == "one voter, lefty, casts 29% of the votes"
    assert not seen["side"].is_notable


def test_copies_pairs_prompts_and_kinds(tmp_path: Path) -> None:
    rows = cast(1_000)
    seen = look(tmp_path, rows)
    assert not {"copies", "pair", "prompts", "kinds"} & set(seen)
    seen = look(tmp_path, rows + rows[:300])
    assert seen["copies"].text == "300 votes (23.1%) repeat another (prompt, models, winner, tstamp)"
    assert seen["copies"].is_notable

    few = [row | {"prompt": f"p{number % 40}"} for number, row in enumerate(rows)]
    without_times = [{key: value for key, value in row.items() if key != "tstamp"} for row in few]
    seen = look(tmp_path, without_times)
    assert seen["prompts"].text.startswith("40 different prompts: ")
    assert seen["copies"].text.endswith("; no column tells copies from voters who agree")
    assert not seen["copies"].is_notable

    same = [row | {"prompt": "hi" if number % 3 else f"p{number}"} for number, row in enumerate(rows)]
    assert look(tmp_path, same)["prompts"].text.startswith("one prompt has 67% of the votes")
    duel = [row for row in cast(3_000) if {row["model_a"], row["model_b"]} == {"ant", "bee"}]
    seen = look(tmp_path, duel + rows[:100])
    assert seen["pair"].text.startswith("one pair of models, ant and bee, has ")
    kinds = [row | {"category": "code" if number % 4 else "poem"} for number, row in enumerate(rows)]
    assert look(tmp_path, kinds)["kinds"].text == "2 kinds of prompts: code 75%, poem 25%"


def test_sides_are_those_of_people(tmp_path: Path) -> None:
    people = [row | {"source": "human"} for row in cast(2_000)]
    judged = [row | {"source": "gpt-judge"} for row in cast(4_000, side=1.0, seed=1)]
    assert look(tmp_path, people + judged)["side"].is_notable
    seen = look(tmp_path, people + judged, "human")
    assert not seen["side"].is_notable
    assert seen["side"].text.startswith("the first answer wins ")
    assert " of votes of human, the second " in seen["side"].text


def test_of_many_votes_those_on_some_prompts_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_look, "_MOST_VOTES", 1_500)
    rows = cast(6_000, side=0.6)
    seen = look(tmp_path, [row | {"prompt": str(number)} for number, row in enumerate(rows)])
    assert covers(seen["side"], 0.54)
    assert seen["side"].is_notable


def test_check_prints_it_behind_the_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = cast(2_000, side=0.5, length=0.9)
    path = write_votes(tmp_path / "votes.jsonl", rows)
    assert main(["check", str(path), "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("what the votes show:")
    assert lines[place - 1] == "no problems"
    assert "the first answer wins" in lines[place + 1]
    assert lines[-1] == "  p2l train takes the side into account; --control none leaves it"
    faulty = write_votes(tmp_path / "faulty.jsonl", [*rows, rows[0] | {"winner": "C"}])
    assert main(["check", str(faulty), "--quiet"]) == 2
    assert "longer answers" in capsys.readouterr().out
    odd = [row | {"length_a": "long"} for row in rows]
    assert main(["check", str(write_votes(tmp_path / "odd.jsonl", odd)), "--quiet"]) == 0
    assert "longer answers" not in capsys.readouterr().out
