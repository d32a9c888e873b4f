"""What the clients of protocols other than OpenAI's share: the client itself, and pieces of the translation."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from p2l.common.files import parse_json
from p2l.common.long_texts import apart
from route.providers import completions
from route.providers.base import JSON, NATIVE, Account, Fault, ProviderError, Timeouts, note_dropped
from route.providers.http import WHOLE, Transport

TRANSLATED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls"),
        *("response_format", "temperature", "user", "safety_identifier", "stream", "stream_options", "n", "logprobs"),
    }
)
"""Fields that clients of other protocols translate or refuse."""
HINTS = frozenset(
    {
        *("audio", "logit_bias", "metadata", "modalities", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("service_tier", "store", "top_logprobs", "verbosity", "web_search_options"),
    }
)
"""Fields that a protocol without a counterpart leaves out: the answer still fits the request."""


class StreamTranslator(ABC):
    """The translation of one stream into chunks."""

    def __init__(self, *, with_usage: bool, clock: Callable[[], float] = time.time) -> None:
        self.finished = False
        """Whether the end of the answer has arrived."""
        self._with_usage = with_usage
        self._frame: JSON = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(clock()), "model": ""}
        self._counts: JSON = {}
        self._calls = 0

    @abstractmethod
    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""

    def end(self) -> list[JSON]:
        """Return the chunks after the last event."""
        return []

    def empty_chunk(self) -> JSON:
        """Return a chunk of an event that says nothing of text, calls or tokens."""
        return {**self._frame, "object": "chat.completion.chunk", "choices": []}

    def _chunk(self, delta: JSON, finish: str | None = None) -> list[JSON]:
        return [completions.chunk(self._frame, delta, finish)]

    def _usage_chunk(self, counts: JSON | None) -> list[JSON]:
        has_usage = self._with_usage and counts is not None
        return [completions.usage_chunk(self._frame, counts)] if has_usage else []


class TranslatingClient(ABC):
    """A client that translates requests and answers; subclasses know the protocol."""

    protocol: str
    stream_translator: type[StreamTranslator]

    def __init__(self, account: Account) -> None:
        """Set up a client that connects at its first request; `options["omit"]` names fields to leave out."""
        self._omit = completions.named_by(account.options, "omit")
        self._transport = Transport(account, self.protocol)

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Request a whole chat completion."""
        url = self._url(request, stream=False)
        body = await apart(request, lambda: self._body(request, stream=False))
        return self._completion(self._checked(await self._transport.answer(url, body, timeouts)))

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a chat completion and yield its chunks."""
        url = self._url(request, stream=True)
        body = await apart(request, lambda: self._body(request, stream=True))
        with_usage = completions.asks_for_usage(request)
        translator = self.stream_translator(with_usage=with_usage)
        async with aclosing(self._transport.events(url, body, timeouts)) as events:
            try:
                async for event in events:
                    answer = self._checked(await self._transport.loaded(event.data))
                    if event.name == WHOLE:
                        for part in completions.chunks_of(self._completion(answer), with_usage=with_usage):
                            yield part
                        return
                    for part in self._transport.understood(translator.take, answer):
                        yield part
            except ProviderError:
                if not translator.finished:  # a complete answer outlives the connection
                    raise
        if not translator.finished:
            raise self._transport.malformed("a stream without its end")
        for part in translator.end():
            yield part

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _body(self, request: JSON, *, stream: bool) -> JSON:  # noqa: ARG002
        body = completions.omitted(request, self._omit)
        return translated(self.protocol, lambda chat: self._translate(without_thoughts(chat)), body)

    @abstractmethod
    def _url(self, request: JSON, *, stream: bool) -> str:
        """Return the address for a request."""

    @abstractmethod
    def _translate(self, request: JSON) -> JSON:
        """Translate a chat completion request."""

    @abstractmethod
    def _checked(self, answer: JSON) -> JSON:
        """Return an answer, or a piece of one, or raise the `ProviderError` that it stands for."""

    @abstractmethod
    def _completion(self, answer: JSON) -> JSON:
        """Translate a whole answer."""


def note_hints(request: JSON, hints: Collection[str]) -> None:
    """Note the hints of a request that a protocol has no counterpart for."""
    # Calls are parallel unless a request says otherwise; other hints say nothing where they are false.
    usual = {"parallel_tool_calls": True}
    note_dropped(*(name for name in request if name in hints and request[name] not in (None, usual.get(name, False))))


def unsupported(who: str, what: str) -> ProviderError:
    """Return the error for what a protocol cannot express; another model may take the request."""
    return ProviderError(Fault.UNSUPPORTED, f"{who} cannot take {what}", detail=f"{who} cannot take {what}")


def refuse_the_impossible(who: str, request: JSON) -> None:
    """Raise ProviderError if a request asks for several answers or log-probabilities, which no such protocol has."""
    if (request.get("n") or 1) != 1:
        raise unsupported(who, "n above 1")
    if request.get("logprobs"):
        raise unsupported(who, "logprobs")


def translated(who: str, translate: Callable[[JSON], JSON], request: JSON) -> JSON:
    """Translate a request into another protocol. Raise ProviderError if it is malformed, or asks for the impossible."""
    try:
        return translate(request)
    except completions.SHAPE_ERRORS:
        what = "the request is not of the form of a chat completion request"
        raise ProviderError(Fault.REQUEST, f"{who}: {what}", detail=what) from None


def without_thoughts(request: JSON) -> JSON:
    """Return a request without the thoughts that Mistral's models put among the parts of an answer, and note them."""
    messages = request.get("messages") or []
    answers = [message for message in messages if message.get("role") == "assistant"]
    note_dropped(*(f"messages.{name}" for name in ("reasoning_details",) if any(each.get(name) for each in answers)))
    if not any(_holds_thoughts(message) for message in messages):
        return request
    note_dropped("messages.thinking")
    without = [
        {**message, "content": [part for part in message["content"] if not _is_thought(part)]}
        if _holds_thoughts(message)
        else message
        for message in messages
    ]
    return {**request, "messages": without}


