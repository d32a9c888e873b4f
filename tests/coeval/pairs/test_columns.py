from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.units import load_run
from coeval.analysis.verdicts import WINNERS
from coeval.analysis.votes import Rule, votes_of
from coeval.pairs.board import BoardOptions, boards, pairs_report, rows_of
from coeval.pairs.preferences import PreferenceFilter, gather
from tests.coeval.reports.helpers import write_run

RULES = {"plain": Rule(), "weighted": Rule(margin=0.0, bad=0.5, weights={"accuracy": 3.0, "clarity": 0.0})}
NAMES = ["ant", "bee", "cow"]


def damaged(folder: Path) -> Path:
    """A run with failures, two teachers, self-judging, and verdicts in one of its two tasks."""
    run = write_run(folder, items=3, students=NAMES, judges=["ant", "jay"], failures=0.3, pairs=True)
    paths = sorted((run / "phase5_pairwise").iterdir())
    first = paths[0].name.split(".")[0]
    for path in paths:
        if not path.name.startswith(f"{first}."):
            path.unlink()
    return run


@pytest.mark.parametrize("rule", sorted(RULES))
def test_columns_hold_the_preferences_that_gathering_finds(rule: str, tmp_path: Path) -> None:
    loaded = load_run(damaged(tmp_path / "run"))
    votes, is_native = votes_of(loaded, RULES[rule])
    swapped = {"model_a": "model_b", "model_b": "model_a"}
    mine = []
    columns = (votes.task, votes.datapoint, votes.judge, votes.model_a, votes.model_b, votes.winner)
    for task, item, judge, a, b, winner in zip(*(column.tolist() for column in columns), strict=True):
        names, won = (loaded.students[a], loaded.students[b]), WINNERS[winner]
        won = won if names == tuple(sorted(names)) else swapped.get(won, won)
        mine.append((loaded.tasks[task], (loaded.datapoints[item], *sorted(names)), loaded.judges[judge], won))
    found = gather(loaded, PreferenceFilter(keep_self_judged=True, rule=RULES[rule])).preferences
    theirs = [
        (one.task, one.key, one.judge, one.winner if one.model_a < one.model_b else swapped.get(one.winner, one.winner))
        for one in found
    ]
    assert sorted(mine) == sorted(theirs)
    assert is_native.sum() == sum(one.source == "native" for one in found)
    assert 0 < is_native.sum() < len(is_native)


def test_the_report_has_the_leaderboards_of_the_same_preferences(tmp_path: Path) -> None:
    loaded = load_run(damaged(tmp_path / "run"))
    gathered = gather(loaded, PreferenceFilter())
    options = BoardOptions(intervals="sandwich")
    found = boards(gathered.preferences, options, gathered.attributes, gathered.clusters)
    expected: list[dict[str, Any]] = [row for part, board in found.items() for row in rows_of(part, board)]
    report = pairs_report(loaded)
    assert [(row.task, row.attribute, row.rank, row.student, row.votes) for row in report.rows] == [
        (row["task"], row["attribute"], row["rank"], row["model"], row["votes"]) for row in expected
    ]
    for row, other in zip(report.rows, expected, strict=True):
        assert (row.score, row.win_rate) == pytest.approx((other["score"], other["win_rate"]))
    assert report.self_judged == gathered.self_judged
