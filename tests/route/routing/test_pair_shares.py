"""The second model of a comparison, drawn by the plan of `p2l next-pairs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2l.commands.next_pairs import main as next_pairs
from p2l.common.errors import ConfigError
from route.routing.candidates import PairShares

HEADER = "model_a,model_b,votes,propensity\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_for_a_model_with_few_votes_shows_it_most(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("b", "c"), ("c", "a")] * 40 + [("new", "a"), ("b", "new")]
    votes = tmp_path / "votes.jsonl"
    rows = [{"model_a": one, "model_b": two, "winner": f"model_{'ab'[n % 2]}"} for n, (one, two) in enumerate(pairs)]
    votes.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plan = tmp_path / "pairs.csv"
    next_pairs(["--votes", str(votes), "--count", "50", "--output", str(plan), "--quiet"])
    drawn = PairShares.read(plan).seconds("a", {"a", "b", "c", "new"})
    assert sum(drawn.values()) == pytest.approx(1)
    assert drawn["new"] > 0.8
    assert min(drawn.values()) > 0


def test_a_pair_that_the_plan_lacks_counts_as_its_largest(tmp_path: Path) -> None:
    shares = PairShares.read(write(tmp_path, HEADER + "a,b,1,0.1\n'=c,a,3,0.3\nb,'=c,6,0.6\n"))
    assert shares.seconds("a", ["b", "=c", "unknown"]) == pytest.approx({"=c": 0.3, "b": 0.1, "unknown": 0.6})
    assert shares.seconds("a", ["a"]) == {}


def test_without_a_plan_all_are_alike() -> None:
    assert PairShares().seconds("a", {"a", "b", "c"}) == {"b": 0.5, "c": 0.5}
    assert PairShares().seconds("dear", {"b", "c"}) == {"b": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model_a,model_b\na,b\n", "no columns model_a, model_b, propensity"),
        (HEADER + "a,b,1,0.5\na,c,0,0\n", "pairs.csv:3: propensity must be above 0"),
        (HEADER + "a,b,1,nan\n", "pairs.csv:2: propensity must be above 0"),
        (HEADER + "a,b\n", "pairs.csv:2: propensity must be above 0"),
    ],
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PairShares.read(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv cannot be read: No such file or directory$"):
        PairShares.read(tmp_path / "none.csv")
