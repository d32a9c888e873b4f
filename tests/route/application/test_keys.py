"""Keys made while the router runs: usable at once, by every worker, within their limits, until they are revoked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from p2l.common.access import digest_of
from route.application.app import build_app
from route.config import load_config
from route.key_config import KeyLimits
from route.manage_keys import main as keys
from route.openai_server import main as serve
from tests.route.keep.ledger_helpers import rows
from tests.route.router_helpers import HELLO, KEY, Running, a_router, serving

ADMIN = {"authorization": "Bearer the-admin-key"}
CHAT = "/v1/chat/completions"


async def admin(router: Running, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with router.http.request(method, f"{router.url}{path}", json=body, headers=ADMIN) as response:
        return response.status, await response.json()


async def ask(router: Running, key: str, url: str | None = None, **fields: Any) -> int:
    headers = {"authorization": f"Bearer {key}"}
    async with router.http.post(
        f"{url or router.url}{CHAT}", json={"messages": HELLO, **fields}, headers=headers
    ) as it:
        await it.read()
        return it.status


def test_a_key_is_shown_once_and_is_at_once_good_for_every_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, admin_key="the-admin-key", database="router.sqlite") as router:
            other = build_app(load_config(tmp_path / "router.yaml"), router.service.settings)
            async with serving(other) as url:
                status, made = await admin(router, "POST", "/admin/keys", {"name": "app", "models": ["poor"]})
                assert (status, made["limits"]) == (201, {"models": ["poor"]})
                assert await ask(router, made["key"], url) == 200, "the other worker, which was told nothing"
                assert await ask(router, made["key"]) == 200
                assert await ask(router, made["key"], direct_model="good") == 403
                assert await ask(router, made["key"] + "x", url) == 401
                _, listed = await admin(router, "GET", "/admin/keys")
                assert made["key"] not in str(listed)
                assert [key["name"] for key in listed["data"]] == [f"key-{digest_of(KEY)[:12]}", "app"]
                assert rows(tmp_path / "router.sqlite", "SELECT digest FROM keys") == [(digest_of(made["key"]),)]
                changed = await admin(router, "PATCH", "/admin/keys/app", {"models": None, "requests_per_minute": 1000})
                assert (changed[0], changed[1]["limits"]) == (200, {"requests_per_minute": 1000})
                assert await ask(router, made["key"], direct_model="good") == 200
                assert (await admin(router, "DELETE", "/admin/keys/app"))[0] == 200
                assert await ask(router, made["key"]) == 401
                while await ask(router, made["key"], url) != 401:
                    await asyncio.sleep(0.01)
                assert await ask(router, KEY, url) == 200, "the key of the configuration goes on"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/admin/keys", {}, 400, "name"),
        ("POST", "/admin/keys", {"name": "team:x"}, 400, "team:"),
        ("POST", "/admin/keys", {"name": "x", "spend_per_dya": 1}, 400, "did you mean 'spend_per_day'"),
        ("POST", "/admin/keys", {"name": "x", "spend_per_day": -1}, 400, "spend_per_day"),
        ("POST", "/admin/keys", {"name": "x", "team": "nobody"}, 400, "no team 'nobody'"),
        ("POST", "/admin/keys", {"name": "x", "models": ["goood"]}, 400, "did you mean 'good'"),
        ("POST", "/admin/keys", {"name": "ops"}, 409, "choose another name"),
        ("PATCH", "/admin/keys/nobody", {"cost": 1}, 404, "no key 'nobody'"),
        ("DELETE", "/admin/keys/ops", None, 404, "those of the configuration change there"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    tmp_path: Path, method: str, path: str, body: Any, status: int, says: str
) -> None:
    async def main() -> None:
        own = [{"key": "k", "name": "ops"}]
        async with a_router(tmp_path, admin_key="the-admin-key", database="router.sqlite", keys=own) as router:
            answered, error = await admin(router, method, path, body)
            assert (answered, says in error["error"]["message"]) == (status, True), error

    asyncio.run(main())


def test_limits_of_the_configurations_keys_are_listed(tmp_path: Path) -> None:
    async def main() -> None:
        own = [{"key": "k", "name": "ops", "models": ["poor", "good"], "requests_per_minute": 5}]
        async with a_router(tmp_path, admin_key="the-admin-key", keys=own) as router:
            _, listed = await admin(router, "GET", "/admin/keys")
            limits = {key["name"]: key["limits"] for key in listed["data"]}
            assert limits["ops"] == {"models": ["good", "poor"], "requests_per_minute": 5}
            assert limits[f"key-{digest_of(KEY)[:12]}"] == {}

    asyncio.run(main())


def test_without_a_database_no_key_is_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, admin_key="the-admin-key") as router:
            status, error = await admin(router, "POST", "/admin/keys", {"name": "app"})
            assert (status, error["error"]["code"]) == (409, "no_database")

    asyncio.run(main())


def test_the_command_makes_limits_lists_and_revokes_keys_of_a_router_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        keys([*words, "--config", str(tmp_path / "router.yaml")])
        return capsys.readouterr().out

    async def main() -> None:
        teams = {"research": {"spend_per_day": 100}}
        async with a_router(tmp_path, database="router.sqlite", teams=teams) as router:
            flags = ("--team", "research", "--models", "good,fair", "--requests-per-minute", "2")
            out = await asyncio.to_thread(run, "add", "app", *flags)
            assert "models good, fair" in out
            key = out.splitlines()[-1]
            assert [await ask(router, key) for _ in range(3)] == [200, 200, 429]
            assert "requests_per_minute 9" in await asyncio.to_thread(
                run, "limit", "app", "--requests-per-minute", "9", "--team", "none"
            )
            while await ask(router, key) != 200:
                await asyncio.sleep(0.01)
            listed = await asyncio.to_thread(run, "list")
            assert "app" in listed
            assert "requests_per_minute 9" in listed
            assert "models good, fair" in listed
            assert key not in listed
            assert await asyncio.to_thread(run, "revoke", "app") == "app: revoked\n"
            while await ask(router, key) != 401:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_keys_of_a_team_share_its_budget_exactly(tmp_path: Path) -> None:
    async def main() -> None:
        own = [
            {"key": "one", "name": "one", "team": "research"},
            {"key": "two", "name": "two", "team": "research", "spend_per_day": 4},
        ]
        teams = {"research": {"spend_per_day": 10}}
        options = {"teams": teams, "keys": own, "database": "router.sqlite", "admin_key": "the-admin-key"}
        async with a_router(tmp_path, **options) as router:
            asked = [ask(router, key, direct_model="poor") for key in ("one", "two") * 20]
            statuses = await asyncio.gather(*asked)
            assert statuses.count(200) == 10
            assert set(statuses) == {200, 429}
            spent = {name: router.service.ledger.spent_of(name) for name in ("one", "two", "team:research")}
            assert spent["team:research"] == spent["one"] + spent["two"] == 10
            assert spent["two"] <= 4
            _, listed = await admin(router, "GET", "/admin/keys")
            assert listed["teams"] == [{"name": "research", "spend_per_day": 10, "spent_today": 10}]

    asyncio.run(main())


def test_tokens_a_minute_are_those_of_prompts_and_answers(tmp_path: Path) -> None:
    async def main() -> None:
        own = [{"key": "few", "name": "few", "tokens_per_minute": 20}]
        async with a_router(tmp_path, keys=own) as router:
            # A prompt of two tokens (four bytes are one), an answer of three words.
            statuses = [await ask(router, "few") for _ in range(6)]
            assert statuses == [200, 200, 200, 200, 429, 429]
            assert await ask(router, KEY) == 200

    asyncio.run(main())


def test_the_command_has_a_flag_for_every_limit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        keys(["add", "--help"])
    shown = capsys.readouterr().out
    assert [name for name in KeyLimits.model_fields if f"--{name.replace('_', '-')} " not in shown] == []


def test_a_random_key_is_printed_only_where_neither_configuration_nor_database_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "router.yaml"
    model = {"name": "a", "type": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "k", "cost": 1}
    path.write_text(yaml.safe_dump({"model_configs": {"a": model}, "database": "router.sqlite"}), encoding="utf-8")
    monkeypatch.setattr("route.openai_server.check_address", lambda *_: None)  # nobody listens
    monkeypatch.setattr("route.application.server.serve", lambda settings, *_, **__: len(settings.api_keys))
    start = ["--config", str(path), "--router-type", "random"]
    for change, is_printed in (((), True), (("add", "team-a"), False), (("revoke", "team-a"), True)):
        if change:
            keys([change[0], "--config", str(path), *change[1:]])
        capsys.readouterr()
        assert serve(start) == is_printed
        assert ("bearer key" in capsys.readouterr().out) is is_printed
