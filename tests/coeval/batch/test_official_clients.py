"""The servers of these tests, read by the providers' own clients, whose requests are those of our backends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletion

from coeval.calling.limits import Retries
from tests.coeval.batch.batch_helpers import batched, config
from tests.coeval.batch.served_openai import form_in
from tests.coeval.batch.servers import BatchServer, Heard
from tests.coeval.helpers import coeval

KEY = "a-key-of-ours-that-is-long"
OURS = ("authorization", "api-key", "x-api-key", "anthropic-version", "x-goog-api-key")
VERSION = "2024-08-01-preview"
BODY = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as server:
        said = iter(["First.", 400, None] * 9)
        server.say = lambda *_: next(said)
        yield server


def openai_client(server: BatchServer, interface: str) -> Any:
    more: dict[str, Any] = {"api_key": KEY, "max_retries": 0, "_strict_response_validation": True}
    if interface == "azure_openai":
        return openai.AzureOpenAI(azure_endpoint=server.url, api_version=VERSION, **more)
    return openai.OpenAI(base_url=f"{server.url}/v1", **more)


def anthropic_client(server: BatchServer) -> Any:
    # Ours is the version before the newest, which takes no temperature.
    more: dict[str, Any] = {"default_headers": {"anthropic-version": "2023-06-01"}, "max_retries": 0}
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, _strict_response_validation=True, **more)


def gemini_client(server: BatchServer) -> Any:
    genai = pytest.importorskip("google.genai")
    return genai.Client(api_key=KEY, http_options={"base_url": server.url, "api_version": "v1beta"})


def sent(client: Any, endpoint: str) -> Any:
    """A job of three requests."""
    lines = [{"custom_id": f"c{place}", "method": "POST", "url": endpoint, "body": BODY} for place in range(3)]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("questions.jsonl", text), purpose="batch")
    assert client.files.retrieve(file.id).status == "processed"
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


@pytest.mark.parametrize(
    ("interface", "endpoint"), [("openai", "/v1/chat/completions"), ("azure_openai", "/chat/completions")]
)
def test_openais_clients_read_every_end_of_a_job(server: BatchServer, interface: str, endpoint: str) -> None:
    with openai_client(server, interface) as client:
        server.end = "expired"
        made = sent(client, endpoint)
        assert made.status == "validating"
        assert client.batches.retrieve(made.id).status == "in_progress"
        done = client.batches.retrieve(made.id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("expired", 1, 2)
        good = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        bad = [json.loads(line) for line in client.files.content(done.error_file_id).text.splitlines()]
        answer = ChatCompletion.model_validate(good[0]["response"]["body"], strict=True)
        assert answer.choices[0].message.content == "First."
        assert {line["custom_id"]: (line["error"] or line["response"]["body"]["error"])["code"] for line in bad} == {
            "c1": None,
            "c2": "batch_expired",
        }
        made = sent(client, endpoint)
        assert client.batches.cancel(made.id).status == "cancelling"
        assert client.batches.retrieve(made.id).status == "cancelled"
        server.room = -1
        failed = client.batches.retrieve(sent(client, endpoint).id)
        assert failed.status == "failed"
        assert failed.errors.data[0].code == "token_limit_exceeded"
        assert [one.id for one in client.batches.list(limit=2)] == ["batch_2", "batch_1", "batch_0"]
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_9")
        assert client.files.delete(done.input_file_id).deleted


def test_anthropics_client_reads_every_end_of_a_batch(server: BatchServer) -> None:
    with anthropic_client(server) as client:
        server.end = "expired"
        made = client.messages.batches.create(
            requests=[{"custom_id": f"c{place}", "params": BODY} for place in range(3)]
        )
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 3)
        assert client.messages.batches.retrieve(made.id).results_url is None
        done = client.messages.batches.retrieve(made.id)
        counts = done.request_counts
        assert (done.processing_status, counts.succeeded, counts.errored, counts.expired) == ("ended", 1, 1, 1)
        found = {one.custom_id: one.result for one in client.messages.batches.results(done.id)}
        assert {custom: result.type for custom, result in found.items()} == {
            "c0": "succeeded",
            "c1": "errored",
            "c2": "expired",
        }
        assert found["c0"].message.content[0].text == "First."
        assert found["c1"].error.error.type == "invalid_request_error"
        made = client.messages.batches.create(requests=[{"custom_id": "c", "params": BODY}])
        assert client.messages.batches.cancel(made.id).processing_status == "canceling"
        assert client.messages.batches.retrieve(made.id).request_counts.canceled == 1
        assert [one.result.type for one in client.messages.batches.results(made.id)] == ["canceled"]
        client.messages.batches.create(requests=[{"custom_id": "c", "params": BODY}])
        assert [one.id for one in client.messages.batches.list(limit=2)] == ["msgbatch_2", "msgbatch_1", "msgbatch_0"]
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve("msgbatch_9")


def inlined(body: dict[str, Any], key: str) -> dict[str, Any]:
    """A request as Google's client takes it."""
    told = {name: body[name] for name in ("model", "contents")}
    return {**told, "config": body.get("generationConfig", {}), "metadata": {"key": key}}


