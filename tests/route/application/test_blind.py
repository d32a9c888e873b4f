"""A router that P2L gives no scores any more: what decides, and who is told."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.route.router_helpers import HELLO, Endpoint, Running, a_router

COEFS = {"good": 0.5, "fair": 2.0, "poor": 0.0}
"""The dearest model is not the best."""


async def until_well(router: Running, is_well: bool) -> None:
    while router.service.scorer.is_well != is_well:
        await asyncio.sleep(0.02)


async def ready(router: Running) -> dict[str, Any]:
    _, text = await router.get("/ready")
    return json.loads(text)


def ask(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"prompt {number}"}]


async def blind(router: Running) -> None:
    """Let P2L fail, and a request notice it."""
    router.endpoint.is_down = True
    await router.ask(ask(-1))
    await until_well(router, False)


def test_the_average_leaderboard_of_earlier_prompts_decides(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=COEFS) as router:
            for number in range(3):
                assert (await router.ask(ask(number))).model == "fair"
            await blind(router)
            raw = await router.client.chat.completions.with_raw_response.create(model="-", messages=ask(9))
            answer = raw.parse()
            assert answer.model == "fair"  # not the dearest
            assert raw.headers["x-p2l-average"] == "true"
            assert "x-p2l-static" not in raw.headers
            assert answer.router_decision["average"]
            assert not answer.router_decision["static"]
            assert answer.router_outputs.keys() == COEFS.keys()
            assert (await router.ask(ask(10), extra_body={"cost": 1})).model == "poor"  # within the budget
            assert (await router.ask(ask(1))).router_decision["average"] is False  # scored before, and remembered

    asyncio.run(main())


def test_a_configured_order_goes_before_the_average(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=COEFS, static_order=["poor"]) as router:
            assert (await router.ask(ask(0))).model == "fair"
            await blind(router)
            assert (await router.ask(ask(9))).router_decision["static"]
            assert (await ready(router))["fallback"] == "static_order"

    asyncio.run(main())


def test_a_router_that_starts_without_p2l_has_the_average_of_its_last_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=COEFS, database="router.sqlite") as router:
            await router.ask(ask(0))
        down = Endpoint(COEFS, is_down=True)
        async with a_router(tmp_path, endpoint=down, database="router.sqlite") as router:
            assert (await ready(router))["fallback"] == "average"
            assert (await router.ask(ask(9))).model == "fair"

    asyncio.run(main())


def test_readiness_says_what_is_missing_and_one_line_of_the_log_tells_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with a_router(tmp_path, coefs=COEFS) as router:
            well = await ready(router)
            assert (well["scores"], well.get("fallback")) == (True, None)
            await router.ask(ask(0))
            await blind(router)
            for number in range(5):
                await router.ask(ask(20 + number))
            told = await ready(router)
            assert (told["status"], told["scores"], told["fallback"]) == ("ready", False, "average")
            assert told["trouble"]
            assert "p2l_router_p2l_up 0.0" in (await router.get("/metrics"))[1]
            router.endpoint.is_down = False
            await until_well(router, True)
            assert (await ready(router))["scores"]
            assert json.loads((await router.get("/health"))[1]) == {"status": "ok"}

    with caplog.at_level(logging.WARNING, logger="route"):
        asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if "P2L gives" in record.getMessage()]
    assert lines == ["P2L gives no scores", "P2L gives scores again"]
    assert next(vars(record)["fields"] for record in caplog.records if "no scores" in record.message)["fallback"] == (
        "average"
    )


def test_only_an_operator_learns_why_there_are_no_scores(tmp_path: Path) -> None:
    async def main() -> None:
        down = Endpoint(COEFS, is_down=True)
        async with a_router(tmp_path, endpoint=down, admin_key="the-admin-key") as router:
            assert "trouble" not in await ready(router)
            _, text = await router.get("/ready", key="the-admin-key")
            assert json.loads(text)["trouble"]
            assert json.loads(text)["fallback"] == "dearest"

    asyncio.run(main())


def test_metrics_tell_scores_budgets_breakers_and_whom_an_answer_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        places = {"good": {"deployments": {"east": {}, "west": {}}}}
        scripts = {"good": {"failures": ["reset"] * 2 + ["rate-limit:60"]}}
        async with a_router(tmp_path, places, scripts=scripts) as router:
            await router.ask()
            await router.ask(extra_body={"cost": 5})
            text = (await router.get("/metrics"))[1]
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert lines['p2l_router_fallbacks_total{instead_of="good",model="fair"}'] == "1.0"
            assert lines["p2l_router_expected_score_count"] == "2.0"
            assert (lines["p2l_router_budget_count"], lines["p2l_router_budget_sum"]) == ("1.0", "5.0")
            assert lines["p2l_router_p2l_up"] == "1.0"
            states = [lines[f'p2l_router_breaker{{deployment="{one}",model="good"}}'] for one in ("east", "west")]
            assert sorted(states) == ["0.0", "2.0"]
            assert lines['p2l_router_breaker{deployment="",model="fair"}'] == "0.0"
            await blind(router)
            await router.ask([*HELLO, {"role": "user", "content": "something new"}])
            assert 'p2l_router_unscored_total{by="average"}' in (await router.get("/metrics"))[1]

    asyncio.run(main())
