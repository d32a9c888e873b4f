"""Google's batches of generateContent: requests inline, each with a key of ours, and answers inline in the job.

A batch carries our name for it, by which a process finds it that does not know its id.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote, urlsplit

from coeval.batch.backends import TIMEOUTS, Parcel, Result, State, requests_in
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.content import named_by, translated, without
from route.providers.errors import refusal
from route.providers.files import FileTransport
from route.providers.gemini import completion_of, generate_request, why_not

_DONE = ("succeeded", "failed", "cancelled", "expired")


class GeminiBatches:
    """One account at Google."""

    interval = 60.0
    most_requests = 10_000
    most_bytes = 15_000_000  # they take 20 MB inline
    most_tokens: int | None = 3_000_000  # what may wait of most models for a new account

    def __init__(self, account: Account) -> None:
        """A client that connects when it is used."""
        self._base = account.base_url.rstrip("/")
        self._host = urlsplit(self._base).netloc.rpartition("@")[2]
        self._secrets = [account.api_key] if account.api_key else []
        self._omit = named_by(account.options, "omit")
        self._transport = FileTransport(account, "gemini")

    def body(self, request: JSON) -> JSON:
        """A chat completion request as one of generateContent, with its model."""
        name = str(request.get("model")).removeprefix("models/")
        made = translated("gemini", generate_request, without(request, self._omit))
        return {"model": f"models/{name}", **made}

    async def submit(self, parcel: Parcel) -> str:
        """Send all requests; the name of the batch."""
        requests = [
            {"request": body, "metadata": {"key": custom}} for custom, body in requests_in(parcel.job, parcel.questions)
        ]
        batch = {"displayName": parcel.job.token, "inputConfig": {"requests": {"requests": requests}}}
        model = quote(requests[0]["request"]["model"], safe="/")
        url = f"{self._base}/{model}:batchGenerateContent"
        made = await self._transport.send_bytes(url, json.dumps({"batch": batch}).encode(), TIMEOUTS)
        return str(self._transport.understood(lambda answer: answer["name"], made))

    async def find(self, parcel: Parcel) -> str | None:
        """Look through all batches for the name."""
        token = ""
        while True:
            page = await self._get(f"{self._base}/batches?pageSize=100{token}")
            for one in page.get("operations") or []:
                if (one.get("metadata") or {}).get("displayName") == parcel.job.token:
                    return str(one["name"])
            if not page.get("nextPageToken"):
                return None
            token = f"&pageToken={quote(str(page['nextPageToken']), safe='')}"

    async def look(self, batch_id: str) -> State:
        """How a batch is; the answers come with it."""
        answer = await self._get(f"{self._base}/{quote(batch_id, safe='/')}")
        told = answer.get("metadata") or {}
        status = str(told.get("state") or "").rpartition("STATE_")[2].lower() or "unknown"
        failed = status == "failed" or (bool(answer.get("error")) and status not in _DONE)
        failure = _why(answer) if failed else ""
        stats = told.get("batchStats") or {}
        counts = (
            f"{stats.get('successfulRequestCount', 0)} of {stats['requestCount']}" if "requestCount" in stats else ""
        )
        return State(status, failed or status in _DONE, failure, counts, answer)

    async def results(self, state: State, path: Path) -> None:
        """The answers of a batch, from where it has them."""
        answer = state.answer or {}
        found = answer.get("response") or (answer.get("metadata") or {}).get("output") or {}
        if found.get("responsesFile"):
            root, _, version = self._base.rpartition("/")
            url = f"{root}/download/{version}/{quote(str(found['responsesFile']), safe='/')}:download?alt=media"
            await self._transport.fetch_file(url, path, TIMEOUTS)
            return
        inlined = found.get("inlinedResponses") or {}
        answers = inlined.get("inlinedResponses") if isinstance(inlined, dict) else inlined
        if answers and not any(_key(one) for one in answers):
            # Large batches come in another order than that of the requests: an answer must not go to another question.
            told = f"{self._host} gave the answers without the requests' keys; ask this model call by call"
            raise ProviderError(Fault.REQUEST, told)
        with path.open("ab") as file:
            for one in answers or []:
                file.write(json.dumps(one).encode() + b"\n")

    def read(self, line: JSON) -> Result:
        """What one of the answers says."""
        custom = _key(line)
        if not custom:
            raise ValueError
        response = line.get("response")
        if not response:
            return Result(custom, error=refusal(self._host, None, {}, {"error": line["error"]}, self._secrets))
        blocked, broken = why_not(response)
        if blocked:
            return Result(
                custom, error=ProviderError(Fault.CONTENT_FILTER, f"gemini refuses the content ({blocked[:64]})")
            )
        if broken:
            raise ValueError
        return Result(custom, completion_of(response))

    async def tidy(self, state: State) -> None:
        """Nothing is left over: nothing was stored but the batch."""

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _get(self, url: str) -> JSON:
        found = await self._transport.fetch(url, TIMEOUTS)
        if not isinstance(found, dict):
            raise self._transport.malformed("JSON that is no object")
        return found


def _key(line: JSON) -> str:
    return str(line.get("key") or (line.get("metadata") or {}).get("key") or "")


def _why(answer: JSON) -> str:
    error = answer.get("error") or {}
    return " ".join(str(error.get("message") or "no reason given").split())[:300]
