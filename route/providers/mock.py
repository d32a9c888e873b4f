"""A provider that costs nothing: scripted text, latency and troubles, for tests, benchmarks and the demo.

In the router's process it is the provider `mock`, whose options are a `Script`; as a server that speaks OpenAI's
protocol over the loopback interface it is

    python -m route.providers.mock --port 9000 --latency 0.2 --tokens 50 --token-seconds 0.01
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import re
import signal
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from p2l.common.cli import parser, positive, run
from p2l.common.errors import ConfigError, InputError
from p2l.common.long_texts import apart
from p2l.common.program import Parser
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.completions import (
    answer_message,
    asks_for_usage,
    chunk,
    completion,
    joined_text,
    usage,
    usage_chunk,
)
from route.providers.errors import refusal
from route.providers.schemas import example_of
from route.providers.translation import translated

# A trouble is a name, some with a number: `rate-limit` (429), `rate-limit:2` (with Retry-After of 2 s), `status:503`,
# `reset`, `silence` (no response at all), `slow:5` (first token after 5 s), `cut` and `stall` (after half of the
# answer), `malformed` (a broken chunk), `no-done` (a stream without finish reason and end), `no-mark` (without `[DONE]`
# alone), `context-length`, `content-filter`, `prefill`, `credentials`; `ok` is none.

_WORDS = ("the", "river", "carries", "small", "boats", "under", "old", "bridges", "while", "morning", "light", "turns")
TROUBLES = (
    *("ok", "rate-limit", "status", "reset", "silence", "slow", "cut", "stall", "malformed", "no-done", "no-mark"),
    *("context-length", "content-filter", "prefill", "credentials"),
)
"""Names of troubles."""
_TOO_LONG = "This model's maximum context length is 8 tokens; please reduce the length of the messages."
_NO_PREFILL = "This model does not support assistant message prefill."
_REFUSALS = {
    "rate-limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached, please slow down."),
    "status": (500, "server_error", None, "The server had an error."),
    "context-length": (400, "invalid_request_error", "context_length_exceeded", _TOO_LONG),
    "content-filter": (400, "invalid_request_error", "content_filter", "The content management policy was triggered."),
    "prefill": (400, "invalid_request_error", None, _NO_PREFILL),
    "credentials": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
}
"""Status, type, code and message of the troubles that are refusals."""


@dataclass(frozen=True)
class Trouble:
    """A failure that a request meets."""

    name: str
    number: float | None = None
    """Seconds or a status, as above."""

    @classmethod
    def of(cls, text: str) -> Trouble:
        """Parse `NAME` or `NAME:NUMBER`. Raise ConfigError if there is no such trouble, or the number is none."""
        name, _, number = text.partition(":")
        try:
            trouble = cls(name, float(number) if number else None)
        except ValueError:
            raise ConfigError(f"mock: {text!r}: the text after the colon is not a number") from None
        if name not in TROUBLES:
            raise ConfigError(f"mock: unknown failure {name!r}; choose from {', '.join(TROUBLES)}")
        if trouble.number is not None and not 0 <= trouble.number < math.inf:
            raise ConfigError(f"mock: {text!r}: the number must be at least 0")
        if name == "status" and trouble.number is not None and trouble.number not in range(300, 600):
            raise ConfigError(f"mock: {text!r}: the status of a failure is a whole number from 300 to 599")
        return trouble


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_PAUSE: tuple[Callable[[Any], bool], str] = (_is_amount, "a number of seconds of at least 0")
_TAKES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: value is None or isinstance(value, str), "text, in quotes if it is a number or true"),
    "tokens": (lambda value: _is_whole(value) and value >= 1, "a whole number of at least 1"),
    "latency": _PAUSE,
    "token_seconds": _PAUSE,
    "failures": (
        # A text is a sequence of texts as well.
        lambda value: (
            isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)
        ),
        "a list, such as [status:503, ok]",
    ),
    "failure_rate": (lambda value: _is_amount(value) and value <= 1, "a number from 0 to 1"),
    "failure": (lambda value: isinstance(value, str), "one failure, such as status:503"),
    "seed": (_is_whole, "a whole number"),
}
"""What each option of a script may be, as a test and in words."""


@dataclass(frozen=True)
class Script:
    """How a mock provider behaves."""

    text: str | None = None
    """The answer; by default `tokens` words."""
    tokens: int = 16
    latency: float = 0.0
    """Seconds until the first token."""
    token_seconds: float = 0.0
    """Seconds between two tokens."""
    failures: tuple[str, ...] = ()
    """Troubles of the first requests, in order."""
    failure_rate: float = 0.0
    """Share of the later requests that meet `failure`."""
    failure: str = "status:500"
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Script:
        """Read the options of an account. Raise ConfigError for an unknown option or trouble, or a wrong value."""
        for name, (fits, words) in _TAKES.items():
            if name in options and not fits(options[name]):
                raise ConfigError(f"mock: {name} must be {words}, got {options[name]!r:.80}")
        try:
            script = cls(**{**options, "failures": tuple(options.get("failures", ()))})
        except TypeError:
            options_text = ", ".join(cls.__dataclass_fields__)
            raise ConfigError(f"mock: options are {options_text}; got {', '.join(options)}") from None
        for text in (*script.failures, script.failure):
            Trouble.of(text)
        return script

    def pieces(self) -> list[str]:
        """Return the answer, token by token; its concatenation is the text."""
        words = self.text.split(" ") if self.text is not None else [_WORDS[n % len(_WORDS)] for n in range(self.tokens)]
        return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


class Mock:
    """A running script."""

    def __init__(self, script: Script, *, remembered: int = 0) -> None:
        """Start with the first trouble of the script; `remembered` is how many `bodies` it holds."""
        self.script = script
        self.pieces = script.pieces()
        self.bodies: deque[JSON] = deque(maxlen=remembered)
        """The last bodies that arrived, for tests."""
        self._failures = deque(map(Trouble.of, script.failures))
        self._usual = Trouble.of(script.failure)
        self._random = random.Random(script.seed)

    def fail_next(self, *troubles: str) -> None:
        """Let the next requests meet these troubles."""
        self._failures.extend(map(Trouble.of, troubles))

    def next_trouble(self, request: JSON) -> Trouble:
        """Return the trouble of this request, which may be `ok`."""
        self.bodies.append(request)
        if self._failures:
            return self._failures.popleft()
        unlucky = self.script.failure_rate > 0 and self._random.random() < self.script.failure_rate
        return self._usual if unlucky else Trouble("ok")

    async def answer(self, request: JSON, trouble: Trouble, timeouts: Timeouts) -> JSON:
        """Return the whole answer at the script's pace. Raise the ProviderError of the trouble, or of a time limit."""
        await self._first_token(trouble, timeouts)
        await _pause(self.script.token_seconds * len(self.pieces), timeouts.total)
        if trouble.name in _MIDDLE:
            await _fail(trouble, timeouts.first_token)
        return await apart(request, lambda: self.completion(request))

    async def chunks(self, request: JSON, trouble: Trouble, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Yield the answer token by token at the script's pace. Raise as `answer`."""
        await self._first_token(trouble, timeouts)
        whole = await apart(request, lambda: self.completion(request))
        frame = {key: whole[key] for key in ("id", "created", "model")}
        message, finish = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
        yield chunk(frame, {"role": "assistant", "content": ""})
        deltas = _deltas(message, self.pieces)
        if finish == "length":
            deltas = deltas[: _limit(request)]
        for number, delta in enumerate(deltas):
            if number == len(deltas) // 2 and trouble.name in _MIDDLE:
                await _fail(trouble, timeouts.stall)
            if number:
                await _pause(self.script.token_seconds, timeouts.stall)
            yield chunk(frame, delta)
        if trouble.name == "no-done":
            await _fail(trouble, timeouts.stall)
        yield chunk(frame, {}, finish)
        if asks_for_usage(request):
            yield usage_chunk(frame, whole["usage"])

    def completion(self, request: JSON) -> JSON:
        """Return the answer; each word counts as a token. Raise ProviderError for a request that has none.

        Long requests call it in a thread.
        """
        return translated("the mock", self._completion, request)

    def _completion(self, request: JSON) -> JSON:
        contents = [message.get("content") for message in request.get("messages", [])]
        prompt = sum(len((each if isinstance(each, str) else joined_text(each)).split()) for each in contents)
        calls = _calls(request)
        text: str | None = "".join(self.pieces)
        form = request.get("response_format") or {}
        if calls:
            text = None
        elif form.get("type") == "json_schema":
            text = json.dumps(example_of((form.get("json_schema") or {}).get("schema") or {}))
        elif form.get("type") == "json_object":
            text = json.dumps({"answer": text})
        message = answer_message(text, calls=calls)
        finish = "tool_calls" if calls else "stop"
        deltas, most = _deltas(message, self.pieces), _limit(request)
        if most is not None and most < len(deltas):
            deltas, finish = deltas[:most], "length"
            if not calls:
                message["content"] = "".join(delta["content"] for delta in deltas)
        return completion(str(request.get("model")), message, finish, usage(prompt, len(deltas)))

    async def _first_token(self, trouble: Trouble, timeouts: Timeouts) -> None:
        if trouble.name in ("reset", "silence"):
            await _fail(trouble, timeouts.first_token)
        slow = trouble.number or math.inf if trouble.name == "slow" else 0.0
        await _pause(self.script.latency + slow, timeouts.first_token)


def _limit(request: JSON) -> int | None:
    """Return the most tokens that an answer may have; None: as many as the script says."""
    limits = (request.get(name) for name in ("max_completion_tokens", "max_tokens"))
    return next((limit for limit in limits if isinstance(limit, int)), None)


def _calls(request: JSON) -> list[JSON]:
    """Return the calls of tools that a request gets: of the one that it names, else of the first after a user's turn.

    Where `tool_choice` requires a call, results of tools do not end them.
    """
    tools = [tool["function"] for tool in request.get("tools") or [] if tool.get("type") == "function"]
    choice = request.get("tool_choice") or "auto"
    named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    tools = [tool for tool in tools if named in (None, tool.get("name"))]
    is_first = (request.get("messages") or [{}])[-1].get("role") == "user"
    if not tools or choice == "none" or (choice == "auto" and not is_first):
        return []
    arguments = json.dumps(example_of(tools[0].get("parameters") or {"type": "object"}))
    function = {"name": tools[0].get("name"), "arguments": arguments}
    return [{"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}]


def _deltas(message: JSON, pieces: Sequence[str]) -> list[JSON]:
    """Return a message as the pieces of a stream, each of which counts as a token."""
    deltas: list[JSON] = []
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        halves = (function["arguments"][: len(function["arguments"]) // 2], function["arguments"])
        for text in (halves[0], halves[1][len(halves[0]) :]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    text = message["content"]
    if text is None:
        return deltas
    if text != "".join(pieces):
        pieces = re.findall(r"\s*\S+|\s+$", text)
    return [*deltas, *({"content": piece} for piece in pieces)]


def _refusal(trouble: Trouble) -> tuple[int, dict[str, str], JSON]:
    """Return status, headers and body of a trouble that is a refusal."""
    status, kind, code, message = _REFUSALS[trouble.name]
    headers = {}
    if trouble.name == "status" and trouble.number is not None:
        status = int(trouble.number)
        kind = kind if status >= 500 else "invalid_request_error"
    elif trouble.number is not None:
        headers["Retry-After"] = f"{trouble.number:g}"
    return status, headers, {"error": {"message": message, "type": kind, "param": None, "code": code}}


_FAULTS = {
    "reset": Fault.CONNECTION,
    "cut": Fault.CONNECTION,
    "malformed": Fault.MALFORMED,
    "no-done": Fault.MALFORMED,
    "silence": Fault.TIMEOUT,
    "stall": Fault.TIMEOUT,
}
_MIDDLE = ("cut", "stall", "malformed")
"""Failures in the middle of a stream; `no-done` is one at its end, the others are before it."""


class _ScriptedError(ProviderError):
    """A failure of the script, which a server shows on the wire; any other error is the request's."""


class MockProvider:
    """The script of an account, run in this process."""

    def __init__(self, account: Account) -> None:
        self.mock = Mock(Script.of(account.options))

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Return the script's answer."""
        return await self.mock.answer(request, self._trouble(request), timeouts)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Yield the script's answer, token by token."""
        async with aclosing(self.mock.chunks(request, self._trouble(request), timeouts)) as chunks:
            async for part in chunks:
                yield part

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _trouble(self, request: JSON) -> Trouble:
        """Return the trouble of a request. Raise ProviderError if it is a refusal."""
        trouble = self.mock.next_trouble(request)
        if trouble.name in _REFUSALS:
            status, headers, body = _refusal(trouble)
            raise refusal("mock", status, headers, body)
        return trouble


async def _pause(seconds: float, limit: float) -> None:
    await asyncio.sleep(min(seconds, limit))
    if seconds > limit:
        raise _ScriptedError(Fault.TIMEOUT, "mock took too long")


async def _fail(trouble: Trouble, limit: float) -> None:
    fault = _FAULTS[trouble.name]
    if fault is Fault.TIMEOUT:
        await asyncio.sleep(limit)
    raise _ScriptedError(fault, f"mock failed as scripted ({trouble.name})")


def server_parser(module: str, description: str) -> Parser:
    """Return a command line with what all mock servers have."""
    line = parser(f"python -m {module}", description)
    line.add_argument("--host", default="127.0.0.1", help="address to listen on")
    line.add_argument("--port", type=int, default=9000, help="port to listen on; 0 takes a free one and prints it")
    line.add_argument("--latency", type=float, default=0.0, metavar="S", help="seconds before an answer begins")
    return line


def build_parser() -> argparse.ArgumentParser:
    """Return the command line of the server."""
    line = server_parser("route.providers.mock", "Serve scripted answers over OpenAI's protocol, for tests and demos.")
    line.add_argument("--text", help="a fixed answer (default: as many words as --tokens says)")
    line.add_argument("--tokens", type=positive, default=16, help="words of an answer")
    line.add_argument("--token-seconds", type=float, default=0.0, metavar="S", help="seconds between two tokens")
    line.add_argument(
        "--failures",
        nargs="*",
        default=(),
        metavar="TROUBLE",
        help="failures of the first requests, such as status:503",
    )
    line.arrange({"answers": ("--text", "--tokens", "--token-seconds")})
    return line


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    flags = build_parser().parse_args(argv)
    options = {name: value for name, value in vars(flags).items() if name not in ("host", "port")}
    asyncio.run(serve(application(Mock(Script.of(options))), "mock provider", flags.host, flags.port))


_FOR_EVER = 3600.0  # seconds; longer than any client waits
_ENDLESS = Timeouts(first_token=_FOR_EVER, stall=_FOR_EVER, total=_FOR_EVER)


def application(mock: Mock) -> web.Application:
    """Build the server: OpenAI's POST /v1/chat/completions, with failures that only a wire has."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body: JSON = json.loads(await request.read())
        trouble = mock.next_trouble(body)
        if trouble.name in _REFUSALS:
            return refusal_response(trouble)
        try:
            return await (_stream if body.get("stream") else _whole)(request, body, mock, trouble)
        except ProviderError as error:
            return error_response(error)

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", complete)
    return app


def refusal_response(trouble: Trouble) -> web.Response:
    """Return the response to a request that meets a trouble that is a refusal."""
    status, headers, body = _refusal(trouble)
    return web.json_response(body, status=status, headers=headers)


def error_response(error: ProviderError) -> web.Response:
    """Return the response to a request that a mock has no answer to."""
    status = error.status or 400
    code = "model_not_found" if status == 404 else None
    return web.json_response(
        {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}}, status=status
    )


async def _whole(request: web.Request, body: JSON, mock: Mock, trouble: Trouble) -> web.StreamResponse:
    try:
        text = json.dumps(await mock.answer(body, trouble, _ENDLESS)).encode()
    except _ScriptedError:
        text = json.dumps(mock.completion(body)).encode()
        half = text[: len(text) // 2]
        if trouble.name == "malformed":
            return web.Response(body=half, content_type="application/json")
        if trouble.name == "cut":
            response = web.StreamResponse(
                headers={"Content-Length": str(len(text)), "Content-Type": "application/json"}
            )
            await response.prepare(request)
            await response.write(half)
        _abort(request)
    return web.Response(body=text, content_type="application/json")


async def _stream(request: web.Request, body: JSON, mock: Mock, trouble: Trouble) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        async with aclosing(mock.chunks(body, trouble, _ENDLESS)) as chunks:
            async for part in chunks:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
    except _ScriptedError:
        if trouble.name == "malformed":
            await response.write(b'data: {"choices": [{"index": 0, "del\n\n')
        elif trouble.name != "no-done":
            _abort(request)
        return response
    if trouble.name != "no-mark":
        await response.write(b"data: [DONE]\n\n")
    return response


def _abort(request: web.Request) -> NoReturn:
    """End the connection with a reset, and this handler with it."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncGenerator[str, None]:
    """Serve while the block runs, and yield the base URL. Raise OSError if the address cannot be listened on."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        yield f"http://{host}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def running(mock: Mock) -> contextlib.AbstractAsyncContextManager[str]:
    """Serve a mock on a free port of the loopback interface while the block runs, and yield the base URL."""
    return listening(application(mock), "127.0.0.1", 0)


async def serve(app: web.Application, name: str, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, and print the base URL. Raise InputError if the address cannot be used."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with listening(app, host, port) as url:
            print(f"{name} at {url}", flush=True)
            await stop.wait()
    except (OSError, OverflowError) as error:  # taken, another machine's, no port at all
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise InputError(f"--host, --port: cannot listen there: {why}") from error


if __name__ == "__main__":
    run(main)
