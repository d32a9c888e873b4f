"""Coverage, tables, the benchmark, comparing runs, and the commands."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from coeval.analysis.compare import changed, compare_runs
from coeval.analysis.coverage import coverage_summary, slices
from coeval.analysis.robust import plurality
from coeval.analysis.tables import write_tables
from coeval.analysis.units import load_run
from coeval.cli import with_exit_code
from coeval.commands import analyze
from coeval.reports.registry import REPORTS, build
from coeval.storage.records import read_records
from p2l.common.errors import InputError
from tests.coeval.analysis.runs import both, evaluation, run_of, verdict, write_lines, write_run

LEVELS = ("High", "Medium", "Low")


def scores_of(shift: int = 0, items: int = 12) -> dict[tuple[str, str, str], dict[str, str]]:
    """Two judges of one mind, two students; with shift 1 student s1 falls a level."""
    return {
        (f"mail/ada/{number}", student, judge): both(LEVELS[min(2, base + (shift if student == "s1" else 0))])
        for number in range(items)
        for student, base in (("s1", number % 2), ("s2", 1))
        for judge in ("j1", "j2")
    }


def test_coverage_and_slices(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=2), attributes={"mail/ada/0": {"tone": "warm", "size": "s"}})
    (folder / "phase1_attributes").mkdir()
    attributes = {"tone": ["warm", "cold"], "size": ["s", "l"]}
    (folder / "phase1_attributes" / "mail_target_attrs.json").write_text(json.dumps(attributes))
    bad = [
        evaluation("mail/ada/0", "s1", "j3", {"fit": "High"}),
        evaluation("mail/ada/1", "s1", "j3", {}, status="failed"),
    ]
    write_lines(folder / "phase5_evaluations/t.x.z.evaluations.jsonl", bad)
    found = coverage_summary(load_run(folder))
    row = next(row for row in found.rows if (row.student, row.judge) == ("s1", "j3"))
    assert (row.expected, row.actual, row.valid, row.failed) == (2, 2, 0, 1)
    (strata,) = found.strata
    assert (strata.strata, strata.covered, strata.coverage, strata.rare) == (4, 1, 0.25, 1)
    assert (strata.values, strata.values_covered, strata.value_coverage) == (4, 2, 0.5)
    total = next(row for row in found.counts if (row.phase, row.dimension) == ("evaluation", "all"))
    assert (total.records, total.failed) == (10, 1)
    part = next(row for row in slices(load_run(folder)) if (row.student, row.judge, row.factor) == ("s1", "j1", "fit"))
    assert (part.total, part.valid, part.mean, part.high, part.medium) == (2, 2, 0.75, 1, 1)
    empty = [row for row in slices(load_run(folder), by_factor=False) if row.judge == "j3"]
    assert [(row.total, row.invalid, row.mean) for row in empty] == [(2, 2, None)]
    assert sum(row.valid for row in slices(load_run(folder))) == 16


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_report_is_written_also_of_an_empty_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty" / "phase5_evaluations").mkdir(parents=True)
    for loaded in (load_run(tmp_path / "empty"), run_of(tmp_path, scores_of(items=3))):
        paths = write_tables(build(name, loaded), tmp_path / "out")
        report = json.loads(paths[0].read_text())
        assert report["header"]["units"] == len(loaded.units)
        for path in paths[1:]:
            with path.open(newline="") as file:
                assert len(list(csv.DictReader(file))) > 0


def test_plurality_prefers_the_lower_of_a_tie() -> None:
    assert plurality(np.array([1.0, 0.5, 1.0])) == "High"
    assert plurality(np.array([1.0, 0.5])) == "Medium"
    assert plurality(np.array([0.25]), is_level=False) == "0.2500"
    assert plurality(np.array([0.75, 0.5, 1.0]), is_level=False) == "0.7500"


def test_benchmark_of_the_robust_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=2))
    flags = ["export-benchmark", "--run", str(folder), "--out", str(tmp_path / "b.jsonl")]
    assert analyze.main(flags) == 0
    assert "one judge alone decides which items are robust: j1" in capsys.readouterr().err
    first = next(read_records(tmp_path / "b.jsonl"))
    assert first.pop("exported_at")
    assert first == {
        "schema_version": "coeval-benchmark-v1",
        "experiment_id": "run",
        "datapoint_id": "mail__ada__0",
        "task_id": "mail",
        "teacher_model_id": "ada",
        "prompt": "prompt of mail/ada/0",
        "reference_response": "reference",
        "sampled_target_attributes": {},
        "rubric": {"fit": "Does it fit?", "tone": "Is the tone right?"},
        "student_scores": {"s1": both("High"), "s2": both("Medium")},
        "judge_set": ["j1"],
        "agreement_metric": "kappa",
        "agreement_threshold": 1.0,
        "consistent_fraction": 1.0,
    }
    flags[-1] = str(tmp_path / "b.parquet")
    assert analyze.main([*flags, "--benchmark-format", "parquet"]) == 0
    table = pq.read_table(tmp_path / "b.parquet")
    assert table.schema.metadata[b"coeval_schema_version"] == b"coeval-benchmark-v1"
    assert json.loads(table.to_pylist()[0]["student_scores"])["s1"] == both("High")


def test_a_benchmark_keeps_types_and_is_what_its_name_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=1), attributes={"mail/ada/0": {"stars": 1, "ok": True}})
    out = tmp_path / "b.parquet"
    flags = ["export-benchmark", "--run", str(folder), "--out", str(out)]
    assert analyze.main(flags) == 0
    (row,) = pq.read_table(out).to_pylist()
    assert json.loads(row["sampled_target_attributes"]) == {"stars": 1, "ok": True}
    assert with_exit_code(analyze.main, [*flags, "--benchmark-format", "jsonl"]) == 1
    assert "ends in .parquet and --benchmark-format is jsonl" in capsys.readouterr().err


def test_a_workbook_brings_no_tables_along(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=1))
    assert analyze.main(["complete-report", "--run", str(folder), "--out", str(tmp_path / "out/x.xlsx")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.xlsx"]


def test_a_large_workbook_is_written_beside_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(analyze, "_LARGE_WORKBOOK_SLICES", 0)
    folder = write_run(tmp_path / "run", scores_of(items=1))
    flags = ["all", "--run", str(folder), "--out", str(tmp_path / "out")]
    assert analyze.main(flags) == 0
    assert zipfile.is_zipfile(tmp_path / "out/complete_report.xlsx")
    (tmp_path / "out/complete_report.xlsx").unlink()
    (tmp_path / "out/complete_report.xlsx").mkdir()
    assert with_exit_code(analyze.main, flags) == 1
    assert capsys.readouterr().err.endswith("complete_report.xlsx: cannot be written: Is a directory\n")


def test_a_run_of_pairs_alone_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", {("mail/ada/0", student, "j"): both("High") for student in ("s1", "s2")})
    (folder / "phase5_evaluations/t.x.y.evaluations.jsonl").unlink()
    found = [verdict("mail/ada/0", "s1", "s2", "j", "model_a")]
    write_lines(folder / "phase5_pairwise/mail.ada.j.pairwise.jsonl", found)
    assert analyze.main(["all", "--run", str(folder), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("note: run has no scores, but 1 verdicts on pairs")
    assert told.err.count("\n") == 1
    assert told.out.startswith("run: no scores, 1 verdicts on pairs, 1 items")
    assert "s1 is preferred most: it wins" in (tmp_path / "out/index.html").read_text()
    assert not (tmp_path / "out/student_report/index.html").exists()
    assert analyze.main(["student-report", "--run", str(folder), "--out", str(tmp_path / "one")]) == 0
    assert "the page is not written, since it has nothing to show: run has no scores" in capsys.readouterr().err
    assert (tmp_path / "one/report.json").is_file()


def test_an_empty_robust_set_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {("mail/ada/1", "s1", judge): both(level) for judge, level in (("a", "High"), ("b", "Low"))}
    folder = write_run(tmp_path / "run", scores)
    for sub in ("robust-summary", "export-benchmark"):
        flags = [sub, "--run", str(folder), "--out", str(tmp_path / "out"), "--judge-selection", "all"]
        assert with_exit_code(analyze.main, flags) == 1
        told = capsys.readouterr().err
        assert "no item is left" in told
        assert "J* (all): a, b" in told


def test_analyze_writes_page_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=3), status="in_progress")
    flags = ["student-report", "--run", str(folder), "--out", str(tmp_path / "out")]
    assert analyze.main(flags) == 0
    assert "in_progress, not completed" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"index.html", "report.json", "students.csv"}
    assert analyze.main([*flags, "--partial-ok"]) == 0
    assert capsys.readouterr().err == ""
    assert json.loads((tmp_path / "out" / "report.json").read_text())["header"]["partial"] is True
    assert "Partial results: the run&#39;s status is in_progress" in (tmp_path / "out" / "index.html").read_text()
    assert analyze.main([*flags, "--log-level", "ERROR"]) == 0
    assert capsys.readouterr().err == ""


def test_mistakes_of_flags_end_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_exit_code(analyze.main, ["all", "--run", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "holds no run" in capsys.readouterr().err
    folder = write_run(tmp_path / "run", scores_of(items=1))
    flags = ["robust-summary", "--run", str(folder), "--out", str(tmp_path / "out"), "--agreement-threshold", "2"]
    assert with_exit_code(analyze.main, flags) == 1
    assert "--agreement-threshold 2.0: give a share from 0 to 1" in capsys.readouterr().err


def test_a_regression_fails_and_noise_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", scores_of())
    after = write_run(tmp_path / "after", scores_of(shift=1))
    flags = ["--before", str(before), "--after", str(after)]
    assert analyze.compare_main(flags) == 1
    assert "s1 all tasks 0.750 -> 0.250 -0.500" in " ".join(capsys.readouterr().out.split())
    assert analyze.compare_main(["--before", str(after), "--after", str(before)]) == 0
    assert analyze.compare_main([*flags, "--students", "s2"]) == 0
    assert analyze.compare_main([*flags, "--threshold", "0.6", "--format", "json", "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["threshold"] == 0.6
    assert analyze.compare_main([*flags, "--students", "nobody"]) == 2


def test_runs_of_other_prompts_are_not_paired(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", scores_of()), write_run(tmp_path / "b", scores_of())
    same = compare_runs(before, load_run(after)).changes[0]
    assert (same.paired, same.difference, same.lower, same.upper) == (True, 0.0, 0.0, 0.0)
    path = after / "phase3_datapoints/t.x.datapoints.jsonl"
    path.write_text(path.read_text().replace("prompt of", "other"))
    other = compare_runs(before, load_run(after)).changes[0]
    assert (other.paired, other.verdict) == (False, "same")
    assert other.lower < 0 < other.upper


def test_verdicts() -> None:
    assert changed(-0.1, 0.2, 0.02) == "same"
    assert changed(-0.1, 0.01, 0.02) == "regression"
    assert changed(0.1, 0.01, 0.02) == "improvement"
    assert changed(-0.01, 0.0, 0.02) == "same"


def test_an_output_folder_that_is_a_file_is_told_in_a_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", scores_of(items=2))
    (tmp_path / "file").write_text("")
    out = ["--out", str(tmp_path / "file")]
    with pytest.raises(InputError, match="file"):
        analyze.main(["student-report", "--run", str(folder), *out])
    assert analyze.compare_main(["--before", str(folder), "--after", str(folder), *out]) == 2


@pytest.mark.parametrize("threshold", ["nan", "-0.1", "inf"])
def test_a_gate_that_can_never_close_is_refused(threshold: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        analyze.compare_main(["--before", str(tmp_path), "--after", str(tmp_path), "--threshold", threshold])


def test_the_threshold_that_an_empty_robust_set_advises_keeps_an_item(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {
        ("mail/ada/0", student, judge): both("High" if student == "s2" or judge == "j1" else "Low")
        for student in ("s1", "s2", "s3")
        for judge in ("j1", "j2")
    }
    for judge in ("j1", "j2"):
        scores["mail/ada/0", "s3", judge] = both("Low")
    folder = write_run(tmp_path / "run", scores)  # two of three students: 0.667, which must not become 0.67
    flags = ["robust-summary", "--judge-selection", "all", "--run", str(folder), "--out", str(tmp_path / "out")]
    assert analyze.main(flags) == 1
    advised = capsys.readouterr().err.partition("--agreement-threshold ")[2].split()[0]
    assert advised == "0.66"
    assert analyze.main([*flags, "--agreement-threshold", advised]) == 0
