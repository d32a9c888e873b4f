"""Judging that ends when first place is decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.coeval_panels import first_items_of, planted
from coeval.analysis.fit import fit_table
from coeval.mock.server import MockServer
from coeval.planning.gaps import missing_text
from coeval.planning.stopping import boundary, first_place, looks
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, model, records, run_of, write_config

ITEMS = 60


def test_equals_cross_the_boundary_at_any_time_with_less_than_the_level() -> None:
    steps = np.random.default_rng(0).normal(size=(4_000, 500)).cumsum(axis=1)
    number = np.arange(1, 501)
    z = np.abs(steps) / np.sqrt(number)
    limits = np.array([boundary(float(n), 0.05) for n in number])
    assert (z >= limits).any(axis=1).mean() < 0.05
    assert (z >= 1.96).any(axis=1).mean() > 0.3  # a test of a fixed size, looked at as often


def test_the_last_look_is_at_all_items() -> None:
    assert list(looks(40)) == [16, 20, 25, 32, 40]
    assert list(looks(7)) == [7]


def test_a_leader_is_decided_and_one_among_equals_is_not() -> None:
    panel = planted("independent", 0, items=400)
    fit = fit_table(panel.as_table())
    assert fit is not None
    place = first_place(fit, 0.95)
    assert place.is_decided
    assert place.student == int(panel.quality.argmax())
    few = fit_table(first_items_of(panel, 5).as_table())
    assert few is not None
    assert not first_place(few, 0.95).is_decided
    for seed in range(5):
        equal = fit_table(planted("independent", seed, equal=True, items=160).as_table())
        assert equal is not None
        assert not first_place(equal, 0.95).is_decided


def test_nothing_is_decided_while_a_student_has_no_scores() -> None:
    panel = planted("independent", 0, items=400)
    table = panel.as_table()
    worst = int(panel.quality.argmin())
    scores = table.scores.copy()
    scores[table.student == worst] = np.nan
    fit = fit_table(replace(table, scores=scores))
    assert fit is not None
    assert not first_place(fit, 0.95).is_decided


def test_a_lead_that_missing_scores_may_explain_decides_nothing() -> None:
    panel = planted("independent", 0, items=400)
    fit = fit_table(panel.as_table())
    assert fit is not None
    doubts = np.zeros((len(panel.quality), 2))
    leader = int(panel.quality.argmax())
    second = int(panel.quality.argsort()[-2])
    doubts[leader, 1] = 1.0  # it may be better than it seems
    assert first_place(fit, 0.95, doubts).is_decided
    doubts[second, 1] = 1.0
    assert not first_place(fit, 0.95, doubts).is_decided
    doubts = np.zeros_like(doubts)
    doubts[leader, 0] = 1.0
    assert not first_place(fit, 0.95, doubts).is_decided


def judged_run(folder: Path, server: MockServer, **experiment: Any) -> Path:
    """The configuration of a run with three students, the first of whom is far ahead."""
    models = [model("ant", roles=["teacher"])]
    models += [model(name, skill=skill) for name, skill in (("bee", 0.95), ("cow", 0.3), ("dog", 0.1))]
    models += [model(name, server, roles=["judge"]) for name in ("elk", "fox")]
    task = {**STATIC_TASK, "sampling": {**STATIC_TASK["sampling"], "total": ITEMS}}
    return write_config(folder, models, [task], **experiment)


def test_a_run_ends_when_first_place_is_decided_and_goes_on_without_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer() as server:
        config = judged_run(tmp_path, server, stop_at=0.95)
        assert coeval("run", "--config", config) == 0
        run, meta = run_of(tmp_path), meta_of(run_of(tmp_path))
        judged = len(ids(run, "evaluation"))
        assert judged == meta["decided"]["items"]["mail"] * 3 * 2
        assert judged < ITEMS * 3 * 2
        assert (meta["decided"]["first"], meta["decided"]["confidence"]) == ("bee", 0.95)
        assert meta["status"] == "completed"
        assert missing_text(run) == ""
        assert "stop: first place is decided at 95%: bee" in capsys.readouterr().out
        assert coeval("status", "--run", run.folder) == 0
        assert "first place is decided at 95%: bee" in capsys.readouterr().out
        asked = len(server.bodies)
        assert coeval("run", "--config", config, "--continue") == 0
        assert len(server.bodies) == asked  # the same looks at the same records
        whole = yaml.safe_load(config.read_text())
        del whole["experiment"]["stop_at"]
        config.write_text(yaml.safe_dump(whole))
        assert coeval("run", "--config", config, "--continue") == 0
    assert len(ids(run, "evaluation")) == ITEMS * 3 * 2


def test_a_run_that_goes_on_counts_all_items_that_were_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer() as server:
        config = judged_run(tmp_path, server)
        more = yaml.safe_load(config.read_text())
        fewer = yaml.safe_load(config.read_text())
        fewer["tasks"][0]["sampling"]["total"] = 30
        config.write_text(yaml.safe_dump(fewer))
        assert coeval("run", "--config", config) == 0
        more["experiment"]["stop_at"] = 0.95
        config.write_text(yaml.safe_dump(more))
        capsys.readouterr()
        assert coeval("run", "--config", config, "--continue") == 0
    judged = {record["datapoint_id"] for record in records(run_of(tmp_path), "evaluation")}
    assert len(judged) >= 30
    assert meta_of(run_of(tmp_path))["decided"]["items"] == {"mail": len(judged)}
    assert f"bee, after {len(judged)} of {ITEMS} items" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_what_failed_is_not_asked_again_by_the_next_look(tmp_path: Path, mode: str) -> None:
    with MockServer() as server:
        models = [model("ant", roles=["teacher"])]
        models += [model(name, skill=0.5) for name in ("bee", "cow", "dog")]
        models.append(model("elk", server, roles=["judge"], malformed_rate=0.7))
        sampling = {**STATIC_TASK["sampling"], "total": 32}
        task = {**STATIC_TASK, "sampling": sampling, "evaluation_mode": mode}
        assert coeval("run", "--config", write_config(tmp_path, models, [task], stop_at=0.95)) == 1
    kind = "evaluation" if mode == "single" else "pairwise"
    failed = Counter(record["id"] for record in records(run_of(tmp_path), kind) if record.get("status") == "failed")
    assert set(failed.values()) == {1}


@pytest.mark.parametrize("stop_at", [0.5, 1, "soon"])
def test_a_confidence_that_is_none_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stop_at: Any
) -> None:
    with MockServer() as server:
        assert coeval("run", "--config", judged_run(tmp_path, server, stop_at=stop_at)) == 1
    assert "stop_at" in capsys.readouterr().err


def test_pairs_that_are_chosen_over_all_items_do_not_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {**STATIC_TASK, "evaluation_mode": "pairwise", "pairwise": {"schedule": "active", "pairs": 4}}
    models = [model("ant", roles=["teacher", "student"]), model("bee"), model("cow", roles=["judge"])]
    assert coeval("run", "--config", write_config(tmp_path, models, [task], stop_at=0.95)) == 1
    assert "goes with `schedule: all`" in capsys.readouterr().err
