"""Responses that are pages, parts of pages, or the files that these load.

Every page carries a policy under which a browser runs no script and loads no style but this package's files, and
contacts no other host: text that slips through the escaping of templates could still do nothing.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from p2l.common.report import render
from p2l.common.report.tables import page_policy, template_text

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_SELF = dict.fromkeys(("script_src", "style_src", "img_src", "connect_src", "form_action"), "'self'")
_POLICY = page_policy(**_SELF, frame_ancestors="'none'")
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept-encoding",
}
_YEAR = "public, max-age=31536000, immutable"  # the address of a file changes with its content
_MIN_COMPRESSED_BYTES = 1_000  # bytes; fewer travel in one packet anyway


@dataclass(frozen=True)
class _Asset:
    """A file of the folder `static`, as it is sent."""

    content: bytes
    compressed: bytes
    media_type: str
    digest: str


@lru_cache(maxsize=1)
def _assets() -> dict[str, _Asset]:
    assets = {}
    for path in sorted(_STATIC.iterdir()):
        content = path.read_bytes()
        if path.name == "page.css":  # with what reports have too
            content = "\n".join([template_text("tokens.css"), template_text("charts.css"), ""]).encode() + content
        digest = hashlib.sha256(content).hexdigest()[:12]
        assets[path.name] = _Asset(content, gzip.compress(content, 9, mtime=0), _TYPES[path.suffix], digest)
    return assets


def asset_url(name: str) -> str:
    """Return the path of a file of `static`; it changes with its content."""
    return f"/static/{_assets()[name].digest}/{name}"


def asset_urls() -> list[str]:
    """Return the paths of all files that pages load."""
    return [asset_url(name) for name in _assets()]


def asset_content(name: str) -> tuple[bytes, str]:
    """Return a file of `static` and its media type, for pages that are written to a folder."""
    asset = _assets()[name]
    return asset.content, asset.media_type


def meta_policy() -> str:
    """Return the policy of pages for a `meta` element, where any web server may send them without our headers."""
    return page_policy(**_SELF)  # browsers take frame-ancestors from a header alone


async def send_asset(request: Request) -> Response:
    """Respond with the file of `static` that `{digest}/{name}` of the path names; 404 where there is none."""
    # Async although it waits for nothing, or starlette would run it in a thread.
    asset = _assets().get(request.path_params["name"])
    if asset is None or request.path_params["digest"] != asset.digest:
        return Response("no such file", 404, media_type="text/plain")
    headers = {"cache-control": _YEAR, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if _takes_gzip(request):
        headers["content-encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)


def page(request: Request, template: str, *, status: int = 200, **data: Any) -> Response:
    """Respond with a whole page; `template` and `data` are those of `p2l.common.report.render`."""
    return fragment(request, render(template, asset=asset_url, **data), status=status)


def fragment(request: Request, html: str, *, status: int = 200) -> Response:
    """Respond with rendered HTML."""
    return send(request, html.encode(), "text/html; charset=utf-8", status=status)


def send(request: Request, content: bytes, media_type: str, *, status: int = 200) -> Response:
    """Respond with what pages show or load, compressed where that pays."""
    headers = dict(_HEADERS)
    if len(content) >= _MIN_COMPRESSED_BYTES and _takes_gzip(request):
        content = gzip.compress(content, 1)  # a third of the time of the default, for a tenth more bytes
        headers["content-encoding"] = "gzip"
    return Response(content, status, headers, media_type)


def form_fields(body: bytes, most: int) -> list[tuple[str, str]]:
    """Return the fields of a form in order; ValueError for more than `most`."""
    text = body.decode("ascii", "replace")
    fields = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=most)
    return [(name, content.replace("\r\n", "\n")) for name, content in fields]  # browsers send lines with both


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
