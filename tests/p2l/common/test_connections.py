"""Connections that never end, that send too slowly or too much, and how many one peer may hold."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import resource
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
import uvicorn

from p2l.common.connections import ConnectionLimits, Connections, Turns, add_connection_flags, limits_of
from p2l.common.errors import ConfigError
from p2l.common.protocol import Arrivals, BoundedProtocol, ErrorBody, detail_body

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
OK = b"HTTP/1.1 200"
QUICK = ConnectionLimits(header_seconds=0.3, idle_seconds=0.3, total=100, peer=0)
PATIENT = ConnectionLimits(header_seconds=60, idle_seconds=60, total=100, peer=0)


async def hello(scope, receive, send) -> None:
    """Answers `hello` when the body is there, or for `/early` before it, or with the body for `/echo`.

    For `/head` the head comes before the body is read; `/pause` lets nothing else run for a moment.
    """
    assert scope["type"] == "http"
    if scope["path"] == "/pause":
        time.sleep(1.0)
    if scope["path"] == "/head":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": (await receive())["body"]})
        return
    body, more = b"", scope["path"] != "/early"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer = body if scope["path"] == "/echo" else b"hello"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


Open = Callable[..., socket.socket]


@contextlib.contextmanager
def served(
    limits: ConnectionLimits, error_body: ErrorBody = detail_body, protocol: type[BoundedProtocol] = BoundedProtocol
) -> Iterator[Open]:
    """A server in a thread; gives what opens a connection, of another peer if that is said, and sends bytes."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        arrivals: Any = partial(protocol, Connections(limits), error_body)
        if protocol is BoundedProtocol:
            arrivals = Arrivals(Connections(limits), error_body)
            arrivals.listeners = [stack.enter_context(listener.dup())]
        config = uvicorn.Config(
            hello, http=arrivals, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()

        def connect(sent: bytes = b"", peer: str = "127.0.0.1") -> socket.socket:
            client = stack.enter_context(
                socket.create_connection(listener.getsockname(), timeout=30, source_address=(peer, 0))
            )
            client.sendall(sent)
            return client

        try:
            while not server.started:
                assert thread.is_alive()
            yield connect
        finally:
            stack.close()
            server.should_exit = True
            thread.join()


def received(client: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    chunks = []
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def answered(client: socket.socket) -> bool:
    """Whether the next answer is the application's, whole."""
    text = b""
    with contextlib.suppress(ConnectionError):
        while not text.endswith(b"hello") and (chunk := client.recv(65536)):
            text += chunk
    return text.startswith(OK) and text.endswith(b"hello")


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        client.settimeout(30)


def drip(client: socket.socket, text: bytes) -> None:
    """Send a byte at a time until the other side has had enough."""
    with contextlib.suppress(ConnectionError):
        for byte in text:
            client.sendall(bytes([byte]))
            time.sleep(0.02)
            if not is_open(client):
                return


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"GET / HT", b"HTTP/1.1 408 "), (b"GET / HTTP/1.1\r\nhost: h\r\n", b"HTTP/1.1 408 ")],
)
def test_a_connection_without_a_whole_request_ends(sent: bytes, answer: bytes) -> None:
    with served(QUICK) as connect:
        assert received(connect(sent))[:13] == answer


@pytest.mark.parametrize("start", [b"", WHOLE])
def test_headers_that_drip_end_at_the_deadline_at_first_and_after_an_answer(start: bytes) -> None:
    with served(QUICK) as connect:
        client = connect(start)
        assert not start or answered(client)
        began = time.monotonic()
        drip(client, b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * 10_000)
        assert not is_open(client)
        assert time.monotonic() - began >= 0.3


def test_an_idle_connection_ends_and_one_that_is_used_stays() -> None:
    with served(QUICK) as connect:
        idle, used = connect(WHOLE), connect(WHOLE)
        assert answered(idle)
        for _ in range(8):
            assert answered(used)
            time.sleep(0.1)
            used.sendall(WHOLE)
        assert answered(used)
        assert not is_open(idle)


def test_blank_lines_do_not_keep_a_connection() -> None:
    with served(QUICK) as connect:
        client = connect(WHOLE)
        assert answered(client)
        drip(client, b"\r\n" * 10_000)
        assert not is_open(client)


