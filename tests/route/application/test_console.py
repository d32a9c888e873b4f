"""The console without a browser: who may see it, what it shows of decisions, and what its numbers are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from p2l.common.pages import Dot, EndedSessions, frontier_svg
from route.application.feed import Feed
from route.application.views import budgets, frontier_of_the_hour, reasons
from route.observability.logs import RequestRecord
from route.observability.metrics import RouterMetrics
from route.observability.recent import Recent, quantile
from route.routing.decision import Decision
from tests.route.router_helpers import COEFS, HELLO, Endpoint, Running, a_router

ADMIN = "the-admin-key"
OWN = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}


def run(folder: Path, check: Callable[[Running], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with a_router(folder, **config) as router:
            await check(router)

    asyncio.run(main())


async def post(router: Running, path: str, fields: dict[str, str], headers: dict[str, str] = OWN) -> tuple[int, str]:
    async with router.http.post(
        f"{router.url}{path}", data=urlencode(fields), headers=headers, allow_redirects=False
    ) as answer:
        return answer.status, await answer.text()


def test_without_an_admin_key_there_is_no_console(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        status, page = await router.get("/console")
        assert status == 403
        assert "Set admin_key" in page
        assert (await post(router, "/console/session", {"key": ""}))[0] == 403

    run(tmp_path, check)


def test_the_address_of_the_router_leads_to_its_console(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        status, page = await router.get("/")
        assert status == 200
        assert "Router console" in page

    run(tmp_path, check, admin_key=ADMIN)


def test_nothing_is_shown_or_changed_without_a_session_of_the_admin_key(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        for path, expected in (("/console", 200), ("/console/events", 403)):
            status, page = await router.get(path)
            assert status == expected
            assert "Admin key" in page
            assert "good" not in page
        for path in ("/console/keys", "/console/key", "/console/reload", "/console/frontier", "/console/sign-out"):
            assert (await post(router, path, {"name": "new"}))[0] == 403
        for key, headers in (("wrong", OWN), (ADMIN, OWN | {"sec-fetch-site": "cross-site"}), (ADMIN, {})):
            assert (await post(router, "/console/session", {"key": key}, headers))[0] == 403
        assert len(router.service.ledger.names) == 1

    run(tmp_path, check, admin_key=ADMIN, database="router.sqlite")


@pytest.mark.parametrize("shared", [False, True])
def test_sign_out_ends_the_session_wherever_its_cookie_is(tmp_path: Path, shared: bool) -> None:
    folder = tmp_path / "control"
    folder.mkdir()

    async def check(router: Running) -> None:
        mine, theirs = await session(router), await session(router)
        assert (await post(router, "/console/sign-out", {}, OWN | mine))[0] == 303
        async with router.http.get(f"{router.url}/console/events", headers=mine) as answer:
            assert answer.status == 403
        async with router.http.get(f"{router.url}/console", headers=mine) as answer:
            assert "Admin key" in await answer.text()
        async with router.http.get(f"{router.url}/console", headers=theirs) as answer:
            assert answer.status == 200
        if shared:  # another worker knows it at once
            service = router.service
            service.ended_sessions = EndedSessions(folder)
            async with router.http.get(f"{router.url}/console", headers=mine) as answer:
                assert "Admin key" in await answer.text()

    run(tmp_path, check, admin_key=ADMIN, settings={"peers": str(folder)} if shared else {})


def test_wrong_keys_are_judged_one_at_a_time_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2l.common.access._FIRST_PAUSE_SECONDS", 0.05)

    async def check(router: Running) -> None:
        tries = [post(router, "/console/session", {"key": f"guess-{number}"}) for number in range(20)]
        statuses = [status for status, _ in await asyncio.gather(*tries)]
        assert statuses.count(429) >= 16
        assert (await post(router, "/console/session", {"key": ADMIN}))[0] == 303

    run(tmp_path, check, admin_key=ADMIN)
    assert "wrong key for operators from 127.0.0.1, 1 in a row" in caplog.text
    assert "guess-" not in caplog.text


def test_a_session_changes_nothing_for_another_site_and_opens_no_route_of_programs(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        cookie = await session(router)
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://evil"},
            {},
        ):
            status, _ = await post(router, "/console/keys", {"name": "new"}, headers | cookie)
            assert status == 403
        assert (await router.get("/admin/keys", None))[0] in (401, 403)
        async with router.http.get(f"{router.url}/admin/keys", headers=cookie) as answer:
            assert answer.status == 401
        own = {"origin": router.url, "content-type": OWN["content-type"]}  # a browser without Sec-Fetch-Site
        assert (await post(router, "/console/keys", {"name": "new"}, own | cookie))[0] == 200
        assert "new" in router.service.ledger.names
        path = tmp_path / "router.yaml"
        path.write_text(path.read_text().replace(ADMIN, "another-admin-key"))
        await router.app.state.live.reload()
        async with router.http.get(f"{router.url}/console/events", headers=cookie) as answer:
            assert answer.status == 403, "with another admin key all sessions end"

    run(tmp_path, check, admin_key=ADMIN, database="router.sqlite")


async def session(router: Running) -> dict[str, str]:
    """The header of a session's cookie."""
    body = urlencode({"key": ADMIN})
    async with router.http.post(
        f"{router.url}/console/session", data=body, headers=OWN, allow_redirects=False
    ) as answer:
        assert answer.status == 303
        cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ADMIN not in cookie
    return {"cookie": cookie.split(";")[0]}


