"""Message batches as Anthropic offers them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.coeval.batch.servers import BatchServer, ServedJob

_BASE = "/v1/messages/batches"


class AnthropicSide:
    """What a server says in Anthropic's words."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server

    def routes(self) -> list[web.RouteDef]:
        """At Anthropic's addresses."""
        return [
            web.post(_BASE, self._make),
            web.get(_BASE, self._list),
            web.get(f"{_BASE}/{{id}}", self._show),
            web.post(f"{_BASE}/{{id}}/cancel", self._cancel),
            web.get(f"{_BASE}/{{id}}/results", self._results),
        ]

    async def _make(self, request: web.Request) -> web.Response:
        assert request.headers["anthropic-version"]
        requests = [(one["custom_id"], one["params"]) for one in (await request.json())["requests"]]
        assert len(requests) <= 10_000
        assert len({custom for custom, _ in requests}) == len(requests)
        assert all(len(custom) <= 64 and params["max_tokens"] for custom, params in requests)
        return await self._server.reply(request, self._told(self._server.make("msgbatch_", requests, {}), look=False))

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._told(self._server.job(request.match_info["id"])))

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self._server.job(request.match_info["id"])
        told = self._told(job, look=False)
        job.cancelled = True
        return web.json_response(told | {"processing_status": "canceling", "cancel_initiated_at": _time(job.made)})

    async def _list(self, request: web.Request) -> web.Response:
        rest = self._server.after(request.query.get("after_id"))
        data = [self._told(job) for job in rest[:2]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return web.json_response({"data": data, "has_more": len(rest) > 2, **ends})

    async def _results(self, request: web.Request) -> web.StreamResponse:
        job = self._server.job(request.match_info["id"])
        end = self._server.status(job, look=False)
        return await self._server.results(request, [_line(*found, end) for found in self._server.answers(job)])

    def _told(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        end = self._server.status(job, look=look)
        done = end != "in_progress"
        counts = Counter(_kind(said, end) for said in job.answers or []) if done else {"processing": len(job.requests)}
        kinds = ("processing", "succeeded", "errored", "canceled", "expired")
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": "ended" if done else "in_progress",
            "request_counts": {kind: counts.get(kind, 0) for kind in kinds},
            "created_at": _time(job.made),
            "expires_at": _time(job.made, days=1),
            "ended_at": _time(job.made) if done else None,
            "archived_at": None,
            "cancel_initiated_at": _time(job.made) if job.cancelled else None,
            "results_url": f"{self._server.url}{_BASE}/{job.id}/results" if done else None,
        }


def _time(made: float, days: int = 0) -> str:
    return (datetime.fromtimestamp(made, timezone.utc) + timedelta(days=days)).isoformat()


def _kind(said: str | int | None, end: str) -> str:
    if said is None:
        return "canceled" if end == "cancelled" else "expired"
    return "succeeded" if isinstance(said, str) else "errored"


def _line(custom: str, body: dict[str, Any], said: str | int | None, end: str) -> dict[str, Any]:
    kind = _kind(said, end)
    result: dict[str, Any] = {"type": kind}
    if isinstance(said, int):
        error = {"type": "api_error" if said >= 500 else "invalid_request_error", "message": "As it was told."}
        result["error"] = {"type": "error", "error": error, "request_id": None}
    elif said is not None:
        result["message"] = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": said, "citations": None}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 100, "output_tokens": 10, "service_tier": "batch"},
        }
    return {"custom_id": custom, "result": result}
