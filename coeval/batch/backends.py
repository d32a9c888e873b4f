"""What a provider of batch jobs offers, and what all of them share."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote, urlsplit

from coeval.batch.job import Job, custom_id, entries
from coeval.calling.limits import Retries
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.content import named_by, without
from route.providers.errors import refusal
from route.providers.files import FileTransport
from route.providers.openai import dialect_of

T = TypeVar("T")
_CLOCKS = 600.0  # seconds that two clocks may differ
TIMEOUTS = Timeouts(connect=10.0, first_token=120.0, stall=60.0, total=1800.0)
"""A file of 100 MB has to get through."""


@dataclass(frozen=True)
class State:
    """How a job is."""

    status: str
    """In the provider's words."""
    done: bool
    """Whether nothing more will come of it."""
    failure: str = ""
    """Why the whole job was turned down, so that nothing was asked."""
    counts: str = ""
    """How many answers there are so far, if the provider says so."""
    answer: JSON | None = None
    """All that it said, for `results`."""
    later: bool = False
    """Whether it was turned down only because too many tokens would wait: its own, or those of other jobs."""


@dataclass(frozen=True)
class Result:
    """What came of one request."""

    custom_id: str
    completion: JSON | None = None
    error: ProviderError | None = None
    unasked: bool = False
    """Whether the provider never came to it: the job expired or was cancelled."""


@dataclass(frozen=True)
class Parcel:
    """A job that is sent, or looked for."""

    job: Job
    """As it was noted before it was sent."""
    questions: Path
    """In whose folder there may be further files for a moment."""
    note: Callable[[str], None]
    """Hears the name of a file that has to be sent before the job."""
    known: frozenset[str] = frozenset()
    """Ids that are those of other jobs."""


class NoRoomError(Exception):
    """A job was not taken because too many tokens would wait; the text is the provider's."""


class UndecidedError(Exception):
    """A job may be one of those at work at the provider; the end of those will tell."""


class Backend(Protocol):
    """One account at one provider of batch jobs."""

    interval: float
    """Seconds between two looks at a job."""
    most_requests: int
    """In one job."""
    most_bytes: int
    """Of one job's requests."""
    most_tokens: int | None
    """Of one job's prompts, by an estimate; None where the provider counts none."""

    def body(self, request: JSON) -> JSON:
        """A chat completion request in the provider's words.

        Raises:
            ProviderError: it asks for what the provider does not have.
        """
        ...

    async def submit(self, parcel: Parcel) -> str:
        """Send a job; its id.

        Raises:
            NoRoomError: it was not taken, and may be later, or in parts.
            ProviderError: it was not sent, or nobody knows.
        """
        ...

    async def find(self, parcel: Parcel) -> str | None:
        """The id of a job of which nobody knows whether it was sent; None where it was not.

        Raises:
            UndecidedError: that will be known later.
            ProviderError: that cannot be found out.
        """
        ...

    async def look(self, batch_id: str) -> State:
        """How a job is.

        Raises:
            ProviderError: that cannot be found out.
        """
        ...

    async def results(self, state: State, path: Path) -> None:
        """Append the results to a file, one line each.

        Raises:
            ProviderError: they are not to be had.
        """
        ...

    def read(self, line: JSON) -> Result:
        """What a line of the results says.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError: nothing.
        """
        ...

    async def tidy(self, state: State) -> None:
        """Remove what is of no use any more at the provider.

        Raises:
            ProviderError: it cannot be.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def requests_in(job: Job, questions: Path) -> Iterator[tuple[str, JSON]]:
    """The requests of a job as (id, body), in order."""
    for number, entry in enumerate(entries(questions)):
        for place, sent in enumerate(entry.sent.values()):
            yield custom_id(job.token, number, place), sent.body


async def patiently(retries: Retries, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, as long as that makes sense.

    Raises:
        ProviderError: there is none.
    """
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


