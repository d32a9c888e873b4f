"""What two runs are compared on, and what the exit code says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coeval.commands import analyze
from tests.coeval.analysis.runs import both, item, response, verdict, write_lines, write_run

Scores = dict[tuple[str, str, str], dict[str, str]]


def scores_of(task: str, level: str, judges: tuple[str, ...] = ("j1",)) -> Scores:
    """Students s1 and s2 on twelve items."""
    return {
        (f"{task}/ada/{number}", student, judge): both(level if number % 2 else "High")
        for number in range(12)
        for student in ("s1", "s2")
        for judge in judges
    }


def flags_of(before: Path, after: Path) -> list[str]:
    return ["--before", str(before), "--after", str(after)]


def words(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, without the blanks that align it."""
    return " ".join(capsys.readouterr().out.split())


def test_a_task_that_one_run_alone_has_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", scores_of("mail", "High"))
    after = write_run(tmp_path / "after", {**scores_of("mail", "High"), **scores_of("poem", "Low")})
    assert analyze.compare_main(flags_of(before, after)) == 0
    told = words(capsys)
    assert "s1 all tasks 1.000 -> 1.000" in told
    assert "left out: task poem, 48 scores that only after has" in told


def test_what_is_written_is_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / name, scores_of("mail", "High")) for name in ("before", "after")]
    out = tmp_path / "changes"
    assert analyze.compare_main([*flags_of(*runs), "--out", f"{out}.json"]) == 2
    told = f"error: --out {out}.json: is a folder for report.json and changes.csv; name one, such as {out}\n"
    assert capsys.readouterr() == ("", told)
    assert not Path(f"{out}.json").exists()
    assert analyze.compare_main([*flags_of(*runs), "--out", str(out)]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["changes.csv", "report.json"]


def test_one_missing_score_hides_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six of forty answers became worse, by less than prompts differ among themselves."""

    def scores(worse: int) -> dict[tuple[str, str, str], dict[str, str]]:
        levels = {n: "High" if n % 2 else "Low" for n in range(40)} | dict.fromkeys(range(1, 2 * worse, 2), "Medium")
        return {(f"mail/ada/{n}", "s1", judge): both(levels[n]) for n in range(40) for judge in ("j1", "j2")}

    missing = scores(0)
    del missing["mail/ada/39", "s1", "j2"]
    before, after = write_run(tmp_path / "before", missing), write_run(tmp_path / "after", scores(6))
    assert analyze.compare_main(flags_of(before, after)) == 1
    assert "s1 all tasks 0.500 -> 0.425 -0.075" in words(capsys)


def configured(*judges: tuple[str, str]) -> list[dict[str, object]]:
    """Judges and the models that play them."""
    one = {"interface": "openai", "roles": ["judge"]}
    return [{**one, "name": name, "parameters": {"model": model}} for name, model in judges]


def test_a_harsher_judge_is_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = configured(("j1", "old"), ("gone", "old"))
    before = write_run(tmp_path / "before", scores_of("mail", "High", ("j1", "gone")), models=models)
    harsh = {key: both("Low") for key in scores_of("mail", "High", ("harsh",))}
    models = configured(("j1", "new"), ("harsh", "new"))
    after = write_run(tmp_path / "after", {**scores_of("mail", "High"), **harsh}, models=models)
    assert analyze.compare_main(flags_of(before, after)) == 0
    told = capsys.readouterr().out
    assert "left out: judge gone, 48 scores that only before has" in told
    assert "left out: judge harsh, 48 scores that only after has" in told
    assert "warning: judge j1: old -> new: another model judges" in told


def test_nothing_in_common_is_an_error_and_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", scores_of("mail", "High"))
    after = write_run(tmp_path / "after", scores_of("mail", "Low", ("j2",)))
    assert analyze.compare_main(flags_of(before, after)) == 2
    assert "nothing to compare; only one of them has judge j1, judge j2" in capsys.readouterr().err
    assert analyze.compare_main(flags_of(before, tmp_path / "nowhere")) == 2
    assert "holds no run" in capsys.readouterr().err


def pairs_run(folder: Path, winner: str) -> Path:
    """Two students compared on twelve items, no scores."""
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"experiment_id": folder.name, "status": "completed"}))
    points = [f"mail/ada/{number}" for number in range(12)]
    write_lines(folder / "phase3_datapoints/t.x.datapoints.jsonl", map(item, points))
    answers = [response(point, student) for point in points for student in ("s1", "s2")]
    write_lines(folder / "phase4_responses/t.x.responses.jsonl", answers)
    found = [verdict(point, "s1", "s2", "j", winner) for point in points]
    write_lines(folder / "phase5_pairwise/mail.ada.j.pairwise.jsonl", found)
    return folder


def test_runs_of_pairs_are_compared_by_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = pairs_run(tmp_path / "before", "model_a"), pairs_run(tmp_path / "after", "tie")
    assert analyze.compare_main(flags_of(before, after)) == 1
    told = words(capsys)
    assert "s1 all tasks (wins) 1.000 -> 0.500 -0.500" in told
    assert "s2 mail (wins) 0.000 -> 0.500 +0.500" in told
