"""A hub of data sets on this machine, for the official clients: its repositories are folders OWNER/NAME/BRANCH."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

CONVERTED = "refs/convert/parquet"


def branch_folder(root: Path, repository: str, branch: str = "main") -> Path:
    """Where the files of a branch are."""
    return root / repository / branch.replace("/", "-")


def _commit(branch: str) -> str:
    return hashlib.sha1(branch.encode(), usedforsecurity=False).hexdigest()


class Hub:
    """Serves the repositories below a folder while it is entered."""

    def __init__(self, root: Path) -> None:
        class Handler(_Handler):
            folder = root

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        """Answer as GET, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Describe some paths."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._answer(form.get("paths", []))

    def do_GET(self) -> None:
        """Send a file, or what the interface knows of a repository or a folder."""
        self._answer([])

    def _answer(self, paths: list[str]) -> None:
        address = self.path.partition("?")[0]
        match = re.fullmatch(r"(?:/api)?/datasets/([^/]+/[^/]+)(?:/([a-z-]+)/([^/]+)(?:/(.*))?)?", address)
        repository, verb, revision, rest = match.groups() if match else ("", None, None, None)
        branches = {"main": "main", CONVERTED: CONVERTED, _commit("main"): "main", _commit(CONVERTED): CONVERTED}
        branch = branches.get(unquote(revision or "main"), "")
        whole = branch_folder(self.folder, repository, branch)
        path = whole / unquote(rest or "")
        if not match or not (self.folder / repository).is_dir():
            self._fail("RepoNotFound")
        elif not branch or not whole.is_dir():
            self._fail("RevisionNotFound")
        elif verb == "paths-info":
            self._send_json([_entry(whole, whole / one) for one in paths if (whole / one).exists()])
        elif not path.exists():
            self._fail("EntryNotFound")
        elif verb == "resolve":
            self._send(path.read_bytes(), branch)
        elif verb == "tree":
            inner = path.rglob("*") if "recursive=true" in self.path.lower() else path.iterdir()
            self._send_json([_entry(whole, one) for one in sorted(inner)])
        else:
            files = [{"rfilename": str(one.relative_to(whole))} for one in sorted(whole.rglob("*")) if one.is_file()]
            self._send_json({"id": repository, "sha": _commit(branch), "siblings": files, "private": False, "tags": []})

    def _fail(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, content: Any) -> None:
        self._send(json.dumps(content).encode(), "main")

    def _send(self, body: bytes, branch: str) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first, last = (int(match[1]), int(match[2] or len(body) - 1)) if match else (0, len(body) - 1)
        part = body[first : last + 1]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(body)}")
        self.send_header("X-Repo-Commit", _commit(branch))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)


def _entry(whole: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(whole))
    oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": oid}
    return {"type": "file", "path": name, "oid": oid, "size": path.stat().st_size}