def _holds_thoughts(message: JSON) -> bool:
    content = message.get("content")
    return message.get("role") == "assistant" and isinstance(content, list) and any(map(_is_thought, content))


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def system_text(request: JSON, further: str = "") -> str:
    """Return all system messages and `further` as paragraphs."""
    system = (message for message in request.get("messages") or [] if message.get("role") in completions.SYSTEM_ROLES)
    texts = [*(completions.joined_text(message.get("content")) for message in system), further]
    return "\n\n".join(text for text in texts if text.strip())


def blank_conversation() -> ProviderError:
    """Return the error for a conversation of which nothing is left without blank text, which providers refuse."""
    blank = "there is no text in any message"
    return ProviderError(Fault.REQUEST, blank, detail=blank)


def turns_of(messages: list[JSON], assistant: str, key: str, parts_of: Callable[[JSON], Iterator[JSON]]) -> list[JSON]:
    """Return turns with their parts under a key; neighbours of one role are one turn, and system messages are none."""
    turns: list[JSON] = []
    for message in messages:
        if message.get("role") in completions.SYSTEM_ROLES:
            continue
        parts = list(parts_of(message))
        role = assistant if message.get("role") == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1][key] += parts
        elif parts:
            turns.append({"role": role, key: parts})
    if messages and not turns:
        raise blank_conversation()
    for turn in turns:
        if turn["role"] != assistant:
            # Providers want the results of tools before what the user says to them.
            turn[key].sort(key=lambda part: _RESULTS.isdisjoint(part))
    return turns


_RESULTS = frozenset({"tool_use_id", "toolResult", "functionResponse"})
"""Keys of the results of tools, as protocols name them."""


def unmarked(request: JSON) -> JSON:
    """Return a request for a model that caches nothing on demand, and note that its marks are lost."""

    def without_mark(part: Any) -> Any:
        if not isinstance(part, dict) or "cache_control" not in part:
            return part
        note_dropped("cache_control")
        return completions.without(part, ("cache_control",))

    messages = [without_mark(message) for message in request.get("messages") or []]
    for number, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            messages[number] = {**message, "content": [without_mark(part) for part in message["content"]]}
    tools = {"tools": [without_mark(tool) for tool in request["tools"]]} if request.get("tools") else {}
    return {**request, "messages": messages, **tools}


def media_of(message: JSON) -> list[JSON]:
    """Return what a message holds beside text."""
    return [
        part for part in completions.parts_of(message.get("content")) if part.get("type") not in ("text", "refusal")
    ]


def called_tools(request: JSON) -> list[str]:
    """Return the names of the tools that earlier answers of a conversation called."""
    calls = [call for message in request.get("messages") or [] for call in message.get("tool_calls") or []]
    names = (str((call.get("function") or {}).get("name") or "") for call in calls)
    return [name for name in dict.fromkeys(names) if name]


def arguments_of(function: JSON) -> JSON:
    """Return the arguments of a tool call as an object, malformed ones of another model under the key `arguments`."""
    text: Any = function.get("arguments")
    try:
        arguments = parse_json(text or "{}")
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


# Requests that a provider gets in its own protocol as the client sent them, and answers that pass as they came. Beside
# what passes, each piece is read as a chunk of a chat completion: whoever counts tokens, looks for the first token or
# for faults needs to know no other protocol.


class NativeEvent(NamedTuple):
    """One event of a stream as the provider sent it."""

    content: JSON
    data: bytes
    """The text of the content."""

    def encoded(self) -> bytes:
        """Return the event as a stream carries it."""
        # A provider may write one event on several lines.
        data = self.data.replace(b"\n", b"\ndata: ")
        return b"event: " + str(self.content.get("type")).encode() + b"\ndata: " + data + b"\n\n"


class NativeCall(NamedTuple):
    """One request that is ready to be sent."""

    transport: Transport
    url: str
    body: JSON
    headers: Mapping[str, str]
    timeouts: Timeouts
    checked: Callable[[JSON], JSON]
    """Returns an answer, or an event of one, or raises the error that it stands for."""
    completion_of: Callable[[JSON], JSON]

    async def answer(self) -> JSON:
        """Return the answer as a chat completion, with the answer itself under `NATIVE`."""
        answer = self.checked(await self.transport.answer(self.url, self.body, self.timeouts, self.headers))
        return {**self.transport.understood(self.completion_of, answer), NATIVE: answer}

    async def stream(self, translator: StreamTranslator) -> AsyncGenerator[JSON, None]:
        """Yield the chunks of a stream, one of each event with the event itself under `NATIVE`."""
        transport = self.transport
        async with aclosing(transport.events(self.url, self.body, self.timeouts, self.headers)) as events:
            try:
                async for event in events:
                    if event.data == b"[DONE]":
                        continue
                    content = self.checked(await transport.loaded(event.data))
                    if event.name == WHOLE:
                        completion = transport.understood(self.completion_of, content)
                        for chunk in completions.chunks_of(completion, with_usage=True):
                            yield chunk
                        return
                    chunks = transport.understood(translator.take, content)
                    for chunk in chunks[:-1]:
                        yield chunk
                    last = chunks[-1] if chunks else translator.empty_chunk()
                    yield {**last, NATIVE: NativeEvent(content, event.data)}
            except ProviderError:
                if not translator.finished:  # a complete answer outlives the connection
                    raise
        if not translator.finished:
            raise transport.malformed("a stream without its end")
