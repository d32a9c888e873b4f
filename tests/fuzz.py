"""What fuzzers share: how many examples, and requests as bytes that may be no HTTP at all."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["EXAMPLES", "connections", "fuzzing", "judged", "raw_requests"]

EXAMPLES = int(os.environ.get("P2L_FUZZ_EXAMPLES", "0"))
"""Of each operation and form; 0: few, the same ones each time."""
_LONGEST_WAIT = 60.0  # far longer than the services under test wait for anything
_LONGEST = 70_000
_STATUSES = {200, 307, 400, 401, 403, 404, 405, 408, 413, 414, 422, 429, 431, 502, 503, 504}


def fuzzing(few: int) -> settings:
    """`few` examples, the same each time; with P2L_FUZZ_EXAMPLES as many others."""
    checks = list(HealthCheck)
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        suppress_health_check=checks,
        database=None,
        print_blob=bool(EXAMPLES),
    )


METHODS = [b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"CONNECT", b"TRACE", b"PRI", b"get", b"", b"P\0ST"]
TARGETS = [b"*", b"http://x/health", b"/%00", b"/%ff", b"//", b"/../..", b"?", b"/\xc3\xa9", b"/" + b"a" * _LONGEST]
VERSIONS = [b"HTTP/1.1"] * 40 + [b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"HTP/1.1", b"", b"http/1.1"]
HEADERS = [
    *(b"host: h", b"host: h\r\nhost: g", b"connection: close", b"connection: upgrade\r\nupgrade: websocket"),
    *(b"content-type: application/json", b"content-type: text/plain; charset=\xff", b"content-encoding: gzip"),
    *(b"content-length: 0", b"content-length: 3", b"content-length: 99999999999999999999", b"content-length: -1"),
    *(b"content-length: 5\r\ncontent-length: 6", b"content-length: 0x10", b"content-length: +7", b"content-length:"),
    *(b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding: chunked, chunked"),
    *(b"transfer-encoding: xchunked", b"transfer-encoding : chunked", b"expect: 100-continue", b"te: trailers"),
    *(b" folded", b"no colon", b": no name", b"x\0: y", b"x: \xff\xfe", b"x: y\rz: w", b"x: y\n"),
    *(b"x-p2l-timeout: nan", b"x-p2l-cost: -0", b"x-p2l-cost: \xb2", b"authorization: Bearer \xff"),
    *(b"\r\n".join([b"x: y"] * 300), b"x: " + b"a" * _LONGEST, b"a" * _LONGEST + b": x"),
]
CHUNKS = [
    *(
        b"0\r\n\r\n",
        b"ffffffffffffffff1\r\nx",
        b"-1\r\nx\r\n0\r\n\r\n",
        b"2;" + b"e" * _LONGEST + b"\r\n{}\r\n0\r\n\r\n",
    ),
    *(b"2\r\n{}0\r\n\r\n", b"2\n{}\n0\n\n", b"z\r\n", b"2\r\n{}\r\n0\r\nx: y\r\n\r\n", b"2\r\n{}\r\n"),
]


@st.composite
def raw_requests(draw: st.DrawFn, key: bytes, bodies: dict[bytes, bytes]) -> bytes:
    """Bytes that begin like a request to one of the routes `bodies`, right or wrong in each of its parts."""
    target = draw(st.sampled_from([*bodies] * 6 + [*TARGETS, b""])) or draw(st.binary(max_size=20))
    body = bodies.get(target, b"{}")
    method = draw(st.sampled_from([b"POST" if body else b"GET"] * 30 + METHODS))
    headers = [draw(st.sampled_from([key] * 9 + [b"host: h"])), b"content-type: application/json"]
    if draw(st.booleans()):
        headers.append(draw(st.sampled_from([*HEADERS, b""])) or draw(st.binary(max_size=30)))
    form = draw(st.sampled_from(["whole", "whole", "chunked", "odd chunks", "short", "long", "any"]))
    if form == "any":
        body = draw(st.binary(max_size=60))
    if form in ("chunked", "odd chunks"):
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if form == "chunked" else draw(st.sampled_from(CHUNKS))
        headers.append(b"transfer-encoding: chunked")
    else:
        wrong = {"short": -5, "long": 7}.get(form, 0)
        headers.append(b"content-length: %d" % max(0, len(body) + wrong))
    end = draw(st.sampled_from([b"\r\n"] * 20 + [b"\n", b"\r", b""]))
    line = b" ".join([method, target, draw(st.sampled_from(VERSIONS))])
    sent = end.join([line, *headers, b"", b""]) + body
    match draw(st.sampled_from(["", "", "", "cut", "insert", "twice", "garbage behind"])):
        case "cut":
            return sent[: draw(st.integers(0, len(sent)))]
        case "insert":
            place = draw(st.integers(0, min(len(sent), 200)))
            return sent[:place] + draw(st.binary(min_size=1, max_size=4)) + sent[place:]
        case "twice":
            return sent + sent
        case "garbage behind":
            return sent + draw(st.binary(min_size=1, max_size=40))
    return sent


def connections(url: str, requests: Sequence[bytes]) -> list[bytes]:
    """What comes back for each of these, on connections open at the same time, until the server closes them."""
    parts = urlsplit(url)
    with contextlib.ExitStack() as stack:
        clients = []
        for request in requests:
            client = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=_LONGEST_WAIT))
            clients.append(client)
            with contextlib.suppress(ConnectionError):  # one that is refused before it has been read
                client.sendall(request)
        return [_read(client) for client in clients]


def _read(client: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(65536):
            received += chunk
    return received


class _Received(io.BytesIO):
    """What was received, as a socket that http.client reads."""

    def makefile(self, *_: object) -> io.BytesIO:
        return self


def judged(request: bytes, received: bytes) -> int | None:
    """The status of the first answer, which has a documented form; None where there was nothing to answer."""
    if not received:
        assert not request.strip(b"\r\n"), "the connection ended without an answer"
        return None
    method = re.split(rb"[ \r\n]", request.lstrip(b"\r\n"), maxsplit=1)[0].decode("latin-1")
    response = http.client.HTTPResponse(_Received(received), method=method)  # type: ignore[arg-type]
    response.begin()
    body = response.read()
    assert response.status in _STATUSES, received[:500]
    if method == "HEAD" or response.status == 307:
        return response.status
    if response.status != 200 or response.headers.get_content_type() == "application/json":
        fault: Any = json.loads(body)
        assert response.status == 200 or "detail" in fault or "error" in fault or "status" in fault, body
    return response.status
