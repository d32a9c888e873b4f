"""Votes of graded answers: who wins, which pairs are drawn, and tables that cannot be used."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Command

SCORES = {"ant": 1.0, "bee": 0.9, "cat": 0.2, "dog": 0.2}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two categories of 20 questions, each answered by four models."""
    rows = [
        {"question": f"{category} question {number}?", "category": category, "model": model, "score": score}
        for category in ("maths", "prose")
        for number in range(20)
        for model, score in SCORES.items()
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def made(command: Command, table: Path, *flags: str) -> pd.DataFrame:
    output = table.parent / "votes.jsonl"
    output.unlink(missing_ok=True)
    done = command("python", "-m", "p2l.cli", "votes", "from-scores", table, "--output", output, *flags)
    assert done.returncode == 0, done.stderr
    votes = pd.DataFrame([json.loads(line) for line in output.read_text().splitlines()])
    assert done.stdout.startswith(f"{output}: {len(votes)} votes")
    return votes


def test_the_higher_score_wins_and_equals_tie(command: Command, table: Path) -> None:
    votes = made(command, table, "--margin", "0.1001")
    assert len(votes) == 40 * 6
    assert not votes.duplicated(["question_id", "model_a", "model_b"]).any()
    for vote in votes.itertuples():
        a, b = SCORES[vote.model_a], SCORES[vote.model_b]
        expected = "model_a" if a - b > 0.11 else "model_b" if b - a > 0.11 else "tie" if a > 0.5 else "tie (bothbad)"
        assert vote.winner == expected
    assert votes.winner.value_counts()["model_a"] > 40
    assert votes.winner.value_counts()["model_b"] > 40


def test_the_score_that_passes_decides_which_ties_are_bad(command: Command, table: Path) -> None:
    """Cat and dog score 0.2: a bad tie at the usual 0.5, a plain one where 0.2 passes."""
    assert set(made(command, table).winner) == {"model_a", "model_b", "tie (bothbad)"}
    assert set(made(command, table, "--passed", "0.2").winner) == {"model_a", "model_b", "tie"}


def test_categories_are_kept_apart_and_votes_are_votes(command: Command, table: Path) -> None:
    assert set(made(command, table, "--only", "maths").category) == {"maths"}
    assert set(made(command, table, "--without", "maths", "--per-question", "2").category) == {"prose"}
    assert len(made(command, table, "--per-question", "2")) == 80
    done = command("python", "-m", "p2l.cli", "votes", "check", table.parent / "votes.jsonl")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("change", "flags", "fault"),
    [
        (lambda rows: rows.drop(columns="score"), (), "has no column 'score'"),
        (lambda rows: rows.assign(score="good"), (), "line 1: score 'good' is neither a number nor a verdict"),
        (lambda rows: rows.assign(model=3.5), (), "line 1: model is not text"),
        (lambda rows: pd.concat([rows, rows[:1]]), (), "row 161: this model has answered this question"),
        (lambda rows: rows, ("--only", "poems"), "has no category 'poems'; it has maths, prose"),
        (lambda rows: rows[rows.model == "ant"], (), "no question was answered by two models"),
        (lambda rows: rows[:0], (), "holds no answers"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(
    command: Command, table: Path, change: object, flags: tuple[str, ...], fault: str
) -> None:
    assert callable(change)
    change(pd.read_csv(table)).to_json(table.with_suffix(".jsonl"), orient="records", lines=True)
    output = table.parent / "votes.parquet"
    source = table.with_suffix(".jsonl")
    done = command("python", "-m", "p2l.cli", "votes", "from-scores", source, "--output", output, *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert fault in done.stderr
    assert not output.exists()
