"""The configuration taken anew while requests are answered: none fails, and a faulty file changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from route.providers.mock import Mock, Script, running
from tests.route.router_helpers import HELLO, Running, a_router, model

ADMIN = {"authorization": "Bearer the-admin-key"}


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the configuration as an editor does."""
    path = folder / "router.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


async def reload(router: Running) -> tuple[int, Any]:
    status, body, _ = await router.post("/admin/reload", b"", ADMIN)
    return status, body


def test_under_load_no_request_notices_a_reload(tmp_path: Path) -> None:
    async def main() -> None:
        scripts = {"good": {"tokens": 4, "text": None, "token_seconds": 0.01}}
        async with a_router(tmp_path, scripts=scripts, admin_key="the-admin-key") as router:
            answers: list[str] = []
            is_over = asyncio.Event()

            async def ask(stream: bool) -> None:
                while not is_over.is_set():
                    if stream:
                        chunks = [chunk async for chunk in await router.ask(stream=True)]
                        assert chunks[-1].choices[0].finish_reason == "stop"
                        answers.append(chunks[0].model)
                    else:
                        answers.append((await router.ask()).model)

            clients = [asyncio.ensure_future(ask(number % 2 == 0)) for number in range(8)]
            async with running(Mock(Script.of({"text": "I am new"}))) as url:
                for number in range(6):
                    # The best model leaves and comes back, once at another place.
                    places = {"good": model(url, name="good-2", cost=3.0)} if number % 2 else {}
                    rewrite(
                        tmp_path,
                        lambda config, new=places: (
                            config["model_configs"].pop("good", None) or config["model_configs"].update(new)
                        ),
                    )  # type: ignore[misc]
                    before = len(answers)
                    status, body = await reload(router)
                    assert (status, body["models"]) == (200, 2 + number % 2)
                    while len(answers) < before + 16:
                        await asyncio.sleep(0.01)
                is_over.set()
                await asyncio.gather(*clients)  # raises what any of them met
            assert {"good", "fair"} <= set(answers)

    asyncio.run(main())


def test_models_keys_and_prices_change_and_what_is_known_of_the_others_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(
            tmp_path, admin_key="the-admin-key", keys=[{"key": "old", "name": "ops", "spend_per_day": 100}]
        ) as router:
            router.mocks["fair"].fail_next(*["status:500"] * 5)
            old = {"authorization": "Bearer old"}
            body = {"messages": HELLO, "direct_model": "fair"}
            for _ in range(4):
                await router.post("/v1/chat/completions", body, old)
            breaker = router.service.fleet.targets["fair"].deployments[0].breaker
            assert breaker.state == "open"
            assert (await router.post("/v1/chat/completions", {"messages": HELLO}, old))[0] == 200
            spent = router.service.ledger.spent_of("ops")
            assert spent == 3.0

            def change(config: dict[str, Any]) -> None:
                config["keys"] = [{"key": "new", "name": "ops", "spend_per_day": spent}]
                config["model_configs"]["good"]["cost"] = 2.5
                config["cors_origins"] = ["https://chat.example.com"]

            rewrite(tmp_path, change)
            assert await reload(router) == (
                200,
                {
                    "object": "route.reload",
                    "changed": ["model_configs.good", "keys", "cors_origins"],
                    "models": 3,
                    "keys": 2,
                    "everywhere": True,
                },
            )
            assert router.service.fleet.targets["fair"].deployments[0].breaker is breaker
            assert (await router.post("/v1/chat/completions", {"messages": HELLO}, old))[0] == 401
            status, answer, headers = await router.post("/v1/chat/completions", {"messages": HELLO})
            assert (status, answer["model"], headers["x-p2l-cost"]) == (200, "good", "2.5")
            # What the key of this name has spent counts for the new one.
            limited = await router.post("/v1/chat/completions", {"messages": HELLO}, {"authorization": "Bearer new"})
            assert limited[0] == 429
            page = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
            async with router.http.options(f"{router.url}/v1/chat/completions", headers=page) as preflight:
                assert preflight.headers["access-control-allow-origin"] == page["origin"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda config: config.update(sticki=True), "unknown key 'sticki' (did you mean 'sticky'?)"),
        (lambda config: config["model_configs"]["good"].update(type="opanai"), "there is no provider 'opanai'"),
        (lambda config: config.update(database="other.sqlite"), "database: cannot change while the router runs"),
        (lambda config: config.update(limits=[{"quantity": "cost", "most": 1}]), "limits need"),
        (
            lambda config: config.update(model_configs={"stranger": model("http://127.0.0.1:9/v1")}),
            "P2L knows none of the configured models",
        ),
    ],
)
def test_a_faulty_file_keeps_the_old_configuration_and_says_why_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    async def main() -> None:
        async with a_router(tmp_path, admin_key="the-admin-key") as router:
            before = router.service
            rewrite(tmp_path, change)
            status, body = await reload(router)
            assert (status, body["error"]["code"]) == (400, "invalid_configuration")
            assert says in body["error"]["message"]
            assert "\n" not in body["error"]["message"]
            os.kill(os.getpid(), signal.SIGHUP)
            while not any("was not reloaded" in record.message for record in caplog.records):
                await asyncio.sleep(0.01)
            assert says in caplog.text
            assert router.service is before
            assert (await router.ask()).model == "good"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "config", "status"),
    [
        ({"authorization": "Bearer wrong"}, {"admin_key": "the-admin-key"}, 403),
        ({"authorization": ""}, {"admin_key": "the-admin-key"}, 401),
        ({}, {}, 403),
    ],
)
def test_only_the_admin_key_reloads(
    tmp_path: Path, headers: dict[str, str], config: dict[str, str], status: int
) -> None:
    async def main() -> None:
        async with a_router(tmp_path, **config) as router:
            before = router.service
            for path in ("/admin/reload", "/admin/keys"):
                assert (await router.post(path, b"{}", headers))[0] == status
            assert router.service is before

    asyncio.run(main())
