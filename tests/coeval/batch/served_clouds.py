"""Batch jobs and buckets as AWS and Google Cloud offer them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

if TYPE_CHECKING:
    from tests.coeval.batch.servers import BatchServer, ServedJob

_AWS = {"in_progress": "InProgress", "completed": "Completed", "cancelled": "Stopped"}
_GOOGLE = {"in_progress": "RUNNING", "completed": "SUCCEEDED"}
_JOBS = "/v1/projects/p-1/locations/us-central1/batchPredictionJobs"
BUCKET = "a-bucket"


class CloudSide:
    """What a server says in the words of Bedrock and S3, and of Vertex and Cloud Storage."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server

    def routes(self) -> list[web.RouteDef]:
        """At addresses that none of the others has."""
        return [
            web.post("/token", self._token),
            web.put(f"/{BUCKET}/{{name:.+}}", self._put),
            web.delete(f"/{BUCKET}/{{name:.+}}", self._delete),
            web.get(f"/{BUCKET}/{{folder:.+}}/answers/{{job}}/{{name}}", self._s3_answers),
            web.post("/model-invocation-job", self._make_at_aws),
            web.get("/model-invocation-job/{arn:.+}", self._show_at_aws),
            web.get("/model-invocation-jobs", self._list_at_aws),
            web.post("/upload/storage/v1/b/{bucket}/o", self._upload),
            web.post(_JOBS, self._make_at_google),
            web.get(_JOBS, self._list_at_google),
            web.get(f"{_JOBS}/{{id}}", self._show_at_google),
            web.get(f"/storage/v1/b/{BUCKET}/o", self._objects),
            web.get(f"/storage/v1/b/{BUCKET}/o/{{name:.+}}", self._gcs_answers),
        ]

    async def _token(self, _request: web.Request) -> web.Response:
        return web.json_response({"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"})

    async def _put(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"].startswith("AWS4-HMAC-SHA256")
        self._server.files[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _delete(self, request: web.Request) -> web.Response:
        self._server.removed.append(request.match_info["name"])
        return web.Response(status=204)

    async def _make_at_aws(self, request: web.Request) -> web.Response:
        told = await request.json()
        assert (told["modelInvocationType"], told["roleArn"]) == ("Converse", "arn:aws:iam::1:role/batch")
        place = told["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].removeprefix(f"s3://{BUCKET}/")
        lines = [json.loads(line) for line in self._server.files[place].splitlines()]
        requests = [(line["recordId"], {"model": told["modelId"], **line["modelInput"]}) for line in lines]
        job = self._server.make("arn:aws:bedrock:us-east-1:1:model-invocation-job/j", requests, told)
        return await self._server.reply(request, {"jobArn": job.id})

    def _at_aws(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        status = self._server.status(job, look=look)
        told = {"jobArn": job.id, "jobName": job.told["jobName"], "status": _AWS.get(status, status.capitalize())}
        return told | ({"message": "The model does not exist."} if status == "failed" else {})

    async def _show_at_aws(self, request: web.Request) -> web.Response:
        return web.json_response(self._at_aws(self._server.job(unquote(request.match_info["arn"]))))

    async def _list_at_aws(self, request: web.Request) -> web.Response:
        jobs = [self._at_aws(job, look=False) for job in self._server.jobs]
        part = request.query["nameContains"]
        return web.json_response({"invocationJobSummaries": [job for job in jobs if part in job["jobName"]]})

    async def _s3_answers(self, request: web.Request) -> web.StreamResponse:
        job = next(job for job in self._server.jobs if job.id.endswith(f"/{request.match_info['job']}"))
        lines = [_record(custom, body, said) for custom, body, said in self._server.answers(job)]
        return await self._server.results(request, [line for line in lines if line])

    async def _upload(self, request: web.Request) -> web.Response:
        name = request.query["name"]
        self._server.files[name] = await request.read()
        return web.json_response({"name": name})

    async def _make_at_google(self, request: web.Request) -> web.Response:
        told = await request.json()
        (uri,) = told["inputConfig"]["gcsSource"]["uris"]
        lines = [json.loads(line) for line in self._server.files[uri.removeprefix(f"gs://{BUCKET}/")].splitlines()]
        requests = [(line["request"]["labels"]["coeval"], line["request"]) for line in lines]
        job = self._server.make("b", requests, told)
        return await self._server.reply(request, self._at_google(job, look=False))

    def _at_google(self, job: ServedJob, *, look: bool = True) -> dict[str, Any]:
        status = self._server.status(job, look=look)
        prefix = job.told["outputConfig"]["gcsDestination"]["outputUriPrefix"]
        told: dict[str, Any] = {
            "name": f"projects/p-1/locations/us-central1/batchPredictionJobs/{job.id}",
            "displayName": job.told["displayName"],
            "state": f"JOB_STATE_{_GOOGLE.get(status, status.upper())}",
            "outputInfo": {"gcsOutputDirectory": f"{prefix}/prediction-model-1"},
        }
        return told | ({"error": {"code": 3, "message": "The model does not exist."}} if status == "failed" else {})

    async def _show_at_google(self, request: web.Request) -> web.Response:
        return web.json_response(self._at_google(self._server.job(request.match_info["id"])))

    async def _list_at_google(self, request: web.Request) -> web.Response:
        token = request.query["filter"].partition('"')[2].rstrip('"')
        jobs = [self._at_google(job, look=False) for job in self._server.jobs if job.told["displayName"] == token]
        return web.json_response({"batchPredictionJobs": jobs})

    async def _objects(self, request: web.Request) -> web.Response:
        return web.json_response({"items": [{"name": f"{request.query['prefix']}/predictions.jsonl"}]})

    async def _gcs_answers(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        job = next(job for job in self._server.jobs if f"/{job.told['displayName']}/" in name)
        lines = [_prediction(body, said) for _, body, said in self._server.answers(job)]
        return await self._server.results(request, [line for line in lines if line])


def _record(custom: str, body: dict[str, Any], said: str | int | None) -> dict[str, Any]:
    record: dict[str, Any] = {"recordId": custom, "modelInput": body}
    if said is None:
        return {}
    if isinstance(said, int):
        return record | {"error": {"errorCode": said, "errorMessage": "As it was told."}}
    message = {"role": "assistant", "content": [{"text": said}]}
    usage = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}
    return record | {"modelOutput": {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}}


def _prediction(body: dict[str, Any], said: str | int | None) -> dict[str, Any]:
    if said is None:
        return {}
    if isinstance(said, int):
        return {"request": body, "status": f"Error {said}: as it was told."}
    return {
        "request": body,
        "status": "",
        "response": {
            "candidates": [{"content": {"role": "model", "parts": [{"text": said}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10},
            "modelVersion": "m",
        },
    }
