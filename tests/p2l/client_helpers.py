"""A small HTTP server that speaks the endpoint's contract and misbehaves on demand, and clients on a false clock."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from p2l.client import AsyncP2LClient, P2LClient

NAMES = ["ant", "bee", "cat"]
ANSWER = {"coefs": [0.5, -1.25, 2], "eta": -0.5, "truncated": False, "revision": "abc"}
ROWS: list[dict[str, Any]] = [
    {"rank": 1, "model": "cat", "coef": 2, "score": 1347.4, "win_rate": 0.75},
    {"rank": 2, "model": "ant", "coef": 0.5, "score": 1086.9, "win_rate": 0.5},
]
PLAIN: dict[str, Any] = {
    "/predict": ANSWER,
    "/leaderboard": {"leaderboard": ROWS, "truncated": True, "revision": "abc"},
    "/models": {"models": NAMES, "revision": "abc"},
    "/info": {"dtype": "float32", "revision": "abc"},
    "/health": {"status": "ready", "revision": "abc"},
}


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Say:
    """Answer with a status, a body (JSON unless bytes) and headers."""

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)


Act = Callable[["Handler"], None] | Say


def refuse(status: int, sentence: str, **headers: str) -> Say:
    return Say(status, {"detail": sentence}, {name.replace("_", "-"): value for name, value in headers.items()})


def hang(handler: Handler) -> None:
    handler.server.released.wait(30)
    handler.close_connection = True


def cut(handler: Handler) -> None:
    handler.close_connection = True


def half(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"coefs": [')
    handler.close_connection = True


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"220 mail.example.com ESMTP\r\n")
    handler.close_connection = True


def trickle(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with suppress(OSError):
        while not handler.server.released.wait(0.02):
            handler.wfile.write(b" ")
    handler.close_connection = True


class Handler(BaseHTTPRequestHandler):
    """Does what the script says next, and what the contract says when it is empty."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Endpoint

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, body)
        self.server.asked.append(asked)
        act = self.server.script.popleft() if self.server.script else usual(asked)
        if isinstance(act, Say):
            self.say(act)
        else:
            act(self)

    do_GET = do_POST = answer

    def say(self, act: Say) -> None:
        body = act.body if isinstance(act.body, bytes) else json.dumps(act.body).encode()
        self.send_response(act.status)
        for name, value in act.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def usual(asked: Asked) -> Say:
    name = "/" + asked.path.partition("?")[0].rpartition("/")[2]
    if name == "/predict_batch":
        return Say(
            body={"predictions": [{"coefs": [len(turns)]} for turns in asked.json["prompts"]], "revision": "abc"}
        )
    return Say(body=PLAIN[name])


class Endpoint(ThreadingHTTPServer):
    """The server, and what it was asked."""

    request_queue_size = 500
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Asked] = []
        self.script: deque[Act] = deque()
        self.connections = 0
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def reset(self) -> None:
        self.asked.clear()
        self.script.clear()
        self.connections = 0


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[Endpoint]:
    thread = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.released.set()
        endpoint.shutdown()
        thread.join()
        endpoint.server_close()


class Pace:
    """A clock that only pauses move, and chance that always draws the largest."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    @staticmethod
    def largest(_low: float, high: float) -> float:
        return high


class Caller:
    """One of the two clients, called the same way: `caller.predict(prompt)` blocks."""

    def __init__(self, kind: str, url: str, *args: Any, pace: Pace | None = None, **options: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        if pace:
            sleep = pace.asleep if self._loop else pace.sleep
            options |= {"clock": pace.clock, "sleep": sleep, "uniform": pace.largest}
        self.client: Any = (AsyncP2LClient if self._loop else P2LClient)(url, *args, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return (lambda *args: self._loop.run_until_complete(method(*args))) if self._loop else method

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop:
            self._loop.run_until_complete(self.client.aclose())
            self._loop.close()
        else:
            self.client.close()
