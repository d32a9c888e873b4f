"""The client of every provider that speaks OpenAI's chat completions: requests go out as they came.

Unknown fields pass through both ways, and so does content of null. Many providers only know the first names of fields:
their dialect is `classic`, which says `max_tokens` for `max_completion_tokens`, since a provider that does not know it
refuses it or, worse, ignores it, and `system` for the role `developer`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import quote

from p2l.common.cli import choose
from p2l.common.errors import ConfigError
from p2l.common.long_texts import apart
from route.providers import completions, cousins, efforts, responses
from route.providers.base import (
    JSON,
    NATIVE,
    OWN_HISTORY,
    Account,
    Fault,
    Forwarded,
    NativeRequest,
    NotSpokenError,
    ProviderError,
    Timeouts,
    note_dropped,
)
from route.providers.http import WHOLE, Event, Transport
from route.providers.translation import NativeCall, translated, without_thoughts
from route.providers.usage import of_generation, usage_in


def classic(request: JSON) -> JSON:
    """Rename fields and roles to those of the first chat completions."""
    body = dict(request)
    limit = body.pop("max_completion_tokens", None)
    if limit is not None:
        body["max_tokens"] = limit
    return completions.renamed(body, {"developer": "system"})


def _for_open_models(request: JSON) -> JSON:
    """Prepare a request for a server of open models, of which some have a switch for thoughts."""
    return classic(efforts.of_open_model(request))


_DIALECTS: Mapping[str, Callable[[JSON], JSON]] = {"current": dict, "classic": classic, "open": _for_open_models}
"""By the account's option `dialect`."""


_CHAT = "chat/completions"
_TOOL_IDS = {form: form for form in completions.TOOL_IDS}


def dialect_of(options: Mapping[str, Any]) -> Callable[[JSON], JSON]:
    """Return the function that turns a request into the dialect of an account's provider."""
    return choose("options: dialect", str(options.get("dialect", "current")), _DIALECTS)


# After which a service that had no Responses API is asked for it again.
_RESPONSES_REST_SECONDS = 600.0


_RECORDS: Mapping[str, bool] = {"none": False, "generation": True}
"""Whether a provider has OpenRouter's records of generations, by the account's option `record`."""


def _says(options: Mapping[str, Any], name: str) -> bool:
    """Return an account's option that is yes or no, by default no; raise ConfigError for anything else."""
    says = options.get(name, False)
    if not isinstance(says, bool):
        raise ConfigError(f"options: {name} must be true or false")
    return says


class _NoResponseError(ProviderError):
    """The service answered, but with something else than a response."""


