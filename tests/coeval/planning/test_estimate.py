"""What a run costs: the manual's formulas, its example, and what is left of a run."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.calls import Call, CallError, Reason, Reply
from coeval.interfaces import batch_discount, price_at
from coeval.planning.estimate import BATCH_SECONDS, estimate, estimate_text, static_estimate
from coeval.schema import Config
from coeval.storage.run import Run
from tests.coeval.config.configs import load, put, task


def manual(raw: Any) -> None:
    """The manual's example: five models in all roles, four tasks, twenty items."""
    entry = {"interface": "openai", "parameters": {"model": "gpt-4o-mini"}, "roles": ["teacher", "student", "judge"]}
    raw["models"] = [{"name": f"m{number}", **entry} for number in range(5)]
    only = {**raw["tasks"][0], "rubric": {"a": "b", "c": "d", "e": "f"}}
    only["sampling"] = {"target": [1, 1], "nuance": [0, 1], "total": 20}
    raw["tasks"] = [{**only, "name": f"t{number}"} for number in range(4)]


def after(*changes: Callable[[Any], object]) -> Callable[[Any], None]:
    def change(raw: Any) -> None:
        for one in changes:
            one(raw)

    return change


def test_the_manuals_example(tmp_path: Path) -> None:
    found = static_estimate(load(tmp_path, manual))
    calls = {name: part["calls"] for name, part in found["per_phase"].items()}
    assert calls == {
        "attribute_mapping": 0,
        "rubric_mapping": 0,
        "data_generation": 400,
        "response_collection": 2_000,
        "evaluation": 10_000,
    }
    assert found["total_calls"] == 12_400
    assert found["total_cost_usd"] == pytest.approx(1.857)
    assert 1.80 <= found["total_cost_usd"] <= 2.50
    assert found["per_phase"]["response_collection"]["calls_per_model"] == dict.fromkeys(
        ["m0", "m1", "m2", "m3", "m4"], 400
    )
    assert "12,400 calls, $1.86" in estimate_text(found)


def test_all_that_the_file_should_hold_is_there(tmp_path: Path) -> None:
    found = static_estimate(load(tmp_path, manual))
    assert {"is_remaining_estimate", "completed_phases", "total_time_min", "per_provider", "assumptions"} <= set(found)
    assert set(found["per_provider"]["openai"]) == {"calls", "cost_usd", "time_min", "models"}
    assert {"token_counts", "price_table", "batch_discount", "pricing_yaml", "n_samples_per_model"} <= set(
        found["assumptions"]
    )
    assert {"interface", "latency_s", "tokens_per_second", "estimated_calls", "sample_error"} <= set(
        found["per_model"]["m0"]
    )
    json.dumps(found, allow_nan=False)