def test_a_body_that_comes_after_its_answer_ends_at_the_deadline() -> None:
    with served(QUICK) as connect:
        client = connect(b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 100000\r\n\r\n")
        assert answered(client)
        drip(client, b"x" * 100_000)
        assert not is_open(client)


def test_a_slow_body_is_left_to_the_service() -> None:
    with served(QUICK) as connect:
        client = connect(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 20\r\n\r\n")
        for _ in range(20):
            time.sleep(0.05)
            client.sendall(b"x")
        assert answered(client)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nhost: here\r\nhost: there\r\n",
        b"GET / HTTP/1.1\r\nhost: here\r\nHost: here\r\n",
        b"GET / HTTP/1.0\r\nhost: here\r\nhost: there\r\n",
        b"GET / HTTP/1.1\r\nhost: here there\r\n",
        b"GET / HTTP/1.1\r\nhost: me@there/\r\n",
    ],
)
def test_a_request_has_one_host(head: bytes) -> None:
    with served(PATIENT) as connect:
        assert received(connect(head + b"\r\n")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.1\r\nhost:\r\n", b"GET / HTTP/1.1\r\nhost: [::1]:80\r\n"]
)
def test_a_host_may_be_empty_or_an_address_and_old_requests_have_none(head: bytes) -> None:
    with served(PATIENT) as connect:
        assert answered(connect(head + b"\r\n"))


@pytest.mark.parametrize("header", [b"x-many: 1\r\n" * 200, b"x-large: " + b"a" * 200_000 + b"\r\n"])
def test_more_headers_than_a_request_needs_are_refused(header: bytes) -> None:
    with served(PATIENT) as connect:
        client = connect()
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n" + header + b"\r\n")
        assert received(client)[:13] in (b"HTTP/1.1 431 ", b"")  # a reset may overtake the answer
        assert answered(connect(WHOLE))


