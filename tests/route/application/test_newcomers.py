"""Models that P2L does not know, over HTTP: they are asked now and then, and ratings decide."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.route.router_helpers import HELLO, a_router

KNOWN = {"fair": 1.0, "poor": 0.0}


def test_a_newcomer_is_explored_and_thumbs_move_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=KNOWN) as router:
            models = []
            for _ in range(150):
                _, answer, headers = await router.post("/v1/chat/completions", {"messages": HELLO})
                models.append(answer["model"])
                thumbs = "up" if answer["model"] == "good" else "down"
                status, *_ = await router.post(
                    "/v1/feedback", {"request_id": headers["x-request-id"], "thumbs": thumbs}
                )
                assert status == 200
            assert "good" in models
            assert models[-30:].count("good") > 15
            _, decision, _ = await router.post("/v1/route", {"messages": HELLO})
            assert decision["scores"]["good"] > decision["scores"]["fair"]

    asyncio.run(main())


def test_it_stays_within_the_budget(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=KNOWN) as router:
            for _ in range(60):
                assert (await router.ask(extra_body={"cost": 2.5})).model != "good"

    asyncio.run(main())


@pytest.mark.parametrize("direct", [False, True])
def test_without_newcomers_only_its_name_reaches_it(tmp_path: Path, direct: bool) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=KNOWN, newcomers=False) as router:
            extra = {"direct_model": "good"} if direct else {}
            assert (await router.ask(extra_body=extra)).model == ("good" if direct else "fair")

    asyncio.run(main())
