"""The viewer over HTTP, read-only: for browsers of this machine, or for whoever has brought a key."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coeval.view.site import File, Site
from p2l.common.access import KeyJudge, is_from_this_machine, new_key
from p2l.common.connections import ConnectionLimits
from p2l.common.pages import Sessions, SignIn, form_fields, send, send_asset
from p2l.common.processes import control_folder, run_server
from p2l.common.web import BodyLimit

_KEY_BYTES = 4096
_BODY_SECONDS, _REQUEST_SECONDS = 10.0, 30.0
_FILES_IN_MEMORY = 64  # of which the largest is a few megabytes
_HERE_ALONE = "only browsers on this machine may read this run: start `coeval view` with --key for others\n"
_SIGN_IN = SignIn(
    title="A run of CoEval",
    action="/session",
    label="Key of this viewer",
    note="It is what --key or COEVAL_VIEW_KEY was when the viewer was started.",
)


class _Viewer:
    """A site as an application."""

    def __init__(self, site: Site, key_digest: str | None) -> None:
        """Serve a site; with the digest of a key (`digest_of`), to whoever has it."""
        self._site = site
        self._digest = key_digest
        self._judge = KeyJudge("the viewer", logging.getLogger("coeval"))
        self._sessions = Sessions(new_key(), "coeval_view")
        self._files: OrderedDict[str, File] = OrderedDict()

    def application(self) -> BodyLimit:
        """Return the application, which takes no other body than the key."""
        routes = [
            Route("/session", self.sign_in, methods=["POST"]),
            Route("/static/{digest}/{name}", send_asset, methods=["GET"]),
            Route("/{path:path}", self.file, methods=["GET"]),
        ]
        return BodyLimit(Starlette(routes=routes), _KEY_BYTES, _BODY_SECONDS)

    async def file(self, request: Request) -> Response:
        """Respond with a file of the site."""
        if self._digest is None:
            # Only under a name of this machine, too: a page of another site could otherwise read the run through the
            # browser of somebody who looks at it.
            peer = request.client.host if request.client is not None else None
            if not is_from_this_machine(peer, request.headers, request.scope.get("http_version", "1.1")):
                return Response(_HERE_ALONE, 403, media_type="text/plain")
        elif not self._sessions.has(request):
            return _SIGN_IN.form(request)
        file = await self._read(unquote(request.path_params["path"]) or "index.html")
        if file is None:
            return Response("there is no such page\n", 404, media_type="text/plain")
        return send(request, *file)

    async def sign_in(self, request: Request) -> Response:
        """Start a session for the right key."""
        key = dict(form_fields(await request.body(), 5)).get("key", "").strip(" \t")
        return await _SIGN_IN.start(
            request, key, self._digest, judge=self._judge, sessions=self._sessions, home="index.html"
        )

    async def _read(self, path: str) -> File | None:
        """Return a file, the last ones without making them anew."""
        if path not in self._files:
            file = await asyncio.to_thread(self._site.read, path)  # reads the disk, and renders for some milliseconds
            if file is None:
                return None
            self._files[path] = file
            if len(self._files) > _FILES_IN_MEMORY:
                self._files.popitem(last=False)
        self._files.move_to_end(path)
        return self._files[path]


def serve(site: Site, host: str, port: int, key_digest: str | None, limits: ConnectionLimits) -> None:
    """Serve a run until interrupted."""
    with control_folder("coeval-view-", shared=False):
        run_server(
            _Viewer(site, key_digest).application(),
            host,
            port,
            workers=1,
            reload=False,
            request_seconds=_REQUEST_SECONDS,
            limits=limits,
            log_level="warning",
        )