def test_a_header_without_end_is_refused_beside_a_request_under_way() -> None:
    with served(PATIENT) as connect:
        client = connect(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\r\nx: ")
        with pytest.raises(ConnectionError):
            client.sendall(b"a" * 100_000_000)


CHUNKED = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("garbage", [b"no request at all\r\n\r\n", b"GET / HTTP/1.1\r\nx: y\r\n" + b"x: y\r\n" * 500])
@pytest.mark.parametrize("whole", [1, 3])
def test_garbage_behind_requests_does_not_cost_their_answers(whole: int, garbage: bytes) -> None:
    with served(PATIENT) as connect:
        answers = received(connect(WHOLE * whole + garbage))
        assert answers.count(OK) == answers.count(b"hello") == whole
        assert answers.count(b"HTTP/1.1 ") == whole
        assert b"connection: close" in answers


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_body_that_cannot_be_read_is_refused_after_the_answers_before_it(before: int) -> None:
    with served(PATIENT) as connect:
        answers = received(connect(WHOLE * before + CHUNKED + b"no size\r\n"))
        assert answers.count(OK) == before
        last = answers.rpartition(b"HTTP/1.1 ")[2]
        assert last.startswith(b"400 ")
        assert b"connection: close" in last
        client = connect(CHUNKED)
        time.sleep(0.1)  # the service waits for the body meanwhile
        client.sendall(b"no size\r\n")
        assert received(client).startswith(b"HTTP/1.1 400 ")


def test_requests_sent_ahead_are_answered_in_turn_up_to_a_number() -> None:
    with served(PATIENT) as connect:
        assert received(connect(WHOLE * 9 + WHOLE.replace(b"host", b"connection: close\r\nhost"))).count(OK) == 10
        assert received(connect(WHOLE * 5000)).count(OK) < 5000


def of_the_router(status: int, sentence: str) -> dict[str, object]:
    return {"error": {"status": status, "message": sentence}}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"no request at all\r\n\r\n", 400),
        (CHUNKED + b"no size\r\n", 400),
        (WHOLE + CHUNKED + b"no size\r\n", 400),
        (b"GET / HT", 408),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
    ],
)
@pytest.mark.parametrize("error_body", [detail_body, of_the_router])
def test_what_is_refused_before_it_is_a_request_is_told_in_the_json_of_the_service(
    sent: bytes, status: int, error_body: ErrorBody
) -> None:
    with served(QUICK, error_body) as connect:
        answers = received(connect(sent))
    head, _, body = answers[answers.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    fault = json.loads(body)
    [(name, content)] = fault.items()
    sentence = content if name == "detail" else content["message"]
    assert fault == error_body(status, sentence)
    assert sentence


def test_faulty_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), served(PATIENT) as connect:
        for _ in range(20):
            assert received(connect(b"no request at all\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "127.0.0.1" in line


def test_a_peer_at_its_cap_is_refused_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    busy = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n"
    with caplog.at_level(logging.WARNING), served(ConnectionLimits(60, 60, total=20, peer=4)) as connect:
        held = [connect(busy, "127.0.0.2") for _ in range(4)]
        time.sleep(0.1)
        refused = [received(connect(peer="127.0.0.2")) for _ in range(30)]
        assert all(text.startswith(b"HTTP/1.1 503 ") for text in refused)
        assert answered(connect(WHOLE)), "another peer is served"
        for client in held:
            client.sendall(b"x" * 9)
            assert answered(client), "what was there before goes on"
    lines = [record.getMessage() for record in caplog.records if "--max-peer-connections" in record.getMessage()]
    assert len(lines) == 1
    assert "127.0.0.2" in lines[0]


@pytest.mark.parametrize("leave", [False, True])
def test_a_burst_of_connections_of_one_address_does_not_delay_another(
    monkeypatch: pytest.MonkeyPatch, leave: bool
) -> None:
    """The event loop accepts all of a burst at once, but sets up a few before it turns to others."""
    peers, admit = list[str](), Connections.admit
    monkeypatch.setattr(Connections, "admit", lambda all_, each: (peers.append(each.peer), admit(all_, each))[1])
    with served(ConnectionLimits(60, 60, total=400, peer=0)) as connect:
        pause = connect(WHOLE.replace(b"/", b"/pause", 1))
        crowd = [connect(WHOLE, "127.0.0.2") for _ in range(300)]
        neighbour = connect(WHOLE)
        for client in crowd[::2] if leave else ():
            client.close()
        assert answered(pause)
        assert answered(neighbour)
        assert all(answered(client) for client in (crowd[1::2] if leave else crowd))
        assert peers.index("127.0.0.1", 1) < 100


def test_more_connections_than_may_wait_stay_in_the_queue_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, take = list[int](), Turns.take

    async def noted(turns: Turns, *words: Any) -> None:
        waiting.append(1)
        await take(turns, *words)
        waiting.pop()

    monkeypatch.setattr(Turns, "take", noted)
    most, admit = list[int](), Connections.admit
    monkeypatch.setattr(Connections, "admit", lambda all_, each: (most.append(len(waiting)), admit(all_, each))[1])
    with served(ConnectionLimits(60, 60, total=20, peer=0)) as connect:
        pause = connect(WHOLE.replace(b"/", b"/pause", 1))
        crowd = [connect(WHOLE, "127.0.0.2") for _ in range(200)]
        assert answered(pause)
        while len(most) <= len(crowd):
            time.sleep(0.01)
        assert answered(crowd[0])
    assert 0 < max(most) <= 20


def test_closed_connections_no_longer_count() -> None:
    with served(ConnectionLimits(60, 60, total=20, peer=4)) as connect:
        for _ in range(40):
            client = connect(WHOLE)
            assert answered(client)
            client.close()


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n", WHOLE])
@pytest.mark.parametrize(
    "limits", [ConnectionLimits(60, 60, total=20, peer=4), ConnectionLimits(60, 60, total=4, peer=0)]
)
def test_at_a_cap_the_oldest_connection_that_does_nothing_makes_room(start: bytes, limits: ConnectionLimits) -> None:
    with served(limits) as connect:
        idle = [connect(start) for _ in range(4)]
        if start == WHOLE:
            assert all(answered(client) for client in idle)
        time.sleep(0.3)
        assert answered(connect(WHOLE))
        assert [is_open(client) for client in idle] == [False, True, True, True]


def test_a_total_cap_refuses_everybody(caplog: pytest.LogCaptureFixture) -> None:
    busy = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n"
    with caplog.at_level(logging.WARNING), served(ConnectionLimits(60, 60, total=4, peer=0)) as connect:
        held = [connect(busy, f"127.0.0.{number}") for number in range(2, 6)]
        time.sleep(0.1)
        assert received(connect()).startswith(b"HTTP/1.1 503 ")
        assert all(is_open(client) for client in held)
    assert [record for record in caplog.records if "--max-connections" in record.getMessage()]


def limits(*words: str) -> ConnectionLimits:
    flags = argparse.ArgumentParser()
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=5)
    return limits_of(flags.parse_args(words))


def test_the_caps_fit_the_files_that_a_process_may_open() -> None:
    default = limits()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert default.total < files
    assert 0 < default.peer < default.total
    assert (default.header_seconds, default.idle_seconds) == (10, 5)
    assert limits("--max-peer-connections", "0").peer == 0
    assert limits("--max-connections", "8").total == 8
    with pytest.raises(ConfigError, match=r"--max-connections.*open files"):
        limits("--max-connections", str(files + 1))


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        limits()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("size", "returned"), [(6 * 2**20, True), (1000, False)])
def test_memory_of_large_requests_is_given_back(monkeypatch: pytest.MonkeyPatch, size: int, returned: bool) -> None:
    calls = threading.Event()
    monkeypatch.setattr("p2l.common.connections._give_memory_back", calls.set)
    quick = ConnectionLimits(header_seconds=5, idle_seconds=0.5, total=100, peer=0)
    with served(quick) as connect:
        head = f"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: {size}\r\n\r\n".encode()
        client = connect(head + b"a" * size)
        assert answered(client)
        assert received(client) == b""  # closed, being idle
        assert calls.wait(10 if returned else 0.5) is returned


