"""The robust set where scores are missing, of several kinds, or all alike."""

from __future__ import annotations

from pathlib import Path

from coeval.analysis.robust import robust_summary
from coeval.analysis.units import RobustSettings, load_run
from tests.coeval.analysis.runs import both, response, run_of, write_lines, write_run

ALL = RobustSettings("all", "spa", "v1", 1.0, None, 0.5)


def test_an_answer_that_no_judge_scored_is_not_agreed_on(tmp_path: Path) -> None:
    scores = {
        (f"mail/ada/{number}", student, judge): both("High" if student == "s1" else "Low")
        for number in (0, 1)
        for student in ("s1", "s2")
        for judge in ("a", "b")
        if (number, student) != (0, "s2")
    }
    folder = write_run(tmp_path / "run", scores)
    write_lines(folder / "phase4_responses/t.x.responses.jsonl", [response("mail/ada/0", "s2")], mode="a")
    found = robust_summary(load_run(folder), ALL)
    assert found.consistent_fraction == {"mail__ada__0": 0.5, "mail__ada__1": 1.0}
    assert found.kept_ids == ("mail__ada__1",)


def test_both_figures_are_of_what_the_judges_score(tmp_path: Path) -> None:
    rubric = {
        "fit": "Does it fit?",
        "tone": "Is the tone right?",
        "bleu4": {"metric": "bleu", "description": "overlap"},
    }
    models = [{"name": "m", "interface": "metric", "roles": ["judge"]}]
    scores: dict[tuple[str, str, str], dict[str, str]] = {}
    for number in (0, 1):
        for student, level in (("s1", "High"), ("s2", "Medium")):
            point = f"mail/ada/{number}"
            scores |= {(point, student, judge): both(level) for judge in ("a", "b")}
            scores[point, student, "m"] = {"bleu4": "0.1"}
    first, second = robust_summary(run_of(tmp_path, scores, rubric=rubric, models=models), ALL).students
    assert (first.robust, first.full, first.delta, first.flagged) == (1.0, 1.0, 0.0, False)
    assert (second.full, second.full_rank) == (0.5, 2)


def test_judges_that_never_vary_are_ranked_by_spa_and_that_is_told(tmp_path: Path) -> None:
    scores = {("mail/ada/0", "s1", judge): both("High") for judge in ("a", "b")}
    found = robust_summary(run_of(tmp_path, scores), RobustSettings("all", "kappa", "v1", 1.0, None, 0.5))
    assert any("ranked by SPA" in line for line in found.diagnostics)
    assert found.kept == 1
