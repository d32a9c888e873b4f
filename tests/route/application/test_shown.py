"""What the router shows to whom: metrics to operators, scores of their own models to keys, and nobody's addresses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from p2l.common.errors import ConfigError
from route.config import load_config
from route.providers.base import Fault, ProviderError
from route.providers.errors import without_addresses
from route.request.api_errors import of_fault
from tests.route.router_helpers import HELLO, a_router

ADMIN = {"authorization": "Bearer of-operators"}


async def get(router: Any, path: str, **headers: str) -> tuple[int, str]:
    async with router.http.get(f"{router.url}{path}", headers=headers) as response:
        return response.status, await response.text()


def test_metrics_want_the_admin_key_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with a_router(tmp_path, admin_key="${OPERATORS}") as router:
            assert (await get(router, "/metrics"))[0] == 401
            assert (await get(router, "/metrics", authorization="Bearer test-key"))[0] == 403  # of a client
            status, text = await get(router, "/metrics", **ADMIN)
            assert status == 200
            assert "p2l_router_running" in text
            assert (await router.post("/v1/chat/completions", {"messages": HELLO}, ADMIN))[0] == 401
            assert "blocked" not in json.loads((await get(router, "/ready"))[1])
            assert json.loads((await get(router, "/ready", **ADMIN))[1])["blocked"] == []
            assert "of-operators" not in repr(router.service.config)

    monkeypatch.setenv("OPERATORS", "of-operators")
    asyncio.run(main())


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"Host": "rebound.example"},
        {"Host": "[::1"},
    ],
)
def test_without_an_admin_key_metrics_are_for_this_machine_and_no_proxy(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            assert (await get(router, "/metrics"))[0] == 200
            status, text = await get(router, "/metrics", **headers)
            assert (status, json.loads(text)["error"]["code"]) == (403, "not_local")
            assert "admin_key" in text
            assert "blocked" not in (await get(router, "/ready", **headers))[1]

    asyncio.run(main())


def test_a_proxy_that_says_nothing_of_itself_speaks_an_old_protocol(tmp_path: Path) -> None:
    """Nginx as it comes: HTTP/1.0 from this machine, with this machine's name and no header of its own."""

    async def main() -> None:
        async with a_router(tmp_path) as router:
            host = urlsplit(router.url).netloc
            for version, status in (("1.0", 403), ("1.1", 200)):
                reader, writer = await asyncio.open_connection(*host.split(":"))
                head = f"GET /metrics HTTP/{version}\r\nhost: {host}\r\nconnection: close\r\n\r\n"
                writer.write(head.encode())
                assert int((await reader.read()).split()[1]) == status
                writer.close()

    asyncio.run(main())


def test_an_admin_key_that_clients_have_too_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    models = "model_configs: {ant: {name: ant, type: mock, cost: 1}}\n"
    path.write_text(f"{models}admin_key: one-secret-for-all\nkeys: [{{key: one-secret-for-all}}]\n")
    with pytest.raises(ConfigError, match=r"keys.0.key.*admin_key") as caught:
        load_config(path)
    assert "one-secret-for-all" not in str(caught.value)
    path.write_text(f"{models}admin_key: [one-secret-for-all]\n")
    with pytest.raises(ConfigError, match="admin_key") as caught:
        load_config(path)
    assert "one-secret-for-all" not in str(caught.value)


