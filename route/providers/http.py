"""HTTP to one provider: one pool of connections, time limits, and every failure as a `ProviderError`.

Where there is no key, requests are signed for AWS (Signature Version 4, by botocore) or carry a token of Google (by
google-auth), by credentials that these find as their own tools do: in the environment, a profile, the machine's role.
Time limits are timers (about 2 us each) instead of tasks, since every chunk of a stream has one. A connection whose
answer is complete is kept; closing any other ends the request at the provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import math
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from p2l.common.errors import ConfigError
from p2l.common.files import DEEPEST_JSON, is_deeper
from p2l.common.long_texts import LONG, loads, may_be_deeper, parse_apart, to_json
from p2l.common.version import __version__
from p2l.common.web import time_limit
from route.providers.base import (
    JSON,
    SECRET_OPTIONS,
    TRACE_HEADERS,
    Account,
    Fault,
    Forwarded,
    ProviderError,
    Timeouts,
)
from route.providers.completions import SHAPE_ERRORS
from route.providers.connection import (
    BrokenError,
    Connections,
    HttpAnswer,
    NotHttpError,
    UnreachableError,
    UnsentError,
)
from route.providers.errors import refusal

_MAX_EVENT_BYTES = 32 * 2**20  # more would fill our memory
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which a stream may begin with


def _no_constant(_: str) -> None:
    """Read NaN and Infinity, which some providers send and JSON does not have, as null."""


def _finite(digits: str) -> float | None:
    """Read a number; one that is too large for a float, which JSON could not say again, as null."""
    number = float(digits)
    return number if math.isfinite(number) else None


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_CAREFUL = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_HUGE = re.compile(rb"[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
"""What a number has that may be too large for a float."""
_FEW_NUMBERS_BYTES = 2000  # whose numbers take less time to read with care than to search for large ones
_LARGE_REQUEST_BYTES = 2**20
_BROKEN_OFF = (aiohttp.ClientError, OSError, BrokenError, NotHttpError)
"""Errors of a body that ends before its time or cannot be read."""
_MAX_REFUSAL_BYTES = 2**16  # of a body that says what was wrong; the rest is not read


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    """Of the field `event`; empty where there is none."""
    data: bytes


class EventParser:
    """Parser of server-sent events; bytes may arrive cut anywhere.

    Lines end in LF, CRLF or CR. Comments (`: keep-alive`) and the fields `id` and `retry` are skipped.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0  # of both lists
        self._begun = False

    def feed(self, received: bytes) -> list[Event]:
        """Return the events that end within `received`. Raise ValueError if one is longer than 32 MiB."""
        self._rest.append(received)
        self._size += len(received)
        events = []
        # A line without end is joined once, not with every piece of it.
        if b"\n" in received or b"\r" in received or (self._rest[-2:-1] and self._rest[-2].endswith(b"\r")):
            lines = b"".join(self._rest).splitlines(keepends=True)
            # A line that ends in CR may be one that ends in CRLF, cut in the middle.
            self._rest = [lines.pop()] if not lines[-1].endswith(b"\n") else []
            events = self._events(lines)
            self._size = sum(map(len, self._rest)) + sum(map(len, self._data))
        if self._size > _MAX_EVENT_BYTES:
            raise ValueError("an event of more than 32 MiB")
        return events

    def end(self) -> list[Event]:
        """Return the last event of a stream that ends without the empty line that closes it."""
        lines, self._rest = [b"".join(self._rest), b""], []
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            text = line.rstrip(b"\r\n")
            if not self._begun:
                self._begun, text = True, text.removeprefix(_BYTE_ORDER_MARK)
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif text.startswith(b"event:"):
                self._name = text[6:].removeprefix(b" ")
            elif not text:
                if self._data:
                    events.append(Event(self._name.decode("utf-8", "replace"), b"\n".join(self._data)))
                self._name, self._data = b"", []
        return events


T = TypeVar("T")
_LAST_EVENTS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
WHOLE = "whole answer"
"""Name of the only event where a provider answers a stream with one JSON object."""
_KEEP_ALIVE_SECONDS = 30.0  # below what providers and load balancers keep
_DRAIN_SECONDS = 1.0  # that the end of a stream may take after its last event
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PUBLIC_HEADERS = ("http-referer", "x-title")  # any other header of an account may hold a key, which is masked
_KEY_HEADERS = {
    "anthropic": ("x-api-key", ""),
    "gemini": ("x-goog-api-key", ""),
    "vertex": ("x-goog-api-key", ""),
    "azure": ("api-key", ""),
}


