"""Routers over one PostgreSQL and one Redis, each a process that is killed and started again, and what they booked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.billing.wires import MODEL, PRICE, WIRES
from tools.services import free_port

ADMIN = "the-admin-key"
_PATIENCE_SECONDS = 120.0
_WORST = {"longest_answer": 400, "context_window": 2000}
"""Of each model, so that a small budget holds more than a few requests."""


def config_of(provider: str, database: str, limits: str | None, keys: Mapping[str, float]) -> dict[str, Any]:
    """Return the configuration of a router over a provider; `keys` are names, which are the keys, and dollars a day."""
    models: dict[str, dict[str, Any]] = {}
    for name, wire in WIRES.items():
        place = {"base_url": f"{provider}/{name}{wire.base}", "api_key": "upstream"}
        models[name] = {"name": MODEL, "type": wire.kind, "cost": 0.002, "price": PRICE, **place, **_WORST}
    config = {
        "model_configs": models,
        "keys": [{"key": name, "name": name, "spend_per_day": dollars} for name, dollars in keys.items()],
        "admin_key": ADMIN,
        "database": database,
        "retry_seconds": 0,
        "breaker": {"failures": 1_000_000},
    }
    return config if limits is None else {**config, "shared_limits": limits}


@dataclass
class Replica:
    """One router."""

    folder: Path
    endpoint: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write its configuration into a folder of its own."""
        self.folder.mkdir()
        (self.folder / "router.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")

    def start(self) -> None:
        """Start it."""
        words = ["-m", "route.openai_server", "-c", str(self.folder / "router.yaml"), "--host", "127.0.0.1"]
        words += ["--port", str(self.port), "--router-type", "grk-endpoint", "--cost-optimizer", "strict"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--router-model-endpoint", self.endpoint],
                stdout=log,
                stderr=log,
                env={**os.environ, "P2L_ROUTER_KEY": "another-key"},
            )

    async def wait(self, http: aiohttp.ClientSession) -> None:
        """Wait until it answers."""
        late = time.monotonic() + _PATIENCE_SECONDS
        assert self.process is not None
        while time.monotonic() < late and self.process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{self.url}/health"):
                    return
            await asyncio.sleep(0.1)
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        raise TimeoutError(f"the router does not answer: {log[-1000:]}")

    def kill(self) -> None:
        """Kill it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """End it as an operator does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.process.wait)

    async def spent(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """Return by which spend it enforces the limit of each key."""
        async with http.get(f"{self.url}/admin/keys", headers={"authorization": f"Bearer {ADMIN}"}) as response:
            told = await response.json()
        return {key["name"]: key["spent_today"] for key in told["data"]}

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of its log; those that a kill has cut are none."""
        for line in (self.folder / "log").read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict):
                    yield told
