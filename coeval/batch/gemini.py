"""Google's batches of generateContent: requests inline, each with a key of ours, and answers inline in the job.

A batch carries our display name, by which a process finds it that does not know its id.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from coeval.batch.backends import TIMEOUTS, Backend, Result, State, Submission
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.completions import without
from route.providers.gemini import completion_of, generate_request, why_not
from route.providers.translation import translated

_DONE = ("succeeded", "failed", "cancelled", "expired")


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
        failed = status == "failed" or (bool(error) and status not in _DONE)
        failure = " ".join(str(error.get("message") or "no reason given").split())[:300] if failed else ""
        stats = metadata.get("batchStats") or {}
        counts = ""
        if "requestCount" in stats:
            counts = f"{stats.get('successfulRequestCount', 0)} of {stats['requestCount']}"
        return State(status, failed or status in _DONE, failure, counts, answer)

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
        blocked, broken = why_not(response)
        if blocked:
            error = ProviderError(Fault.CONTENT_FILTER, f"gemini refuses the content ({blocked[:64]})")
            return Result(custom, error=error)
        if broken:
            raise ValueError
        return Result(custom, completion_of(response))


def _key(line: JSON) -> str:
    return str(line.get("key") or (line.get("metadata") or {}).get("key") or "")
