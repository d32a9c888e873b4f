"""Hooks: what a platform's own code says of requests before they are routed, and of answers before clients get them.

A hook is a Python function, or an address that gets the same as JSON. It is told the texts of a request or an answer
and may refuse it, put other texts in place of them, and give it tags. One that fails, or takes longer than its
deadline, either refuses the request or is passed over, as the configuration says; both are told.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from p2l.common.errors import ConfigError
from route.keep.accounts import LONGEST_LABEL, MOST_TAGS, Labels
from route.key_config import HookConfig
from route.observability.metrics import RouterMetrics
from route.providers.anthropic import UNSIGNED
from route.providers.base import JSON, NATIVE
from route.providers.translation import NativeEvent
from route.request.api_errors import ApiError

_log = logging.getLogger("route")
_REPLY_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20
_REPLIES = {"refuse", "texts", "tags"}
_TEXT_FIELDS = frozenset(
    {
        *("content", "text", "system", "instructions", "input", "output", "prompt", "arguments"),
        *("reasoning_content", "reasoning", "refusal"),
    }
)
"""Fields with text of people, models and tools, in all dialects."""
_OBJECTS_OF_TEXT = frozenset({"input", "arguments"})
"""Fields whose object is a call's arguments: every text within is one."""
Place = tuple[Any, Any]
"""A dictionary or list, and the key or index of a text in it."""


class _HookError(Exception):
    """A hook gave no usable reply; the message says why, without the request."""


