"""Runs whose judges grade in other ways, behind a server that speaks as providers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.agreement import judge_pairs, reliability
from coeval.analysis.students import student_cells, student_rows
from coeval.analysis.units import load_run
from coeval.analysis.votes import Rule
from coeval.mock.server import MockServer
from coeval.pairs.preferences import PreferenceFilter, gather
from coeval.storage.run import Run
from tests.coeval.batch.batch_helpers import batched
from tests.coeval.batch.batch_helpers import config as batch_config
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, meta_of, model, records, run_of, write_config

PER_FACTOR = {"evaluation_mode": "per_factor", "expected_scores": True}


def config(folder: Path, server: MockServer, judge: dict[str, Any] | None = None, **task: Any) -> Path:
    """Two students of one teacher, and two judges, of whom one may have parameters of its own."""
    return write_config(
        folder,
        [
            model("owl", server, roles=["teacher"]),
            model("ant", server, skill=0.9),
            model("bee", server, skill=0.4),
            model("jay", server, roles=["judge"], noise=0.05, **(judge or {})),
            model("kea", server, roles=["judge"], noise=0.2),
        ],
        [{**STATIC_TASK, **task}],
    )


def ran(folder: Path, judge: dict[str, Any] | None = None, **task: Any) -> Run:
    with MockServer() as server:
        assert coeval("run", "--config", config(folder, server, judge, **task)) == 0
    assert meta_of(run_of(folder))["status"] == "completed"
    return run_of(folder)


@pytest.mark.parametrize("mode", ["single", "per_factor"])
@pytest.mark.parametrize("scale", ["1-10", ["useless", "poor", "fair", "good"], "levels"])
def test_every_scale_is_graded_on_and_stored_by_its_contract(tmp_path: Path, mode: str, scale: Any) -> None:
    found = records(ran(tmp_path, scale=scale, evaluation_mode=mode, rationale=True), "evaluation")
    assert len(found) == 16
    for record in found:
        assert set(record["scores"]) == {"clarity", "tone"}
        assert record["rationale"].count("That is how good it looks to me.") == (1 if mode == "single" else 2)
        if scale == "levels":
            assert set(record["scores"].values()) <= {"High", "Medium", "Low"}
            assert "grades" not in record
        else:
            names = [str(grade) for grade in range(1, 11)] if scale == "1-10" else scale
            for factor, grade in record["grades"].items():
                assert record["scores"][factor] == f"{names.index(grade) / (len(names) - 1):.4f}"
    assert "how good" not in (run_of(tmp_path).folder / "run.log").read_text()


def test_numbers_are_analysed_as_numbers(tmp_path: Path) -> None:
    loaded = load_run(ran(tmp_path, scale="1-10").folder)
    assert not loaded.units.is_level.any()
    (pair,) = judge_pairs(loaded)
    gaps = abs(loaded.pairs.scores[:, 0] - loaded.pairs.scores[:, 1])
    assert pair.wpa == pytest.approx(1 - gaps.mean())
    assert pair.kappa is None
    assert pair.spearman is not None
    assert pair.spearman > 0.5
    assert all(row.alpha_ordinal is not None for row in reliability(loaded))
    assert [row.student for row in student_rows(loaded)] == ["ant", "bee"]


def test_answers_of_batch_jobs_are_read_on_their_scale(tmp_path: Path) -> None:
    task = {**STATIC_TASK, "scale": ["useless", "poor", "fair", "good"], "rationale": True}
    with BatchServer() as server:
        judge = batched(server, parameters={"text": '{"rationale": "So so.", "score": "Fair"}'}, roles=["judge"])
        models = [model("owl", roles=["teacher"]), model("ant"), {**judge, "name": "jay"}]
        path = batch_config(tmp_path, models, [{**task, "evaluation_mode": "per_factor"}])
        assert coeval("run", "--config", path) == 0
    found = records(run_of(tmp_path), "evaluation")
    assert [one["scores"] for one in found] == [{"clarity": "0.6667", "tone": "0.6667"}] * 4
    assert {one["rationale"] for one in found} == {"clarity: So so.\ntone: So so."}


def test_a_grade_outside_the_scale_is_never_a_score(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server, {"text": '{"clarity": 11, "tone": "7 of 10"}'}, scale="1-10")
        assert coeval("run", "--config", path) == 1
    mine = [record for record in records(run_of(tmp_path), "evaluation") if record["judge_model_id"] == "jay"]
    assert len(mine) == 8
    assert all(record["status"] == "failed" and record["scores"] == {} for record in mine)


def test_no_log_tells_a_rationale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer() as server:
        said = '{"rationale": "Secret words.", "scores": {"clarity": "High", "tone": "Secret words."}}'
        path = config(tmp_path, server, {"text": said}, rationale=True)
        assert coeval("run", "--config", path, "--log-level", "DEBUG") == 1
    shown, folder = capsys.readouterr(), run_of(tmp_path).folder
    texts = [shown.out, shown.err, *((folder / name).read_text() for name in ("run.log", "run_errors.jsonl"))]
    assert all("no grade of the scale for 'tone'" in text or text == shown.err for text in texts)
    assert not any("Secret" in text for text in texts)


def test_a_rationale_comes_before_a_verdict(tmp_path: Path) -> None:
    found = records(ran(tmp_path, evaluation_mode="pairwise", rationale=True), "pairwise")
    assert {record["winner"] for record in found} >= {"model_a", "model_b"}
    assert all(record["rationale"].startswith("ab: That") for record in found)


def test_scores_are_expected_values_where_probabilities_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = records(ran(tmp_path, {"logprobs": False}, **PER_FACTOR), "evaluation")
    plain, weighed = ([one for one in found if one["judge_model_id"] == name] for name in ("jay", "kea"))
    assert all(set(one["scores"].values()) <= {"High", "Medium", "Low"} for one in plain)
    assert all(0 <= float(score) <= 1 for one in weighed for score in one["scores"].values())
    assert len({score for one in weighed for score in one["scores"].values()}) > 3
    assert all(one["grades"].keys() == one["scores"].keys() for one in found)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("jay: no log-probabilities") == 1
    assert "kea: no log-probabilities" not in shown.out + shown.err


def test_answers_that_are_kept_are_kept_with_their_probabilities(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server, **PER_FACTOR)
        path.write_text(path.read_text().replace("cache: false", "cache: true"))
        assert coeval("run", "--config", path) == 0
        first = server.requests
        second = path.read_text().replace("id: one", "id: two")
        path.write_text(second)
        assert coeval("run", "--config", path) == 0
        assert server.requests == first
    runs = [records(run_of(tmp_path, name), "evaluation") for name in ("one", "two")]
    one, two = ({record["id"]: record["scores"] for record in found} for found in runs)
    assert one == two
    assert all("." in score for scores in two.values() for score in scores.values())


def test_factors_count_by_their_weight(tmp_path: Path) -> None:
    heavy = {"clarity": {"description": "Is it clear?", "weight": 3}, "tone": "Is the tone right?"}
    run = ran(tmp_path, rubric=heavy)
    loaded = load_run(run.folder)
    cells = {(cell.student, cell.value): cell.mean for cell in student_cells(loaded) if cell.dimension == "factor"}
    for row in student_rows(loaded):
        clarity, tone = cells[row.student, "clarity"], cells[row.student, "tone"]
        assert row.mean == pytest.approx((3 * clarity + tone) / 4)
        assert row.macro == pytest.approx(row.mean)
        assert row.unweighted == pytest.approx((clarity + tone) / 2)
        assert row.lower <= row.mean <= row.upper
    assert loaded.header.weights == {"mail": {"clarity": 3.0}}
    margins = [one.margin for one in gather(load_run(run.folder), PreferenceFilter()).preferences]
    alike = gather(load_run(run.folder), PreferenceFilter(rule=Rule(weights={"clarity": 1.0}))).preferences
    assert margins == [
        one.margin
        for one in gather(load_run(run.folder), PreferenceFilter(rule=Rule(weights={"clarity": 3.0}))).preferences
    ]
    assert margins != [one.margin for one in alike]


def test_judges_do_not_hear_of_weights_and_one_that_changes_asks_nobody(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server)
        assert coeval("run", "--config", path) == 0
        asked = server.requests
        heavy = {"clarity": {"description": "Is it clear?", "weight": 2}, "tone": "Is the tone right?"}
        path = config(tmp_path, server, rubric=heavy)
        assert coeval("run", "--config", path, "--continue") == 0
        assert server.requests == asked
    assert load_run(run_of(tmp_path).folder).header.weights == {"mail": {"clarity": 2.0}}
    assert json.loads(run_of(tmp_path).rubric("mail").read_text())["clarity"] == "Is it clear?"