def unanswered(custom: str, status: str) -> Result:
    """The result of a request that the provider never came to; asking again helps where the job only took too long."""
    fault = Fault.TIMEOUT if status == "expired" else Fault.REQUEST
    return Result(custom, error=ProviderError(fault, f"the batch job {status} before this request"), unasked=True)


def since(job: Job) -> float:
    """The time (Unix, seconds) before which the provider cannot have got a job."""
    return datetime.fromisoformat(job.submitted_at.replace("Z", "+00:00")).timestamp() - _CLOCKS


def first_custom_id(path: Path) -> str:
    """The id of the first request in a file of results; empty where there is none."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                return str(json.loads(line)["custom_id"])
            except (ValueError, KeyError, TypeError):
                continue
    return ""


# OpenAI's batch jobs: a file of requests, a job on it with a day's time, a file of answers and one of errors.
#
# A job is known by its metadata, or by its file, to a process that does not know its id.

_DONE = ("completed", "expired", "cancelled", "failed")
_UNASKED = {"batch_expired": "expired", "batch_cancelled": "was cancelled"}
_UNREAD = ("pending", "running", "notrunning")
_FULL = "token_limit_exceeded"  # tokens of all jobs that wait, not of one request
_MARK = "coeval_job"


class OpenAIBatches:
    """One account at OpenAI."""

    interval = 30.0
    file_interval = 2.0
    """Seconds between two looks at a file that was sent."""
    most_requests = 50_000
    most_bytes = 100_000_000  # half of what they take
    most_tokens: int | None = 2_000_000  # what may wait of most models for a new account

    def __init__(self, account: Account, *, protocol: str = "openai") -> None:
        """A client that connects when it is used."""
        self._base = account.base_url.rstrip("/")
        self._host = urlsplit(self._base).netloc.rpartition("@")[2]
        self._secrets = [account.api_key] if account.api_key else []
        self._prepare, self._omit = dialect_of(account.options), named_by(account.options, "omit")
        self._transport = FileTransport(account, protocol)
        self.endpoint = "/v1/chat/completions"

    def url(self, path: str, **query: str | int) -> str:
        """The address of something."""
        return f"{self._base}/{path}" + _query(query)

    def body(self, request: JSON) -> JSON:
        """A chat completion request as it is sent."""
        return without(self._prepare(request), self._omit)

    async def submit(self, parcel: Parcel) -> str:
        """Send the file, then the job; its id."""
        job = parcel.job
        if job.input_file:  # of an attempt that came no further
            await self._remove_file(job.input_file)
        upload = parcel.questions.with_suffix(".upload.jsonl")
        try:
            self._write(parcel, upload)
            fields = {"purpose": "batch"}
            sent = await self._transport.send_file(self.url("files"), upload, fields, f"{job.token}.jsonl", TIMEOUTS)
        finally:
            upload.unlink(missing_ok=True)
        file = str(self._transport.understood(lambda answer: answer["id"], sent))
        parcel.note(file)
        await self._ready(sent)
        body = {
            "input_file_id": file,
            "endpoint": self.endpoint,
            "completion_window": "24h",
            "metadata": {_MARK: job.token, "description": job.description[:500]},
        }
        try:
            made = await self._transport.answer(self.url("batches"), body, TIMEOUTS)
        except ProviderError as error:
            if _FULL in str(error):
                raise NoRoomError(error.detail or str(error)) from None
            raise
        return str(self._transport.understood(lambda answer: answer["id"], made))

    async def find(self, parcel: Parcel) -> str | None:
        """Look through the jobs since it may have been sent."""
        job, after = parcel.job, dict[str, str | int]()
        while True:
            page = await self._get(self.url("batches", limit=100, **after))
            found = page.get("data") or []
            for one in found:
                if (one.get("metadata") or {}).get(_MARK) == job.token:
                    return str(one["id"])
                if job.input_file and one.get("input_file_id") == job.input_file:
                    return str(one["id"])
            if not page.get("has_more") or not found or found[-1].get("created_at", 0) < since(job):
                return None
            after = {"after": found[-1]["id"]}

    async def look(self, batch_id: str) -> State:
        """How a job is."""
        answer = await self._get(self.url(f"batches/{batch_id}"))
        status = str(answer.get("status"))
        counts = answer.get("request_counts") or {}
        told = f"{counts.get('completed', 0)} of {counts.get('total', 0)}" if counts.get("total") else ""
        failure = _why(answer) if status == "failed" else ""
        return State(status, status in _DONE, failure, told, answer, later=bool(failure) and _is_full(answer))

    async def results(self, state: State, path: Path) -> None:
        """The answers, then the errors."""
        answer = state.answer or {}
        for key in ("output_file_id", "error_file_id"):
            if answer.get(key):
                await self._transport.fetch_file(self.url(f"files/{answer[key]}/content"), path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """What a line of either file says."""
        custom, error, response = str(line["custom_id"]), line.get("error"), line.get("response")
        if error and error.get("code") in _UNASKED:
            return unanswered(custom, _UNASKED[error["code"]])
        if response and response["status_code"] == 200:
            return Result(custom, _checked(response["body"]))
        status, body = (response["status_code"], response["body"]) if response else (None, {"error": error})
        return Result(custom, error=refusal(self._host, status, {}, body, self._secrets))

    async def tidy(self, state: State) -> None:
        """Remove the file of requests."""
        file = (state.answer or {}).get("input_file_id")
        if file:
            await self._remove_file(str(file))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _ready(self, file: JSON) -> None:
        """Wait until a file may be used: Azure refuses jobs on one that it is still reading."""
        waited = 0.0
        while str(file.get("status")).lower() in _UNREAD and waited < TIMEOUTS.total:
            await asyncio.sleep(self.file_interval)
            waited += self.file_interval
            file = await self._get(self.url(f"files/{file['id']}"))

    async def _get(self, url: str) -> JSON:
        found = await self._transport.fetch(url, TIMEOUTS)
        if not isinstance(found, dict):
            raise self._transport.malformed("JSON that is no object")
        return found

    async def _remove_file(self, file: str) -> None:
        with contextlib.suppress(ProviderError):  # it may be gone, and costs nothing
            await self._transport.remove(self.url(f"files/{file}"), TIMEOUTS)

    def _write(self, parcel: Parcel, path: Path) -> None:
        with path.open("wb") as file:
            for custom, body in requests_in(parcel.job, parcel.questions):
                line = {"custom_id": custom, "method": "POST", "url": self.endpoint, "body": body}
                file.write(json.dumps(line).encode() + b"\n")


def _checked(body: JSON) -> JSON:
    if not isinstance(body["choices"][0]["message"], dict):
        raise TypeError
    return body


def _is_full(answer: JSON) -> bool:
    return any(error.get("code") == _FULL for error in (answer.get("errors") or {}).get("data") or ())


def _why(answer: JSON) -> str:
    """Why a job was turned down."""
    errors = (answer.get("errors") or {}).get("data") or [{}]
    said = str(errors[0].get("message") or errors[0].get("code") or "no reason given")
    return " ".join(said.split())[:300]


def _query(query: dict[str, str | int]) -> str:
    return "?" + "&".join(f"{key}={value}" for key, value in query.items()) if query else ""


# Batch jobs of OpenAI's models at Azure: OpenAI's protocol at a resource's own address; a model is a deployment.


class AzureBatches(OpenAIBatches):
    """One resource at Azure."""

    def __init__(self, account: Account) -> None:
        """A client that connects when it is used; the deployment has to be one for batches (`Global-Batch`)."""
        super().__init__(account, protocol="azure")
        self.endpoint = "/chat/completions"
        self._version = quote(str(account.options.get("api_version", "")))
        self._is_versioned = not self._base.endswith("/openai/v1")
        if self._is_versioned:
            self._base = f"{self._base.partition('/openai')[0]}/openai"

    def url(self, path: str, **query: str | int) -> str:
        """The address of something, with the version that the account has."""
        if self._is_versioned:
            query = {"api-version": self._version, **query}
        return super().url(path, **query)