class HookCalls:
    """The connections to hooks at addresses; they outlive a configuration."""

    def __init__(self) -> None:
        """Open none yet."""
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, api_key: str | None, event: JSON) -> Any:
        """Post an event and return the reply; None for an empty one."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        async with self._session.post(url, json=event, headers=headers, allow_redirects=False) as response:
            if response.status == 204:
                return None
            if response.status != 200:
                raise _HookError(f"answered with status {response.status}")
            text = b""
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                text += piece
                if len(text) > _REPLY_BYTES:
                    raise _HookError("sent too long a reply")
            return json.loads(text) if text.strip() else None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


@dataclass(frozen=True)
class _Hook:
    config: HookConfig
    function: Callable[[JSON], Any] | None
    """None: its `call` is an address."""

    @classmethod
    def of(cls, config: HookConfig, number: int) -> _Hook:
        """Find the function of a hook; raise ConfigError where there is none."""
        if config.is_address:
            return cls(config, None)
        where = f"hooks.{number}.call"
        module_name, _, name = config.call.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError) as error:
            is_elsewhere = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
            hint = "; put its folder on PYTHONPATH, or install its package" if is_elsewhere else ""
            raise ConfigError(f"{where}: {config.call!r} cannot be imported: {error}{hint}") from error
        if not callable(function):
            raise ConfigError(f"{where}: {config.call!r} is not a function")
        return cls(config, function)

    async def reply(self, calls: HookCalls, event: JSON) -> JSON:
        """Return what the hook says of an event; raise `_HookError` where that is nothing usable, or late."""
        try:
            reply = await asyncio.wait_for(self._call(calls, event), self.config.seconds)
        except _HookError:
            raise
        except asyncio.TimeoutError:
            raise _HookError(f"gave no reply in {self.config.seconds:g} s") from None
        except Exception as error:
            # Of its kind alone: the text may quote the request.
            raise _HookError(f"failed with {type(error).__name__}") from error
        return _checked(reply, len(event["texts"]))

    async def _call(self, calls: HookCalls, event: JSON) -> Any:
        if self.function is None:
            return await calls.post(self.config.call, self.config.api_key, event)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(event)
        return await asyncio.to_thread(self.function, event)


def _checked(reply: Any, texts: int) -> JSON:
    """Return a reply of a hook; raise `_HookError` for one of another form."""
    if reply is None:
        return {}
    if not isinstance(reply, dict) or not reply.keys() <= _REPLIES:
        raise _HookError("replied with something else than refuse, texts or tags")
    new_texts, tags = reply.get("texts"), reply.get("tags") or {}
    if new_texts is not None and not (
        isinstance(new_texts, list) and len(new_texts) == texts and all(isinstance(text, str) for text in new_texts)
    ):
        raise _HookError(f"replied with other than {texts} texts")
    if not isinstance(tags, dict) or not _are_tags(tags):
        raise _HookError(f"replied with tags that are not at most {MOST_TAGS} short texts by name")
    return reply


def _are_tags(tags: Mapping[Any, Any]) -> bool:
    parts = [part for pair in tags.items() for part in pair]
    return len(tags) <= MOST_TAGS and all(isinstance(part, str) and len(part) <= LONGEST_LABEL for part in parts)


@dataclass(frozen=True)
class About:
    """What hooks are told of a request beside its texts."""

    request_id: str
    key: str
    """Name of the key."""
    labels: Labels

    def event(self, when: str, texts: Sequence[str]) -> JSON:
        """Return what a hook gets."""
        about = {"request_id": self.request_id, "key": self.key, "user": self.labels.user, "tags": self.labels.tags}
        return {"when": when, **about, "texts": list(texts)}


class Hooks:
    """The hooks of one configuration."""

    def __init__(self, configs: Sequence[HookConfig], metrics: RouterMetrics | None, calls: HookCalls) -> None:
        """Find the functions; raise ConfigError for one that is not there."""
        self._hooks = [_Hook.of(config, number) for number, config in enumerate(configs)]
        self._metrics = metrics
        self._calls = calls
        self.has_before = any("before" in hook.config.when for hook in self._hooks)
        self.has_after = any("after" in hook.config.when for hook in self._hooks)

    async def before(self, body: JSON, about: About) -> bool:
        """Ask the hooks about a request, in its own dialect, and change its texts in place; return whether they did.

        Raise `ApiError` where one refuses it, or fails and may not be passed over.
        """
        places = list(places_in(body))
        texts = [container[key] for container, key in places]
        new_texts = await self._ask("before", texts, about)
        put(places, new_texts)
        return new_texts != texts

    async def after(self, completion: JSON, about: About) -> JSON:
        """Return a whole answer as the hooks leave it; raises as `before` does.

        Of one that passes in the provider's own form the texts in that are changed, and what else it holds stays.
        """
        native = completion.get(NATIVE)
        told = completion.get("choices") if native is None else native.get("content", native.get("output"))
        places = [*places_in(told), *_thoughts_in(told)]
        texts = [container[key] for container, key in places]
        new_texts = await self._ask("after", texts, about)
        if new_texts != texts:
            put(places, new_texts)
            _forget_tokens(told)
            for (container, key), text, new_text in zip(places, texts, new_texts, strict=True):
                if key == "thinking" and text != new_text:
                    container["signature"] = UNSIGNED  # which the provider gave for other thoughts
        return completion

    async def after_stream(self, chunks: Sequence[JSON], about: About) -> list[JSON]:
        """Return the chunks of a whole stream as the hooks leave it; raises as `before` does.

        A text that they change stands whole in the first of its pieces, and other pieces of it are empty.
        """
        if (response := _response_of(chunks)) is not None:
            return await self._after_response(chunks, response, about)
        is_message = any(_is_event_of_message(chunk) for chunk in chunks)
        pieces: dict[tuple[Any, ...], list[Place]] = {}
        for chunk in chunks:
            for path, place in _pieces_of_event(chunk) if is_message else _pieces_of(chunk):
                pieces.setdefault(path, []).append(place)
        texts = ["".join(container[key] for container, key in places) for places in pieces.values()]
        new_texts = await self._ask("after", texts, about)
        if new_texts == texts:
            return list(chunks)
        changed = set()
        for (path, places), text, new_text in zip(pieces.items(), texts, new_texts, strict=True):
            if text != new_text:
                changed.add(path)
                put(places, [new_text] + [""] * (len(places) - 1))
        if is_message:
            return [_rewritten(chunk, changed) for chunk in chunks]
        _forget_tokens(chunks)
        # The provider's own events say what was there before.
        return [{name: value for name, value in chunk.items() if name != NATIVE} for chunk in chunks]

    async def _after_response(self, chunks: Sequence[JSON], response: JSON, about: About) -> list[JSON]:
        """Do the same for a stream of the Responses API, which says each text some times."""
        places = list(places_in(response["output"]))
        texts = [container[key] for container, key in places]
        new_texts = await self._ask("after", texts, about)
        changed = {text: new for text, new in zip(texts, new_texts, strict=True) if text != new}
        if not changed:
            return list(chunks)
        for pieces in _deltas_of(chunks).values():
            new_text = changed.get("".join(container[key] for container, key in pieces))
            if new_text is not None:
                put(pieces, [new_text] + [""] * (len(pieces) - 1))
        rewritten = []
        for chunk in chunks:
            if NATIVE not in chunk:  # it says once more what an event has said, and goes to nobody
                continue
            content: JSON = chunk[NATIVE].content
            for container, key in list(places_in(content)):
                container[key] = changed.get(container[key], container[key])
            _forget_tokens(content)
            rewritten.append({**chunk, NATIVE: NativeEvent(content, json.dumps(content).encode())})
        return rewritten

    async def _ask(self, when: str, texts: list[str], about: About) -> list[str]:
        """Ask each hook in the order of the configuration, each about what the one before has left."""
        for hook in self._hooks:
            if when not in hook.config.when:
                continue
            name = hook.config.name
            try:
                reply = await hook.reply(self._calls, about.event(when, texts))
            except _HookError as error:
                self._count(name, "failed")
                fields = {"hook": name, "problem": str(error), "request_id": about.request_id}
                _log.warning("a hook failed", extra={"fields": fields})
                if hook.config.on_failure == "refuse":
                    message = f"the hook {name!r} that has to see this request failed; try again"
                    raise ApiError(503, "hook_failed", message, retry_after=1.0) from error
                about.labels.passed_over.append(name)
                continue
            if reply.get("refuse"):
                self._count(name, "refused")
                raise ApiError(400, "refused_by_hook", f"{name}: {str(reply['refuse'])[:1000]}")
            self._count(name, "changed" if reply.get("texts") not in (None, texts) else "passed")
            texts = reply.get("texts") or texts
            about.labels.tags |= reply.get("tags") or {}
        return texts

    def _count(self, name: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.hooks.labels(name, outcome).inc()


def put(places: Sequence[Place], texts: Sequence[str]) -> None:
    """Put texts in their places."""
    for (container, key), text in zip(places, texts, strict=True):
        container[key] = text


def places_in(value: Any, field_name: str = "", *, is_text: bool = False) -> Iterator[Place]:
    """Yield the places of all texts of people, models and tools in a request or an answer of any dialect."""
    is_object = isinstance(value, dict)
    if not is_object and not isinstance(value, list):
        return
    for key, part in value.items() if is_object else enumerate(value):
        name = str(key) if is_object else field_name
        if isinstance(part, str):
            is_document = is_object and key == "data" and value.get("type") == "text"  # of Anthropic's API
            if is_text or is_document or name in _TEXT_FIELDS:
                yield value, key
        else:
            is_call = name in _OBJECTS_OF_TEXT and isinstance(part, dict) and is_object
            yield from places_in(part, name, is_text=is_text or is_call)


def _thoughts_in(blocks: Any) -> Iterator[Place]:
    """Yield the thoughts among the blocks of a message of Anthropic's."""
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "thinking" and isinstance(block.get("thinking"), str):
            yield block, "thinking"


