"""Judges, teachers, students, bias and the robust set on runs small enough to reckon by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from coeval.analysis.agreement import breakdown, is_degenerate, judge_pairs, judge_rows, reliability
from coeval.analysis.bias import bias_report, family_of, family_rows, self_preference_rows, verbosity_rows
from coeval.analysis.coverage import complete_report
from coeval.analysis.distribution import interaction_matrix, judge_consistency, score_distribution
from coeval.analysis.robust import robust_summary
from coeval.analysis.students import (
    by_datapoint,
    label_rows,
    student_cells,
    student_pairs,
    student_rows,
)
from coeval.analysis.teachers import teacher_cells, teacher_report, teacher_rows
from coeval.analysis.units import RobustSettings, load_run
from coeval.analysis.variance import needed_items, pair_power, test_power, variance_components
from tests.coeval.analysis.runs import both, run_of, verdict, write_lines, write_run

LEVELS = ("High", "Medium", "Low")
test_power.__test__ = False  # type: ignore[attr-defined]


def pair_scores(one: str, other: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """Judges a and b on as many items as letters: H, M, L on factor fit, always High on tone."""
    level = {"H": "High", "M": "Medium", "L": "Low"}
    return {
        (f"mail/ada/{number}", "s1", judge): {"fit": level[letters[number]], "tone": "High"}
        for judge, letters in (("a", one), ("b", other))
        for number in range(len(letters))
    }


def test_agreement_of_two_judges(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, pair_scores("HHMLL", "HMMLH"))
    (pair,) = judge_pairs(loaded)
    assert pair.n == 10
    assert pair.spa == pytest.approx(8 / 10)
    assert pair.wpa == pytest.approx((8 + 0.5 + 0) / 10)
    # a: 7 H, 1 M, 2 L; b: 7 H, 2 M, 1 L; chance 0.49 + 0.02 + 0.02
    assert pair.kappa == pytest.approx((0.8 - 0.53) / (1 - 0.53))
    assert pair.kappa_label == "moderate"
    assert pair.spa_lower <= pair.spa <= pair.spa_upper  # type: ignore[operator]
    fit = next(row for row in breakdown(loaded) if (row.judge, row.dimension, row.value) == ("a", "factor", "fit"))
    assert (fit.n, fit.spa, fit.wpa) == (5, pytest.approx(3 / 5), pytest.approx(3.5 / 5))
    assert fit.kappa == pytest.approx((0.6 - 0.32) / (1 - 0.32))  # a: 2 H 1 M 2 L, b: 2 H 2 M 1 L


def test_weighted_scores_follow_what_is_shared(tmp_path: Path) -> None:
    scores = pair_scores("HHHH", "HHHL")
    scores[("mail/ada/0", "s1", "c")] = {"fit": "Low", "tone": "High"}
    rows = {row.judge: row for row in judge_rows(run_of(tmp_path, scores))}
    assert rows["a"].spa == pytest.approx((7 / 8 + 1 / 2) / 2)
    assert rows["a"].weighted_spa == pytest.approx((7 + 1) / (8 + 2))
    assert rows["c"].coverage == pytest.approx(2 / 8)


def test_a_judge_of_few_scores_has_no_rank(tmp_path: Path) -> None:
    scores = pair_scores("HLHLHLHLHLHLHLHLHLHLH", "HLHLHLHLHLHLHLHLHLHLL")
    scores[("mail/ada/0", "s1", "lucky")] = both("High")
    rows = judge_rows(run_of(tmp_path, scores))
    assert [(row.judge, row.rank) for row in rows] == [("a", 1), ("b", 2), ("lucky", None)]
    assert rows[2].weighted_spa == 1.0


def test_one_judge_is_degenerate(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, {("mail/ada/1", "s1", "a"): both("High")})
    (row,) = judge_rows(loaded)
    assert is_degenerate(loaded)
    assert (row.spa, row.weighted_kappa, row.rank) == (1.0, 1.0, 1)
    assert judge_pairs(loaded) == ()
    assert reliability(loaded)[0].alpha_interval is None


def test_numbers_of_metrics_are_no_categories(tmp_path: Path) -> None:
    rubric = {"bleu4": {"metric": "bleu", "description": "overlap"}}
    models = [{"name": name, "interface": "metric", "roles": ["judge"]} for name in ("m", "n")]
    scores = {("mail/ada/1", "s1", "m"): {"bleu4": "0.5"}, ("mail/ada/1", "s1", "n"): {"bleu4": "0.7"}}
    (pair,) = judge_pairs(run_of(tmp_path, scores, rubric=rubric, models=models))
    assert (pair.spa, pair.kappa) == (0.0, None)
    assert pair.wpa == pytest.approx(0.8)


def test_teachers_by_hand(tmp_path: Path) -> None:
    given = {  # teacher, item: scores of s1 and s2
        ("ada", 1): ("High", "Low"),
        ("ada", 2): ("High", "Medium"),
        ("bob", 1): ("High", "Low"),
        ("bob", 2): ("Low", "High"),
    }
    scores = {
        (f"mail/{teacher}/{number}", student, "a"): both(levels[place])
        for (teacher, number), levels in given.items()
        for place, student in enumerate(("s1", "s2"))
    }
    loaded = run_of(tmp_path, scores)
    ada, bob = teacher_rows(loaded)
    assert (ada.teacher, bob.teacher) == ("ada", "bob")
    assert ada.v1 == pytest.approx(0.75**2 / 2)  # means 1.0 and 0.25
    assert ada.r3 == pytest.approx(0.75)
    assert ada.s2 == pytest.approx((1 / math.sqrt(2) + 0.5 / math.sqrt(2)) / 2)
    assert (bob.v1, bob.r3) == (0.0, 0.0)  # both have 0.5 on average
    assert bob.s2 == pytest.approx(1 / math.sqrt(2))
    assert ada.root_v1 == pytest.approx(math.sqrt(ada.v1))
    assert [row.teacher for row in teacher_rows(loaded, "s2")] == ["bob", "ada"]
    cell = next(cell for cell in teacher_cells(loaded) if (cell.teacher, cell.value) == ("ada", "tone"))
    assert (cell.v1, cell.units, cell.mean) == (pytest.approx(ada.v1), 4, pytest.approx(0.625))


def test_one_student_tells_no_teacher_apart(tmp_path: Path) -> None:
    (row,) = teacher_rows(run_of(tmp_path, {("mail/ada/1", "s1", "a"): both("High")}))
    assert (row.v1, row.s2, row.r3) == (0.0, 0.0, 0.0)


def test_teachers_without_scores_have_no_rank_and_no_zero(tmp_path: Path) -> None:
    scores: dict[str, str] = {}
    loaded = run_of(tmp_path, {("mail/owl/1", student, "a"): scores for student in ("s1", "s2")})
    assert (loaded.teachers, len(loaded.units)) == (("owl",), 0)
    report = teacher_report(loaded)
    assert (report.teachers, report.one_student) == ((), False)
    assert {row.model: row.v1 for row in complete_report(loaded).models}["owl"] is None


def test_students_by_hand(tmp_path: Path) -> None:
    scores = {
        ("mail/ada/1", "s1", "s1"): both("High"),
        ("mail/ada/1", "s1", "j"): both("Low"),
        ("sum/ada/1", "s1", "j"): both("Medium"),
        ("mail/ada/1", "s2", "j"): both("Low"),
    }
    loaded = run_of(tmp_path, scores, attributes={"sum/ada/1": {"tone": "warm"}})
    best, worst = student_rows(loaded)
    assert (best.student, best.valid_evals, best.responses, best.datapoints) == ("s1", 6, 2, 2)
    assert best.mean == pytest.approx((2 * 1 + 2 * 0 + 2 * 0.5) / 6)
    assert best.macro == pytest.approx((0.5 + 0.5) / 2)
    assert best.without_self == pytest.approx(0.25)
    assert best.composite == pytest.approx(3.0)
    assert (worst.student, worst.mean) == ("s2", 0.0)
    warm = [cell for cell in student_cells(loaded) if cell.dimension == "attribute"]
    assert [(cell.student, cell.value, cell.mean, cell.units) for cell in warm] == [("s1", "tone=warm", 0.5, 2)]


def planted(seed: int = 0) -> dict[tuple[str, str, str], dict[str, str]]:
    """Four judges, three students of which s1 is best; j4 scores at random, bob's items tell nothing."""
    rng, scores = np.random.default_rng(seed), {}
    for teacher in ("ada", "bob"):
        for number in range(30):
            for skill, student in ((0, "s1"), (1, "s2"), (2, "s3")):
                for judge in ("j1", "j2", "j3", "j4"):
                    noisy = judge == "j4" or teacher == "bob"
                    level = int(rng.integers(3)) if noisy else min(2, max(0, skill + int(rng.random() < 0.05)))
                    scores[f"mail/{teacher}/{number}", student, judge] = both(LEVELS[level])
    return scores


