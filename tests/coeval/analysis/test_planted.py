"""Planted truths: what the fit, the tests and the intervals make of runs whose answers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coeval_planted import (
    FAVOURED,
    PLANTED,
    arena,
    differences,
    gapped,
    kin,
    leads,
    old_p_values,
    plain_means,
    repeated,
    write,
)
from coeval.analysis.fit import fit_table
from coeval.analysis.judge_tests import bias_tests, judge_scales
from coeval.analysis.panel import ScoreTable
from coeval.analysis.statistics import cluster_variance, difference_limits, jackknife, kendall, score_limits, t_limits
from coeval.analysis.students import mean_difference, student_rows
from coeval.analysis.teachers import teacher_rows
from coeval.duplicates import clusters_of
from tests.coeval.analysis.runs import run_of


@pytest.mark.parametrize("high", [0.65, 0.82])
def test_four_bad_judges_of_six_are_found_and_move_nobody(tmp_path: Path, high: float) -> None:
    run = arena(1, high)
    loaded = write(tmp_path / "run", run)
    truth = np.array([run.truth[name] for name in loaded.students])
    fitted = {row.student: row.fit for row in student_rows(loaded)}
    assert (kendall(truth, np.array([fitted[name] for name in loaded.students], dtype=np.float64)) or 0) > 0.85
    assert (kendall(truth, plain_means(loaded)) or 0) < 0.9
    flagged = {(test.judge, test.bias) for test in bias_tests(loaded) if test.flagged}
    assert flagged == set(PLANTED.items())
    assert leads(loaded, "v1")
    assert leads(loaded, "s2")
    first = teacher_rows(loaded)[0]
    assert (first.separation_lower or 0) < (first.separation or 0) < (first.separation_upper or 0)
    scales = {row.judge: row for row in judge_scales(loaded)}
    assert scales["constant"].weight < 0.01 > scales["random"].weight
    assert (scales["honest-1"].sharpness or 0) > 0.8


def test_a_judge_that_favours_its_family_is_found_and_no_other(tmp_path: Path) -> None:
    tests = bias_tests(write(tmp_path / "run", kin(0)))
    assert [(test.judge, test.bias) for test in tests if test.flagged] == [(FAVOURED, "family-preference")]


def test_a_judge_with_a_quota_makes_no_student_better(tmp_path: Path) -> None:
    loaded = write(tmp_path / "run", gapped(0))
    assert min(old_p_values(loaded)) < 1e-4
    assert not any(pair.significant for pair in differences(loaded))


def test_sixty_items_of_two_prompts_are_two_prompts(tmp_path: Path) -> None:
    loaded = write(tmp_path / "run", repeated(0, 2))
    assert loaded.header.prompts == 2
    assert min(old_p_values(loaded)) < 1e-4
    assert not any(pair.significant for pair in differences(loaded))


@given(st.integers(0, 10_000))
def test_missing_scores_never_move_an_exact_ranking(seed: int) -> None:
    """Where scores are sums of student, judge and item, any scores that still connect students give their order."""
    rng = np.random.default_rng(seed)
    skills, severities = rng.permutation(np.linspace(0.2, 0.5, 4)), rng.uniform(0, 0.3, 3)
    items = rng.uniform(0, 0.2, 12)
    item, student = (codes.ravel() for codes in np.indices((12, 4)))
    scores = (skills[student] + items[item])[:, None] + severities
    scores[rng.random(scores.shape) < 0.3] = np.nan
    table = ScoreTable(
        student,
        item,
        np.zeros(48, dtype=np.int64),
        scores,
        own=np.zeros(scores.shape, dtype=bool),
        wrote=np.zeros(len(scores), dtype=bool),
        length=np.zeros(48),
        cluster=np.arange(12),
        items=np.arange(12),
        students=4,
        tasks=1,
    )
    kept = table.where(~np.isnan(scores).all(axis=1))
    fit = fit_table(kept)
    assert fit is not None
    assert np.argsort(fit.score).tolist() == np.argsort(skills).tolist()


def test_students_whom_nothing_connects_are_ranked_by_their_means(tmp_path: Path) -> None:
    scores = {
        (f"mail/ada/{n}", student, f"j-{student}"): {"fit": level, "tone": level}
        for n in range(4)
        for student, level in (("a", "Low"), ("b", "High"))
    }
    rows = student_rows(run_of(tmp_path, scores))
    assert [(row.student, row.fit) for row in rows] == [("b", None), ("a", None)]


@given(st.integers(2, 40), st.integers(0, 1000))
def test_equal_clusters_give_the_paired_t_test(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=size)
    mean, variance, freedom = cluster_variance(values[:, None], np.ones((size, 1)))
    assert float(variance[0]) == pytest.approx(values.var(ddof=1) / size)
    assert float(freedom[0]) == pytest.approx(size - 1)
    lower, upper = t_limits(mean, variance, freedom)
    drawn = jackknife(np.arange(size), np.stack([values, np.ones(size)], axis=1), lambda s: s[:, 0] / s[:, 1])
    assert (float(drawn.lower[0]), float(drawn.upper[0])) == pytest.approx((float(lower[0]), float(upper[0])))


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30))
def test_limits_of_scores_hold_the_mean_and_stay_on_the_scale(scores: list[float]) -> None:
    values = np.array(scores)[:, None]
    lower, upper = score_limits(cluster_variance(values, np.ones_like(values)))
    assert 0.0 <= float(lower[0]) <= values.mean() + 1e-12
    assert values.mean() - 1e-12 <= float(upper[0]) <= 1.0
    assert float(upper[0]) > float(lower[0])


_SCORE = st.sampled_from([0.0, 0.5, 1.0])


@given(st.lists(st.tuples(_SCORE, _SCORE), min_size=2, max_size=30))
def test_limits_of_a_difference_hold_it_stay_on_the_scale_and_turn_around_with_it(
    scores: list[tuple[float, float]],
) -> None:
    values = np.array(scores)
    ones = np.ones_like(values)
    found = []
    for columns in (values, values[:, ::-1]):
        test = mean_difference(columns[:, 0] - columns[:, 1], np.arange(len(values)))
        spread = cluster_variance(columns, ones)
        lower, upper = difference_limits(test.difference, test.variance, test.freedom, spread)
        assert -1.0 <= lower <= test.difference + 1e-12
        assert test.difference - 1e-12 <= upper <= 1.0
        found.append((lower, upper))
    assert found[0] == pytest.approx((-found[1][1], -found[1][0]))


def test_limits_of_a_difference_hold_it_as_often_as_they_say_where_scores_crowd_at_the_end() -> None:
    rng, chances, trials, items = np.random.default_rng(0), (0.95, 0.85), 1000, 8
    gap = (0.15**2 - 0.05**2) / (2 * 0.8 * 0.2)  # of the chances that the sum below is less
    held = []
    for _ in range(trials):
        # Two students who succeed and fail together on most items.
        scores = (rng.random((items, 1)) * 0.8 + rng.random((items, 2)) * 0.2 < chances).astype(float)
        test = mean_difference(scores[:, 0] - scores[:, 1], np.arange(items))
        spread = cluster_variance(scores, np.ones_like(scores))
        lower, upper = difference_limits(test.difference, test.variance, test.freedom, spread)
        held.append(lower <= gap <= upper)
    assert np.mean(held) >= 0.93


def test_near_duplicates_are_one_prompt_and_others_are_not() -> None:
    long = (
        "Write a letter to the landlord of a house with a leaking roof, and ask for a date by which it will be mended."
    )
    prompts = [long, long.upper(), long.replace("date", "day"), "What is 17 plus 25?", "What is 18 plus 26?", "", " "]
    assert clusters_of(prompts).tolist() == [0, 0, 0, 3, 4, 5, 5]


def test_signs_make_another_question_and_layout_does_not() -> None:
    others = ["What is 17 + 25?", "What is 17 * 25?", "What is 17 / 25?", "Is a < b?", "Is a > b?", "Why C?", "Why C#?"]
    assert len(set(clusters_of(others))) == len(others)
    same = [
        "Sum up: tea, milk",
        "# Sum up\n\n* tea\n* milk",
        "**Sum up** tea/milk".replace("/", " "),
        "sum up “tea”, milk!",
    ]
    assert set(clusters_of(same)) == {0}