def test_a_key_of_some_models_is_told_of_no_other(tmp_path: Path) -> None:
    keys = [{"key": "one", "name": "one", "models": ["fair", "poor"]}]

    async def main() -> None:
        async with a_router(tmp_path, keys=keys, explore=0.5) as router:
            mine = {"authorization": "Bearer one"}
            for budget in (None, 1, 2, 3):
                body: dict[str, Any] = {"messages": HELLO, **({} if budget is None else {"cost": budget})}
                status, decision, _ = await router.post("/v1/route", body, mine)
                assert status == 200
                assert set(decision["scores"]) == set(decision["costs"]) == {"fair", "poor"}
                assert "good" not in json.dumps(decision)
                for more in ({}, {"stream": True}, {"compare": True}):
                    if not (more == {"compare": True} and budget == 1):
                        text = await answer(router, {**body, **more})
                        assert '"router_outputs"' in text
                        assert "good" not in text
            assert set((await router.post("/v1/route", {"messages": HELLO}))[1]["scores"]) == {"good", "fair", "poor"}
            router.endpoint.is_down = True

    async def answer(router: Any, body: dict[str, Any]) -> str:
        headers = {"authorization": "Bearer one"}
        async with router.http.post(f"{router.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            text: str = await response.text()
            return text

    asyncio.run(main())


def test_without_scores_a_key_is_told_the_costs_of_its_models_alone(tmp_path: Path) -> None:
    async def main() -> None:
        keys = [{"key": "one", "name": "one", "models": ["fair"]}]
        async with a_router(tmp_path, keys=keys, settings={"router_type": "random"}) as router:
            _, decision, _ = await router.post("/v1/route", {"messages": HELLO}, {"authorization": "Bearer one"})
            assert set(decision["costs"]) == set(decision["probabilities"]) == {"fair"}

    asyncio.run(main())


def test_errors_name_no_address_of_a_provider(tmp_path: Path) -> None:
    """Neither the router's own words for a fault, nor what a provider says of itself."""

    async def main() -> None:
        for trouble in ("status:400", "credentials", "status:500", "reset", "malformed", "context-length"):
            failing = {"failure": trouble, "failure_rate": 1.0}
            script = dict.fromkeys(("good", "fair", "poor"), failing)
            async with a_router(tmp_path, scripts=script, max_attempts=1) as router:
                for stream in (False, True):
                    with pytest.raises(openai.APIError) as caught:
                        [_ async for _ in await router.ask(stream=True)] if stream else await router.ask()
                    assert "127.0.0.1" not in str(caught.value)
                    assert "127.0.0.1" not in json.dumps(caught.value.body)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "host", "shown"),
    [
        (
            "see https://api.maker.example/v1?k=1 and docs.maker.example/x",
            "api.maker.example",
            "see [address] and [address]",
        ),
        ("Connect call failed ('10.0.0.3', 8000)", "", "Connect call failed ('[address]', 8000)"),
        ("Cannot connect to host vllm:8000 ssl:default", "", "Cannot connect to host [address] ssl:default"),
        (
            "gpu-3.internal died, so did 2001:db8::7 and [::1]:80",
            "",
            "[address] died, so did [address] and [[address]]:80",
        ),
        ("localhost:11434 and redis.queue.svc.cluster.local", "", "[address] and [address]"),
        (
            "messages.0.content at 12:30:45: max_tokens:4096 is above 0.1 of gpt-4.1-mini; std::vector",
            "127.0.0.1:80",
            "messages.0.content at 12:30:45: max_tokens:4096 is above 0.1 of gpt-4.1-mini; std::vector",
        ),
    ],
)
def test_addresses_leave_a_text_and_nothing_else_does(text: str, host: str, shown: str) -> None:
    assert without_addresses(text, host) == shown


def test_the_fault_of_a_provider_is_told_without_its_host() -> None:
    error = ProviderError(Fault.TIMEOUT, "llm.corp.example took too long", host="llm.corp.example")
    assert str(of_fault(error, "good")) == "good: the provider took too long"


@pytest.mark.parametrize(("seconds", "told"), [(1e308, "86400"), (float("inf"), "86400"), (0.2, "1")])
def test_a_provider_that_asks_for_a_pause_without_end_is_no_failure(seconds: float, told: str) -> None:
    response = of_fault(ProviderError(Fault.RATE_LIMIT, "later", retry_after=seconds), "m").response()
    assert (response.status_code, response.headers["retry-after"]) == (429, told)


@pytest.mark.parametrize(
    "key", ["x", "eleven-long", "aaaaaaaaaaaaaaaa", "passwordpassword", "123456789012345678", "abcabcabcabc"]
)
def test_an_admin_key_that_can_be_guessed_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(f"model_configs: {{ant: {{name: ant, type: mock, cost: 1}}}}\nadmin_key: '{key}'\n")
    with pytest.raises(ConfigError, match=r"admin_key'?: (has|repeats).*write a random one") as caught:
        load_config(path)
    assert len(key) == 1 or key not in str(caught.value)


def test_wrong_admin_keys_are_slowed_and_logged_and_a_clients_key_is_no_guess(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2l.common.access._FIRST_PAUSE_SECONDS", 0.05)

    async def main() -> None:
        async with a_router(tmp_path, admin_key="of-operators") as router:
            for _ in range(4):
                assert (await get(router, "/admin/keys", authorization="Bearer test-key"))[0] == 403
            assert "wrong key" not in caplog.text
            tries = [get(router, path, authorization="Bearer a-guess") for path in ("/admin/keys", "/metrics") * 5]
            statuses = [status for status, _ in await asyncio.gather(*tries)]
            # One at a time, three that wait, and the rest are not even judged.
            assert statuses.count(403) <= 4
            assert statuses.count(429) >= 6
            assert (await get(router, "/metrics", **ADMIN))[0] == 200

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if "wrong key" in record.getMessage()]
    assert lines[0] == "wrong key for operators from 127.0.0.1, 1 in a row"
    assert 1 <= len(lines) <= 4
    assert "a-guess" not in caplog.text
