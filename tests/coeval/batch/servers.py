"""Batch jobs on the loopback interface, as OpenAI, Azure, Anthropic and Google offer them, in one server.

with BatchServer() as server:
    ...  # OpenAI at server.url + "/v1", Anthropic at server.url, Azure at server.url, Google at server.url + "/v1beta"
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from aiohttp import web

from coeval.mock.brain import answer

Answer = Callable[[str, dict[str, Any]], "str | int | None"]
"""(prompt, body) -> text; a number is the status of a refusal; None: never asked."""


def by_brain(prompt: str, body: dict[str, Any]) -> str:
    """What a mock model says, its parameters being in the request."""
    return answer(prompt, "", body)


@dataclass
class ServedJob:
    """A job at the server."""

    id: str
    requests: list[tuple[str, dict[str, Any]]]
    """(custom id, body)."""
    told: dict[str, Any]
    """What came with it."""
    made: float = field(default_factory=time.time)
    looks: int = 0
    answers: list[str | int | None] | None = None


class BatchServer:
    """The server, for as long as it is entered."""

    def __init__(self, say: Answer = by_brain) -> None:
        self.say = say
        self.looks = 1
        """Looks at a job before it is done."""
        self.held: int | None = None
        """Jobs from this one on, counted from 0, do not end."""
        self.end = "completed"
        """How jobs end: completed, expired, cancelled or failed."""
        self.crowded = 0
        """Jobs, from the first one on, that find no room for their tokens."""
        self.backwards = True
        """Whether results come in another order than requests."""
        self.noise: list[str] = []
        """Lines among the results that are none."""
        self.stuck = False
        """Whether jobs are made without ever telling so."""
        self.lose_replies = 0
        """Jobs that are made without telling so: the connection breaks."""
        self.refusals: deque[int] = deque()
        """Statuses of the next requests that would make jobs."""
        self.jobs: list[ServedJob] = []
        self.files: dict[str, bytes] = {}
        self.removed: list[str] = []
        self.asked: Counter[str] = Counter()
        """Prompts that were paid for."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> BatchServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**28, middlewares=[self._noted])
        for base in ("/v1", "/openai"):
            app.router.add_post(f"{base}/files", self._upload)
            app.router.add_delete(f"{base}/files/{{id}}", self._remove)
            app.router.add_get(f"{base}/files/{{id}}/content", self._content)
            app.router.add_post(f"{base}/batches", self._openai_make)
            app.router.add_get(f"{base}/batches", self._openai_list)
            app.router.add_get(f"{base}/batches/{{id}}", self._openai_show)
        app.router.add_post("/v1/messages/batches", self._anthropic_make)
        app.router.add_get("/v1/messages/batches", self._anthropic_list)
        app.router.add_get("/v1/messages/batches/{id}", self._anthropic_show)
        app.router.add_get("/v1/messages/batches/{id}/results", self._anthropic_results)
        app.router.add_post("/v1beta/models/{call}", self._gemini_make)
        app.router.add_get("/v1beta/batches", self._gemini_list)
        app.router.add_get("/v1beta/batches/{id}", self._gemini_show)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.paths.append(f"{request.method} {request.path_qs}")
        response: web.StreamResponse = await handler(request)
        return response

    def _make(self, name: str, requests: list[tuple[str, dict[str, Any]]], told: dict[str, Any]) -> ServedJob:
        if self.refusals:
            raise _refusal(self.refusals.popleft())
        job = ServedJob(f"{name}{len(self.jobs)}", requests, told)
        self.jobs.append(job)
        return job

    async def _reply(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        while self.stuck:
            await asyncio.sleep(0.01)
        if self.lose_replies:
            self.lose_replies -= 1
            assert request.transport is not None
            request.transport.close()
        return web.json_response(body)

    def _job(self, name: str) -> ServedJob:
        found = next((job for job in self.jobs if job.id == name), None)
        if found is None:
            raise _refusal(404)
        return found

    def _status(self, job: ServedJob, *, look: bool = True) -> str:
        """Where a job is; its requests are answered when it ends."""
        job.looks += look
        if (self.held is not None and self.jobs.index(job) >= self.held) or job.looks <= self.looks:
            return "in_progress"
        if self.jobs.index(job) < self.crowded:
            return "failed"
        if job.answers is None:
            job.answers = [] if self.end == "failed" else [self._answer(body) for _, body in job.requests]
        return self.end

    def _answer(self, body: dict[str, Any]) -> str | int | None:
        prompt = prompt_in(body)
        said = self.say(prompt, body)
        self.asked[prompt] += isinstance(said, str)
        return said

    def _results(self, job: ServedJob) -> list[tuple[str, dict[str, Any], str | int | None]]:
        found = [(custom, body, said) for (custom, body), said in zip(job.requests, job.answers or [], strict=False)]
        return found[::-1] if self.backwards else found

    def _lines(self, lines: list[dict[str, Any]]) -> bytes:
        text = [*self.noise, *(json.dumps(line) for line in lines)]
        return "\n".join(text).encode()  # without a newline at the end

    # OpenAI and Azure

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        file: Any = form["file"]
        name = f"file-{len(self.files)}"
        self.files[name] = file.file.read()
        return web.json_response({"id": name, "object": "file", "purpose": "batch", "filename": file.filename})

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self.removed.append(name)
        return web.json_response({"id": name, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.Response:
        kind, _, name = request.match_info["id"].partition("-of-")
        lines = []
        for custom, body, said in self._results(self._job(name)):
            is_error = not isinstance(said, str)
            if is_error == (kind == "errors"):
                lines.append(_openai_line(custom, body, said, self.end))
        return web.Response(body=self._lines(lines))

    async def _openai_make(self, request: web.Request) -> web.Response:
        told = await request.json()
        assert told["completion_window"] == "24h"
        lines = [json.loads(line) for line in self.files[told["input_file_id"]].splitlines()]
        assert all(line["method"] == "POST" and line["url"] == told["endpoint"] for line in lines)
        assert len({line["body"]["model"] for line in lines}) == 1, "one model for each file"
        job = self._make("batch_", [(line["custom_id"], line["body"]) for line in lines], told)
        return await self._reply(request, self._openai_told(job))

    async def _openai_show(self, request: web.Request) -> web.Response:
        return web.json_response(self._openai_told(self._job(request.match_info["id"])))

    async def _openai_list(self, request: web.Request) -> web.Response:
        rest = _after(self.jobs, request.query.get("after"))
        data = [self._openai_told(job, look=False) for job in rest[:2]]
        return web.json_response({"object": "list", "data": data, "has_more": len(rest) > 2})

    def _openai_told(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        status = self._status(job, look=look)
        told: dict[str, Any] = {
            "id": job.id,
            "object": "batch",
            "endpoint": job.told["endpoint"],
            "completion_window": "24h",
            "created_at": int(job.made),
            "input_file_id": job.told["input_file_id"],
            "metadata": job.told.get("metadata"),
            "status": status,
            "request_counts": {"total": len(job.requests), "completed": 0, "failed": 0},
        }
        if status == "failed":
            told["errors"] = {"object": "list", "data": [self._reason(job)]}
        elif status != "in_progress":
            good = [said for said in job.answers or [] if isinstance(said, str)]
            told["output_file_id"] = f"output-of-{job.id}" if good else None
            told["error_file_id"] = f"errors-of-{job.id}" if len(good) < len(job.requests) else None
        return told

    def _reason(self, job: ServedJob) -> dict[str, Any]:
        if self.jobs.index(job) < self.crowded:
            return {"code": "token_limit_exceeded", "message": "Enqueued token limit reached."}
        return {"code": "invalid", "message": "The model does not exist."}

    # Anthropic

    async def _anthropic_make(self, request: web.Request) -> web.Response:
        requests = [(one["custom_id"], one["params"]) for one in (await request.json())["requests"]]
        assert len(requests) <= 10_000
        assert len({custom for custom, _ in requests}) == len(requests)
        return await self._reply(request, self._anthropic_told(self._make("msgbatch_", requests, {})))

    async def _anthropic_show(self, request: web.Request) -> web.Response:
        return web.json_response(self._anthropic_told(self._job(request.match_info["id"])))

    async def _anthropic_list(self, request: web.Request) -> web.Response:
        rest = _after(self.jobs, request.query.get("after_id"))
        data = [self._anthropic_told(job) for job in rest[:2]]
        return web.json_response({"data": data, "has_more": len(rest) > 2, "first_id": None, "last_id": None})

    async def _anthropic_results(self, request: web.Request) -> web.Response:
        lines = [_anthropic_line(*found, self.end) for found in self._results(self._job(request.match_info["id"]))]
        return web.Response(body=self._lines(lines), content_type="application/x-jsonl")

    def _anthropic_told(self, job: ServedJob) -> dict[str, Any]:
        done = self._status(job) != "in_progress"
        made = datetime.fromtimestamp(job.made, timezone.utc).isoformat()
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts["succeeded" if done else "processing"] = len(job.requests)
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": "ended" if done else "in_progress",
            "request_counts": counts,
            "created_at": made,
            "expires_at": made,
            "results_url": f"{self.url}/v1/messages/batches/{job.id}/results" if done else None,
        }

    # Google

    async def _gemini_make(self, request: web.Request) -> web.Response:
        model, _, call = request.match_info["call"].partition(":")
        assert call == "batchGenerateContent"
        batch = (await request.json())["batch"]
        requests = [(one["metadata"]["key"], one["request"]) for one in batch["inputConfig"]["requests"]["requests"]]
        assert {body["model"] for _, body in requests} == {f"models/{model}"}
        return await self._reply(request, self._gemini_told(self._make("batches/b", requests, batch)))

    async def _gemini_show(self, request: web.Request) -> web.Response:
        return web.json_response(self._gemini_told(self._job(f"batches/{request.match_info['id']}")))

    async def _gemini_list(self, request: web.Request) -> web.Response:
        rest = _after(self.jobs, request.query.get("pageToken"))
        page: dict[str, Any] = {"operations": [self._gemini_told(job, look=False) for job in rest[:2]]}
        return web.json_response(page | ({"nextPageToken": rest[1].id} if len(rest) > 2 else {}))

    def _gemini_told(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        states = {"in_progress": "RUNNING", "completed": "SUCCEEDED"}
        status = self._status(job, look=look)
        state = f"BATCH_STATE_{states.get(status, status.upper())}"
        told: dict[str, Any] = {"name": job.id, "metadata": {"state": state, "displayName": job.told["displayName"]}}
        if status == "failed":
            return told | {"done": True, "error": {"code": 3, "message": "The model does not exist."}}
        if status != "completed":
            return told
        lines = [_gemini_line(*found) for found in self._results(job)]
        return told | {"done": True, "response": {"inlinedResponses": {"inlinedResponses": lines}}}


def prompt_in(body: dict[str, Any]) -> str:
    """The prompt of a request in any of the protocols."""
    if "contents" in body:
        return str(body["contents"][-1]["parts"][0]["text"])
    content = body["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def _after(jobs: list[ServedJob], last: str | None) -> list[ServedJob]:
    """The newest first, those after one of them."""
    newest = jobs[::-1]
    return newest if last is None else newest[[job.id for job in newest].index(last) + 1 :]


def _refusal(status: int) -> web.HTTPException:
    kinds = {400: web.HTTPBadRequest, 401: web.HTTPUnauthorized, 404: web.HTTPNotFound, 429: web.HTTPTooManyRequests}
    kind = kinds.get(status, web.HTTPInternalServerError)
    body = {"error": {"message": "As it was told.", "type": "some_error"}}
    return kind(text=json.dumps(body), content_type="application/json")


def _openai_line(custom: str, body: dict[str, Any], said: str | int | None, end: str) -> dict[str, Any]:
    if said is None:
        error = {"code": f"batch_{end}", "message": "This request was not executed."}
        return {"id": "x", "custom_id": custom, "response": None, "error": error}
    if isinstance(said, int):
        told: dict[str, Any] = {"error": {"message": "As it was told.", "type": "some_error"}}
        return {"custom_id": custom, "response": {"status_code": said, "body": told}, "error": None}
    message = {"role": "assistant", "content": said, "refusal": None}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    return {"custom_id": custom, "response": {"status_code": 200, "body": {**answer, "usage": usage}}, "error": None}


def _anthropic_line(custom: str, body: dict[str, Any], said: str | int | None, end: str) -> dict[str, Any]:
    if said is None:
        return {"custom_id": custom, "result": {"type": "canceled" if end == "cancelled" else "expired"}}
    if isinstance(said, int):
        kind = "api_error" if said >= 500 else "invalid_request_error"
        error = {"type": "error", "error": {"type": kind, "message": "As it was told."}}
        return {"custom_id": custom, "result": {"type": "errored", "error": error}}
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": said}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }
    return {"custom_id": custom, "result": {"type": "succeeded", "message": message}}


def _gemini_line(custom: str, _body: dict[str, Any], said: str | int | None) -> dict[str, Any]:
    if not isinstance(said, str):
        code = {500: 13, 503: 14}.get(said or 0, 3)
        status = {13: "INTERNAL", 14: "UNAVAILABLE"}.get(code, "INVALID_ARGUMENT")
        return {"metadata": {"key": custom}, "error": {"code": code, "message": "As it was told.", "status": status}}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    candidate = {"content": {"role": "model", "parts": [{"text": said}]}, "finishReason": "STOP", "index": 0}
    return {"metadata": {"key": custom}, "response": {"candidates": [candidate], "usageMetadata": usage}}