def test_each_factor_is_a_call_where_it_is_asked_for_alone(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        for one in raw["tasks"]:
            one["evaluation_mode"] = "per_factor"

    found = static_estimate(load(tmp_path, after(manual, change)))
    assert found["per_phase"]["evaluation"]["calls"] == 30_000


def test_metrics_and_metric_judges_are_not_asked(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["tasks"][0]["rubric"] = {"a": "b", "bleu": {"metric": "bleu"}}
        raw["tasks"][0]["evaluation_mode"] = "per_factor"
        raw["models"].append({"name": "m", "interface": "metric", "roles": ["judge"]})

    found = static_estimate(load(tmp_path, change))
    # One teacher, three items, two students, one judge that reads, one factor that is read.
    assert found["per_phase"]["evaluation"]["calls"] == 6
    assert found["per_model"]["m"]["estimated_calls"] == 0


def test_what_is_left_to_teachers_is_asked_of_each(tmp_path: Path) -> None:
    change = task(target_attributes="auto", nuanced_attributes="auto", rubric="auto", evaluation_mode="per_factor")
    found = static_estimate(load(tmp_path, change))
    calls = [part["calls"] for part in found["per_phase"].values()]
    assert calls == [2, 1, 3, 6, 24]  # four factors, as long as nobody knows them


def test_pairs_are_counted_in_both_orders_and_up_to_their_budget(tmp_path: Path) -> None:
    change = task(evaluation_mode="pairwise")
    assert static_estimate(load(tmp_path, change))["per_phase"]["evaluation"]["calls"] == 6
    change = task(evaluation_mode="pairwise", pairwise={"both_orders": False, "pairs": 2})
    assert static_estimate(load(tmp_path, change))["per_phase"]["evaluation"]["calls"] == 2


def test_a_benchmark_writes_nothing_and_its_items_are_answered(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["models"][0]["roles"] = ["student"]
        raw["models"].append({"name": "mmlu", "interface": "benchmark", "roles": ["teacher"]})

    config = load(tmp_path, change)
    store(config, "phase3_datapoints/sums.mmlu.datapoints.jsonl", items("mmlu", 4))
    found = static_estimate(config, run=Run(config.experiment.folder))
    assert [part["calls"] for part in found["per_phase"].values()] == [0, 0, 0, 8, 8]


def test_batches_cost_half_and_take_their_time_once(tmp_path: Path) -> None:
    batch = {"openai": {"evaluation": True}}
    config = load(tmp_path, after(manual, put("experiment", "batch", batch)))
    found = static_estimate(config)
    assert found["per_phase"]["evaluation"]["cost_usd"] == pytest.approx(0.75)
    assert found["batch_savings_usd"] == pytest.approx(0.75)
    assert found["per_phase"]["evaluation"]["time_s"] == BATCH_SECONDS


def test_more_in_flight_takes_less_time_and_a_rate_limit_more(tmp_path: Path) -> None:
    def seconds(**keys: Any) -> float:
        return float(
            static_estimate(load(tmp_path, after(manual, lambda raw: raw["experiment"].update(keys))))["total_time_min"]
        )

    assert seconds(concurrency=20) == pytest.approx(seconds(concurrency=10) / 2, rel=0.01)
    assert seconds(rate_limit={"openai": 100}) == pytest.approx(124)


def items(teacher: str, count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"sums__{teacher}__{number:05d}", "task_id": "sums", "teacher_model_id": teacher}
        for number in range(1, count + 1)
    ]


def store(config: Config, name: str, records: list[dict[str, Any]], tail: str = "") -> None:
    path = config.experiment.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail, encoding="utf-8")


def answers(config: Config, student: str, numbers: list[int]) -> None:
    records = [
        {
            "id": f"{item['id']}__{student}",
            "datapoint_id": item["id"],
            "task_id": "sums",
            "teacher_model_id": "ant",
            "student_model_id": student,
            "response": "x",
        }
        for item in items("ant", 3)
        if int(item["id"][-1]) in numbers
    ]
    failed = {**records[0], "id": "sums__ant__00009__x", "status": "failed"}
    store(config, f"phase4_responses/sums.{student}.responses.jsonl", [*records, records[0], failed], '{"id": "torn')


def test_what_is_stored_is_not_counted_again(tmp_path: Path) -> None:
    config = load(tmp_path)
    store(config, "phase3_datapoints/sums.ant.datapoints.jsonl", items("ant", 2))
    answers(config, "ant", [1, 2])
    answers(config, "bee", [1])
    score = {
        "id": "sums__ant__00001__ant__bee",
        "response_id": "sums__ant__00001__ant",
        "datapoint_id": "sums__ant__00001",
        "task_id": "sums",
        "teacher_model_id": "ant",
        "judge_model_id": "bee",
        "scores": {"right": "High"},
    }
    empty = {**score, "id": "other", "response_id": "sums__ant__00002__ant", "scores": {}}
    store(config, "phase5_evaluations/sums.ant.bee.evaluations.jsonl", [score, empty])
    found = static_estimate(config, run=Run(config.experiment.folder))
    assert found["is_remaining_estimate"]
    assert [part["calls"] for part in found["per_phase"].values()] == [0, 0, 1, 1 + 2, 5]


def test_a_student_added_to_a_finished_run_is_all_there_is_to_ask(tmp_path: Path) -> None:
    old = load(tmp_path)
    store(old, "phase3_datapoints/sums.ant.datapoints.jsonl", items("ant", 3))
    answers(old, "ant", [1, 2, 3])
    answers(old, "bee", [1, 2, 3])
    scores = [
        {
            "id": f"{item['id']}__{student}__bee",
            "response_id": f"{item['id']}__{student}",
            "datapoint_id": item["id"],
            "task_id": "sums",
            "teacher_model_id": "ant",
            "judge_model_id": "bee",
            "scores": {"right": "Low"},
        }
        for item in items("ant", 3)
        for student in ("ant", "bee")
    ]
    store(old, "phase5_evaluations/sums.ant.bee.evaluations.jsonl", scores)

    def change(raw: Any) -> None:
        raw["models"].append({"name": "cat", "interface": "mock", "roles": ["student"]})
        raw["experiment"] |= {"id": "second", "resume_from": "first"}
        raw["experiment"]["phases"] = {"response_collection": "Model", "evaluation": "Model"}

    found = static_estimate(load(tmp_path, change))
    assert [part["calls"] for part in found["per_phase"].values()] == [0, 0, 0, 3, 3]
    assert found["per_phase"]["response_collection"]["calls_per_model"] == {"cat": 3}
    asked = Asked()  # who has no calls left is not asked for its speed either
    asyncio.run(estimate(load(tmp_path, change), asked, samples=2))
    assert sorted(call.model.name for call in asked.calls) == ["bee", "cat", "cat"]


class Asked:
    """Answers at a known speed, and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def ask(self, call: Call) -> Reply:
        self.calls.append(call)
        if call.model.name == "bee":
            raise CallError(Reason.FATAL, "no such model")
        return Reply("words", 10, 50, 0.0, 0.5)


@pytest.mark.parametrize("samples", [1, 3])
def test_speed_is_measured_with_just_so_many_calls(tmp_path: Path, samples: int) -> None:
    asked = Asked()
    found = asyncio.run(estimate(load(tmp_path), asked, samples=samples))
    assert len([call for call in asked.calls if call.model.name == "ant"]) == samples
    assert {call.phase for call in asked.calls} == {None}
    assert found["per_model"]["ant"]["tokens_per_second"] == 100
    assert found["per_model"]["bee"]["sample_error"] == "no such model"
    assert found["assumptions"]["n_samples_per_model"] == samples


def test_without_samples_nobody_is_asked(tmp_path: Path) -> None:
    asked = Asked()
    asyncio.run(estimate(load(tmp_path), asked, samples=0))
    assert asked.calls == []


@pytest.mark.parametrize(
    ("interface", "model_id", "price"),
    [
        ("openai", "gpt-4o-mini-2024-07-18", (0.15, 0.60)),
        ("openai", "gpt-4o", (2.5, 10)),
        ("azure_openai", "gpt-4o-mini", (0.15, 0.60)),
        ("deepseek", "deepseek-chat", (0.07, 0.28)),
        ("openrouter", "deepseek/deepseek-chat", (0.14, 0.28)),
        ("openrouter", "openai/gpt-4o-mini", (0.15, 0.60)),
        ("cohere", "command-r-plus-08-2024", (2.5, 10)),
        ("gemini", "gemini-2.5-flash-lite", (0.075, 0.30)),
        ("openai", "never-heard", (1, 3)),
        ("openai", "foo1", (1, 3)),
        ("huggingface", "gpt-4o", (0, 0)),
        ("ollama", "llama3", (0, 0)),
        ("benchmark", "mmlu", (0, 0)),
    ],
)
def test_the_longest_name_of_the_own_provider_wins(interface: str, model_id: str, price: tuple[float, float]) -> None:
    assert price_at(interface, model_id) == price


def test_discounts_are_those_of_batches_that_there_are() -> None:
    assert {name: batch_discount(name) for name in ("openai", "anthropic", "gemini", "azure_openai", "groq")} == {
        "openai": 0.5,
        "anthropic": 0.5,
        "gemini": 0.5,
        "azure_openai": 0.5,
        "groq": 1.0,
    }
