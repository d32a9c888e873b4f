"""Reading runs: what is joined, what is skipped, and that the order of records plays no part."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.records import norm_of
from coeval.analysis.tables import plain
from coeval.analysis.units import LoadedRun, load_run
from coeval.errors import RunInputError
from coeval.reports.registry import build
from tests.coeval.analysis.runs import both, evaluation, item, response, run_of, write_lines, write_run

SCORES = {
    ("mail/ada/1", "s1", "j1"): {"fit": "High", "tone": "Low"},
    ("mail/ada/1", "s1", "j2"): {"fit": "Medium", "tone": "Low"},
    ("mail/ada/2", "s2", "j1"): both("Low"),
}


def codes(loaded: LoadedRun) -> dict[str, int]:
    return {row.code: row.count for row in loaded.skipped}


def test_units_are_joined_over_three_phases(tmp_path: Path) -> None:
    loaded = run_of(tmp_path, SCORES, attributes={"mail/ada/1": {"tone": "warm"}})
    assert len(loaded.units) == 6
    assert (loaded.tasks, loaded.teachers, loaded.students, loaded.judges) == (
        ("mail",),
        ("ada",),
        ("s1", "s2"),
        ("j1", "j2"),
    )
    assert loaded.units.norm.tolist() == [1.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    rows, values = loaded.grouped(loaded.units, "attribute")
    assert rows.tolist() == [0, 1, 2, 3]
    assert {loaded.attribute_names[value] for value in values} == {"tone=warm"}


def test_both_forms_of_names_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SCORES)
    answers = folder / "phase4_responses"
    (answers / "t.x.responses.jsonl").rename(answers / "mail.ada.s1.responses.jsonl")
    (folder / "phase1_attributes").mkdir()
    (folder / "phase1_attributes" / "mail.target_attrs.json").write_text('{"tone": ["warm", "cold"]}')
    loaded = load_run(folder)
    assert len(loaded.units) == 6
    assert loaded.header.attribute_values == {"mail": {"tone": ("warm", "cold")}}


def test_damage_is_skipped_and_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SCORES)
    write_lines(folder / "phase3_datapoints/t.x.datapoints.jsonl", ["nonsense\n", {"no": "id"}], "a")
    write_lines(folder / "phase4_responses/t.x.responses.jsonl", [{"id": "a__b__1__c", "response": None}], "a")
    orphan = response("mail/ada/9", "s1")
    write_lines(
        folder / "phase4_responses/t.x.responses.jsonl", [orphan, {**orphan, "id": "z", "status": "failed"}], "a"
    )
    broken: list[Any] = [
        evaluation("mail/ada/8", "s1", "j1", both("High")),
        evaluation("mail/ada/9", "s1", "j1", both("High")),
        evaluation("mail/ada/1", "s1", "j3", {"fit": "High"}),
        evaluation("mail/ada/1", "s1", "j4", both("Great")),
        evaluation("mail/ada/1", "s1", "j5", both("High"), status="failed"),
        '{"id": "torn',
    ]
    write_lines(folder / "phase5_evaluations/t.x.y.evaluations.jsonl", broken, "a")
    loaded = load_run(folder)
    assert len(loaded.units) == 6
    assert codes(loaded) == {
        "PARSE_ERROR_P3": 2,
        "PARSE_ERROR_P4": 1,
        "PARSE_ERROR_P5": 1,
        "FAILED_P4": 1,
        "FAILED_P5": 1,
        "MISSING_RESPONSE": 1,
        "MISSING_DATAPOINT": 1,
        "INCOMPLETE_SCORES": 1,
        "INVALID_SCORE_VALUE": 1,
    }


def test_of_one_id_the_last_valid_record_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SCORES)
    again = [
        evaluation("mail/ada/2", "s2", "j1", both("High")),
        evaluation("mail/ada/2", "s2", "j1", {}, status="failed"),
    ]
    write_lines(folder / "phase5_evaluations/t.x.z.evaluations.jsonl", again)
    loaded = load_run(folder)
    assert loaded.units.norm.tolist()[-2:] == [1.0, 1.0]
    assert codes(loaded) == {"DUPLICATE_P5": 1, "FAILED_P5": 1}


def test_factors_of_two_records_are_merged(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {("mail/ada/1", "s1", "j1"): {"fit": "High"}})
    more = [evaluation("mail/ada/1", "s1", "j1", {"tone": "Low"})]
    write_lines(folder / "phase5_evaluations/t.x.z.evaluations.jsonl", more)
    assert load_run(folder).units.norm.tolist() == [1.0, 0.0]


def test_each_kind_of_judge_owes_its_own_factors(tmp_path: Path) -> None:
    rubric = {"fit": "Does it fit?", "bleu4": {"metric": "bleu", "description": "overlap"}}
    scores = {
        ("mail/ada/1", "s1", "j1"): {"fit": "High"},
        ("mail/ada/1", "s1", "m"): {"bleu4": "1.7"},
    }
    loaded = run_of(tmp_path, scores, rubric=rubric, models=[{"name": "m", "interface": "metric", "roles": ["judge"]}])
    assert loaded.kinds == ("model", "metric")
    assert loaded.units.norm.tolist() == [1.0, 1.0]
    assert not loaded.skipped


def test_records_of_others_may_lack_what_their_ids_tell(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_lines(folder / "phase3_datapoints/a.datapoints.jsonl", [{"id": "mail__ada__1", "prompt": "p"}])
    answer = {"id": "mail__ada__1__s1", "response": "words and words"}
    write_lines(folder / "phase4_responses/a.responses.jsonl", [answer])
    write_lines(
        folder / "phase5_evaluations/a.evaluations.jsonl", [{"id": "mail__ada__1__s1__j", "scores": {"x": 0.25}}]
    )
    loaded = load_run(folder)
    assert (loaded.tasks, loaded.teachers, loaded.students, loaded.judges) == (("mail",), ("ada",), ("s1",), ("j",))
    assert loaded.units.norm.tolist() == [0.25]
    assert loaded.tokens.tolist() == [3.0]
    assert loaded.header.partial


def test_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunInputError, match=r"neither meta.json nor phase5_evaluations"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("value", "norm"),
    [
        ("High", (1.0, True)),
        (" low", (0.0, True)),
        ("0.3", (0.3, False)),
        (-2, (0.0, False)),
        *((value, None) for value in (True, "nan", "great", None, ["High"])),
    ],
)
def test_norms(value: object, norm: tuple[float, bool] | None) -> None:
    assert norm_of(value) == norm


def test_order_of_records_plays_no_part(tmp_path: Path) -> None:
    rng = random.Random(1)
    scores = {
        (f"mail/{teacher}/{number}", student, judge): {"fit": rng.choice(("High", "Low")), "tone": "Medium"}
        for teacher in ("ada", "bob")
        for number in range(4)
        for student in ("s1", "s2", "j1")
        for judge in ("j1", "j2")
    }
    folder = write_run(tmp_path / "run", scores, attributes={"mail/ada/1": {"tone": "warm"}})
    names = (
        "student-report",
        "judge-report",
        "teacher-report",
        "robust-summary",
        "judge-consistency",
        "complete-report",
    )
    before = [plain(build(name, load_run(folder))) for name in names]
    for path in folder.glob("phase*/*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        rng.shuffle(lines)
        path.write_text("".join(lines))
    after = [plain(build(name, load_run(folder))) for name in names]
    assert json.dumps(before) == json.dumps(after)


def test_an_item_is_known_by_its_prompt(tmp_path: Path) -> None:
    assert item("mail/ada/1")["prompt"] == "prompt of mail/ada/1"
    loaded = run_of(tmp_path, SCORES)
    assert len(set(loaded.prompt_keys)) == 2