def test_intervals_and_tests_see_a_real_difference(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, planted())
    rows = student_rows(loaded)
    assert [row.student for row in rows] == ["s1", "s2", "s3"]
    assert all(row.lower < row.mean < row.upper for row in rows)
    first = student_pairs(loaded, by_datapoint(loaded))[0]
    assert (first.better, first.worse, first.significant) == ("s1", "s3", True)
    power = pair_power(loaded, by_datapoint(loaded))[0]
    assert power.needed is not None
    assert power.needed < power.datapoints
    assert power.power > 0.99


def test_robust_set_leaves_out_noise(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, planted())
    found = robust_summary(loaded, RobustSettings("top_half", "spa", "v1", 1.0, None, 0.5))
    assert len(found.chosen_judges) == 2
    assert "j4" not in found.chosen_judges
    assert found.chosen_teachers == ("ada",)
    assert (found.candidates, found.kept) == (30, sum(share == 1.0 for share in found.consistent_fraction.values()))
    assert 0 < found.kept < 30
    assert [row.student for row in found.students] == ["s1", "s2", "s3"]
    everything = robust_summary(loaded, RobustSettings("all", "spa", "v1", 0.0, None, 0.5))
    assert everything.kept == everything.candidates == 30


def test_forms_of_the_robust_filter(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, pair_scores("HM", "MM"))
    both_judges = {"judge_selection": "all", "agreement_metric": "spa", "teacher_score_formula": "v1"}
    share = robust_summary(loaded, RobustSettings(**both_judges, agreement_threshold=1.0, theta=None, q_fraction=0.5))
    assert share.consistent_fraction == {"mail__ada__0": 0.5, "mail__ada__1": 1.0}
    assert share.kept_ids == ("mail__ada__1",)
    near = robust_summary(loaded, RobustSettings(**both_judges, agreement_threshold=None, theta=0.25, q_fraction=1.0))
    assert near.kept == 2  # Medium and High both lie 0.25 from their mean
    far = robust_summary(loaded, RobustSettings(**both_judges, agreement_threshold=None, theta=0.2, q_fraction=0.5))
    assert far.kept_ids == ("mail__ada__1",)