class OpenAICompatible:
    """One account at a provider of OpenAI's protocol."""

    def __init__(
        self,
        account: Account,
        *,
        protocol: str = "openai",
        url: Callable[[JSON, str], str] | None = None,
        prepare: Callable[[JSON], JSON] | None = None,
    ) -> None:
        """Set up a client; it connects at its first request.

        The account's options are `omit`, the fields that this provider refuses; `keep`, those of its own answers that
        it wants back; `tool_ids`, `usual` or `nine`, the identifiers of tool calls that it takes; `responses`, whether
        it may have the Responses API; `think_tags`, whether its text may begin with thoughts; and `dialect`, `current`
        or `classic`, which `prepare` replaces. `protocol` decides how the key is sent.
        """
        base = account.base_url.rstrip("/")
        self._url = url or (lambda _, path: f"{base}/{path}")
        self._prepare = prepare or dialect_of(account.options)
        self._omit = completions.named_by(account.options, "omit")
        self._keep = completions.named_by(account.options, "keep")
        # OpenAI's own models refuse thoughts in messages; of other services nothing is known.
        self._keeps_own = protocol == "openai" and not base.startswith("https://api.openai.com/")
        self._tool_ids = choose("options: tool_ids", str(account.options.get("tool_ids", "usual")), _TOOL_IDS)
        self._transport = Transport(account, protocol)
        self._has_responses = _says(account.options, "responses")
        self._has_think_tags = _says(account.options, "think_tags")
        self._has_generations = choose("options: record", str(account.options.get("record", "none")), _RECORDS)
        self._asks_again_at = 0.0

    def speaks(self, protocol: str) -> bool:
        """See `NativeProvider`; likewise the others."""
        return protocol == "responses" and self._has_responses and time.monotonic() >= self._asks_again_at

    async def answer_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request a whole response."""
        try:
            return await (await self._native(request, timeouts)).answer()
        except ProviderError as error:
            raise self._not_spoken(error) from error

    async def count_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request the number of tokens of a prompt."""
        body = completions.without(request.body, self._omit)
        try:
            return await self._transport.answer(self._url(body, "responses/input_tokens"), body, timeouts)
        except ProviderError as error:
            raise self._not_spoken(error) from error

    async def stream_natively(self, request: NativeRequest, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a response and yield its events."""
        call = await self._native(request, timeouts)
        has_begun = False
        try:
            async with aclosing(call.stream(responses.ResponsesStream(with_usage=True))) as chunks:
                async for chunk in chunks:
                    has_begun = True
                    yield chunk
        except ProviderError as error:
            raise (error if has_begun else self._not_spoken(error)) from error

    async def _native(self, request: NativeRequest, timeouts: Timeouts) -> NativeCall:
        body = await apart(request.body, lambda: completions.omitted(responses.native_body(request), self._omit))
        return NativeCall(
            transport=self._transport,
            url=self._url(body, f"responses/{request.path}".rstrip("/")),
            body=body,
            headers=request.headers,
            timeouts=timeouts,
            checked=self._checked_response,
            completion_of=responses.completion_of,
        )

    def _checked_response(self, answer: JSON) -> JSON:
        kind = str(answer.get("type") or "")
        if kind == "error" or kind == "response.failed" or answer.get("status") == "failed":
            response = answer.get("response") or answer
            raise self._transport.failure({"error": response.get("error") or response})
        # Events of other kinds, such as signs of life, say nothing of the answer.
        if not kind and not isinstance(answer.get("output"), list):
            raise _NoResponseError(Fault.MALFORMED, f"{self._transport.host} sent what is not a response")
        return answer

    def _not_spoken(self, error: ProviderError) -> Exception:
        """Return the error to raise: a service that has chat completions alone is asked for these."""
        if isinstance(error, _NoResponseError):
            return NotSpokenError()
        # A refusal of a model that is not there names it; one of a path that is not there does not.
        if error.status in (404, 405, 501) and "model" not in error.detail.lower():
            self._asks_again_at = time.monotonic() + _RESPONSES_REST_SECONDS
            return NotSpokenError()
        return error

    def keeps(self, identifier: str) -> bool:
        """See `Recording`; likewise the next."""
        return self._has_generations or (self._has_responses and identifier.startswith("resp_"))

    async def recorded(self, identifier: str, timeouts: Timeouts) -> JSON:
        """Return OpenRouter's record of a generation, or a response that is kept, with its usage."""
        name = quote(identifier, safe="")
        path = f"generation?id={name}" if self._has_generations else f"responses/{name}"
        record = await self._transport.fetch(self._url({}, path), timeouts)
        read = of_generation if self._has_generations else responses.usage_of
        return self._transport.understood(read, record if isinstance(record, dict) else {})

    async def cancel(self, identifier: str, timeouts: Timeouts) -> JSON:
        """See `KeepsResponses`; likewise the next."""
        url = self._url({}, f"responses/{quote(identifier, safe='')}/cancel")
        return self._transport.understood(responses.usage_of, await self._transport.answer(url, {}, timeouts))

    async def forget(self, identifier: str, timeouts: Timeouts) -> None:
        """Delete a response."""
        await self._transport.delete(self._url({}, f"responses/{quote(identifier, safe='')}"), timeouts)

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Request a whole chat completion."""
        # OpenAI refuses stream options without a stream.
        body = await apart(request, lambda: completions.without(self._body(request), ("stream", "stream_options")))
        answer = await self._transport.answer(self._url(body, _CHAT), body, timeouts)
        return self._completion(answer, keeps_functions=bool(body.get("functions")))

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a chat completion and yield its chunks; complete is a stream with `[DONE]` or all finish reasons."""
        body = {**await apart(request, lambda: self._body(request)), "stream": True}
        n_choices = body["n"] if isinstance(body.get("n"), int) else 1
        finished = set[int]()
        begun = False
        keeps_functions = bool(body.get("functions"))
        reader = cousins.ChunkReader(has_think_tags=self._has_think_tags, keeps_functions=keeps_functions)
        with_usage = completions.asks_for_usage(request)
        async with aclosing(self._transport.events(self._url(body, _CHAT), body, timeouts)) as events:
            try:
                async for event in events:
                    if event.data == b"[DONE]" and begun:
                        for chunk in reader.ending():
                            yield chunk
                        return
                    for chunk in await self._chunks(event, with_usage, keeps_functions):
                        begun = True
                        chunk = self._transport.understood(reader.read, chunk)
                        finished.update(self._transport.understood(self._finished, chunk))
                        yield chunk
            except ProviderError:
                if len(finished) < n_choices:  # a complete answer outlives the connection
                    raise
        if len(finished) < n_choices:
            raise self._transport.malformed("a stream without its end" if begun else "an empty stream")

    async def forward(self, path: str, model: str, body: bytes, content_type: str, timeouts: Timeouts) -> Forwarded:
        """Post a body to another endpoint (`embeddings`, `audio/speech`, ...) and return the answer as it comes."""
        return await self._transport.forward(self._url({"model": model}, path), body, content_type, timeouts)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _body(self, request: JSON) -> JSON:
        is_own = self._keeps_own and OWN_HISTORY.get()
        keep = self._keep | completions.OWN_THOUGHTS if is_own else self._keep
        request = completions.for_another_model(request, keep)
        if not is_own or self._tool_ids != "usual":  # OpenAI's limit of length, which other services do not have
            request = completions.with_tool_ids(request, self._tool_ids)
        return completions.omitted(self._prepare(request), self._omit)

    async def _chunks(self, event: Event, with_usage: bool, keeps_functions: bool) -> list[JSON]:
        if event.data == b"[DONE]":
            raise self._transport.malformed("an empty stream")
        chunk = await self._transport.loaded(event.data)
        if chunk.get("error") or event.name == "error" or chunk.get("object") == "error":
            raise self._transport.failure(chunk)
        if event.name == WHOLE:
            whole = self._completion(chunk, keeps_functions=keeps_functions)
            return completions.chunks_of(whole, with_usage=with_usage)
        if "choices" not in chunk:
            if event.name not in ("", "message"):  # of a kind of its own, which says nothing of the answer
                return []
            raise self._transport.malformed("a chunk without choices")
        chunk["choices"] = chunk["choices"] or []  # some write null where a chunk has the usage alone
        if not isinstance(chunk["choices"], list) or not all(
            isinstance(choice, dict) and isinstance(choice.get("delta"), dict | None) for choice in chunk["choices"]
        ):
            raise self._transport.malformed("a chunk of an unknown shape")
        self._raise_faults(chunk["choices"])
        return [self._counted(chunk)]

    def _raise_faults(self, choices: list[JSON]) -> None:
        """Raise the `ProviderError` that a choice stands for."""
        for choice in choices:
            fault = cousins.fault_in(choice)
            if fault is not None:
                raise self._transport.failure(fault)
            if cousins.is_broken(choice):
                host = self._transport.host
                raise ProviderError(Fault.MALFORMED, f"{host}: the answer broke off", host=host)

    @staticmethod
    def _finished(chunk: JSON) -> set[int]:
        """Return the choices that end with this chunk."""
        return {choice.get("index", 0) for choice in chunk["choices"] if choice.get("finish_reason")}

    def _completion(self, answer: JSON, *, keeps_functions: bool) -> JSON:
        try:
            self._check_choices(answer.get("choices"))
        except ProviderError as error:
            error.usage = self._transport.understood(usage_in, answer)
            raise
        read = partial(cousins.completion, has_think_tags=self._has_think_tags, keeps_functions=keeps_functions)
        return self._counted(self._transport.understood(read, answer))

    def _check_choices(self, choices: object) -> None:
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise self._transport.malformed("an answer without choices")
        self._raise_faults(choices)
        if not all(isinstance(choice.get("message"), dict) for choice in choices):
            raise self._transport.malformed("a choice without a message")

    def _counted(self, answer: JSON) -> JSON:
        """Return an answer or a chunk with its usage in the one form that everybody reads."""
        counts = self._transport.understood(usage_in, answer)
        if counts is not None:
            answer["usage"] = counts
        return answer


def azure(account: Account) -> OpenAICompatible:
    """Return a client of OpenAI's models at Azure, where the model names a deployment and is part of the path.

    `base_url` is the resource (`https://NAME.openai.azure.com`), one deployment of it (`.../openai/deployments/NAME`),
    or its newer interface without versions (`.../openai/v1`). `options["api_version"]` goes with the first two.
    """
    base, version = account.base_url.rstrip("/"), quote(str(account.options.get("api_version", "")))

    def url(request: JSON, path: str) -> str:
        if base.endswith("/openai/v1"):
            return f"{base}/{path}"
        deployment = base
        if "/openai/deployments/" not in base:
            deployment = (
                f"{base.removesuffix('/openai')}/openai/deployments/{quote(str(request.get('model')), safe='')}"
            )
        return f"{deployment}/{path}?api-version={version}"

    return OpenAICompatible(account, protocol="azure", url=url)


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "logit_bias",
)


