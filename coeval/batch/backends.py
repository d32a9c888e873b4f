"""What every provider of batch jobs offers, and the providers that speak OpenAI's protocol: OpenAI and Azure.

An OpenAI job reads a file of requests, has a day's time, and writes a file of answers and one of errors. A process that
does not know a job's id finds the job by its metadata or by its input file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from coeval.batch.pending import Job, custom_id, job_questions
from coeval.calling.limits import Retries
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.completions import named_by, without
from route.providers.files import FileTransport
from route.providers.openai import dialect_of

T = TypeVar("T")
NO_RESULT = (ValueError, KeyError, TypeError, AttributeError, IndexError)
_CLOCK_SKEW = 600.0  # seconds that our clock and the provider's may differ
# Long enough to upload a file of 100 MB, and to download the answers to it.
TIMEOUTS = Timeouts(connect=10.0, first_token=120.0, stall=60.0, total=1800.0, max_bytes=4 * 2**30)


@dataclass(frozen=True)
class State:
    """The state of a job at the provider."""

    status: str
    done: bool
    failure: str = ""  # why the provider rejected the whole job, so that it answered no request
    counts: str = ""  # how many requests are answered so far, where the provider reports it
    answer: JSON | None = None  # the provider's whole description of the job
    no_room: bool = False  # the rejection only means that too many tokens would be queued, by this job or by others


@dataclass(frozen=True)
class Result:
    """The result of one request."""

    custom_id: str
    completion: JSON | None = None
    error: ProviderError | None = None
    unasked: bool = False  # the provider never processed the request: the job expired or was cancelled before

    @classmethod
    def unprocessed(cls, custom_id: str, status: str) -> Result:
        """Return the result of a request that a job `expired` or `was cancelled` before."""
        # Asking again helps where the job only ran out of time.
        fault = Fault.TIMEOUT if status == "expired" else Fault.REQUEST
        error = ProviderError(fault, f"the batch job {status} before this request")
        return cls(custom_id, error=error, unasked=True)


@dataclass(frozen=True)
class Submission:
    """A job that is being submitted, or looked up because its submission was interrupted."""

    job: Job
    questions: Path  # the job's questions; the folder may hold temporary files
    note_file: Callable[[str], None]  # records the id of a file that is uploaded before the job is created
    known: frozenset[str] = frozenset()  # ids of other jobs

    def requests(self) -> Iterator[tuple[str, JSON]]:
        """Yield the id and body of each request, in order."""
        for number, entry in enumerate(job_questions(self.questions)):
            for place, sent in enumerate(entry.sent.values()):
                yield custom_id(self.job.token, number, place), sent.body

    @property
    def earliest(self) -> float:
        """Unix time before which the provider cannot have received the job."""
        return datetime.fromisoformat(self.job.submitted_at.replace("Z", "+00:00")).timestamp() - _CLOCK_SKEW


class NoRoomError(Exception):
    """The provider did not accept a job because too many tokens would be queued; the text is the provider's."""


class UndecidedError(Exception):
    """A job may be one of those running at the provider, which only their end will show."""


