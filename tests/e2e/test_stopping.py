"""SIGTERM and SIGHUP of a router that is being asked: no request breaks."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.serving_process import serving

BODY = json.dumps({"model": "-", "messages": [{"role": "user", "content": "hello"}]}).encode()
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer k\r\ncontent-length: %d\r\n\r\n"
FLAGS = ("--router-type", "random", "--host", "127.0.0.1")
CLIENTS = 60


def write(folder: Path, text: str, **more: Any) -> Path:
    small = {"name": "s", "type": "mock", "cost": 1, "options": {"text": text, "latency": 0.01}}
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump({"model_configs": {"small": small}, **more}), encoding="utf-8")
    return path


async def ask_until_refused(port: int, seen: Counter[str], pause: float) -> None:
    """Ask over kept connections, a new one where the last was told to close, until none is to be had."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except (
            ConnectionRefusedError,
            ConnectionResetError,
        ):  # reset: made in the moment of the end, and nothing asked
            seen["refused"] += 1
            return
        head = b""
        try:
            while b"connection: close" not in head:
                writer.write(REQUEST % len(BODY) + BODY)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                answer = json.loads(await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0])))
                seen[head.split()[1].decode()] += 1
                seen[answer["choices"][0]["message"]["content"]] += 1
                await asyncio.sleep(pause)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            seen[f"broken: {type(error).__name__}"] += 1
            return
        finally:
            writer.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_has_connected_is_answered_when_the_router_is_told_to_stop(tmp_path: Path, workers: str) -> None:
    async def main() -> None:
        seen = Counter[str]()
        flags = ("-c", write(tmp_path, "old"), *FLAGS, "--api-key", "k", "--workers", workers)
        with serving("route.openai_server", *flags, probe="/ready", log=tmp_path / "log") as (url, process):
            port = int(url.rpartition(":")[2])
            clients = [asyncio.ensure_future(ask_until_refused(port, seen, n % 5 * 0.02)) for n in range(CLIENTS)]
            while seen["200"] < 3 * CLIENTS:
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)
            assert await asyncio.to_thread(process.wait) == 0
        assert {name for name in seen if name.startswith("broken")} == set()
        assert (seen["refused"], seen["old"]) == (CLIENTS, seen["200"])

    asyncio.run(main())


def test_a_hangup_reloads_every_worker_under_load_without_a_request_that_fails(tmp_path: Path) -> None:
    async def main() -> None:
        seen = Counter[str]()
        flags = ("-c", write(tmp_path, "old"), *FLAGS, "--api-key", "k", "--workers", "2")
        with serving("route.openai_server", *flags, probe="/ready", log=tmp_path / "log") as (url, process):
            port = int(url.rpartition(":")[2])
            clients = [asyncio.ensure_future(ask_until_refused(port, seen, 0.02)) for _ in range(20)]
            while seen["old"] < 60:
                await asyncio.sleep(0.02)
            write(tmp_path, "new")
            process.send_signal(signal.SIGHUP)
            while (tmp_path / "log").read_text().count("the configuration was reloaded") < 2:
                await asyncio.sleep(0.02)
            before = seen["old"]
            while seen["new"] < 60:
                await asyncio.sleep(0.02)
            assert seen["old"] <= before + len(clients), "what began before may end after"
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)
        assert seen["200"] == seen["old"] + seen["new"]
        assert {name for name in seen if name.startswith("broken")} == set()

    asyncio.run(main())


def test_hangups_while_workers_start_end_none_of_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = (*FLAGS, "--api-key", "k", "--workers", "2", "-c", write(tmp_path, "old"))
    with serving("route.openai_server", *flags, probe="/ready", log=log, begun="Started parent process") as (
        _,
        process,
    ):
        text = ""
        while text.count("Application startup complete") < 2 and "died" not in text:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.02)
            text = log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert "the configuration was reloaded" in events
    assert [event for event in events if "died" in event] == []
    assert sum(event.startswith("Started server process") for event in events) == 2