def test_an_empty_robust_set_says_why(tmp_path: Path) -> None:
    found = robust_summary(
        run_of(tmp_path, pair_scores("HL", "LH")), RobustSettings("all", "spa", "v1", 1.0, None, 0.5)
    )
    assert (found.kept, found.students) == (0, ())
    assert "--agreement-threshold 0.50" in found.diagnostics[-1]


def test_self_preference_takes_leniency_out(tmp_path: Path) -> None:
    scores = {}
    for number in range(4):
        for student, peer, mild in (("s1", "Low", "Medium"), ("mild", "Low", "High"), ("j", "High", "High")):
            scores[f"mail/ada/{number}", student, "strict"] = both(peer)
            scores[f"mail/ada/{number}", student, "mild"] = both(mild)
    (row,) = self_preference_rows(run_of(tmp_path, scores))
    assert (row.judge, row.units, row.own, row.peers) == ("mild", 8, 1.0, 0.0)
    assert row.others_gap == pytest.approx(0.25)  # 0.5 above on s1, 0 on j
    assert row.preference == pytest.approx(0.75)
    assert row.lower == row.upper == pytest.approx(0.75)


def test_families(tmp_path: Path) -> None:
    assert [family_of(name) for name in ("gpt-4o", "o3-mini", "Claude-x", "my-model")] == [
        "openai",
        "openai",
        "anthropic",
        None,
    ]
    scores = {}
    for number in range(3):
        for student, kin, other in (("gpt-b", "High", "Low"), ("claude-b", "Medium", "Medium")):
            scores[f"mail/ada/{number}", student, "gpt-a"] = both(kin)
            scores[f"mail/ada/{number}", student, "qwen-a"] = both(other)
    (row,) = family_rows(run_of(tmp_path, scores))
    assert (row.judge, row.family, row.students, row.preference) == ("gpt-a", "openai", "gpt-b", 1.0)
    by_role = {"name": "gpt-a", "parameters": {"model": "gpt-4o"}, "role_parameters": {"judge": {"model": "qwen-2"}}}
    assert family_rows(run_of(tmp_path / "by-role", scores, models=[by_role])) == ()