@pytest.mark.parametrize("kind", ["grk-endpoint", "random"])
def test_scores_are_promised_only_where_a_p2l_gives_them(tmp_path: Path, kind: str) -> None:
    async def check(router: Running) -> None:
        await router.ask()
        cookie = await session(router)
        async with router.http.get(f"{router.url}/console", headers=cookie) as answer:
            page = await answer.text()
        _, mixture = await post(router, "/console/frontier", {"prompt": "Hello?", "budget": "100"}, OWN | cookie)
        without = [
            "No P2L scores prompts: each model within the budget is as likely as any other" in page,
            "Drawn at random, with probability 0.33, from what no budget buys." in page,
            "This router has no P2L" in mixture,
        ]
        assert without == [kind == "random"] * 3
        assert (">P2L scores prompts<" in page) == (kind != "random")

    run(tmp_path, check, admin_key=ADMIN, settings={"router_type": kind})


@pytest.mark.parametrize("familiarity", [0.25, 1.0, None])
def test_a_strange_prompt_is_marked(tmp_path: Path, familiarity: float | None) -> None:
    async def check(router: Running) -> None:
        await router.ask()
        cookie = await session(router)
        async with router.http.get(f"{router.url}/console", headers=cookie) as answer:
            page = await answer.text()
        _, mixture = await post(router, "/console/frontier", {"prompt": "Hello?", "budget": "100"}, OWN | cookie)
        for shown in (page, mixture):
            assert ("Mostly the overall board" in shown) == (familiarity == 0.25)

    run(tmp_path, check, admin_key=ADMIN, endpoint=Endpoint(COEFS, familiarity=familiarity))


@pytest.mark.parametrize(
    ("share", "sentence"), [(0.0, "It is the constant"), (1.0, "Leaving the constant is expected to gain")]
)
def test_a_guard_says_whether_the_constant_was_left(tmp_path: Path, share: float, sentence: str) -> None:
    async def check(router: Running) -> None:
        answer = await router.ask()
        assert (answer.model == "poor") == (share == 0.0)
        assert (answer.router_decision["over_constant"] > 0.1) == (share == 1.0)
        async with router.http.get(f"{router.url}/console", headers=await session(router)) as page:
            assert sentence in await page.text()

    graded = {name: {"score": 0.6 if name == "poor" else 0.5, "expected": 0.5} for name in COEFS}
    run(tmp_path, check, admin_key=ADMIN, guard={"share": share, "models": graded})


