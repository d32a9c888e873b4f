"""A server that has documents, as providers have lists of their models."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Lists:
    """A server that has some documents and remembers who asked for what."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        lists = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lists.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                found = lists.documents.get(self.path)
                self.send_response(200 if found is not None else 404)
                body = found if isinstance(found, bytes) else json.dumps(found or {"error": "none"}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def serving() -> Iterator[Lists]:
    """The server, for as long as the block lasts."""
    made = Lists()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()
