"""The arena without a browser: what is stored, what is told when, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from p2l.commands.votes import export_votes
from route.keep.sqlite import SqliteDatabase
from route.keep.visitors import Visitors, prefix_of
from tests.route.keep.ledger_helpers import rows
from tests.route.router_helpers import Running, a_router

COOKIE = "0123456789abcdef" * 2
ANOTHER = "fedcba9876543210" * 2
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


async def post(
    router: Running, path: str, fields: dict[str, str], *, cookie: str | None = COOKIE, **headers: str
) -> tuple[int, str]:
    body = urlencode(fields)
    sent = OWN | headers | ({} if cookie is None else {"cookie": f"p2l-visitor={cookie}"})
    async with router.http.post(f"{router.url}{path}", data=body, headers=sent) as answer:
        return answer.status, await answer.text()


async def battle(router: Running, *, cookie: str = COOKIE, **headers: str) -> str:
    """Return the token of a battle that ended well."""
    status, text = await post(router, "/arena/answers", {"prompt": "hello"}, cookie=cookie, **headers)
    assert status == 200
    name, token = events(text)[-1]
    assert name == "done"
    return str(token)


async def vote(router: Running, token: str, verdict: str = "first", *, cookie: str | None = COOKIE) -> int:
    return (await post(router, "/arena/vote", {"battle": token, "verdict": verdict}, cookie=cookie))[0]


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
        name, token = listed[-1]
        assert name == "done"
        status, told = await post(
            router, "/arena/vote", {"battle": token, "verdict": "first"}, **{"hx-request": "true"}
        )
        assert status == 200
        assert "The budget was $2.00" in told
        assert told.index(texts[0].removeprefix("I am ")) < told.index(texts[1].removeprefix("I am "))
        stored = rows(tmp_path / "router.sqlite", "SELECT key, model_a, model_b, propensity, verdict FROM votes")
        shown = [text.removeprefix("I am ") for text in texts]
        assert stored == [("arena", *shown, pytest.approx(1.0), "first")]
        status, told = await post(router, "/arena/vote", {"battle": token, "verdict": "second"})
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
        assert (await post(router, "/arena/vote", {"battle": "req-none.0", "verdict": "first"}))[0] == 403
        assert (await post(router, "/arena/vote", {"battle": "req-none.0", "verdict": "up"}))[0] == 400

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
        token = page.split('name="battle" value="')[1].split('"')[0]
        status, page = await post(router, "/arena/vote", {"battle": token, "verdict": "both_bad"})
        assert status == 200
        assert "both were bad" in page

    run(tmp_path, check)


def test_a_visitor_has_pseudonyms_of_cookie_and_network_and_nothing_holds_the_address(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        for cookie, address in ((COOKIE, "203.0.113.7"), (ANOTHER, "203.0.113.99"), (ANOTHER, "2001:db8::1")):
            token = await battle(router, cookie=cookie, **{"x-forwarded-for": f"198.51.100.1, {address}"})
            assert await vote(router, token, cookie=cookie) == 200
        stored = rows(tmp_path / "router.sqlite", "SELECT visitor, prefix, visitor_battles FROM votes ORDER BY voted")
        assert [len({row[column] for row in stored}) for column in (0, 1)] == [2, 2]
        assert stored[0][1] == stored[1][1], "one /24"
        assert [battles for *_, battles in stored] == [1, 1, 2]
        await router.service.database.flush()
        content = b"".join(path.read_bytes() for path in tmp_path.glob("router.sqlite*"))
        for secret in (COOKIE, ANOTHER, "203.0.113", "2001:db8", "198.51.100"):
            assert secret.encode() not in content

    run(tmp_path, check, arena={"key": "arena", "proxies": 1})


def test_a_pseudonym_lasts_for_its_salt_which_is_deleted_after_thirty_days(tmp_path: Path) -> None:
    async def main() -> None:
        now = [1.7e9]
        store = SqliteDatabase(tmp_path / "router.sqlite")
        await store.start()
        visitors, replica = (Visitors(store, lambda: now[0]) for _ in range(2))
        before = await visitors.of(COOKIE, "203.0.113.7")
        assert await replica.of(COOKIE, "203.0.113.8") == before
        salt = rows(tmp_path / "router.sqlite", "SELECT salt FROM salts")
        now[0] += 30 * 86_400
        after = await visitors.of(COOKIE, "203.0.113.7")
        assert await replica.of(COOKIE, "203.0.113.7") == after
        assert not {before.name, before.prefix} & {after.name, after.prefix}
        assert rows(tmp_path / "router.sqlite", "SELECT salt FROM salts") != salt
        assert len(rows(tmp_path / "router.sqlite", "SELECT salt FROM salts")) == 1
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_is_the_prefix_of_an_address(address: str, network: str) -> None:
    assert prefix_of(address) == network


def test_only_who_was_shown_a_battle_votes_on_it_and_once(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        token = await battle(router)
        for cookie in (ANOTHER, None, "nonsense"):
            assert await vote(router, token, cookie=cookie) == 403
        assert await vote(router, token.partition(".")[0]) == 403
        other = await battle(router)
        assert await vote(router, f"{other.partition('.')[0]}.{token.partition('.')[2]}") == 403
        statuses = await asyncio.gather(*(vote(router, token, verdict) for verdict in ("first", "second", "tie")))
        assert sorted(statuses) == [200, 409, 409]
        assert len(rows(tmp_path / "router.sqlite", "SELECT verdict FROM votes")) == 1

    run(tmp_path, check)


def test_limits_hold_for_a_network_over_all_workers(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        config = {**CONFIG, "arena": {"key": "arena", "per_minute": 2, "votes_per_day": 3, "proxies": 1}}
        async with a_router(tmp_path, **config) as worker:
            tokens = []
            for number, here in enumerate((router, worker)):
                near = {"x-forwarded-for": f"203.0.113.{number}"}
                tokens.append(await battle(here, **near))
                await asyncio.sleep(0.5)  # a worker knows what others count after two transactions
            for here in (router, worker):
                assert (await post(here, "/arena/answers", {"prompt": "hello"}, **near))[0] == 429
            far = {"x-forwarded-for": "203.0.114.1"}
            assert (await post(worker, "/arena/answers", {"prompt": "hello"}, **far))[0] == 200
            assert [await vote(router, token) for token in tokens] == [200, 200]

    config = {"key": "arena", "per_minute": 2, "votes_per_day": 3, "proxies": 1}
    run(tmp_path, check, arena=config)


def test_a_network_votes_as_often_a_day_as_the_arena_says(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        cookies = (COOKIE, ANOTHER, "a" * 32)
        tokens = [await battle(router, cookie=cookie) for cookie in cookies]
        voted = [await vote(router, token, cookie=cookie) for token, cookie in zip(tokens, cookies, strict=True)]
        assert voted == [200, 200, 429]

    run(tmp_path, check, arena={"key": "arena", "votes_per_day": 2})


def test_a_vote_carries_a_proof_of_work_where_the_arena_asks_for_it(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        token, other = await battle(router), await battle(router)
        for work in (None, "", "-1", "x", "9" * 21, unworked(token, bits=8), worked(other, bits=8)):
            fields = {"battle": token, "verdict": "first"} | ({} if work is None else {"work": work})
            status, told = await post(router, "/arena/vote", fields, **{"hx-request": "true"})
            assert status == 403
            assert "proof of work" in told
        assert rows(tmp_path / "router.sqlite", "SELECT 1 FROM votes") == []
        fields = {"battle": token, "verdict": "first", "work": worked(token, bits=8)}
        assert (await post(router, "/arena/vote", fields))[0] == 200
        assert (await post(router, "/arena/vote", fields))[0] == 409, "it is good for one vote"

    run(tmp_path, check, arena={"key": "arena", "work_bits": 8})


def zero_bits(token: str, number: int) -> int:
    return 256 - int(hashlib.sha256(f"{token}.{number}".encode()).hexdigest(), 16).bit_length()


def worked(token: str, *, bits: int) -> str:
    return str(next(number for number in itertools.count() if zero_bits(token, number) >= bits))


def unworked(token: str, *, bits: int) -> str:
    return str(next(number for number in itertools.count() if zero_bits(token, number) < bits))


def test_battles_without_a_vote_are_counted_in_the_next_vote(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        for _ in range(3):
            await battle(router)
        assert await vote(router, await battle(router)) == 200
        assert rows(tmp_path / "router.sqlite", "SELECT visitor_battles, prefix_battles FROM votes") == [(4, 4)]
        export_votes(tmp_path / "router.sqlite", tmp_path / "votes.jsonl", prompts=False)
        exported = json.loads((tmp_path / "votes.jsonl").read_text())
        assert (exported["voter_battles"], exported["network_battles"]) == (4, 4)
        assert exported["voter"] != exported["network"]

    run(tmp_path, check)


def test_which_models_and_sides_are_shown_does_not_depend_on_who_asks(tmp_path: Path) -> None:
    async def check(router: Running) -> None:
        pairs: dict[str, Counter[str]] = {COOKIE: Counter(), ANOTHER: Counter()}
        for cookie, shown in pairs.items():
            for _ in range(60):
                _, text = await post(router, "/arena/answers", {"prompt": "hello"}, cookie=cookie)
                shown["".join(content for name, content in events(text) if name == "0")] += 1
        for shown in pairs.values():
            # Of 60 fair coins a side gets fewer than 14 once in 50,000 runs.
            assert set(shown) == {"I am fair", "I am poor"}
            assert min(shown.values()) >= 14

    run(tmp_path, check, arena={"key": "arena", "per_minute": 1000})


def test_an_unknown_key_is_refused_at_the_start(tmp_path: Path) -> None:
    from p2l.common.errors import ConfigError

    with pytest.raises(ConfigError, match=r"'arena\.key': no key of 'keys' has the name 'areno'"):
        run(tmp_path, lambda _: asyncio.sleep(0), arena={"key": "areno"})
