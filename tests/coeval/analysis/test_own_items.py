"""Items that students wrote themselves, of which judges compare the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coeval_planted import at_home, write
from coeval.analysis.fit import fit_verdicts
from coeval.analysis.statistics import rare_gains
from coeval.analysis.units import LoadedRun
from coeval.analysis.votes import run_board
from coeval.pairs.board import BoardOptions, Slice, boards, pairs_report
from coeval.pairs.preferences import PreferenceFilter, gather
from coeval.reports.findings import pairs
from coeval.reports.judges import pairs_context


def compared(folder: Path, advantage: float, students: str = "abc", seed: int = 0) -> LoadedRun:
    return write(folder, replace(at_home(seed, advantage, students), is_compared=True))


def test_an_advantage_is_taken_out_as_far_as_it_is_more_than_chance() -> None:
    mean, doubt = rare_gains(np.array([0.0, 0.5, 6.0]))
    assert mean[0] < mean[1] < 0.5  # of the size of chance
    assert 5.0 < mean[2] < 6.0
    assert (doubt < 1.0).all()
    (alone,), _ = rare_gains(np.array([2.0]))
    (among, *_), _ = rare_gains(np.array([2.0, 0.0, 0.0, 0.0]))
    assert among < alone  # others without one make it less likely
    (loss,), _ = rare_gains(np.array([-2.0]))
    assert abs(loss) < alone / 3  # students seldom lose at their own items


def test_students_who_win_at_their_own_items_alone_are_not_told_apart(tmp_path: Path) -> None:
    for seed in range(3):
        report = pairs_report(compared(tmp_path / str(seed), 1.2, seed=seed))
        first, second = report.own_items
        assert (first.student, second.student, first.items, second.items) == ("a", "b", 40, 40)
        assert first.flagged
        assert not second.flagged
        assert report.apart == ()
        assert any(sentence.startswith("a is better by ") for sentence in pairs(report))
        assert pairs_context(report)["own_items"] is not None


def test_without_an_advantage_none_is_told(tmp_path: Path) -> None:
    report = pairs_report(compared(tmp_path / "run", 0.0))
    assert [row.flagged for row in report.own_items] == [False, False]
    assert not any("wrote" in sentence for sentence in pairs(report))


def test_students_who_wrote_all_items_that_are_compared_have_an_advantage_in_common(tmp_path: Path) -> None:
    run = at_home(1, 0.0, "ab")
    for place, teacher in enumerate(run.teachers):
        run.levels[place, "ab".index(teacher)] = 2  # both are perfect at their own
    report = pairs_report(write(tmp_path / "run", replace(run, is_compared=True)))
    assert all(row.in_common and row.flagged for row in report.own_items)
    assert report.apart == ()


def test_verdicts_that_are_missing_by_student_are_told(tmp_path: Path) -> None:
    run = replace(at_home(0, 0.0), is_compared=True)
    assert pairs_report(write(tmp_path / "whole", run)).missing == ()
    worst = np.argsort(run.levels[:, 2].sum(axis=(1, 2)))[:20]
    run.levels[worst, 2] = -1  # no judge could compare the worst answers of c
    run.levels[60:] = -1  # nor any of these, whosever they are
    report = pairs_report(write(tmp_path / "gaps", run))
    lacking = len({*worst.tolist(), *range(60, 80)})
    assert [(row.judge, row.student, row.answers, row.missing) for row in report.missing[:1]] == [
        ("", "c", 80, lacking)
    ]
    assert {row.judge for row in report.missing} == {"", "j", "k"}
    (sentence,) = (each for each in pairs(report) if each.startswith("Every judge left"))
    assert "of c's answers without a verdict and 25% of others': if these are its worst" in sentence
    assert pairs_context(report)["missing"] is not None


def test_exported_verdicts_have_the_leaderboard_of_the_page(tmp_path: Path) -> None:
    loaded = compared(tmp_path / "run", 1.2, seed=1)
    exported = gather(loaded, PreferenceFilter()).preferences
    board = boards(exported, BoardOptions(intervals=None))[Slice("overall")]
    overall = {row.student: row.score for row in pairs_report(loaded).rows if row.task == "overall"}
    scores = dict(zip(board.models, (400 / np.log(10) * board.coefs).tolist(), strict=True))
    assert scores["a"] - scores["c"] == pytest.approx(overall["a"] - overall["c"], abs=0.2)
    # Verdicts for a at its own items count less than those against it; at items of others all count alike.
    of_a = [row for row in exported if "a" in (row.model_a, row.model_b) and row.judge == "j"]
    wins = {row.weight for row in of_a if row.teacher == "a" and row.winner == "model_a"}
    losses = {row.weight for row in of_a if row.teacher == "a" and row.winner == "model_b"}
    assert max(wins) < 1.0 < min(losses)
    chosen = gather(loaded, PreferenceFilter(judges=("j",))).preferences
    assert len({row.weight for row in chosen}) == 1  # what a user chose says what it says


def test_the_leaderboard_of_verdicts_is_that_of_their_fit_where_students_gain_at_their_own_items(
    tmp_path: Path,
) -> None:
    loaded = compared(tmp_path / "run", 1.2, seed=2)
    fitted, board = fit_verdicts(loaded), run_board(loaded)
    assert fitted is not None
    assert board is not None
    scores = fitted.score[[loaded.students.index(name) for name in board.models]]
    assert np.corrcoef(scores, board.coefs)[0, 1] == pytest.approx(1.0, abs=1e-3)
