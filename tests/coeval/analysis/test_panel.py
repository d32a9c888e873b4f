"""Judges that depend on each other: copies, families, tastes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coeval_panels import Panel, coverage, has_star, planted
from benchmarks.coeval_planted import Planted, arena, at_home, graded, words, worst_left_out, write
from coeval.analysis.fit import Fit, fit_table
from coeval.analysis.judge_tests import bias_tests, panel_worth
from coeval.analysis.panel import effective_number, error_correlation, shared_errors
from coeval.analysis.statistics import kendall
from coeval.analysis.students import fitted_pairs, student_report
from coeval.analysis.variance import missing_rows
from coeval.reports.findings import missing_sentences, own_items_sentences, panel_sentences


def fit_of(panel: Panel) -> Fit:
    fit = fit_table(panel.as_table())
    assert fit is not None
    return fit


@pytest.mark.parametrize(
    ("groups", "errors"),
    [
        ((0, 0, 1, 2), 0.95),
        ((0, 0, 1, 2, 3), 0.98),
        ((0, 1, 0, 1, 0), 0.56),
        ((0, 0, 0, 1, 2), 0.95),
        ((0, 1, 2, 3, 4), 0.9),
    ],
)
def test_errors_in_common_are_found_in_exact_correlations(groups: tuple[int, ...], errors: float) -> None:
    family = np.array(groups)
    truth = np.where(family[:, None] == family, errors, 0.0)
    np.fill_diagonal(truth, 1.0)
    quality = np.full(len(groups), 0.7)
    correlation = np.outer(quality, quality) + truth * (1.0 - 0.49)
    shared = shared_errors(correlation, np.full(correlation.shape, 1e4))
    found = effective_number(error_correlation(shared, quality), 1.0 - quality**2)
    assert found == pytest.approx(effective_number(truth, 1.0 - quality**2), rel=0.03)


def test_sharp_judges_among_blunt_ones_are_no_copies() -> None:
    quality = np.array([0.9, 0.9, 0.5, 0.5, 0.5])
    correlation = np.outer(quality, quality)
    np.fill_diagonal(correlation, 1.0)
    assert not shared_errors(correlation, np.full(correlation.shape, 1e4)).any()


def test_judges_beside_one_who_sees_nothing_are_no_copies() -> None:
    quality = np.array([0.8, 0.8, 0.8, 0.0])
    correlation = np.outer(quality, quality)
    np.fill_diagonal(correlation, 1.0)
    assert not shared_errors(correlation, np.full(correlation.shape, 1e4)).any()


def test_what_a_judge_who_sees_nothing_shares_by_chance_makes_no_copies() -> None:
    # Three judges who agree, one who favours length, and one who says anything: correlations of a planted run.
    correlation = np.array(
        [
            [1.0, 0.86, 0.01, 0.80, 0.48],
            [0.86, 1.0, 0.11, 0.77, 0.56],
            [0.01, 0.11, 1.0, 0.02, 0.11],
            [0.80, 0.77, 0.02, 1.0, 0.55],
            [0.48, 0.56, 0.11, 0.55, 1.0],
        ]
    )
    assert not shared_errors(correlation, np.full((5, 5), 800.0)).any()


def test_two_judges_with_tastes_tell_no_equals_apart() -> None:
    stars = [has_star(fit_of(planted("two judges with strong tastes", seed, equal=True))) for seed in range(20)]
    assert sum(stars) <= 3  # one judge alone is no panel whose tastes are known


def test_two_copies_count_about_once_and_take_no_panel() -> None:
    taus, plain, weights = [], [], []
    for seed in range(8):
        panel = planted("copies with a taste", seed)
        fit = fit_of(panel)
        taus.append(kendall(panel.quality, fit.score))
        plain.append(kendall(panel.quality, panel.scores.mean(axis=(0, 2))))
        weights.append(fit.judges.information / fit.judges.information.sum())
    assert np.mean(weights, axis=0)[:2].sum() < 0.35
    assert np.mean(taus) > np.mean(plain) + 0.03  # type: ignore[arg-type]


def test_tastes_of_judges_are_in_tests_and_intervals() -> None:
    hits: list[bool] = []
    for seed in range(10):
        panel = planted("tastes", seed)
        hits += coverage(fit_of(panel), panel)
    assert 0.88 <= np.mean(hits) <= 0.99
    assert sum(has_star(fit_of(planted("tastes", seed, equal=True))) for seed in range(20)) <= 3


def test_a_panel_says_how_many_independent_judges_it_is_worth(tmp_path: Path) -> None:
    loaded = write(tmp_path / "run", arena(1, 0.65))
    worth = panel_worth(loaded)
    assert worth is not None
    assert worth.judges == 4  # the random and the constant one tell nothing
    assert worth.lower <= worth.effective <= worth.upper <= 4
    sentence, of_flagged = panel_sentences(worth)
    assert sentence.startswith("4 judges, worth")
    assert worth.flagged is not None
    assert worth.flagged.judges == ("selfish", "verbose")
    assert of_flagged.endswith("of the weight, with a bias beyond chance: self-preference, verbosity.")


@pytest.mark.parametrize(("other", "is_carried"), [("gpt-4o-mini", True), ("claude-3-haiku", False)])
def test_judges_of_one_family_that_carry_a_panel_are_named(tmp_path: Path, other: str, is_carried: bool) -> None:
    run = at_home(0, 0.0)
    blunt = graded(
        np.random.default_rng(0).normal(size=run.levels.shape[:2]), np.random.default_rng(1), (-0.5, 0.5), 1.0
    )
    levels = np.concatenate([run.levels, blunt[:, :, None]], axis=2)
    run = replace(run, levels=levels, judges=("gpt-4o", other, "mistral-small"))
    worth = panel_worth(write(tmp_path / "run", run))
    assert worth is not None
    sentences = [text for text in panel_sentences(worth) if "of one family" in text]
    assert bool(sentences) == is_carried
    if is_carried:
        assert sentences[0].startswith("gpt-4o and gpt-4o-mini, of one family (openai), carry ")


def test_an_advantage_at_items_of_its_own_is_found_and_taken_out(tmp_path: Path) -> None:
    stars, found = dict.fromkeys((0.0, 0.6, 1.2), 0), dict.fromkeys((0.0, 0.6, 1.2), 0)
    for advantage in found:
        for seed in range(6):
            loaded = write(tmp_path / f"{advantage}-{seed}", at_home(seed, advantage))
            report = student_report(loaded)
            assert [row.student for row in report.own_items] == ["a", "b"]
            assert not any(row.in_common for row in report.own_items)
            flagged = [row.student for row in report.own_items if row.flagged]
            found[advantage] += flagged == ["a"]
            stars[advantage] += any(pair.significant for pair in report.pairs)
            assert bool(own_items_sentences(report.own_items)) == bool(flagged)
    assert found[1.2] >= 5
    assert found[0.0] <= 1
    assert max(stars.values()) <= 1  # they are alike at items of others


def test_two_students_who_wrote_all_items_are_compared_beside_an_advantage_in_common(tmp_path: Path) -> None:
    run = at_home(1, 0.0, "ab")
    for place, teacher in enumerate(run.teachers):
        run.levels[place, "ab".index(teacher)] = 2  # both are perfect at their own
    report = student_report(write(tmp_path / "run", run))
    assert all(row.in_common and row.flagged for row in report.own_items)
    assert not any(pair.significant for pair in report.pairs)
    sentence, open_question = own_items_sentences(report.own_items)
    assert sentence.startswith("a and b are better by ")
    # Chance or not: that one of them may gain more is said.
    assert open_question.startswith("a and b wrote the items that both answered: if one gains more than the other")
    alike = student_report(write(tmp_path / "alike", at_home(2, 0.0, "ab")))
    assert not any(row.flagged for row in alike.own_items)
    assert own_items_sentences(alike.own_items) == [open_question]


def test_what_a_student_gains_at_items_of_its_own_is_said_to_be_unknown_where_all_are_its_own(tmp_path: Path) -> None:
    report = student_report(write(tmp_path / "run", replace(at_home(0, 1.2), teachers=["a"] * 80)))
    (row,) = report.own_items
    assert (row.student, row.effect, row.p_value, row.flagged, row.items) == ("a", None, None, False, 80)
    assert all(student.fit is not None for student in report.students)
    (sentence,) = own_items_sentences(report.own_items)
    assert sentence.startswith("What a gained at items of its own cannot be told from quality")


def test_who_wrote_items_that_no_student_of_the_run_wrote_is_of_no_matter(tmp_path: Path) -> None:
    runs = [replace(at_home(0, 0.0), teachers=[f"{name}{place % 2}" for place in range(80)]) for name in ("t", "u")]
    first, second = (student_report(write(tmp_path / run.teachers[0], run)) for run in runs)
    assert first.own_items == second.own_items == ()
    assert first.students == second.students


def test_scores_that_are_missing_by_student_are_told(tmp_path: Path) -> None:
    run = at_home(0, 0.0)
    assert missing_rows(write(tmp_path / "whole", run)) == ()
    worst = np.argsort(run.levels[:, 2].sum(axis=(1, 2)))[:20]
    run.levels[worst, 2] = -1  # no judge scored the worst answers of c
    (row, *others) = missing_rows(write(tmp_path / "gaps", run))
    assert (row.judge, row.student, row.answers, row.missing) == ("", "c", 80, 20)
    assert {other.judge for other in others} == {"j", "k"}
    sentence, of_tests = missing_sentences([row, *others])
    assert sentence.startswith("Every judge left 25% of c's answers without a score and 0% of others': if these")
    assert of_tests == "Differences that answers without any score may explain count as chance."


def test_students_who_alone_differ_are_told_apart_beside_a_judge_that_disagrees() -> None:
    rng = np.random.default_rng(0)
    panel = planted("independent", 0, items=12)
    levels = np.array([1.0, 0.6, 0.0])[:, None] + np.zeros(3)
    levels[:, 2] = (0.67, 0.83, 0.0)  # of the first two the third judge prefers the other
    scores = np.clip(levels + 0.08 * rng.normal(size=(12, 3, 3)), 0.0, 1.0)  # within students there is noise alone
    fit = fit_of(replace(panel, scores=scores, quality=np.arange(3.0)))
    best, worst = 0, 2
    assert fit.score[best] - fit.score[worst] == pytest.approx(0.9, abs=0.12)
    tests = {pair: test for pair, (test, _) in fitted_pairs(fit)}
    assert tests[best, worst].p_value < 0.01


def test_answers_to_items_that_nobody_has_judged_yet_are_not_missing(tmp_path: Path) -> None:
    run = at_home(0, 0.0)
    run.levels[40:] = -1  # judging ended
    assert missing_rows(write(tmp_path / "half", run)) == ()
    run.levels[:10, 2] = -1
    row, *_ = missing_rows(write(tmp_path / "gaps", run))
    assert (row.judge, row.student, row.answers, row.missing, row.elsewhere) == ("", "c", 40, 10, 0.0)


def test_what_missing_scores_may_explain_tells_no_students_apart(tmp_path: Path) -> None:
    run = worst_left_out(0)
    report = student_report(write(tmp_path / "run", run))
    pairs = {(pair.better, pair.worse): pair for pair in report.pairs}
    lead = pairs["c", "a"]
    assert lead.fit > 0.15
    assert not lead.significant
    assert lead.fit_lower < 0.0
    # Who lost answers at random is told as well, and what chance cannot explain stays.
    run.levels[:, 0] = 0
    apart = {
        (pair.better, pair.worse) for pair in student_report(write(tmp_path / "worse", run)).pairs if pair.significant
    }
    assert {("c", "a"), ("b", "a")} <= apart


def test_a_judge_that_never_scored_a_student_is_told_apart_from_scores_that_are_missing(tmp_path: Path) -> None:
    run = at_home(0, 0.0)
    run.levels[:, 2, 1] = -1
    rows = missing_rows(write(tmp_path / "run", run))
    assert [(row.judge, row.student, row.missing) for row in rows] == [("k", "c", 80)]
    assert missing_sentences(rows) == ["k gave no answer of c a score: of them other judges alone tell."]


def test_a_blunt_judge_among_sharp_ones_favours_no_length_where_most_answers_are_low(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    items, students, judges = 400, ("a", "b", "c", "d"), ("s", "t", "u", "v", "blunt")
    quality = rng.permutation(np.linspace(-0.8, 0.8, 4)) + 0.9 * rng.normal(size=(items, 4))
    length = 0.5 * quality + 0.6 * rng.normal(size=quality.shape)  # better answers are longer
    levels = np.stack(
        [
            graded(quality + noise * rng.normal(size=quality.shape), rng, (0.9, 1.8), 0.3)
            for noise in (0.2, 0.2, 0.2, 0.2, 1.4)
        ],
        axis=2,
    )
    tokens = np.maximum(5, np.rint(150 * 2.0**length)).astype(np.int64)
    run = Planted(levels, students, judges, ["ada"] * items, [words(rng, 12) for _ in range(items)], tokens)
    tests = bias_tests(write(tmp_path / "run", run))
    assert {row.judge for row in tests if row.bias == "verbosity"} == {*judges}
    assert not [row for row in tests if row.flagged]
