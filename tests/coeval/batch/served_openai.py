"""Files and batches as OpenAI and Azure offer them."""

from __future__ import annotations

import email
import email.policy
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.coeval.batch.servers import BatchServer, ServedJob

_WINDOW = 24 * 3600


class OpenAISide:
    """What a server says in OpenAI's words."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server
        self._looks: dict[str, int] = {}

    def routes(self) -> list[web.RouteDef]:
        """At OpenAI's addresses, and at Azure's with a version and without."""
        return [
            route
            for base in ("/v1", "/openai", "/openai/v1")
            for route in (
                web.post(f"{base}/files", self._upload),
                web.get(f"{base}/files/{{id}}", self._file),
                web.delete(f"{base}/files/{{id}}", self._remove),
                web.get(f"{base}/files/{{id}}/content", self._content),
                web.post(f"{base}/batches", self._make),
                web.get(f"{base}/batches", self._list),
                web.get(f"{base}/batches/{{id}}", self._show),
                web.post(f"{base}/batches/{{id}}/cancel", self._cancel),
            )
        ]

    async def _upload(self, request: web.Request) -> web.Response:
        form = form_in(request.headers["Content-Type"], await request.read())
        assert form["purpose"] == ("form-data", None, b"batch")
        _, filename, content = form["file"]
        assert filename is not None
        assert filename.endswith(".jsonl")
        name = f"file-{len(self._server.files)}"
        self._server.files[name] = content
        self._looks[name] = 0
        return web.json_response(self._file_told(name))

    def _file_told(self, name: str) -> dict[str, Any]:
        is_ready = self._looks[name] >= self._server.processing
        return {
            "id": name,
            "object": "file",
            "bytes": len(self._server.files[name]),
            "created_at": 1,
            "filename": "questions.jsonl",
            "purpose": "batch",
            "status": "processed" if is_ready else "pending",
            "status_details": None,
            "expires_at": None,
        }

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self._looks[name] += 1
        return web.json_response(self._file_told(name))

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self._server.removed.append(name)
        return web.json_response({"id": name, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        kind, _, name = request.match_info["id"].partition("-of-")
        job = self._server.job(name)
        end = self._server.status(job, look=False)
        found = self._server.answers(job)
        lines = [_line(*one, end) for one in found if isinstance(one[2], str) != (kind == "errors")]
        return await self._server.results(request, lines)

    async def _make(self, request: web.Request) -> web.Response:
        told = await request.json()
        assert told["completion_window"] == "24h"
        assert all(len(key) <= 64 and len(value) <= 512 for key, value in (told.get("metadata") or {}).items())
        lines = [json.loads(line) for line in self._server.files[told["input_file_id"]].splitlines()]
        assert all(line["method"] == "POST" and line["url"] == told["endpoint"] for line in lines)
        assert len({line["body"]["model"] for line in lines}) == 1, "one model for each file"
        if self._looks[told["input_file_id"]] < self._server.processing:
            error = {"code": "invalidPayload", "message": "The input file is in 'pending' state."}
            return web.json_response({"error": error}, status=400)
        job = self._server.make("batch_", [(line["custom_id"], line["body"]) for line in lines], told)
        return await self._server.reply(request, self._told(job, look=False) | {"status": "validating"})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._told(self._server.job(request.match_info["id"])))

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self._server.job(request.match_info["id"])
        job.cancelled = True
        return web.json_response(self._told(job, look=False) | {"status": "cancelling"})

    async def _list(self, request: web.Request) -> web.Response:
        rest = self._server.after(request.query.get("after"))
        data = [self._told(job, look=False) for job in rest[:2]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return web.json_response({"object": "list", "data": data, **ends, "has_more": len(rest) > 2})

    def _told(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        status, made = self._server.status(job, look=look), int(job.made)
        said = job.answers or []
        good = sum(isinstance(one, str) for one in said)
        ended = status not in ("in_progress", "failed")
        times = dict.fromkeys(("finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at"))
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": job.told["endpoint"],
            "model": job.requests[0][1]["model"],
            "errors": {"object": "list", "data": [self._reason(job)]} if status == "failed" else None,
            "input_file_id": job.told["input_file_id"],
            "completion_window": "24h",
            "status": status,
            "output_file_id": f"output-of-{job.id}" if ended and good else None,
            "error_file_id": f"errors-of-{job.id}" if ended and good < len(said) else None,
            "created_at": made,
            "in_progress_at": made,
            "expires_at": made + _WINDOW,
            **times,
            f"{status}_at": made,
            "request_counts": {"total": len(job.requests), "completed": good, "failed": len(said) - good},
            "metadata": job.told.get("metadata"),
        }

    def _reason(self, job: ServedJob) -> dict[str, Any]:
        code, said = "invalid", "The model does not exist."
        if self._server.has_no_room(job):
            room = 10**9 if self._server.room is None else self._server.room
            told = f" Limit: {room:,} enqueued tokens." if self._server.tells_room else ""
            code, said = "token_limit_exceeded", f"Enqueued token limit reached.{told}"
        return {"code": code, "line": None, "message": said, "param": None}


def form_in(content_type: str, body: bytes) -> dict[str, tuple[str | None, str | None, bytes]]:
    """Name of each field of a form -> how it is disposed, the name of its file, and what it holds."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message: Any = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    return {
        part.get_param("name", header="content-disposition"): (
            part.get_content_disposition(),
            part.get_filename(),
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    }


def _line(custom: str, body: dict[str, Any], said: str | int | None, end: str) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"batch_req_{custom}", "custom_id": custom, "response": None, "error": None}
    if said is None:
        return line | {"error": {"code": f"batch_{end}", "message": "This request was not executed."}}
    if isinstance(said, int):
        error = {"message": "As it was told.", "type": "some_error", "param": None, "code": None}
        return line | {"response": {"status_code": said, "request_id": "r", "body": {"error": error}}}
    message = {"role": "assistant", "content": said, "refusal": None}
    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    return line | {"response": {"status_code": 200, "request_id": "r", "body": answer}}