def test_keys_to_change_are_those_of_the_database(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        cookie = await session(router)
        own = OWN | cookie
        async with router.http.get(f"{router.url}/console", headers=cookie) as answer:
            assert "No key was made yet" in await answer.text()
        _, page = await post(router, "/console/keys", {"name": "new"}, own)
        assert "<option>new</option>" in page
        assert "<option>app</option>" not in page
        _, page = await post(router, "/console/key", {"name": "new", "act": "revoke"}, own)
        assert "No key was made yet" in page

    keys = [{"key": "app-key", "name": "app"}]
    run(tmp_path, check, admin_key=ADMIN, database=str(tmp_path / "router.sqlite"), keys=keys)


@pytest.mark.parametrize("stored", [True, False])
def test_prompts_are_shown_only_where_they_are_stored(tmp_path: Path, stored: bool) -> None:
    async def check(router: Running) -> None:
        await router.ask()
        cookie = await session(router)
        async with router.http.get(f"{router.url}/console", headers=cookie) as answer:
            assert (HELLO[0]["content"] in await answer.text()) == stored

    run(tmp_path, check, admin_key=ADMIN, database="router.sqlite", store_prompts=stored)


def test_events_push_what_changed_and_end_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("route.application.feed.POINT_SECONDS", 0.1)
    monkeypatch.setattr("route.application.live.POINT_SECONDS", 0.1)

    async def check(router: Running) -> None:
        cookie = await session(router)
        async with router.http.get(f"{router.url}/console/events", headers=cookie) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            before = await answer.content.readuntil(b"event: requests")
            for name in ("tiles", "models", "frontier", "health", "budgets"):
                assert f"event: {name}\n".encode() in before
            await router.ask()
            after = await answer.content.readuntil(b"event: requests")
            assert b"event: frontier" not in after, "which changes slowly"
            for _ in range(2):
                await answer.content.readuntil(b"event: point")
        monkeypatch.setattr("route.application.console._STREAM_SECONDS", 0.2)
        async with router.http.get(f"{router.url}/console/events", headers=cookie) as answer:
            await answer.text()  # to its end

    run(tmp_path, check, admin_key=ADMIN)


def test_viewers_share_one_rendering_a_tick_of_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route.application.feed.POINT_SECONDS", 0.1)

    async def look(feed: Feed) -> list[bytes]:
        return [event async for event in feed.events(0.25)]

    async def check(router: Running) -> None:
        feed, recent = Feed(router.app.state.live), router.service.recent
        one, two = await asyncio.gather(look(feed), look(feed))
        assert one == two
        assert [part.version for part in feed.parts] == [1] * 6, "nothing has changed, so nothing was rendered again"
        await feed.whole()
        for number in range(40):
            recent.note(RequestRecord(f"r{number}", f"key-{number}", 200, 0.1), DECISION, None)
        pushed = [event.decode() for event in await look(feed) if b"event: requests" in event][-1]
        assert pushed.count("<details") == 5, "more in one tick than anybody could read"
        for number in range(10):
            recent.note(RequestRecord(f"s{number}", "", 200, 0.1), DECISION, None)
        pushed = [event.decode() for event in await look(feed) if b"event: requests" in event][-1]
        assert (pushed.count("<details"), "the page shows some" in pushed) == (10, True)
        shown = (await feed.whole())["requests"]
        assert (shown.count("<details"), "the page shows some" in shown) == (25, False)

    run(tmp_path, check, admin_key=ADMIN)


def test_of_many_keys_those_that_spent_most_are_shown(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        shown = budgets(router.service)
        assert (len(shown["keys"]), shown["others"]) == (100, 51)  # with the key of the tests

    run(tmp_path, check, admin_key=ADMIN, keys=[{"key": f"key-{n}", "name": f"name-{n}"} for n in range(150)])


def test_points_are_rates_of_the_metrics() -> None:
    metrics, recent = RouterMetrics(), Recent()
    recent.observe(metrics.counts())
    for seconds in (0.03, 0.03, 0.03, 0.9):
        metrics.requests.labels("ant", "200").inc()
        metrics.latency.labels("ant").observe(seconds)
    metrics.requests.labels("none", "502").inc()
    metrics.fallbacks.labels("ant", "bee").inc()
    recent.observe(metrics.counts())
    (point,) = recent.points
    assert point["requests"] == pytest.approx(5 * (point["failed"] or 0), rel=1e-3)
    assert (point["fallbacks"] or 0) > 0
    assert 0.02 <= (point["p50"] or 0) <= 0.05
    assert 0.5 <= (point["p95"] or 0) <= 1.0
    assert recent.counts.answers == {"ant": 4.0}


def test_quantiles_are_interpolated_between_bounds() -> None:
    before, after = {1.0: 5.0, 2.0: 5.0, float("inf"): 5.0}, {1.0: 15.0, 2.0: 25.0, float("inf"): 25.0}
    assert quantile(before, after, 0.25) == pytest.approx(0.5)
    assert quantile(before, after, 0.75) == pytest.approx(1.5)
    assert quantile({}, {1.0: 0.0, float("inf"): 4.0}, 0.5) == 1.0
    assert quantile(after, after, 0.5) is None


DECISION = Decision(
    model="ant",
    probabilities={"ant": 0.75, "bee": 0.25},
    propensity=0.75,
    costs={"ant": 1.0, "bee": 3.0, "cat": 2.0, "dog": 9.0},
    expected_cost=1.5,
    budget=1.5,
    scores={"ant": 0.6, "bee": 0.8, "cat": 0.5, "dog": 0.9},
    expected_score=0.65,
)


def test_each_model_is_told_why_it_was_taken_or_left() -> None:
    told = {row["name"]: row["reason"] for row in reasons(DECISION)}
    assert told == {
        "ant": "taken",
        "bee": "in the mixture with 0.25, another was drawn",
        "cat": "ant scores more for no more",
        "dog": "beyond the budget",
    }
    assert {row["name"]: row["reason"] for row in reasons(DECISION, ["bee"], ["timeout"])}["bee"] == "failed: timeout"


def test_the_frontier_of_the_hour_is_of_means(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        assert frontier_of_the_hour(router.service)["decisions"] == 0
        router.service.recent.note(RequestRecord("r", "k", 200, 0.1), DECISION, None)
        shown = frontier_of_the_hour(router.service)
        assert (shown["decisions"], shown["cost"], shown["score"]) == (1, 1.5, 0.65)
        assert shown["svg"].count('class="corner" cx') == 3
        assert shown["svg"].count('class="dot" cx') == 1

    run(tmp_path, check, admin_key=ADMIN)


def test_a_picture_escapes_names_and_bears_one_point_or_none() -> None:
    assert frontier_svg([], None, x="x", y="y", title="t") == ""
    one = frontier_svg([Dot("<b>", 0.0, 0.5, True)], (0.0, 0.5), x="x", y="y", title='"')
    assert "<b>" not in one
    assert "nan" not in one
    assert 'aria-label="&#34;"' in one
    crowd = frontier_svg([Dot("a-name", 1.0, 0.5)] * 20, None, x="x", y="y", title="t")
    assert 0 < crowd.count('<text class="dot"') < 7, "a name has room of its own, or none"
    many = frontier_svg([Dot(str(n), 10.0**n, n / 9, True) for n in range(9)], None, x="x", y="y", title="t")
    assert many.count('class="corner" cx') == 9
