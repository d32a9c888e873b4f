"""Whole runs whose questions go in batch jobs, at servers of all four protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coeval.storage.records import read_json
from tests.coeval.batch.batch_helpers import INTERFACES, KINDS, batched, config
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, records, run_of


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_run_in_batches_is_complete(tmp_path: Path, server: BatchServer, interface: str) -> None:
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 0
    run = run_of(tmp_path)
    assert [len(ids(run, kind)) for kind in KINDS] == [4, 4, 4]
    assert all(record["scores"].keys() == {"clarity", "tone"} for record in records(run, "evaluation"))
    assert [len(job.requests) for job in server.jobs] == [4, 4, 4]
    assert not run.pending.exists()
    assert not (run.folder / "batches").exists()
    assert meta_of(run)["quota_used"] == {"ant": 12}
    assert meta_of(run)["status"] == "completed"


def test_answers_cost_half_and_are_counted_as_the_provider_counts(tmp_path: Path, server: BatchServer) -> None:
    model = batched(server, name="gpt-4o-mini", parameters={"model": "gpt-4o-mini"})
    assert coeval("run", "--config", config(tmp_path, [model])) == 0
    usage = records(run_of(tmp_path), "response_collection")[0]["usage"]
    assert usage == {"prompt_tokens": 100, "completion_tokens": 10, "cost_usd": pytest.approx(0.5 * 21e-6)}
    assert meta_of(run_of(tmp_path))["spent_usd"] == pytest.approx(12 * 0.5 * 21e-6)


def test_openai_jobs_carry_their_name_and_their_file_is_removed(tmp_path: Path, server: BatchServer) -> None:
    assert coeval("run", "--config", config(tmp_path, [batched(server)])) == 0
    assert all(job.told["metadata"]["coeval_job"].startswith("ce") for job in server.jobs)
    assert server.removed == list(server.files)
    assert server.headers[0]["authorization"] == "Bearer a-key-of-ours-that-is-long"


def test_azure_has_its_own_addresses(tmp_path: Path, server: BatchServer) -> None:
    assert coeval("run", "--config", config(tmp_path, [batched(server, "azure_openai")])) == 0
    assert server.paths[0] == "POST /openai/files?api-version=2024-08-01-preview"
    assert server.headers[0]["api-key"] == "a-key-of-ours-that-is-long"
    assert server.jobs[0].told["endpoint"] == "/chat/completions"


def test_batch_enabled_goes_before_the_interface(tmp_path: Path, server: BatchServer) -> None:
    models = [
        batched(server, name="ant", roles=["teacher", "judge"], batch_enabled=True),
        batched(server, name="bee", roles=["student"]),
    ]
    path = config(tmp_path, models, batch={"openai": {"response_collection": True}})
    assert coeval("run", "--config", path) == 0
    assert [len(job.requests) for job in server.jobs] == [4, 4, 4]
    assert {job.requests[0][1]["model"] for job in server.jobs} == {"ant", "bee"}


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_factor_each_is_one_request_each(tmp_path: Path, server: BatchServer, interface: str) -> None:
    tasks = [{**STATIC_TASK, "evaluation_mode": "per_factor"}]
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)], tasks)) == 0
    assert len(server.jobs[-1].requests) == 8
    found = records(run_of(tmp_path), "evaluation")
    assert [len(record["scores"]) for record in found] == [2, 2, 2, 2]
    assert found[0]["usage"]["prompt_tokens"] == 200


@pytest.mark.parametrize("interface", INTERFACES)
def test_refused_answers_are_asked_again_and_never_become_scores(
    tmp_path: Path, server: BatchServer, interface: str
) -> None:
    first = config(tmp_path, [batched(server, interface)], phases={"evaluation": "New"})
    tries = 0

    def say(prompt: str, body: dict[str, Any]) -> str | int | None:
        nonlocal tries
        if len(server.jobs) < 3:
            return good(prompt, body)
        tries += 1
        return 500 if tries % 2 else "I had rather not say."

    good, server.say = server.say, say
    assert coeval("run", "--config", first) == 1
    run = run_of(tmp_path)
    assert [len(job.requests) for job in server.jobs[2:]] == [4, 4, 4]
    assert [(record["status"], record["scores"]) for record in records(run, "evaluation")] == [("failed", {})] * 4
    server.say = good
    assert coeval("run", "--config", first, "--continue") == 0
    assert {record["id"] for record in records(run, "evaluation") if record["scores"]} == set(ids(run, "evaluation"))


def test_judges_that_refuse_a_form_of_ours_are_asked_without_it(tmp_path: Path, server: BatchServer) -> None:
    def say(prompt: str, body: dict[str, Any]) -> str | int | None:
        return 400 if "response_format" in body else good(prompt, body)

    good, server.say = server.say, say
    assert coeval("run", "--config", config(tmp_path, [batched(server)])) == 0
    with_form = [["response_format" in body for _, body in job.requests] for job in server.jobs]
    assert with_form == [[False] * 4, [False] * 4, [True] * 4, [False] * 4]


def test_a_form_that_the_user_asks_for_is_never_taken_out(tmp_path: Path, server: BatchServer) -> None:
    def say(prompt: str, body: dict[str, Any]) -> str | int | None:
        return 400 if len(server.jobs) == 3 else good(prompt, body)

    good, server.say = server.say, say
    own = batched(server, parameters={"response_format": {"type": "json_object"}})
    assert coeval("run", "--config", config(tmp_path, [own])) == 1
    assert len(server.jobs) == 3
    assert all(body["response_format"] == {"type": "json_object"} for job in server.jobs for _, body in job.requests)


def test_what_cannot_be_asked_again_is_not(tmp_path: Path, server: BatchServer) -> None:
    server.say, good = lambda prompt, body: 400 if len(server.jobs) == 2 else good(prompt, body), server.say
    assert coeval("run", "--config", config(tmp_path, [batched(server)])) == 1
    assert [len(job.requests) for job in server.jobs[:2]] == [4, 4]
    assert all(record["status"] == "failed" for record in records(run_of(tmp_path), "response_collection"))


@pytest.mark.parametrize("interface", ["openai", "anthropic"])
def test_an_expired_job_keeps_what_it_has_and_asks_the_rest_again(
    tmp_path: Path, server: BatchServer, interface: str
) -> None:
    def say(prompt: str, body: dict[str, Any]) -> str | int | None:
        server.end = "expired" if len(server.jobs) == 1 else "completed"
        return None if len(server.jobs) == 1 and body is not server.jobs[0].requests[0][1] else good(prompt, body)

    server.end, good, server.say = "expired", server.say, say
    assert (
        coeval("run", "--config", config(tmp_path, [batched(server, interface)], quota={"ant": {"max_calls": 12}})) == 0
    )
    assert [len(job.requests) for job in server.jobs] == [4, 3, 4, 4]
    assert meta_of(run_of(tmp_path))["quota_used"] == {"ant": 12}


@pytest.mark.parametrize("interface", INTERFACES)
def test_lines_that_are_none_spoil_nothing(
    tmp_path: Path, server: BatchServer, interface: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.noise = ["{", "[]", '{"custom_id": "of-another"}', '{"custom_id": "x", "result": {}}', "null"]
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 0
    assert len(ids(run_of(tmp_path), "evaluation")) == 4
    assert interface == "gemini" or " results of job " in capsys.readouterr().err


def test_questions_are_split_at_the_providers_limits(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coeval.batch.backends.OpenAIBatches.most_requests", 3)
    path = config(tmp_path, [batched(server)])
    assert coeval("run", "--config", path) == 0
    assert [len(job.requests) for job in server.jobs] == [3, 1] * 3
    monkeypatch.setattr("coeval.batch.backends.OpenAIBatches.most_bytes", 1)
    assert coeval("run", "--config", config(tmp_path, [batched(server)], id="two")) == 0
    assert [len(job.requests) for job in server.jobs[6:]] == [1] * 12


def test_the_quota_is_taken_when_jobs_are_sent(tmp_path: Path, server: BatchServer) -> None:
    path = config(tmp_path, [batched(server)], quota={"ant": {"max_calls": 6}})
    assert coeval("run", "--config", path) == 0
    assert [len(job.requests) for job in server.jobs] == [4, 2]
    assert meta_of(run_of(tmp_path))["quota_used"] == {"ant": 6}
    assert meta_of(run_of(tmp_path))["status"] == "partial"
    path = config(tmp_path, [batched(server)], quota={"ant": {"max_calls": 12}})
    assert coeval("run", "--config", path, "--continue") == 0
    assert sum(len(job.requests) for job in server.jobs) == 12
    assert max(server.asked.values()) <= 2  # two items may be alike


def test_the_budget_holds_what_jobs_may_cost(tmp_path: Path, server: BatchServer) -> None:
    model = batched(server, name="gpt-4o", parameters={"model": "gpt-4o"})
    path = config(tmp_path, [model], budget_usd=0.0016)
    assert coeval("run", "--config", path) == 0
    run = run_of(tmp_path)
    assert meta_of(run)["status"] == "partial"
    assert 0 < sum(len(job.requests) for job in server.jobs) < 12
    assert 0.001 < meta_of(run)["spent_usd"] <= 0.0016
    path = config(tmp_path, [model], budget_usd=1.0)
    assert coeval("run", "--config", path, "--continue") == 0
    assert sum(len(job.requests) for job in server.jobs) == 12


def test_a_job_that_is_turned_down_costs_nothing_and_is_said(
    tmp_path: Path, server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.end = "failed"
    assert coeval("run", "--config", config(tmp_path, [batched(server)])) == 1
    assert "turned down batch job batch_0: The model does not exist." in capsys.readouterr().err
    assert meta_of(run_of(tmp_path))["quota_used"].get("ant", 0) == 0
    assert meta_of(run_of(tmp_path))["spent_usd"] == 0
    assert not run_of(tmp_path).pending.exists()


@pytest.mark.parametrize("interface", ["openai", "azure_openai"])
def test_a_job_that_finds_no_room_is_sent_again(
    tmp_path: Path, server: BatchServer, interface: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.crowded, server.tells_room = 2, True
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 0
    assert capsys.readouterr().err.count("enqueued tokens.; the batch job is sent again in") == 2
    assert [len(job.requests) for job in server.jobs] == [4] * 5
    assert set(server.asked.values()) == {1}
    assert meta_of(run_of(tmp_path))["quota_used"] == {"ant": 12}
    assert not run_of(tmp_path).pending.exists()


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_refused_job_is_not_sent_again(
    tmp_path: Path, server: BatchServer, interface: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refusals.extend([401] * 3)
    assert coeval("run", "--config", config(tmp_path, [batched(server, interface)])) == 1
    assert len(server.refusals) == 2
    assert "does not accept this account" in capsys.readouterr().err
    assert not server.jobs
    assert read_json(run_of(tmp_path).pending) is None