def test_verbosity_within_items(tmp_path: Path) -> None:
    scores, tokens = {}, {}
    for number in range(3):
        for place, student in enumerate(("s1", "s2", "s3")):
            scores[f"mail/ada/{number}", student, "j"] = both(LEVELS[place])
            tokens[f"mail/ada/{number}", student] = 1000 * (number + 1) - 10 * place
    row = verbosity_rows(run_of(tmp_path, scores, tokens=tokens))[0]
    assert row.within_datapoint_r == pytest.approx(1.0)
    assert row.r is not None
    assert row.r < 0.1


def test_flips_of_pairs(tmp_path: Path) -> None:
    said = [["model_a", "model_b"], ["model_a", "model_a"], ["tie", "model_a"], ["model_b", "model_b"], ["tie"]]
    scores = {(f"mail/ada/{number}", student, "j"): both("High") for number in range(5) for student in ("s1", "s2")}
    folder = write_run(tmp_path / "run", scores)
    pairs = [verdict(f"mail/ada/{number}", "s1", "s2", "j", "tie", *orders) for number, orders in enumerate(said)]
    write_lines(folder / "phase5_pairwise/mail.ada.j.pairwise.jsonl", pairs)
    (row,) = bias_report(load_run(folder)).flips
    assert (row.pairs, row.flips, row.inconsistent, row.flip_rate) == (4, 1, 2, 0.25)
    assert row.first_share == pytest.approx(4 / 7)  # order one a, a, -, b; order two b, a, a, b


def test_needed_items_and_power() -> None:
    assert needed_items(0.5, 1.0) == 32  # (2.8016 / 0.5)^2 = 31.4
    assert needed_items(0.0, 1.0) is None
    assert test_power(0.5, 1.0, 32) == pytest.approx(0.807, abs=1e-3)
    assert test_power(0.0, 1.0, 32) == pytest.approx(0.05)


def test_variance_components_are_recovered() -> None:
    rng = np.random.default_rng(0)
    student, item, judge = (axis.ravel() for axis in np.meshgrid(range(60), range(80), range(4), indexing="ij"))
    values = rng.normal(0, 1.0, 60)[student] + rng.normal(0, 0.5, 80)[item] + rng.normal(0, 0.7, len(item))
    found = variance_components(values, {"student": student, "item": item, "judge": judge})
    assert found["student"] == pytest.approx(1.0, rel=0.35)
    assert found["item"] == pytest.approx(0.25, rel=0.35)
    assert found["judge"] == pytest.approx(0.0, abs=0.01)
    assert found["residual"] == pytest.approx(0.49, rel=0.1)


def test_labels_of_answers(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", {("quiz/ada/1", "s1", "j"): both("High")}, attributes={"quiz/ada/1": {"key": "B"}}
    )
    (folder / "config.yaml").write_text('{"tasks": [{"name": "quiz", "label_attributes": ["key"]}]}')
    path = folder / "phase4_responses/t.x.responses.jsonl"
    path.write_text(path.read_text().replace("an answer", "(b)"))
    rows, values = label_rows(load_run(folder))
    assert [(row.student, row.accuracy, row.strict_accuracy, row.n_matched) for row in rows] == [("s1", 1.0, 1.0, 1)]
    assert [(value.label, value.f1, value.support) for value in values] == [("B", 1.0, 1)]


def test_distributions_and_interactions(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, pair_scores("HHL", "HML"), attributes={"mail/ada/0": {"tone": "warm"}})
    rows = {(row.role, row.model, row.dimension, row.value): row for row in score_distribution(loaded).rows}
    row = rows["judge", "b", "factor", "fit"]
    assert (row.units, row.high, row.medium, row.low, row.numeric, row.mean, row.sd) == (3, 1, 1, 1, 0, 0.5, 0.5)
    assert rows["student", "s1", "attribute", "tone=warm"].units == 4
    cells = {cell.factor: cell for cell in interaction_matrix(loaded).cells}
    assert cells[""].mean == pytest.approx(9.5 / 12)
    assert all(cell.deviation == 0.0 for cell in cells.values())
    found = judge_consistency(loaded)
    assert [(one.judge, one.units, one.flagged) for one in found.calibration] == [("a", 6, False), ("b", 6, False)]
    assert [(one.judge, one.window, one.units, one.spa) for one in found.drift] == [
        ("a", 1, 6, pytest.approx(5 / 6)),
        ("b", 1, 6, pytest.approx(5 / 6)),
    ]
