"""Batches of generateContent as Google offers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.coeval.batch.servers import BatchServer, ServedJob

_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main."
_STATES = {"in_progress": "RUNNING", "completed": "SUCCEEDED"}


class GeminiSide:
    """What a server says in Google's words."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server

    def routes(self) -> list[web.RouteDef]:
        """At Google's addresses."""
        return [
            web.post("/v1beta/models/{call}", self._make),
            web.get("/v1beta/batches", self._list),
            web.get("/v1beta/batches/{id}", self._show),
            web.post("/v1beta/batches/{call}", self._cancel),
        ]

    async def _make(self, request: web.Request) -> web.Response:
        model, _, call = request.match_info["call"].partition(":")
        assert call == "batchGenerateContent"
        batch = (await request.json())["batch"]
        inlined = batch["inputConfig"]["requests"]["requests"]
        requests = [(one["metadata"]["key"], one["request"]) for one in inlined]
        assert {body["model"] for _, body in requests} == {f"models/{model}"}
        return await self._server.reply(request, self._told(self._server.make("batches/b", requests, batch)))

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._told(self._server.job(f"batches/{request.match_info['id']}")))

    async def _cancel(self, request: web.Request) -> web.Response:
        name, _, call = request.match_info["call"].partition(":")
        assert call == "cancel"
        self._server.job(f"batches/{name}").cancelled = True
        return web.json_response({})

    async def _list(self, request: web.Request) -> web.Response:
        rest = self._server.after(request.query.get("pageToken"))
        page: dict[str, Any] = {"operations": [self._told(job, look=False) for job in rest[:2]]}
        return web.json_response(page | ({"nextPageToken": rest[1].id} if len(rest) > 2 else {}))

    def _told(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        status = self._server.status(job, look=look)
        metadata: dict[str, Any] = {
            "@type": f"{_TYPE}GenerateContentBatch",
            "model": job.requests[0][1]["model"],
            "displayName": job.told["displayName"],
            "createTime": "2026-01-01T00:00:00.5Z",
            "updateTime": "2026-01-01T00:00:00.5Z",
            "batchStats": {"requestCount": str(len(job.requests))},
            "state": f"BATCH_STATE_{_STATES.get(status, status.upper())}",
            "name": job.id,
        }
        told: dict[str, Any] = {"name": job.id, "metadata": metadata}
        if status == "failed":
            return told | {"done": True, "error": {"code": 3, "message": "The model does not exist."}}
        if status == "cancelled":
            return told | {"done": True, "error": {"code": 1, "message": "The operation was cancelled."}}
        if status != "completed":
            return told
        lines = [_line(*found) for found in self._server.answers(job)]
        if self._server.keyless:
            lines = [{key: value for key, value in line.items() if key != "metadata"} for line in lines]
        found = {"inlinedResponses": {"inlinedResponses": lines}}
        metadata["output"] = found
        return told | {"done": True, "response": {"@type": f"{_TYPE}GenerateContentBatchOutput", **found}}


def _line(custom: str, body: dict[str, Any], said: str | int | None) -> dict[str, Any]:
    if not isinstance(said, str):
        code = {500: 13, 503: 14}.get(said or 0, 3)
        status = {13: "INTERNAL", 14: "UNAVAILABLE"}.get(code, "INVALID_ARGUMENT")
        return {"metadata": {"key": custom}, "error": {"code": code, "message": "As it was told.", "status": status}}
    answer = {
        "candidates": [{"content": {"role": "model", "parts": [{"text": said}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
        "modelVersion": body["model"].removeprefix("models/"),
        "responseId": f"r-{custom}",
    }
    return {"metadata": {"key": custom}, "response": answer}
