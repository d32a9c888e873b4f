"""Batch jobs of the clouds and of Gemini.

The clouds read requests from an object of a bucket and write answers to another.
Bedrock takes a job (`CreateModelInvocationJob`, in the form of Converse) with our token as its name and its idempotency
key, so a job that was submitted twice is one. Vertex takes a `batchPredictionJob` with the token as display name; its
answers repeat their requests, so a label in each says which one it is. Gemini takes requests inline, each with a key of
ours, and gives its answers inline; a batch carries our display name, by which a process finds it that does not know
its id.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from coeval.batch.backends import TIMEOUTS, Backend, Result, State, Submission
from p2l.common.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.bedrock import completion_of, converse_request
from route.providers.completions import without
from route.providers.files import FileTransport
from route.providers.gemini import completion_of as gemini_completion
from route.providers.gemini import generate_request, vertex_base, why_not
from route.providers.translation import translated

_LABEL = "coeval"


class _CloudBatches(Backend):
    """One account at a cloud; subclasses know its jobs and its buckets."""

    interval = 60.0
    most_requests = 50_000
    most_bytes = 50_000_000  # sent from memory; they accept more
    _done: tuple[str, ...]
    _failed: tuple[str, ...]

    def __init__(self, account: Account, base: str, protocol: str, store: FileTransport, prefix: str) -> None:
        super().__init__(account, base, protocol)
        self._store = store
        self._prefix = prefix.strip("/") or "coeval"

    async def aclose(self) -> None:
        """Close the connections."""
        await super().aclose()
        await self._store.close()

    @abstractmethod
    def line(self, custom: str, body: JSON) -> JSON:
        """Return a request as it stands in the file."""

    @abstractmethod
    async def put(self, name: str, content: bytes) -> None:
        """Write an object."""

    @abstractmethod
    async def create(self, submission: Submission, model: str) -> str:
        """Create the job of the object that was written; return its id."""

    async def submit(self, submission: Submission) -> str:
        """Write the requests into the bucket, then create the job."""
        lines, model = [], ""
        for custom, body in submission.requests():
            model = str(body["model"])
            lines.append(json.dumps(self.line(custom, without(body, ("model",)))).encode() + b"\n")
        await self.put(f"{submission.job.token}.jsonl", b"".join(lines))
        return await self.create(submission, model)

    def _state(self, status: str, answer: JSON, why: object) -> State:
        failed = status in self._failed
        failure = " ".join(str(why or "no reason given").split())[:300] if failed else ""
        named = {"stopped": "cancelled"}.get(status.lower(), status.lower())
        return State(named, failed or status in self._done, failure, "", answer)


def _option(account: Account, name: str, interface: str) -> str:
    value = account.options.get(name)
    if not value:
        raise ConfigError(f"{interface}: batch jobs need {name} among the model's parameters, or in the key file")
    return str(value)


def _is_at(account: Account, domain: str) -> bool:
    return (urlsplit(account.base_url).hostname or "").endswith(domain)


class BedrockBatches(_CloudBatches):
    """One account at AWS: a role that may read and write the bucket runs the job."""

    _done = ("Completed", "PartiallyCompleted", "Stopped", "Expired")
    _failed = ("Failed",)

    def __init__(self, account: Account) -> None:
        base = account.base_url.rstrip("/").replace("//bedrock-runtime.", "//bedrock.")
        self._bucket = _option(account, "batch_s3_bucket", "bedrock")
        self._role = _option(account, "batch_role_arn", "bedrock")
        self._most = account.options.get("max_tokens")
        self._objects = f"{base}/{self._bucket}"  # an address of one's own, which has both services
        if _is_at(account, ".amazonaws.com"):
            self._objects = f"https://{self._bucket}.s3.{account.options['region']}.amazonaws.com"
        store = FileTransport(replace(account, base_url=self._objects, api_key=None), "s3")
        super().__init__(account, base, "bedrock", store, str(account.options.get("batch_s3_prefix") or ""))

    def body(self, request: JSON) -> JSON:
        """Return a chat completion request as one of Converse, with its model."""
        whole = without(request, self._omit)
        body = translated("bedrock", lambda sent: converse_request(sent, max_tokens=self._most), whole)
        return {"model": request.get("model"), **body}

    def line(self, custom: str, body: JSON) -> JSON:
        """Return a record."""
        return {"recordId": custom, "modelInput": body}

    async def put(self, name: str, content: bytes) -> None:
        """Write an object to S3."""
        await self._store.send_object(f"{self._objects}/{self._prefix}/{name}", content, TIMEOUTS)

    async def create(self, submission: Submission, model: str) -> str:
        """Create the job."""
        token, place = submission.job.token, f"s3://{self._bucket}/{self._prefix}"
        body = {
            "jobName": token,
            "clientRequestToken": token,
            "roleArn": self._role,
            "modelId": model,
            "modelInvocationType": "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": f"{place}/{token}.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"{place}/answers/"}},
        }
        answer = await self._transport.answer(f"{self._base}/model-invocation-job", body, TIMEOUTS)
        return str(self._transport.understood(lambda sent: sent["jobArn"], answer))

    async def find(self, submission: Submission) -> str | None:
        """Look for the job by its name."""
        token = submission.job.token
        page = await self._get(f"{self._base}/model-invocation-jobs?nameContains={token}")
        jobs = page.get("invocationJobSummaries") or []
        return next((str(job["jobArn"]) for job in jobs if job.get("jobName") == token), None)

    async def look(self, batch_id: str) -> State:
        """Return the state of a job."""
        answer = await self._get(f"{self._base}/model-invocation-job/{quote(batch_id, safe='')}")
        return self._state(str(answer.get("status")), answer, answer.get("message"))

    async def results(self, state: State, path: Path) -> None:
        """Download the answers, which lie in a folder of the job's own."""
        answer = state.answer or {}
        job, token = str(answer.get("jobArn")).rpartition("/")[2], answer.get("jobName")
        url = f"{self._objects}/{self._prefix}/answers/{quote(job)}/{token}.jsonl.out"
        await self._store.fetch_file(url, path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """Parse a record."""
        custom, error = str(line["recordId"]), line.get("error")
        if error or not line.get("modelOutput"):
            status = error.get("errorCode") if isinstance(error, dict) else None
            message = error.get("errorMessage") if isinstance(error, dict) else "no answer"
            known = status if isinstance(status, int) else 500
            return Result(custom, error=self._transport.failure({"error": {"message": message}}, known))
        return Result(custom, completion_of(line["modelOutput"], ""))

    async def tidy(self, state: State) -> None:
        """Remove the file of requests."""
        token = (state.answer or {}).get("jobName")
        with contextlib.suppress(ProviderError):  # it may be gone already, and costs next to nothing
            await self._store.remove(f"{self._objects}/{self._prefix}/{token}.jsonl", TIMEOUTS)


class VertexBatches(_CloudBatches):
    """One project at Google Cloud."""

    _done = ("SUCCEEDED", "PARTIALLY_SUCCEEDED", "CANCELLED", "EXPIRED")
    _failed = ("FAILED",)

    def __init__(self, account: Account) -> None:
        self._bucket = _option(account, "batch_gcs_bucket", "vertex").removeprefix("gs://")
        if account.api_key:
            raise ConfigError("vertex: batch jobs need a project and its credentials in place of an API key")
        self._objects = "https://storage.googleapis.com"
        if not _is_at(account, ".googleapis.com"):
            self._objects = account.base_url.rstrip("/")
        store = FileTransport(account, "vertex")
        prefix = str(account.options.get("batch_gcs_prefix") or "")
        super().__init__(account, vertex_base(account), "vertex", store, prefix)

    def body(self, request: JSON) -> JSON:
        """Return a chat completion request as one of generateContent, with its model."""
        name = str(request.get("model"))
        model = name if name.startswith(("projects/", "publishers/")) else f"publishers/google/models/{name}"
        return {"model": model, **translated("vertex", generate_request, without(request, self._omit))}

    def line(self, custom: str, body: JSON) -> JSON:
        """Return an instance, whose label comes back with its answer."""
        return {"request": {**body, "labels": {_LABEL: custom}}}

    async def put(self, name: str, content: bytes) -> None:
        """Write an object to Cloud Storage."""
        place = quote(f"{self._prefix}/{name}", safe="")
        url = f"{self._objects}/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={place}"
        await self._store.send_bytes(url, content, TIMEOUTS)

    async def create(self, submission: Submission, model: str) -> str:
        """Create the job."""
        token, place = submission.job.token, f"gs://{self._bucket}/{self._prefix}"
        body = {
            "displayName": token,
            "model": model,
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [f"{place}/{token}.jsonl"]}},
            "outputConfig": {
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": f"{place}/answers/{token}"},
            },
        }
        answer = await self._transport.answer(f"{self._base}/batchPredictionJobs", body, TIMEOUTS)
        return str(self._transport.understood(lambda sent: sent["name"], answer))

    async def find(self, submission: Submission) -> str | None:
        """Look for the job by its display name."""
        wanted = quote(f'displayName="{submission.job.token}"', safe="")
        page = await self._get(f"{self._base}/batchPredictionJobs?filter={wanted}")
        jobs: Iterable[Any] = page.get("batchPredictionJobs") or []
        return next((str(job["name"]) for job in jobs if job.get("displayName") == submission.job.token), None)

    async def look(self, batch_id: str) -> State:
        """Return the state of a job."""
        root = self._base.partition("/projects/")[0]
        answer = await self._get(f"{root}/{quote(batch_id, safe='/')}")
        status = str(answer.get("state")).removeprefix("JOB_STATE_")
        return self._state(status, answer, (answer.get("error") or {}).get("message"))

    async def results(self, state: State, path: Path) -> None:
        """Download the answers from every file in the folder that the job names."""
        folder = str(((state.answer or {}).get("outputInfo") or {}).get("gcsOutputDirectory") or "")
        if not folder:
            raise ProviderError(Fault.MALFORMED, f"{self._transport.host} names no folder with the answers")
        prefix = folder.removeprefix(f"gs://{self._bucket}/").rstrip("/")
        root = f"{self._objects}/storage/v1/b/{self._bucket}/o"
        listing = await self._store.fetch(f"{root}?prefix={quote(prefix, safe='')}", TIMEOUTS)
        for entry in (listing.get("items") or []) if isinstance(listing, dict) else []:
            if str(entry.get("name")).endswith(".jsonl"):
                await self._store.fetch_file(f"{root}/{quote(str(entry['name']), safe='')}?alt=media", path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """Parse an answer."""
        custom, response = str(line["request"]["labels"][_LABEL]), line.get("response")
        if not response:
            message = str(line.get("status") or "no answer")
            return Result(custom, error=self._transport.failure({"error": {"message": message}}, 500))
        return _google_result(custom, response, "vertex")


def _google_result(custom: str, response: JSON, provider: str) -> Result:
    """Return the result of an answer of generateContent. Raise ValueError for one that broke off."""
    blocked, broken = why_not(response)
    if blocked:
        why = f"{provider} refuses the content ({blocked[:64]})"
        return Result(custom, error=ProviderError(Fault.CONTENT_FILTER, why))
    if broken:
        raise ValueError
    return Result(custom, gemini_completion(response))


_DONE_AT_GEMINI = ("succeeded", "failed", "cancelled", "expired")


class GeminiBatches(Backend):
    """One account at Google."""

    interval = 60.0
    most_requests = 10_000
    most_bytes = 15_000_000  # they accept 20 MB inline
    most_tokens = 3_000_000  # what a new account may queue for most models

    def __init__(self, account: Account) -> None:
        super().__init__(account, account.base_url.rstrip("/"), "gemini")

    def body(self, request: JSON) -> JSON:
        """Return a chat completion request as one of generateContent, with its model."""
        name = str(request.get("model")).removeprefix("models/")
        return {"model": f"models/{name}", **translated("gemini", generate_request, without(request, self._omit))}

    async def submit(self, submission: Submission) -> str:
        """Send all requests in one body."""
        requests = [{"request": body, "metadata": {"key": custom}} for custom, body in submission.requests()]
        batch = {"displayName": submission.job.token, "inputConfig": {"requests": {"requests": requests}}}
        url = f"{self._base}/{quote(requests[0]['request']['model'], safe='/')}:batchGenerateContent"
        answer = await self._transport.send_bytes(url, json.dumps({"batch": batch}).encode(), TIMEOUTS)
        return str(self._transport.understood(lambda answer: answer["name"], answer))

    async def find(self, submission: Submission) -> str | None:
        """Look through all batches for the display name."""
        token = ""
        while True:
            page = await self._get(f"{self._base}/batches?pageSize=100{token}")
            for batch in page.get("operations") or []:
                if (batch.get("metadata") or {}).get("displayName") == submission.job.token:
                    return str(batch["name"])
            if not page.get("nextPageToken"):
                return None
            token = f"&pageToken={quote(str(page['nextPageToken']), safe='')}"

    async def look(self, batch_id: str) -> State:
        """Return the state of a batch; its answers come along."""
        answer = await self._get(f"{self._base}/{quote(batch_id, safe='/')}")
        metadata, error = answer.get("metadata") or {}, answer.get("error") or {}
        status = str(metadata.get("state") or "").rpartition("STATE_")[2].lower() or "unknown"
        failed = status == "failed" or (bool(error) and status not in _DONE_AT_GEMINI)
        failure = " ".join(str(error.get("message") or "no reason given").split())[:300] if failed else ""
        stats = metadata.get("batchStats") or {}
        counts = ""
        if "requestCount" in stats:
            counts = f"{stats.get('successfulRequestCount', 0)} of {stats['requestCount']}"
        return State(status, failed or status in _DONE_AT_GEMINI, failure, counts, answer)

    async def results(self, state: State, path: Path) -> None:
        """Write the answers of a batch, from its description or from the file that it names."""
        answer = state.answer or {}
        output = answer.get("response") or (answer.get("metadata") or {}).get("output") or {}
        if output.get("responsesFile"):
            root, _, version = self._base.rpartition("/")
            url = f"{root}/download/{version}/{quote(str(output['responsesFile']), safe='/')}:download?alt=media"
            await self._transport.fetch_file(url, path, TIMEOUTS)
            return
        inlined = output.get("inlinedResponses") or {}
        lines = inlined.get("inlinedResponses") if isinstance(inlined, dict) else inlined
        if lines and not any(map(_key, lines)):
            # Large batches come in another order than their requests: an answer must not go to another question.
            why = f"{self._transport.host} gave the answers without the requests' keys; ask this model call by call"
            raise ProviderError(Fault.REQUEST, why)
        with path.open("ab") as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in lines or [])

    def read(self, line: JSON) -> Result:
        """Parse one of the answers."""
        custom, response = _key(line), line.get("response")
        if not custom:
            raise ValueError
        if not response:
            return Result(custom, error=self._transport.failure({"error": line["error"]}))
        return _google_result(custom, response, "gemini")


def _key(line: JSON) -> str:
    return str(line.get("key") or (line.get("metadata") or {}).get("key") or "")
