"""Pages that the services show: rendered on the server, with a strict policy, without a build step or another host.

    return page(request, "p2l.serving/board.html", title="Leaderboard", rows=rows)

A template extends `p2l.common.pages/page.html`. Libraries and their licences lie in `static`.
"""

from __future__ import annotations

from p2l.common.pages.responses import (
    asset_content,
    asset_url,
    asset_urls,
    form_fields,
    fragment,
    meta_policy,
    page,
    send,
    send_asset,
)
from p2l.common.pages.sessions import EndedSessions, Sessions, SignIn, is_same_origin, is_secure
from p2l.common.report.drawing import Dot, frontier_svg, interval_svg, line_svg, share_svg

__all__ = [
    "Dot",
    "EndedSessions",
    "Sessions",
    "SignIn",
    "asset_content",
    "asset_url",
    "asset_urls",
    "form_fields",
    "fragment",
    "frontier_svg",
    "interval_svg",
    "is_same_origin",
    "is_secure",
    "line_svg",
    "meta_policy",
    "page",
    "send",
    "send_asset",
    "share_svg",
]
