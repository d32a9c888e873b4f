"""The configurations that are shipped are as they say."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from coeval.config.keys import Keys, load_keys
from coeval.config.loading import load_config
from coeval.planning.estimate import estimate
from coeval.storage.run import Run
from tests.coeval.helpers import coeval, meta_of, records
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
SMOKE = Run(Path("benchmark/runs/local-smoke-test"))


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Keys for every provider of the examples; runs are stored below a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return load_keys(None, dict.fromkeys(("OPENAI_API_KEY", "GEMINI_API_KEY", "COHERE_API_KEY"), "sk-not-a-real-key"))


@pytest.mark.parametrize("name", ["first_run", "local_smoke_test", "pairwise", "scales", "to_p2l"])
def test_an_example_is_a_configuration(keys: Keys, name: str) -> None:
    assert load_config(EXAMPLES / f"{name}.yaml", keys=keys).tasks


def test_adding_a_student_takes_the_tasks_of_the_first_run(keys: Keys, tmp_path: Path) -> None:
    first = tmp_path / "benchmark" / "runs" / "first-run"
    first.mkdir(parents=True)
    shutil.copy(EXAMPLES / "first_run.yaml", first / "config.yaml")
    (first / "meta.json").write_text('{"experiment_id": "first-run"}')
    config = load_config(EXAMPLES / "add_student.yaml", keys=keys)
    assert [task.name for task in config.tasks] == ["text_summarization"]
    assert len(config.with_role("student")) == 3


def test_the_medium_benchmark_has_the_calls_and_the_price_that_it_names(keys: Keys) -> None:
    config = load_config(ROOT / "benchmark" / "medium_benchmark.yaml", keys=keys)
    found = asyncio.run(estimate(config, None, samples=0, run=None))
    assert found["total_calls"] == 12_400
    assert 1.80 <= found["total_cost_usd"] <= 2.50
    model = config.models[0]
    assert [model.parameters_for(role)["temperature"] for role in ("teacher", "student", "judge")] == [0.9, 0.7, 0.0]


@pytest.mark.usefixtures("keys")
def test_the_smoke_test_runs_without_keys_or_network() -> None:
    assert coeval("run", "--config", EXAMPLES / "local_smoke_test.yaml") == 0
    assert meta_of(SMOKE)["status"] == "completed"
    assert {one["task_id"] for one in records(SMOKE, "pairwise")} == {"letters"}
    judges = {one["judge_model_id"] for one in records(SMOKE, "evaluation")}
    assert judges == {"mock-judge", "mock-hasty-judge", "label"}


@pytest.mark.usefixtures("keys")
def test_the_example_of_scales_grades_in_every_way() -> None:
    assert coeval("run", "--config", EXAMPLES / "scales.yaml") == 0
    run = Run(Path("benchmark/runs/scales"))
    assert meta_of(run)["status"] == "completed"
    found = records(run, "evaluation")
    assert {one["task_id"] for one in found if "rationale" in one} == {"summaries"}
    assert all("." in score for one in found for score in one["scores"].values())
    assert all("rationale" in one for one in records(run, "pairwise"))