class Backend(ABC):
    """One account at one provider of batch jobs; connects on first use."""

    interval: float  # seconds between two polls of a job
    most_requests: int
    most_bytes: int  # largest size of one job's requests
    most_tokens: int | None = None  # most estimated prompt tokens of one job; None where the provider has no such limit

    def __init__(self, account: Account, base: str, protocol: str) -> None:
        self._base = base
        self._omit = named_by(account.options, "omit")
        self._transport = FileTransport(account, protocol)

    @abstractmethod
    def body(self, request: JSON) -> JSON:
        """Return a chat completion request in the provider's format. Raise ProviderError if it does not support it."""

    @abstractmethod
    async def submit(self, submission: Submission) -> str:
        """Submit a job and return its id.

        Raise NoRoomError if it may fit later or in smaller parts, ProviderError if it was rejected, or may have been.
        """

    @abstractmethod
    async def find(self, submission: Submission) -> str | None:
        """Return the id of a job whose submission was interrupted; None if it was never submitted.

        Raise UndecidedError if only time will tell, ProviderError if this cannot be looked up.
        """

    @abstractmethod
    async def look(self, batch_id: str) -> State:
        """Return the state of a job. Raise ProviderError if it cannot be looked up."""

    @abstractmethod
    async def results(self, state: State, path: Path) -> None:
        """Append the results of a job to a file, one per line. Raise ProviderError if they cannot be downloaded."""

    @abstractmethod
    def read(self, line: JSON) -> Result:
        """Parse a line of the results. Raise one of `NO_RESULT` if it is none."""

    async def tidy(self, state: State) -> None:  # noqa: B027 - most providers keep nothing to remove
        """Remove what is no longer needed at the provider. Raise ProviderError if it cannot be removed."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _get(self, url: str) -> JSON:
        answer = await self._transport.fetch(url, TIMEOUTS)
        if not isinstance(answer, dict):
            raise self._transport.malformed("JSON that is not an object")
        return answer


async def with_retries(retries: Retries, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer. Raise the last ProviderError if another attempt makes no sense."""
    failed = 0
    while True:
        try:
            return await ask()
        except ProviderError as error:
            failed += 1
            wait = retries.wait(error, failed)
            if wait is None:
                raise
        await asyncio.sleep(wait)


_DONE = ("completed", "expired", "cancelled", "failed")
_UNASKED = {"batch_expired": "expired", "batch_cancelled": "was cancelled"}
_UNREAD = ("pending", "running", "notrunning")
_NO_ROOM = "token_limit_exceeded"  # of all queued jobs, not of one request
_METADATA_KEY = "coeval_job"