def test_googles_client_reads_every_end_of_a_batch(server: BatchServer) -> None:
    client = gemini_client(server)
    body = {"model": "models/m", "contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    requests = [inlined(body, f"c{place}") for place in range(2)]
    ends = ("completed", "failed", "expired", "cancelled")
    for end in ends:
        server.end = end
        made = client.batches.create(model="m", src=requests, config={"display_name": end})
        assert (made.state, made.display_name, made.model) == ("JOB_STATE_RUNNING", end, "models/m")
        if end == "cancelled":
            client.batches.cancel(name=made.name)
        client.batches.get(name=made.name)
        done = client.batches.get(name=made.name)
        assert done.state == {"completed": "JOB_STATE_SUCCEEDED"}.get(end, f"JOB_STATE_{end.upper()}")
        if end == "completed":
            found = {one.metadata["key"]: one for one in done.dest.inlined_responses}
            assert found["c0"].response.text == "First."
            assert found["c1"].error.message == "As it was told."
    listed = [one.display_name for one in client.batches.list(config={"page_size": 2})]
    assert listed == list(ends)[::-1]


def plain(heard: Heard, interface: str) -> str:
    """A request as far as it has to be the same, the numbers of files and jobs left out."""
    kind = heard.headers.get("content-type", "")
    body: Any = None
    if kind.startswith("multipart/"):
        body = {name: [str(part) for part in field] for name, field in form_in(kind, heard.body).items()}
    elif heard.body:
        body = json.loads(heard.body)
    headers = {name: heard.headers[name] for name in OURS if name in heard.headers}
    if interface == "anthropic" and "x-api-key" in headers:
        headers["authorization"] = f"Bearer {headers.pop('x-api-key')}"  # they take both
    kind = kind.partition(";")[0] if heard.body else ""
    told = [heard.method, heard.path, heard.query, headers, kind, body]
    return re.sub(r"(file-|batch_|batches/b)\d+", r"\1N", json.dumps(told, sort_keys=True))


def said(server: BatchServer, interface: str) -> set[str]:
    """The requests since the last time."""
    found = {plain(heard, interface) for heard in server.heard}
    server.heard.clear()
    return found


def ours(folder: Path, server: BatchServer, interface: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What our backend sends for one job, of which it is not told that it was made."""
    monkeypatch.setattr("coeval.batch.jobs.RETRIES", Retries(base=0.0))
    server.lose_replies = 1
    server.say = lambda *_: 400
    coeval("run", "--config", config(folder, [batched(server, interface)]))
    assert len(server.jobs) == 1
    return said(server, interface)


@pytest.mark.parametrize("interface", ["openai", "azure_openai"])
def test_our_requests_are_those_of_openais_clients(
    tmp_path: Path, server: BatchServer, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, job = ours(tmp_path, server, interface, monkeypatch), server.jobs[0]
    name = f"{job.told['metadata']['coeval_job']}.jsonl"
    with openai_client(server, interface) as client:
        file = client.files.create(file=(name, server.files["file-0"]), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id,
            endpoint=job.told["endpoint"],
            completion_window="24h",
            metadata=job.told["metadata"],
        )
        client.batches.list(limit=100)
        client.batches.retrieve(made.id)
        client.files.content(client.batches.retrieve(made.id).error_file_id)
        client.files.delete(file.id)
    assert found == said(server, interface)


def test_our_requests_are_those_of_anthropics_client(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, job = ours(tmp_path, server, "anthropic", monkeypatch), server.jobs[0]
    with anthropic_client(server) as client:
        made = client.messages.batches.create(
            requests=[{"custom_id": custom, "params": body} for custom, body in job.requests]
        )
        client.messages.batches.list(limit=100)
        client.messages.batches.retrieve(made.id)
        assert len(list(client.messages.batches.results(made.id))) == len(job.requests)
    assert found == said(server, "anthropic")


def test_our_requests_are_those_of_googles_client(
    tmp_path: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, job = ours(tmp_path, server, "gemini", monkeypatch), server.jobs[0]
    client = gemini_client(server)
    source = [inlined(body, key) for key, body in job.requests]
    made = client.batches.create(model="ant", src=source, config={"display_name": job.told["displayName"]})
    client.batches.list(config={"page_size": 100})
    client.batches.get(name=f"batches/{made.name.rpartition('/')[2]}")
    assert found == said(server, "gemini")