def test_after_large_requests_garbage_is_collected_when_the_service_rests() -> None:
    class Ring:
        """Refers to itself, as an exception and its frames do."""

    ring = Ring()
    ring.ring = ring  # type: ignore[attr-defined]
    left = weakref.ref(ring)
    del ring
    gc.disable()
    try:
        with served(ConnectionLimits(header_seconds=1, idle_seconds=1, total=100, peer=0)) as connect:
            head = f"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: {6 * 2**20}\r\n\r\n".encode()
            client = connect(head + b"a" * (6 * 2**20))
            assert answered(client)
            client.close()
            while left() is not None:
                time.sleep(0.01)
    finally:
        gc.enable()


UPGRADES = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAA\r\n",
    "twice": b"connection: upgrade\r\nconnection: UPGRADE\r\nupgrade: a\r\nupgrade: b\r\n",
}


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("size", [1, 40, 1000])
@pytest.mark.parametrize("offer", UPGRADES.values(), ids=UPGRADES)
def test_a_request_that_offers_another_protocol_keeps_its_body(offer: bytes, size: int, in_chunks: bool) -> None:
    """What looks like a request in a body is not a request, in whichever pieces it arrives."""
    body = b"GET /early HTTP/1.1\r\nhost: evil\r\n\r\n"
    head = b"POST /echo HTTP/1.1\r\nhost: here\r\n" + offer
    if in_chunks:
        sent = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        sent = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    sent += WHOLE.replace(b"here\r\n", b"here\r\nconnection: close\r\n")
    with served(PATIENT) as connect:
        client = connect()
        for start in range(0, len(sent), size):
            client.sendall(sent[start : start + size])
            if size == 40:
                time.sleep(0.001)
        answer = client.makefile("rb").read()
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(body) == 1
    assert answer.endswith(b"hello")


def test_an_offer_that_closes_is_the_last_request() -> None:
    with served(PATIENT) as connect:
        client = connect(WHOLE.replace(b"here\r\n", b"here\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n"))
        answer = client.makefile("rb").read()
    assert answer.count(OK) == 1
    assert b"connection: close" in answer


def test_a_proxy_is_no_service_of_ours() -> None:
    with served(PATIENT) as connect:
        client = connect(b"CONNECT there:80 HTTP/1.1\r\nhost: there\r\n\r\n" + WHOLE)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "sent", [WHOLE, WHOLE + WHOLE, b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nhalf", b"GET", b"x"]
)
def test_a_connection_that_is_gone_is_freed_at_once(sent: bytes) -> None:
    """Not when the collector of garbage comes by, which after a burst may take long."""
    alive, made = weakref.WeakSet[BoundedProtocol](), list[int]()

    class Noted(BoundedProtocol):
        def connection_made(self, transport: Any) -> None:
            alive.add(self)
            made.append(1)
            super().connection_made(transport)

    gc.disable()
    try:
        with served(PATIENT, protocol=Noted) as connect:
            for number in range(3):
                client = connect(sent)
                while len(made) <= number:
                    time.sleep(0.01)
                if sent.startswith(WHOLE):
                    client.recv(1000)
                client.close()
                while alive:
                    time.sleep(0.01)
    finally:
        gc.enable()


class Writes:
    """A transport that notes what is written to it."""

    pieces: ClassVar[list[bytes]] = []

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.pieces.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Noted(BoundedProtocol):
    """A protocol on such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Writes(transport))  # type: ignore[arg-type]


def test_an_answer_is_written_in_one_piece() -> None:
    Writes.pieces.clear()
    with served(PATIENT, protocol=Noted) as connect:
        client = connect(WHOLE.replace(b"here", b"here\r\nconnection: close"))
        answer = received(client)
    assert [answer] == Writes.pieces
    assert answer.startswith(OK)
    assert answer.endswith(b"hello")


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    with served(PATIENT) as connect:
        client = connect(b"POST /head HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 5\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1000)
        assert not head.endswith(b"world")
        client.sendall(b"world")
        assert received(client) == b"world"
