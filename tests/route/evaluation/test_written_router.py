"""What a verdict writes, served: where nothing pays, the best constant answers whatever P2L says of other models."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import yaml

from p2l.common.access import digest_of
from route.application.app import build_app
from route.application.settings import Settings
from route.config import load_config
from route.evaluation.measuring import Results, within
from route.evaluation.policies import Setup
from route.evaluation.verdict import decide, write_router
from route.providers.mock import Mock, Script, running
from tests.route.evaluation.routing_tables import known_table, random_table
from tests.route.router_helpers import HELLO, KEY, Endpoint, model, served, serving


async def asked(results: Results, folder: Path) -> dict[str, int]:
    """Return how many of three requests each model got from a router with the configuration of the verdict."""
    mocks = {name: Mock(Script.of({"text": name}), remembered=10) for name in results.models}
    base, target = folder / "base.yaml", folder / "router.yaml"
    async with contextlib.AsyncExitStack() as stack:
        entries = {
            name: model(await stack.enter_async_context(running(mock)), name=name, cost=1.0)
            for name, mock in mocks.items()
        }
        base.write_text(yaml.safe_dump({"model_configs": entries}), encoding="utf-8")
        write_router(results, base, target)
        coefs = {name: float(name != results.constant) for name in results.models}
        settings = Settings(
            config=str(target),
            router_type="grk-endpoint",
            router_model_endpoint=await stack.enter_async_context(served(Endpoint(coefs).application())),
            api_keys=(digest_of(KEY),),
        )
        url = await stack.enter_async_context(serving(build_app(load_config(target), settings)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(3):
            headers = {"authorization": f"Bearer {KEY}"}
            body = {"model": "-", "messages": HELLO}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200
    return {name: len(mock.bodies) for name, mock in mocks.items()}


def test_where_no_gain_is_shown_the_constant_answers_whatever_p2l_says(tmp_path: Path) -> None:
    results, _ = within(random_table(80, 3), Setup("words", trainings=0), share=0.4, folds=1, seed=0)
    assert decide(results).policy == "single"
    counts = asyncio.run(asked(results, tmp_path))
    assert counts == {name: 3 * (name == results.constant) for name in results.models}


def test_where_routing_pays_p2l_chooses_among_all(tmp_path: Path) -> None:
    results, _ = within(known_table(200), Setup("words", trainings=0), share=0.4, folds=1, seed=0)
    assert decide(results).routes_by_p2l
    counts = asyncio.run(asked(results, tmp_path))
    assert counts[results.constant] == 0
    assert sum(counts.values()) == 3