class Transport:
    """The connections to one account at one provider."""

    def __init__(self, account: Account, protocol: str = "openai") -> None:
        """Set up a client that connects at its first request; the protocol decides how the key is sent."""
        parts = urlsplit(account.base_url)
        self.host = parts.netloc.rpartition("@")[2]
        self._headers = {
            "User-Agent": f"p2l/{__version__}",
            "Content-Type": "application/json",
            # An answer is small, and a compressed stream may wait in somebody's buffer.
            "Accept-Encoding": "identity",
        }
        if protocol == "anthropic":
            self._headers["anthropic-version"] = "2023-06-01"
        if account.api_key:
            name, scheme = _KEY_HEADERS.get(protocol, ("Authorization", "Bearer "))
            self._headers[name] = f"{scheme}{account.api_key}"
        self._headers |= account.headers
        self._secrets = [secret for secret in (account.api_key, parts.password) if secret]
        self._secrets += [value for name, value in account.headers.items() if name.lower() not in _PUBLIC_HEADERS]
        self._secrets += [str(account.options[name]) for name in SECRET_OPTIONS if account.options.get(name)]
        self._sign = _signer_for(protocol, account)
        host = parts.hostname or ""
        # A proxy could not reach this machine.
        self._proxy = None if host in _LOCAL_HOSTS or proxy_bypass(host) else getproxies().get(parts.scheme)
        self._connections = Connections(account.base_url, self._headers)
        self._session: aiohttp.ClientSession | None = None
        """For what the connections are not for: proxies, and bodies in pieces."""
        self._draining: set[asyncio.Task[None]] = set()

    async def answer(self, url: str, body: JSON, timeouts: Timeouts, headers: Mapping[str, str] | None = None) -> JSON:
        """Post JSON and return the JSON object that the provider answers with. Raise ProviderError if there is none."""
        with Translation(self) as reading, time_limit(min(timeouts.first_token, timeouts.total), TimeoutError()):
            text = await self._text("POST", url, timeouts, await to_json(body), headers, reading=reading)
            answer = await self.loaded(text)
        if answer.get("error"):
            raise self.failure(answer)
        return answer

    async def fetch(self, url: str, timeouts: Timeouts) -> object:
        """Get the JSON at an address. Raise ProviderError if there is none."""
        with Translation(self), time_limit(min(timeouts.first_token, timeouts.total), TimeoutError()):
            return self._loaded(await self._text("GET", url, timeouts))

    async def delete(self, url: str, timeouts: Timeouts) -> None:
        """Delete what is at an address. Raise ProviderError where it is not deleted."""
        with Translation(self), time_limit(min(timeouts.first_token, timeouts.total), TimeoutError()):
            await self._text("DELETE", url, timeouts)

    async def events(
        self, url: str, body: JSON, timeouts: Timeouts, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Post JSON and yield the events of the stream up to `[DONE]`, another last event, or its end.

        The first event has to arrive within `timeouts.first_token`, comments not counted: the router can still turn to
        another provider. After it a comment counts as a sign of life, and `timeouts.stall` seconds of silence are an
        error.
        """
        clock = asyncio.get_running_loop().time
        first, end = clock() + min(timeouts.first_token, timeouts.total), clock() + timeouts.total
        response, complete = None, False
        try:
            with Translation(self) as reading:
                with time_limit(first - clock(), TimeoutError()):
                    response = await self._open("POST", url, timeouts, await to_json(body), headers)
                    reading.has_begun = True
                    is_whole = response.content_type == "application/json"
                    whole = await _whole(response, timeouts.max_bytes) if is_whole else None
                if whole is not None:
                    complete = True
                    yield Event(WHOLE, whole)
                    return
                parser, begun, size, received = EventParser(), False, 0, b"begin"
                while received:
                    received = await _read(response.content, min(clock() + timeouts.stall, end) if begun else first)
                    size += len(received)
                    if size > timeouts.max_bytes:
                        raise too_large(timeouts.max_bytes)
                    for event in parser.feed(received) if received else parser.end():
                        begun = True
                        complete = event.data == b"[DONE]" or event.name in _LAST_EVENTS
                        yield event
                        if complete:
                            return
                complete = True
        finally:
            if response is not None:
                self._release(response, complete)

    async def forward(self, url: str, data: bytes, content_type: str, timeouts: Timeouts) -> Forwarded:
        """Post a body as it is and return the answer once its first bytes are there. Raise ProviderError for none."""
        chunks = self._forwarded(url, data, content_type, timeouts)
        try:
            kind = await anext(chunks)
        except BaseException:
            await chunks.aclose()
            raise
        return Forwarded(kind.decode("latin-1"), chunks)

    async def _forwarded(
        self, url: str, data: bytes, content_type: str, timeouts: Timeouts
    ) -> AsyncGenerator[bytes, None]:
        """Yield the content type of the answer, then its body."""
        response, complete, size = None, False, 0
        clock = asyncio.get_running_loop().time
        end = clock() + timeouts.total
        try:
            with Translation(self) as reading:
                with time_limit(min(timeouts.first_token, timeouts.total), TimeoutError()):
                    response = await self._open("POST", url, timeouts, data, {"Content-Type": content_type})
                    reading.has_begun = True
                    first = await response.content.readany()
                yield response.headers.get("Content-Type", "application/octet-stream").encode("latin-1", "replace")
                while first:
                    size += len(first)
                    if size > timeouts.max_bytes:
                        raise too_large(timeouts.max_bytes)
                    yield first
                    first = await _read(response.content, min(clock() + timeouts.stall, end))
                complete = True
        finally:
            if response is not None:
                self._release(response, complete)

    async def loaded(self, text: bytes) -> JSON:
        """Parse a JSON object, off the event loop where it is long. Raise ProviderError if it is none."""
        if len(text) <= LONG:
            return self.parsed(text)  # each of many chunks
        return await parse_apart(text, partial(self.parsed, text), parse_constant=_no_constant)

    def parsed(self, text: bytes, decoder: json.JSONDecoder = _DECODER) -> JSON:
        """Parse a JSON object, whose numbers JSON can say again. Raise ProviderError if it is none."""
        # Where tokens are counted: what else a model says in such numbers is its answer.
        if b'"usage' in text and (len(text) < _FEW_NUMBERS_BYTES or _HUGE.search(text)):
            decoder = _CAREFUL
        parsed = self._loaded(text, decoder)
        if not isinstance(parsed, dict):
            raise self.malformed("JSON that is not an object")
        return parsed

    def _loaded(self, text: bytes, decoder: json.JSONDecoder = _DECODER) -> object:
        # Nearly all providers send UTF-8, which needs no search.
        is_utf8 = text[:1] == b"{" and text[1:2] != b"\0"
        try:
            if is_utf8 and decoder is not _CAREFUL:
                content = loads(text, decoder, "surrogatepass")
            else:
                name = "utf-8" if is_utf8 else json.detect_encoding(text)
                content = decoder.decode(text.decode(name, "surrogatepass"))
        except (ValueError, RecursionError):
            raise self.malformed("what is not JSON") from None
        if may_be_deeper(text, DEEPEST_JSON) and is_deeper(content, DEEPEST_JSON):
            raise self.malformed(f"JSON nested deeper than {DEEPEST_JSON} levels")
        return content

    def understood(self, translate: Callable[[JSON], T], sent: JSON) -> T:
        """Translate what the provider sent. Raise ProviderError if it does not have the shape of an answer."""
        try:
            return translate(sent)
        except SHAPE_ERRORS:
            raise self.malformed("an answer of an unknown shape") from None

    def failure(self, body: object, status: int | None = None) -> ProviderError:
        """Return the error for an error object inside an answer or a stream."""
        return refusal(self.host, status, {}, body, self._secrets)

    def malformed(self, what: str) -> ProviderError:
        """Return the error for an answer that cannot be used."""
        return ProviderError(Fault.MALFORMED, f"{self.host} sent {what}", host=self.host)

    async def close(self) -> None:
        """Close the connections."""
        draining = list(self._draining)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        self._connections.close()
        if self._session is not None:
            await self._session.close()

    async def _text(
        self,
        method: str,
        url: str,
        timeouts: Timeouts,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        reading: Translation | None = None,
    ) -> bytes:
        """Return the body of the response to a request; `reading` is told that it has begun."""
        response = await self._open(method, url, timeouts, data, headers)
        if reading is not None:
            reading.has_begun = True
        try:
            return await _whole(response, timeouts.max_bytes)
        finally:
            response.close()  # keeps the connection, since the body has been read

    async def _open(
        self, method: str, url: str, timeouts: Timeouts, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer | aiohttp.ClientResponse:
        """Return the response to a request. Raise ProviderError if its status is not 2xx."""
        address: str | URL = url
        if self._sign is not None:
            headers = {**(headers or {}), **await self._sign(method, url, data if isinstance(data, bytes) else b"")}
            address = URL(url, encoded=True)  # as it was signed
        trace = TRACE_HEADERS.get()
        if trace is not None:
            headers = {**(headers or {}), **trace}
        response: HttpAnswer | aiohttp.ClientResponse
        if self._proxy is None and isinstance(data, bytes | None) and self._connections.reaches(address):
            response = await self._connections.request(method, address, data or b"", headers, timeouts.connect)
        else:
            response = await self._other(method, address, timeouts, data, headers)
        if 200 <= response.status < 300:
            return response
        text = b""
        try:
            with contextlib.suppress(*_BROKEN_OFF):  # the status says enough
                while len(text) < _MAX_REFUSAL_BYTES and (received := await response.content.readany()):
                    text += received
        finally:
            response.close()
        raise refusal(self.host, response.status, response.headers, text, self._secrets)

    async def _other(
        self, method: str, address: str | URL, timeouts: Timeouts, data: Any, headers: Mapping[str, str] | None
    ) -> aiohttp.ClientResponse:
        if isinstance(data, bytes) and len(data) > _LARGE_REQUEST_BYTES:
            data = io.BytesIO(data)  # which is sent in pieces
        if self._session is None:  # made here, in the event loop that the connections belong to
            self._session = aiohttp.ClientSession(
                # 0: no request waits for another; how many there are is limited where they arrive.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),  # requests of different clients share the pool
                headers=self._headers,
            )
        return await self._session.request(
            method,
            address,
            data=data,
            headers=headers,
            timeout=_connecting(timeouts.connect),
            proxy=self._proxy,
            allow_redirects=False,  # the key is for this address alone
        )

    def translated(self, error: BaseException | None) -> ProviderError | None:
        """Return the `ProviderError` for an error of the HTTP client; None for any other."""
        match error:
            case UnreachableError():
                return ProviderError(Fault.CONNECTION, f"{self.host} cannot be reached: {error}", host=self.host)
            case UnsentError():
                return ProviderError(Fault.REQUEST, f"{self.host} was not asked: {error}", host=self.host)
            case BrokenError():
                return ProviderError(Fault.CONNECTION, f"{self.host} broke the connection", host=self.host)
            case NotHttpError():
                return self.malformed(str(error))
            case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
                return ProviderError(Fault.CONNECTION, f"{self.host} cannot be reached: {_why(error)}", host=self.host)
            case TimeoutError() | asyncio.TimeoutError():
                return ProviderError(Fault.TIMEOUT, f"{self.host} took too long", host=self.host)
            case aiohttp.ClientResponseError():
                return self.malformed("what is not HTTP")
            case aiohttp.ClientError() | OSError():
                why = f"{self.host} broke the connection ({type(error).__name__})"
                return ProviderError(Fault.CONNECTION, why, host=self.host)
            case ValueError():
                return self.malformed(str(error))
        return None

    def _release(self, response: HttpAnswer | aiohttp.ClientResponse, complete: bool) -> None:
        """Keep the connection of a complete answer for the next request; close any other."""
        if not complete or response.content.is_eof():
            response.close()
            return
        # The few bytes after the last event have to be read first; the caller does not wait for them.
        task = asyncio.create_task(_drain(response))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
        task.add_done_callback(lambda _: response.close())  # not in the task: one that is cancelled early never runs


class Translation:
    """Raises errors of the HTTP client as `ProviderError`, without their cause: its text may hold the headers.

    It is not a generator, which takes several times as long.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.has_begun = False
        """Whether the head of an answer has arrived."""

    def __enter__(self) -> Translation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        translated = self._transport.translated(error)
        if translated is not None:
            translated.has_begun = self.has_begun
            raise translated from None


@lru_cache(maxsize=16)
def _connecting(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


def too_large(max_bytes: int) -> ValueError:
    """Return the error for an answer of more than `max_bytes`."""
    return ValueError(f"an answer of more than {max_bytes / 2**20:.3g} MiB (max_answer_mb)")


async def _whole(response: HttpAnswer | aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return a body. Raise ValueError once it is larger than `max_bytes`, decompressed."""
    chunks, size = [], 0
    while received := await response.content.readany():
        chunks.append(received)
        size += len(received)
        if size > max_bytes:
            raise too_large(max_bytes)
    return b"".join(chunks)


def _why(error: BaseException) -> str:
    """Return why there is no connection, without the address that asyncio puts into its own text."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number)
    return getattr(error, "strerror", None) or "no connection in time"


async def _read(reader: HttpAnswer | aiohttp.StreamReader, deadline: float) -> bytes:
    """Return what arrives before the deadline; nothing at the end. Raise asyncio.TimeoutError if nothing arrives."""
    timer = asyncio.get_running_loop().call_at(deadline, reader.set_exception, asyncio.TimeoutError())
    try:
        return await reader.readany()
    finally:
        timer.cancel()


async def _drain(response: HttpAnswer | aiohttp.ClientResponse) -> None:
    with contextlib.suppress(*_BROKEN_OFF), time_limit(_DRAIN_SECONDS, TimeoutError()):
        while await response.content.readany():
            pass


_Signer: TypeAlias = Callable[[str, str, bytes], Awaitable[Mapping[str, str]]]
"""Returns the headers for (method, address, body). Raises ProviderError without credentials."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def _signer_for(protocol: str, account: Account) -> _Signer | None:
    """Return what signs an account's requests; None where a key does. Raise ConfigError where a package is missing."""
    if account.api_key or protocol not in ("bedrock", "s3", "vertex"):
        return None
    try:
        return _google(account) if protocol == "vertex" else _aws(account, protocol)
    except ImportError as error:
        extra = "vertex" if protocol == "vertex" else "bedrock"
        raise ConfigError(f"{extra} needs {error.name}: pip install 'p2l[{extra}]'") from None


def _refused(who: str, what: str) -> ProviderError:
    return ProviderError(Fault.CREDENTIALS, f"{who}: {what}")


def _aws(account: Account, service: str) -> _Signer:
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    options, signature = account.options, S3SigV4Auth if service == "s3" else SigV4Auth
    found: list[Any] = []
    if options.get("access_key_id") and options.get("secret_access_key"):
        keys = (str(options[name]) if options.get(name) else None for name in SECRET_OPTIONS)
        found.append(Credentials(*keys))

    def sign(method: str, url: str, body: bytes) -> Mapping[str, str]:
        if not found:
            found.append(Session().get_credentials())
        if found[0] is None:
            found.clear()
            what = "no credentials of AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
            raise _refused("bedrock", what)
        request = AWSRequest(method, url, data=body, headers={"Content-Type": "application/json"})
        try:
            signature(found[0].get_frozen_credentials(), service, str(options.get("region"))).add_auth(request)
        except BotoCoreError as error:
            raise _refused("bedrock", f"the credentials of AWS cannot be used ({type(error).__name__})") from None
        return dict(request.headers.items())

    async def headers(method: str, url: str, body: bytes) -> Mapping[str, str]:
        # Looking for credentials and renewing them may take a network.
        return await asyncio.to_thread(sign, method, url, body)

    return headers


def _google(account: Account) -> _Signer:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request
    from google.oauth2.service_account import Credentials

    file = account.options.get("service_account_key")
    is_theirs = (urlsplit(account.base_url).hostname or "").endswith(".googleapis.com")
    found: list[Any] = []
    lock = asyncio.Lock()

    def renew() -> None:
        if not found:
            if file:
                found.append(Credentials.from_service_account_file(str(file), scopes=[_SCOPE]))
            elif is_theirs:
                found.append(google.auth.default(scopes=[_SCOPE])[0])
            else:  # a token of this machine is for Google alone
                raise _refused("vertex", "an address of one's own needs service_account_key, or api_key")
        if not found[0].valid:
            found[0].refresh(Request())

    async def headers(_method: str, _url: str, _body: bytes) -> Mapping[str, str]:
        async with lock:
            try:
                await asyncio.to_thread(renew)
            except (GoogleAuthError, OSError, ValueError) as error:
                what = f"no credentials of Google ({type(error).__name__}): set GOOGLE_APPLICATION_CREDENTIALS"
                raise _refused("vertex", f"{what}, or run `gcloud auth application-default login`") from None
        return {"Authorization": f"Bearer {found[0].token}"}

    return headers