def _forget_tokens(answer: Any) -> None:
    """Take the tokens and their probabilities out of an answer, which would tell the text that a hook has changed."""
    if isinstance(answer, dict):
        if answer.get("logprobs"):
            answer["logprobs"] = [] if isinstance(answer["logprobs"], list) else None
        answer = list(answer.values())
    for part in answer if isinstance(answer, list | tuple) else ():
        if isinstance(part, dict | list):
            _forget_tokens(part)


def _pieces_of(chunk: JSON) -> Iterator[tuple[tuple[Any, ...], Place]]:
    """Yield the texts of a chunk, each with what tells it from the other texts of the stream."""
    for choice in chunk.get("choices") or ():
        delta, index = choice.get("delta") or {}, choice.get("index")
        for name in ("content", "reasoning_content", "reasoning", "refusal"):
            if isinstance(delta.get(name), str):
                yield (index, name), (delta, name)
        for call in delta.get("tool_calls") or ():
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                yield (index, "call", call.get("index")), (function, "arguments")


def _response_of(chunks: Sequence[JSON]) -> JSON | None:
    """Return the response that a stream of the provider's own events ends with; None where hooks cannot go by it.

    All that came in pieces must stand in it, so that hooks see it there.
    """
    responses = [chunk[NATIVE].content.get("response") for chunk in chunks if NATIVE in chunk]
    last = next((each for each in reversed(responses) if isinstance(each, dict)), {})
    if not isinstance(last.get("output"), list):
        return None
    texts = {container[key] for container, key in places_in(last["output"])}
    pieces = _deltas_of(chunks).values()
    is_whole = all("".join(container[key] for container, key in each) in texts for each in pieces)
    return last if is_whole else None


def _deltas_of(chunks: Sequence[JSON]) -> Mapping[tuple[Any, ...], list[Place]]:
    """Return the pieces of each text of a stream of the Responses API."""
    pieces: dict[tuple[Any, ...], list[Place]] = {}
    for content in [chunk[NATIVE].content for chunk in chunks if NATIVE in chunk]:
        if isinstance(content.get("delta"), str):
            path = [content.get(name) for name in ("type", "output_index", "content_index", "summary_index")]
            pieces.setdefault(tuple(map(str, path)), []).append((content, "delta"))
    return pieces


def _is_event_of_message(chunk: JSON) -> bool:
    """Return whether a chunk stands beside the first event of a message of Anthropic's."""
    return NATIVE in chunk and chunk[NATIVE].content.get("type") == "message_start"


def _pieces_of_event(chunk: JSON) -> Iterator[tuple[tuple[Any, ...], Place]]:
    """Yield the same of an event of a message, by its block."""
    content: JSON = chunk[NATIVE].content if NATIVE in chunk else {}
    holders = [each for each in (content.get("content_block"), content.get("delta")) if isinstance(each, dict)]
    for held in holders:
        for name in ("text", "thinking", "partial_json"):
            if isinstance(held.get(name), str):
                yield (content.get("index"), name), (held, name)


def _rewritten(chunk: JSON, changed: Collection[tuple[Any, ...]]) -> JSON:
    """Return a chunk whose event of a message says what stands in it now; hooks changed the texts of `changed`."""
    if NATIVE not in chunk:
        return chunk
    content: JSON = chunk[NATIVE].content
    delta = content.get("delta")
    if isinstance(delta, dict) and "signature" in delta and (content.get("index"), "thinking") in changed:
        delta["signature"] = UNSIGNED  # the provider gave it for other thoughts
    return {**chunk, NATIVE: NativeEvent(content, json.dumps(content).encode())}
