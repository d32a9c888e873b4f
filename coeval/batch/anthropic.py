"""Anthropic's message batches: one upload of all requests, and results as a stream of lines in any order.

A batch carries no name of ours but the ids of its requests, which only its results show. So a batch whose submission
was interrupted is searched among those with as many requests that were created since.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path

from coeval.batch.backends import TIMEOUTS, Backend, Result, State, Submission, UndecidedError
from p2l.common.files import parse_json
from route.providers.anthropic import completion_of, messages_request
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.completions import without
from route.providers.translation import translated

_MAX_TOKENS = 1024
_UNASKED = {"expired": "expired", "canceled": "was cancelled"}


class AnthropicBatches(Backend):
    """One account at Anthropic."""

    interval = 60.0
    most_requests = 10_000
    most_bytes = 64_000_000  # sent from memory; they accept four times as much

    def __init__(self, account: Account) -> None:
        base = account.base_url.rstrip("/").removesuffix("/v1")
        super().__init__(account, f"{base}/v1/messages/batches", "anthropic")
        self._max_tokens = int(account.options.get("max_tokens", _MAX_TOKENS))

    def body(self, request: JSON) -> JSON:
        """Return a chat completion request as one of the Messages API."""
        translate = partial(messages_request, max_tokens=self._max_tokens)
        return translated("anthropic", translate, without(request, self._omit))

    async def submit(self, submission: Submission) -> str:
        """Send all requests in one body."""
        lines = (json.dumps({"custom_id": custom, "params": body}) for custom, body in submission.requests())
        body = b'{"requests":[' + ",".join(lines).encode() + b"]}"
        batch = await self._transport.send_bytes(self._base, body, TIMEOUTS)
        return str(self._transport.understood(lambda answer: answer["id"], batch))

    async def find(self, submission: Submission) -> str | None:
        """Look into the results of every batch that may be the job; running ones leave it undecided."""
        running = False
        for batch in await self._since(submission.earliest):
            requests = sum((batch.get("request_counts") or {}).values())
            if batch["id"] in submission.known or requests != submission.job.n_requests:
                continue
            if batch.get("processing_status") != "ended":
                running = True
            elif batch.get("results_url") and await self._is_of(submission, str(batch["id"])):
                return str(batch["id"])
        if running:
            raise UndecidedError
        return None

    async def look(self, batch_id: str) -> State:
        """Return the state of a batch."""
        answer = await self._get(f"{self._base}/{batch_id}")
        status, counts = str(answer.get("processing_status")), answer.get("request_counts") or {}
        done = status == "ended"
        return State(status, done, "", "" if done else f"{counts.get('processing', 0)} at work", answer)

    async def results(self, state: State, path: Path) -> None:
        """Download the results, in the provider's order."""
        answer = state.answer or {}
        if not answer.get("results_url"):
            why = f"{self._transport.host} has the results of batch {answer.get('id')} no more"
            raise ProviderError(Fault.UNSUPPORTED, why)
        # Not `results_url` itself: the key must go to no other host.
        await self._transport.fetch_file(f"{self._base}/{answer['id']}/results", path, TIMEOUTS)

    def read(self, line: JSON) -> Result:
        """Parse a line of the results."""
        custom, result = str(line["custom_id"]), line["result"]
        if result["type"] in _UNASKED:
            return Result.unprocessed(custom, _UNASKED[result["type"]])
        if result["type"] == "succeeded":
            if not isinstance(result["message"]["content"], list):
                raise TypeError
            return Result(custom, completion_of(result["message"]))
        return Result(custom, error=self._transport.failure(result["error"]))

    async def _since(self, start: float) -> list[JSON]:
        """Return all batches created since then, the newest first."""
        recent: list[JSON] = []
        after = ""
        while True:
            page = await self._get(f"{self._base}?limit=100{after}")
            batches = page.get("data") or []
            recent += [batch for batch in batches if _created(batch) >= start]
            if not page.get("has_more") or not batches or _created(batches[-1]) < start:
                return recent
            after = f"&after_id={batches[-1]['id']}"

    async def _is_of(self, submission: Submission, batch_id: str) -> bool:
        """Return whether the first readable result of a batch is of the job."""
        path = submission.questions.with_suffix(".peek.jsonl")
        try:
            await self._transport.fetch_file(f"{self._base}/{batch_id}/results", path, TIMEOUTS)
            with path.open("rb") as lines:
                for line in lines:
                    try:
                        return str(parse_json(line)["custom_id"]).startswith(f"{submission.job.token}-")
                    except (ValueError, KeyError, TypeError):
                        continue
            return False
        finally:
            path.unlink(missing_ok=True)


def _created(batch: JSON) -> float:
    return datetime.fromisoformat(str(batch["created_at"]).replace("Z", "+00:00")).timestamp()
