"""What a second HTTP client and a second web framework are worth.

    python -m benchmarks.http_libraries [--calls 2000] [--rounds 5]

Clients: POST a chat completion to a mock provider and read its JSON, from one event loop on kept connections, by
aiohttp (calls to providers) and by httpx2 (scores and the P2L client, which also serve threads and trio). Frameworks:
answer a prompt with 130 coefficients, read and written by the same pydantic models, by FastAPI (the endpoint, which
takes its OpenAPI description from it) and by Starlette (the router). Both sides of a pair take turns; medians over
rounds, least and greatest in brackets. `CPU` is the processor time of the calling process a call.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.serving.__main__ import serving
from benchmarks.serving.load import bodies, drive
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

BODY = {"model": "mock", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0.5}
HEADERS = {"authorization": "Bearer none"}
COEFS = np.random.default_rng(0).normal(size=130).astype(np.float32).tolist()


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = parser("python -m benchmarks.http_libraries", "Time HTTP clients and web frameworks beside each other.")
    flags.add_argument("--calls", type=positive, default=2000, help="in each round")
    flags.add_argument("--rounds", type=positive, default=5)
    flags.add_argument("--serve", choices=["fastapi", "starlette"], help=argparse.SUPPRESS)
    flags.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or be one of its servers."""
    flags = build_parser().parse_args(argv)
    if flags.serve:
        import uvicorn

        app = fastapi_app() if flags.serve == "fastapi" else starlette_app()
        uvicorn.run(app, host="127.0.0.1", port=flags.port, access_log=False, log_level="warning")
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        time_clients(pool, flags)
        time_frameworks(pool, flags)


def time_clients(pool: ProcessPoolExecutor, flags: argparse.Namespace) -> None:
    """Print a table of wall times of concurrent calls, and of the processor time of calls one at a time."""
    rows = []
    with serving(["-m", "route.providers.mock", "--port"]) as port:
        for concurrent in (1, 32):
            for name in ("aiohttp", "httpx2"):
                pool.submit(call, name, port, 200, concurrent).result()
            rounds = [
                [pool.submit(call, name, port, flags.calls, concurrent).result() for name in ("aiohttp", "httpx2")]
                for _ in range(flags.rounds)
            ]
            aio, httpx = (np.array(side) * 1e6 for side in zip(*rounds, strict=True))
            for column, what in enumerate(("", ", on the processor")):
                cells = [f"{spread(side[:, column])} us" for side in (aio, httpx)]
                times = spread(httpx[:, column] / aio[:, column], 1)
                rows.append([f"{concurrent} at a time{what}", *cells, times])
    print(f"\n{table(['a call of a mock provider', 'aiohttp', 'httpx2', 'times'], rows)}\n", flush=True)


def time_frameworks(pool: ProcessPoolExecutor, flags: argparse.Namespace) -> None:
    """Print a table with a row for each number of clients."""
    rows = []
    words = ["-m", "benchmarks.http_libraries", "--serve"]
    with serving([*words, "fastapi", "--port"]) as fast, serving([*words, "starlette", "--port"]) as star:
        for clients in (1, 8):
            requests = bodies(["What is 2 + 2?"] * flags.calls)
            for port in (fast, star):
                pool.submit(drive, port, requests[:200], clients).result()
            rates = np.array(
                [
                    [pool.submit(drive, port, requests, clients).result().requests_per_second for port in (fast, star)]
                    for _ in range(flags.rounds)
                ]
            )
            fastapi, starlette = rates.T
            name = f"{clients} client{'s' if clients > 1 else ''}"
            cells = [f"{spread(rate)} requests/s" for rate in (fastapi, starlette)]
            apart = f"{spread(1e6 / fastapi - 1e6 / starlette)} us"
            rows.append([name, *cells, spread(starlette / fastapi, 1), apart])
    header = ["130 coefficients from memory", "FastAPI", "Starlette", "times", "apart, a request"]
    print(table(header, rows), flush=True)


def spread(figures: np.ndarray, digits: int = 0) -> str:
    """Median, and least and greatest in brackets."""
    return f"{np.median(figures):,.{digits}f} [{figures.min():,.{digits}f}, {figures.max():,.{digits}f}]"


def call(name: str, port: int, calls: int, concurrent: int) -> tuple[float, float]:
    """Return wall and processor seconds of a call by one of the clients."""
    import uvloop

    client = {"aiohttp": _by_aiohttp, "httpx2": _by_httpx2}[name]
    return uvloop.run(client(f"http://127.0.0.1:{port}/v1/chat/completions", calls, concurrent))


async def _by_aiohttp(url: str, calls: int, concurrent: int) -> tuple[float, float]:
    import aiohttp

    async with aiohttp.ClientSession(headers=HEADERS, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post() -> Any:
            async with session.post(url, json=BODY) as response:
                return await response.json()

        return await _timed(post, calls, concurrent)


async def _by_httpx2(url: str, calls: int, concurrent: int) -> tuple[float, float]:
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(headers=HEADERS, limits=limits) as session:

        async def post() -> Any:
            return (await session.post(url, json=BODY)).json()

        return await _timed(post, calls, concurrent)


async def _timed(post: Callable[[], Awaitable[Any]], calls: int, concurrent: int) -> tuple[float, float]:
    async def some() -> None:
        for _ in range(calls // concurrent):
            assert (await post())["choices"]

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(concurrent)))
    done = calls // concurrent * concurrent
    return (time.perf_counter() - wall) / done, (time.process_time() - cpu) / done


def fastapi_app() -> Any:
    """An endpoint that answers from memory, on FastAPI."""
    from fastapi import FastAPI
    from fastapi.responses import Response

    from p2l.serving.app import PredictResponse, PromptRequest

    app = FastAPI()

    async def predict(body: PromptRequest) -> Response:
        assert body.prompt
        prediction = PredictResponse(coefs=COEFS, eta=0.5, truncated=False, revision="r")
        return Response(prediction.model_dump_json(exclude_unset=True), media_type="application/json")

    predict.__annotations__.update(body=PromptRequest)  # a local name, which FastAPI cannot resolve as text
    app.post("/predict", response_model=PredictResponse)(predict)
    return app


def starlette_app() -> Any:
    """The same on Starlette."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from p2l.serving.app import PredictResponse, PromptRequest

    async def predict(request: Request) -> Response:
        body = PromptRequest.model_validate_json(await request.body())
        assert body.prompt
        prediction = PredictResponse(coefs=COEFS, eta=0.5, truncated=False, revision="r")
        return Response(prediction.model_dump_json(exclude_unset=True), media_type="application/json")

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


if __name__ == "__main__":
    run(main)
