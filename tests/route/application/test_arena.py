"""The arena without a browser: what is stored, what is told when, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.route.keep.ledger_helpers import rows
from tests.route.router_helpers import Running, a_router

OWN = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
CONFIG: dict[str, Any] = {
    "keys": [{"key": "the-key-of-the-arena", "name": "arena", "cost": 2.0}],
    "arena": {"key": "arena", "per_minute": 4, "max_chars": 50},
    "database": "router.sqlite",
}


def run(folder: Path, check: Callable[[Running], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with a_router(folder, **{**CONFIG, **config}) as router:
            await check(router)

    asyncio.run(main())


async def post(router: Running, path: str, fields: dict[str, str], **headers: str) -> tuple[int, str]:
    body = urlencode(fields)
    async with router.http.post(f"{router.url}{path}", data=body, headers=OWN | headers) as answer:
        return answer.status, await answer.text()


def events(text: str) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_two_answers_stream_without_names_and_a_vote_tells_them(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        status, text = await post(router, "/arena/answers", {"prompt": "hello"})
        assert status == 200
        listed = events(text)
        texts = ["".join(content for name, content in listed if name == side) for side in "01"]
        assert sorted(texts) == ["I am fair", "I am poor"], "the budget of the key is 2"
        assert '"model"' not in text
        name, request_id = listed[-1]
        assert name == "done"
        status, told = await post(
            router, "/arena/vote", {"request_id": request_id, "verdict": "first"}, **{"hx-request": "true"}
        )
        assert status == 200
        assert "The budget was 2" in told
        assert told.index(texts[0].removeprefix("I am ")) < told.index(texts[1].removeprefix("I am "))
        stored = rows(tmp_path / "router.sqlite", "SELECT key, model_a, model_b, propensity, verdict FROM votes")
        shown = [text.removeprefix("I am ") for text in texts]
        assert stored == [("arena", *shown, pytest.approx(1.0), "first")]
        status, told = await post(router, "/arena/vote", {"request_id": request_id, "verdict": "second"})
        assert status == 409
        assert "already" in told
        assert len(rows(tmp_path / "router.sqlite", "SELECT 1 FROM votes WHERE verdict = 'first'")) == 1
        assert router.service.ledger.spent_of("arena") == 3.0

    run(tmp_path, check)


def test_it_is_off_unless_it_is_configured(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        assert (await router.get("/arena"))[0] == 404
        for path in ("/arena", "/arena/answers", "/arena/vote"):
            assert (await post(router, path, {"prompt": "hello"}))[0] == 404

    run(tmp_path, check, arena=None)


def test_what_asks_too_often_too_long_or_from_elsewhere_is_refused(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "none"}):
            assert (await post(router, "/arena/answers", {"prompt": "hello"}, **headers))[0] == 403
        assert (await post(router, "/arena/answers", {"prompt": "x" * 51}))[0] == 413
        assert (await post(router, "/arena/answers", {"prompt": " "}))[0] == 400
        codes = [(await post(router, "/arena/answers", {"prompt": "hello"}))[0] for _ in range(5)]
        assert codes == [200, 200, 200, 200, 429]
        assert (await post(router, "/arena/vote", {"request_id": "req-none", "verdict": "first"}))[0] == 404
        assert (await post(router, "/arena/vote", {"request_id": "req-none", "verdict": "up"}))[0] == 400

    run(tmp_path, check)


def test_a_model_that_fails_leaves_nothing_to_vote_on(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        _, text = await post(router, "/arena/answers", {"prompt": "hello"})
        listed = events(text)
        assert listed[-1] == ("done", "")
        assert "could not answer" in text
        assert "poor" not in text

    run(tmp_path, check, scripts={"poor": {"failure_rate": 1.0}})


def test_without_scripts_both_answers_are_on_the_page(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        status, page = await post(router, "/arena", {"prompt": "hello <b>"})
        assert status == 200
        assert "I am fair" in page
        assert "I am poor" in page
        assert "hello &lt;b&gt;" in page
        request_id = page.split('name="request_id" value="')[1].split('"')[0]
        status, page = await post(router, "/arena/vote", {"request_id": request_id, "verdict": "both_bad"})
        assert status == 200
        assert "both were bad" in page

    run(tmp_path, check)


def test_an_unknown_key_is_refused_at_the_start(tmp_path: Path) -> None:
    from p2l.common.errors import ConfigError

    with pytest.raises(ConfigError, match=r"'arena\.key': no key of 'keys' has the name 'areno'"):
        run(tmp_path, lambda _: asyncio.sleep(0), arena={"key": "areno"})