class OpenAIBatches(Backend):
    """One account at OpenAI."""

    interval = 30.0
    file_interval = 2.0  # seconds between two polls of an uploaded file
    most_requests = 50_000
    most_bytes = 100_000_000  # half of what they accept
    most_tokens = 2_000_000  # what a new account may queue for most models
    endpoint = "/v1/chat/completions"

    def __init__(self, account: Account, *, protocol: str = "openai") -> None:
        super().__init__(account, account.base_url.rstrip("/"), protocol)
        self._prepare = dialect_of(account.options)

    def url(self, path: str, **query: str | int) -> str:
        """Return the address of a resource."""
        text = "&".join(f"{key}={value}" for key, value in query.items())
        return f"{self._base}/{path}?{text}" if text else f"{self._base}/{path}"

    def body(self, request: JSON) -> JSON:
        """Return a chat completion request as it is sent."""
        return without(self._prepare(request), self._omit)

    async def submit(self, submission: Submission) -> str:
        """Upload the file of requests, then create the job."""
        job = submission.job
        if job.input_file:  # of an interrupted attempt
            await self._remove_file(job.input_file)
        file = await self._upload(submission)
        file_id = str(self._transport.understood(lambda answer: answer["id"], file))
        submission.note_file(file_id)
        # Azure rejects jobs on a file that it is still reading.
        waited = 0.0
        while str(file.get("status")).lower() in _UNREAD and waited < TIMEOUTS.total:
            await asyncio.sleep(self.file_interval)
            waited += self.file_interval
            file = await self._get(self.url(f"files/{file_id}"))
        body = {
            "input_file_id": file_id,
            "endpoint": self.endpoint,
            "completion_window": "24h",
            "metadata": {_METADATA_KEY: job.token, "description": job.description[:500]},
        }
        try:
            batch = await self._transport.answer(self.url("batches"), body, TIMEOUTS)
        except ProviderError as error:
            if _NO_ROOM in str(error):
                raise NoRoomError(error.detail or str(error)) from None
            raise
        return str(self._transport.understood(lambda answer: answer["id"], batch))

    async def find(self, submission: Submission) -> str | None:
        """Look through the jobs created since the submission began."""
        job, after = submission.job, dict[str, str | int]()
        while True:
            page = await self._get(self.url("batches", limit=100, **after))
            batches = page.get("data") or []
            for batch in batches:
                if (batch.get("metadata") or {}).get(_METADATA_KEY) == job.token:
                    return str(batch["id"])
                if job.input_file and batch.get("input_file_id") == job.input_file:
                    return str(batch["id"])
            if not page.get("has_more") or not batches or batches[-1].get("created_at", 0) < submission.earliest:
                return None
            after = {"after": batches[-1]["id"]}

    async def look(self, batch_id: str) -> State:
        """Return the state of a job."""
        answer = await self._get(self.url(f"batches/{batch_id}"))
        status = str(answer.get("status"))
        counts = answer.get("request_counts") or {}
        progress = f"{counts.get('completed', 0)} of {counts.get('total', 0)}" if counts.get("total") else ""
        if status != "failed":
            return State(status, status in _DONE, "", progress, answer)
        errors = (answer.get("errors") or {}).get("data") or [{}]
        why = str(errors[0].get("message") or errors[0].get("code") or "no reason given")
        no_room = any(error.get("code") == _NO_ROOM for error in errors)
        return State(status, True, " ".join(why.split())[:300], progress, answer, no_room)

    async def results(self, state: State, path: Path) -> None:
        """Download the answers, then the errors."""
        answer = state.answer or {}
        for key in ("output_file_id", "error_file_id"):
            if answer.get(key):
                await self._transport.fetch_file(self.url(f"files/{answer[key]}/content"), path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """Parse a line of either file."""
        custom, error, response = str(line["custom_id"]), line.get("error"), line.get("response")
        if error and error.get("code") in _UNASKED:
            return Result.unprocessed(custom, _UNASKED[error["code"]])
        if response and response["status_code"] == 200:
            if not isinstance(response["body"]["choices"][0]["message"], dict):
                raise TypeError
            return Result(custom, response["body"])
        status, body = (response["status_code"], response["body"]) if response else (None, {"error": error})
        return Result(custom, error=self._transport.failure(body, status))

    async def tidy(self, state: State) -> None:
        """Remove the file of requests."""
        file = (state.answer or {}).get("input_file_id")
        if file:
            await self._remove_file(str(file))

    async def _upload(self, submission: Submission) -> JSON:
        path = submission.questions.with_suffix(".upload.jsonl")
        try:
            with path.open("wb") as file:
                for custom, body in submission.requests():
                    line = {"custom_id": custom, "method": "POST", "url": self.endpoint, "body": body}
                    file.write(json.dumps(line).encode() + b"\n")
            name, fields = f"{submission.job.token}.jsonl", {"purpose": "batch"}
            return await self._transport.send_file(self.url("files"), path, fields, name, TIMEOUTS)
        finally:
            path.unlink(missing_ok=True)

    async def _remove_file(self, file: str) -> None:
        with contextlib.suppress(ProviderError):  # it may be gone already, and costs nothing
            await self._transport.remove(self.url(f"files/{file}"), TIMEOUTS)


class AzureBatches(OpenAIBatches):
    """One resource at Azure: OpenAI's protocol at the resource's own address, a deployment in place of a model."""

    endpoint = "/chat/completions"

    def __init__(self, account: Account) -> None:
        """The deployment has to be one for batches (`Global-Batch`)."""
        super().__init__(account, protocol="azure")
        self._version = quote(str(account.options.get("api_version", "")))
        self._is_versioned = not self._base.endswith("/openai/v1")
        if self._is_versioned:
            self._base = f"{self._base.partition('/openai')[0]}/openai"

    def url(self, path: str, **query: str | int) -> str:
        """Return the address of a resource, with the account's API version."""
        return super().url(path, **({"api-version": self._version} if self._is_versioned else {}), **query)
