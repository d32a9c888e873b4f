"""Anthropic's message batches: all requests in one, the results as a stream of lines in any order.

A batch carries no name of ours but in its requests' ids, which its results alone show. So one of which nobody knows
whether it was sent is looked for among those with as many requests, made since then.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from coeval.batch.backends import (
    TIMEOUTS,
    Parcel,
    Result,
    State,
    UndecidedError,
    first_custom_id,
    requests_in,
    since,
    unanswered,
)
from coeval.batch.job import Job
from route.providers.anthropic import completion_of, messages_request
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.content import named_by, translated, without
from route.providers.errors import refusal
from route.providers.files import FileTransport

_MAX_TOKENS = 1024
_UNASKED = {"expired": "expired", "canceled": "was cancelled"}


class AnthropicBatches:
    """One account at Anthropic."""

    interval = 60.0
    most_requests = 10_000
    most_bytes = 64_000_000  # sent from memory; they take four times as much
    most_tokens: int | None = None

    def __init__(self, account: Account) -> None:
        """A client that connects when it is used."""
        base = account.base_url.rstrip("/").removesuffix("/v1")
        self._url = f"{base}/v1/messages/batches"
        self._host = urlsplit(base).netloc.rpartition("@")[2]
        self._secrets = [account.api_key] if account.api_key else []
        self._max_tokens = int(account.options.get("max_tokens", _MAX_TOKENS))
        self._omit = named_by(account.options, "omit")
        self._transport = FileTransport(account, "anthropic")

    def body(self, request: JSON) -> JSON:
        """A chat completion request as one of the Messages API."""
        translate = partial(messages_request, max_tokens=self._max_tokens)
        return translated("anthropic", translate, without(request, self._omit))

    async def submit(self, parcel: Parcel) -> str:
        """Send all requests; the id of the batch."""
        lines = (
            json.dumps({"custom_id": custom, "params": body})
            for custom, body in requests_in(parcel.job, parcel.questions)
        )
        whole = b'{"requests":[' + ",".join(lines).encode() + b"]}"
        made = await self._transport.send_bytes(self._url, whole, TIMEOUTS)
        return str(self._transport.understood(lambda answer: answer["id"], made))

    async def find(self, parcel: Parcel) -> str | None:
        """Look at the results of all batches that it may be; those at work leave it undecided."""
        job, running = parcel.job, False
        for batch in await self._since(since(job)):
            if batch["id"] in parcel.known or sum((batch.get("request_counts") or {}).values()) != job.n_requests:
                continue
            if batch.get("processing_status") != "ended":
                running = True
            elif batch.get("results_url") and await self._is_of(job, str(batch["id"]), parcel.questions.parent):
                return str(batch["id"])
        if running:
            raise UndecidedError
        return None

    async def look(self, batch_id: str) -> State:
        """How a batch is."""
        answer = await self._get(f"{self._url}/{batch_id}")
        status, counts = str(answer.get("processing_status")), answer.get("request_counts") or {}
        done = status == "ended"
        told = "" if done else f"{counts.get('processing', 0)} at work"
        return State(status, done, "", told, answer)

    async def results(self, state: State, path: Path) -> None:
        """The results, in the provider's order."""
        answer = state.answer or {}
        if not answer.get("results_url"):
            raise ProviderError(Fault.UNSUPPORTED, f"{self._host} has the results of batch {answer.get('id')} no more")
        # The address is made here: the key goes nowhere else.
        await self._transport.fetch_file(f"{self._url}/{answer['id']}/results", path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """What a line of the results says."""
        custom, result = str(line["custom_id"]), line["result"]
        if result["type"] in _UNASKED:
            return unanswered(custom, _UNASKED[result["type"]])
        if result["type"] == "succeeded":
            if not isinstance(result["message"]["content"], list):
                raise TypeError
            return Result(custom, completion_of(result["message"]))
        return Result(custom, error=refusal(self._host, None, {}, result["error"], self._secrets))

    async def tidy(self, state: State) -> None:
        """Nothing is left over: a batch is kept by the provider for 29 days."""

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _since(self, start: float) -> list[JSON]:
        """All batches made since then, the newest first."""
        batches: list[JSON] = []
        after = ""
        while True:
            page = await self._get(f"{self._url}?limit=100{after}")
            found = page.get("data") or []
            batches += [batch for batch in found if _time(batch) >= start]
            if not page.get("has_more") or not found or _time(found[-1]) < start:
                return batches
            after = f"&after_id={found[-1]['id']}"

    async def _is_of(self, job: Job, batch_id: str, folder: Path) -> bool:
        peek = folder / f"{job.token}.peek.jsonl"
        try:
            await self._transport.fetch_file(f"{self._url}/{batch_id}/results", peek, TIMEOUTS)
            return first_custom_id(peek).startswith(f"{job.token}-")
        finally:
            peek.unlink(missing_ok=True)

    async def _get(self, url: str) -> JSON:
        found = await self._transport.fetch(url, TIMEOUTS)
        if not isinstance(found, dict):
            raise self._transport.malformed("JSON that is no object")
        return found


def _time(batch: JSON) -> float:
    return datetime.fromisoformat(str(batch["created_at"]).replace("Z", "+00:00")).timestamp()
