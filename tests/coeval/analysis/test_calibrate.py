"""Judges beside people: agreement, maps, students put right, and rows that cannot be used."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coeval_planted import at_home, write
from coeval.analysis.annotations import read_annotations
from coeval.analysis.people import (
    Corrected,
    calibration,
    corrected_run,
    corrected_scores,
    cross_validated,
    fit_map,
    monotone,
)
from coeval.analysis.units import load_run
from coeval.cli import with_exit_code
from coeval.commands import analyze
from coeval.pairs.board import OVERALL, BoardOptions, Slice, boards
from coeval.pairs.preferences import PreferenceFilter, gather
from tests.coeval.analysis.runs import both, write_lines, write_run

LEVELS = ("Low", "Medium", "High")


def judged(folder: Path, items: int = 12) -> Path:
    """Student s1 is one level above s2 for judge `kind`, who never says Low; judge `fair` gives what s1 deserves."""
    scores = {}
    for number in range(items):
        worth = {"s1": number % 3, "s2": max(0, number % 3 - 1)}
        for student, level in worth.items():
            point = f"mail/ada/{number}"
            scores[point, student, "fair"] = both(LEVELS[level])
            scores[point, student, "kind"] = both("High" if level else "Medium")
    return write_run(folder, scores)


def rows_of(items: int, annotator: str = "ann") -> list[dict[str, str]]:
    """What a person who agrees with `fair` says of s1, on one factor."""
    return [
        {"response_id": f"mail__ada__{n}__s1", "factor": "fit", "score": LEVELS[n % 3], "annotator": annotator}
        for n in range(items)
    ]


def test_a_kind_judge_is_put_right(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", rows_of(6))
    loaded = load_run(judged(tmp_path / "run"))
    found = calibration(loaded, read_annotations(tmp_path / "a.jsonl", loaded))
    fair, kind = (row for row in found.agreement if row.dimension == "all")
    assert (fair.rater, fair.equal, fair.weighted, fair.kappa, fair.bias) == ("fair", 1.0, 1.0, 1.0, 0.0)
    assert fair.spearman == pytest.approx(1.0)
    # people: Low, Medium, High twice each; kind: Medium, High, High
    assert (kind.rows, kind.datapoints, kind.equal) == (6, 6, pytest.approx(1 / 3))
    assert (kind.weighted, kind.bias) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    chance = 1 / 3 * 1 / 3 + 2 / 3 * 1 / 3
    assert kind.kappa == pytest.approx((1 / 3 - chance) / (1 - chance))
    assert kind.equal_lower is not None
    assert kind.equal_lower < 1 / 3 < kind.equal_upper  # type: ignore[operator]
    maps = {(row.judge, row.level): (row.pairs, row.people, row.calibrated) for row in found.maps}
    assert maps["kind", "Medium"] == (2, 0.0, 0.0)
    assert maps["kind", "High"] == (4, 0.75, 0.75)
    assert maps["fair", "Medium"] == (2, 0.5, 0.5)
    first, second = found.students
    assert (first.student, first.labels, second.labels) == ("s1", 6, 0)
    assert first.raw_rank == 1
    assert first.calibrated == pytest.approx(0.5, abs=0.05)  # what people gave it
    assert second.calibrated < first.calibrated
    assert first.lower < first.calibrated < first.upper
    assert second.gap == 0.0  # nobody scored its answers,
    assert second.gap_doubt > first.gap_doubt > 0.0  # so that more is left open
    # Who has the fewest labels is asked of first.
    asked = [row.student for row in found.next]
    assert asked.count("s2") > asked.count("s1")
    assert not {row.response_id for row in found.next} & {row["response_id"] for row in rows_of(6)}
    summary = {row.judge: row for row in found.judges}
    assert summary["fair"].few
    assert (summary["fair"].mae_raw, summary["kind"].mae_raw) == (0.0, pytest.approx(1 / 3))


def test_people_among_themselves_are_the_ceiling(tmp_path: Path) -> None:
    other = [{**row, "score": "0.5"} if row["score"] == "High" else row for row in rows_of(6, "bob")]
    write_lines(tmp_path / "a.jsonl", [*rows_of(6), *other])
    loaded = load_run(judged(tmp_path / "run"))
    found = calibration(loaded, read_annotations(tmp_path / "a.jsonl", loaded))
    people = next(row for row in found.agreement if (row.kind, row.dimension) == ("people", "all"))
    assert (people.rows, people.answers, people.equal) == (12, 6, pytest.approx(4 / 6))
    assert people.weighted == pytest.approx(1 - 2 / 6 * 0.5)
    ann = next(row for row in found.agreement if row.rater == "ann")
    assert (ann.kind, ann.bias) == ("annotator", pytest.approx(1 / 6))
    assert next(row for row in found.maps if (row.judge, row.level) == ("fair", "High")).people == 0.75


def test_rows_that_cannot_be_used_are_told_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = judged(tmp_path / "run")
    lines = [
        "datapoint_id,student,factor,score",
        *("mail__ada__0,s1,fit,Low", "mail__ada__1,s1,fit,0.5", "mail__ada__1,s1,fit,medium"),
        *("mail__ada__2,s9,fit,High", "mail__ada__2,s1,smell,High", "mail__ada__2,s1,fit,7", "mail__ada__2,s1,,High"),
    ]
    (tmp_path / "a.csv").write_text("\ufeff" + "\n".join(lines) + "\n")
    flags = ["calibrate", "--run", str(folder), "--out", str(tmp_path / "out"), "--annotations"]
    assert analyze.main([*flags, str(tmp_path / "a.csv")]) == 0
    told = capsys.readouterr()
    assert [line.split(":")[1].strip() for line in told.err.splitlines()] == [
        "1 DUPLICATE",
        "1 INVALID_SCORE",
        "1 MISSING_FIELD",
        "1 UNKNOWN_FACTOR",
        "1 UNKNOWN_RESPONSE",
    ]
    assert "such as a.csv:5 (mail__ada__2__s9)" in told.err
    assert told.out.startswith("2 scores of 1 annotator\n")
    assert "fair 1.000" in " ".join(told.out.split())
    assert json.loads((tmp_path / "out/report.json").read_text())["annotations"] == 2
    page = (tmp_path / "out/index.html").read_text()
    assert "1 left out: is a second one of the same annotator" in page
    assert "From fewer than ten items, so a guess: fair, kind." in page
    with (tmp_path / "out/students.csv").open(newline="") as file:
        assert [row["student"] for row in csv.DictReader(file)] == ["s1", "s2"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.txt", "", "must end in .csv or .jsonl"),
        ("a.csv", "factor,value\n", "has no column response_id (or datapoint_id and student), score"),
        ("a.jsonl", "[1]\n", "none of 1 row can be used: 1 is not a JSON object, such as a.jsonl:1"),
        ("a.jsonl", "", "a.jsonl: holds no rows"),
        ("a.csv", "response_id,factor,score\n", "a.csv: holds no rows"),
    ],
)
def test_a_file_of_no_use_ends_with_one(
    name: str, text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    flags = ["calibrate", "--run", str(judged(tmp_path / "run", 2)), "--out", str(tmp_path / "out")]
    assert with_exit_code(analyze.main, [*flags, "--annotations", str(tmp_path / name)]) == 1
    assert told in capsys.readouterr().err
    assert with_exit_code(analyze.main, [*flags, "--annotations", str(tmp_path / "nowhere.csv")]) == 1
    assert capsys.readouterr().err.endswith("nowhere.csv: cannot be read: No such file or directory\n")


def test_scores_of_a_scale_are_read_by_it(tmp_path: Path) -> None:
    folder = judged(tmp_path / "run", 2)
    (folder / "config.yaml").write_text(json.dumps({"tasks": [{"name": "mail", "scale": "1-5"}]}))
    rows = [{**row, "score": score} for row, score in zip(rows_of(2), (4, "High"), strict=True)]
    write_lines(tmp_path / "a.jsonl", rows)
    found = read_annotations(tmp_path / "a.jsonl", load_run(folder))
    assert found.score.tolist() == [0.75]
    assert [row.code for row in found.bad] == ["INVALID_SCORE"]


def of_policies(seed: int, gap: float, labels: int) -> tuple[Corrected, np.ndarray]:
    """Four policies whose judge takes the last for better than people do by `gap`, and the truth."""
    rng = np.random.default_rng(seed)
    items, policies = 150, 4
    quality = np.array([0.7, 0.65, 0.6, 0.6]) + 0.12 * rng.normal(size=(items, policies))
    seen = quality + 0.08 * rng.normal(size=quality.shape)
    seen[:, 3] += gap
    people = (quality + 0.1 * rng.normal(size=quality.shape)).ravel()
    student, cluster = np.tile(np.arange(policies), items), np.repeat(np.arange(items), policies)
    chosen = rng.choice(items * policies, size=labels, replace=False)
    corrected = corrected_scores(
        np.clip(0.5 * seen.ravel() + 0.4, 0.0, 1.0), student, cluster, policies, chosen, people[chosen]
    )
    return corrected, np.array([0.7, 0.65, 0.6, 0.6])


def test_intervals_hold_where_the_judge_favours_a_student() -> None:
    for gap in (0.0, 0.2):
        hits, apart = [], []
        for seed in range(25):
            corrected, truth = of_policies(seed, gap, 120)
            lower, upper = corrected.limits()
            hits.append((lower <= truth) & (truth <= upper))
            apart.append(corrected.is_apart()[2, 3])
        assert np.mean(hits) > 0.88
        assert np.mean(apart) <= 0.12  # the last two are alike


def test_labels_put_a_favoured_student_back_and_votes_carry_it(tmp_path: Path) -> None:
    corrected, _ = of_policies(0, 0.2, 200)
    assert corrected.gap[3] < min(corrected.gap[:3].min(), -0.04)
    assert int(corrected.score.argmax()) == 0
    # A judge mostly prefers s1, people s2.
    scores = {}
    for number in range(30):
        first, second = ("High", "Medium") if number % 5 else ("Low", "High")
        scores[f"mail/ada/{number}", "s1", "j"] = both(first)
        scores[f"mail/ada/{number}", "s2", "j"] = both(second)
    loaded = load_run(write_run(tmp_path / "run", scores))
    rows = [
        {"response_id": f"mail__ada__{n}__{student}", "factor": "fit", "score": score}
        for n in range(30)
        for student, score in (("s1", "Low"), ("s2", "High" if n % 3 else "Medium"))
    ]
    write_lines(tmp_path / "people.jsonl", rows)
    corrected = corrected_run(loaded, read_annotations(tmp_path / "people.jsonl", loaded))
    assert corrected.score[1] > corrected.score[0]
    for score, first in ((None, "s1"), (corrected.score, "s2")):
        votes = gather(loaded, PreferenceFilter(), score).preferences
        board = boards(votes, BoardOptions(intervals=None))[Slice(OVERALL)]
        assert board.models[int(board.coefs.argmax())] == first


def test_without_labels_it_says_which_to_ask_for_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = judged(tmp_path / "run"), tmp_path / "out"
    assert analyze.main(["calibrate", "--run", str(folder), "--out", str(out)]) == 0
    assert "next.csv has the 20 answers that people should score next" in capsys.readouterr().out
    with (out / "next.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["student"] for row in rows} == {"s1", "s2"}
    assert all(row["prompt"] and row["response"] for row in rows)  # what people have to read is beside it
    # Filled in, it is what the next call reads.
    filled = tmp_path / "filled.csv"
    with filled.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "score": "High"} for row in rows)
    assert analyze.main(["calibrate", "--run", str(folder), "--out", str(out), "--annotations", str(filled)]) == 0
    assert json.loads((out / "report.json").read_text())["annotations"] == len(rows)
    assert (out / "judges.csv").exists()
    # What is no longer told leaves no table behind, and without labels nothing is corrected.
    assert analyze.main(["calibrate", "--run", str(folder), "--out", str(out)]) == 0
    assert not (out / "judges.csv").exists()
    students = json.loads((out / "report.json").read_text())["students"]
    assert [row["calibrated"] for row in students] == pytest.approx([row["raw"] for row in students])


Pair = st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))


@given(st.lists(Pair, min_size=1, max_size=30))
def test_maps_rise_and_keep_the_mean(pairs: list[tuple[float, float]]) -> None:
    judge, people = (np.array(column) for column in zip(*pairs, strict=True))
    found = fit_map(judge, people)
    assert (np.diff(found.fitted) >= -1e-12).all()
    assert found(judge).mean() == pytest.approx(people.mean(), abs=1e-9)
    assert ((found(judge) - people) ** 2).sum() <= ((people.mean() - people) ** 2).sum() + 1e-9


def test_a_score_of_which_people_saw_none_lies_between_its_neighbours() -> None:
    found = fit_map(np.array([0.0, 1.0]), np.array([0.2, 0.6]))
    assert found(np.array([0.5])).tolist() == pytest.approx([0.4])
    assert monotone(np.array([0.6, 0.2, 0.9]), np.array([1.0, 3.0, 1.0])).tolist() == pytest.approx([0.3, 0.3, 0.9])
    assert cross_validated(np.zeros(3), np.zeros(3), np.zeros(3, dtype=np.int64)) is None


def test_a_run_of_pairs_alone_has_no_scores_to_correct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run", replace(at_home(0, 0.0), is_compared=True))
    argv = ["calibrate", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert with_exit_code(analyze.main, argv) == 1
    assert "no scores that people's could correct, only verdicts on pairs" in capsys.readouterr().err