def for_reasoning(request: JSON) -> JSON:
    """Drop the sampling parameters, which reasoning models refuse, and rename `max_tokens`."""
    note_dropped(*(name for name in _SAMPLING if request.get(name) is not None))
    body = {key: value for key, value in request.items() if key not in _SAMPLING}
    limit = body.pop("max_tokens", None)
    if limit is not None:
        body.setdefault("max_completion_tokens", limit)
    return body


def for_o1(request: JSON) -> JSON:
    """Prepare a request for the first versions of o1, which have no system role either."""
    return completions.renamed(for_reasoning(request), dict.fromkeys(completions.SYSTEM_ROLES, "user"))


class ResponsesAlone(OpenAICompatible):
    """A client of models that have the Responses API alone: chat completions are translated to it and back."""

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Request a whole chat completion."""
        return completions.without(await (await self._call(request, timeouts)).answer(), (NATIVE,))

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a chat completion and yield its chunks."""
        call = await self._call({**request, "stream": True}, timeouts)
        translator = responses.ResponsesStream(with_usage=completions.asks_for_usage(request))
        async with aclosing(call.stream(translator)) as chunks:
            async for chunk in chunks:
                says_nothing = not chunk["choices"] and chunk.get("usage") is None
                if not (chunk.pop(NATIVE, None) and says_nothing):
                    yield chunk

    async def _call(self, request: JSON, timeouts: Timeouts) -> NativeCall:
        def body_of() -> JSON:
            return translated(
                "responses", lambda chat: responses.request_of(without_thoughts(chat)), self._body(request)
            )

        body = await apart(request, body_of)
        if request.get("stream"):
            body["stream"] = True
        return await self._native(NativeRequest("responses", body), timeouts)

    def _not_spoken(self, error: ProviderError) -> Exception:
        return error


class WholeAnswers(OpenAICompatible):
    """A client of o1 and other models without streams."""

    stream = completions.whole_stream

    def __init__(self, account: Account) -> None:
        super().__init__(account, prepare=for_o1)
