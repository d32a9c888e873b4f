"""The endpoint and a live run for long: memory, threads and open files stay what they were when they had warmed up.

`P2L_FAULT_MOMENTS` times 5,000 requests, and as many votes: 100,000 in `make test-nightly`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from p2l.online_training.publishing import served
from tests.conftest import ROOT
from tests.e2e.test_live_run import MODULE, write_config
from tests.faults import MOMENTS, ended
from tests.p2l.online_training.live_helpers import add, line
from tests.p2l.serving.conftest import make_model
from tests.processes import descendants
from tests.serving_process import serving

NUMBER = 5_000 * MOMENTS
PARTS = 10
CLIENTS = 4
WORDS = ("what", "is", "a", "poem", "on", "12", "plus", "bees", "write", "long", "why", "how", "in", "code", "river")
# What an allocator may add without a leak: twenty looks of one run differ by a few MiB.
SLACK_KIB, SLACK_SHARE = 12 << 10, 0.05


@dataclass(frozen=True)
class Usage:
    """What a process and those that it has started hold."""

    kib: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        kib = threads = files = 0
        for each in (pid, *descendants(pid)):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{each}/status").read_text().splitlines())
            kib += int(status["VmRSS"].split()[0])
            threads += int(status["Threads"])
            files += len(list(Path(f"/proc/{each}/fd").iterdir()))
        return cls(kib, threads, files)


def assert_flat(what: str, usages: list[Usage]) -> None:
    """No more at the end than after the first tenths, in which caches fill."""
    held = [f"{usage.kib >> 10} MiB, {usage.threads} threads, {usage.files} files" for usage in usages]
    ended(f"{NUMBER:,} {what}", f"{held[0]} after a tenth, {held[-1]} at the end")
    assert usages[0].threads > 1, "this is the service, and not what has started it"
    warm = usages[: len(usages) // 2]
    most = max(one.kib for one in warm)
    assert usages[-1].kib <= most * (1 + SLACK_SHARE) + SLACK_KIB, usages
    assert usages[-1].threads <= max(one.threads for one in warm), usages
    assert usages[-1].files <= max(one.files for one in warm), usages


def ask(url: str, number: int, seed: int, failures: list[str]) -> None:
    """Ask for so many prompts, no two alike, over one connection after another."""
    parts, draw = urlsplit(url), random.Random(seed)
    for begun in range(0, number, 100):
        client = http.client.HTTPConnection(parts.netloc, timeout=120)
        for _ in range(min(100, number - begun)):
            prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 40))) + f" {draw.random()}"
            body = json.dumps({"prompt": [prompt]})
            client.request("POST", "/predict", body, {"content-type": "application/json", "api-key": "k"})
            reply = client.getresponse()
            content = reply.read()
            if reply.status != 200 or b"coefs" not in content:
                failures.append(f"{reply.status} {content[:100]!r}")
        client.close()


@pytest.mark.slow
def test_an_endpoint_holds_no_more_after_many_requests(tmp_path: Path) -> None:
    folder, log = make_model(tmp_path, seed=1), tmp_path / "log"
    failures: list[str] = []
    usages = []
    flags = ("-m", folder, "--no-cuda", "-a", "k", "--host", "127.0.0.1")
    with serving("p2l.endpoint", *flags, probe="/health", log=log, python=sys.executable) as (url, process):
        for part in range(PARTS):
            clients = [
                threading.Thread(target=ask, args=(url, NUMBER // PARTS // CLIENTS, CLIENTS * part + seed, failures))
                for seed in range(CLIENTS)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            usages.append(Usage.of(process.pid))
    assert failures == []
    assert_flat("requests to an endpoint", usages)


@pytest.mark.slow
def test_a_live_run_holds_no_more_after_many_votes(tmp_path: Path) -> None:
    """Votes come as they are read, on a thousand prompts again and again; a model is published now and then."""
    config = write_config(tmp_path, batch_size=50)
    votes, log = add(tmp_path / "votes.jsonl", []), tmp_path / "out" / "run" / "metrics.jsonl"
    flags = ["--config", config, "--no-eval", "--quiet", "--follow", votes, "--poll", "0.05", "--save-steps", "100"]
    publish = ["--publish", tmp_path / "served", "--publish-votes", str(NUMBER // PARTS), "--gate", "0.1"]
    words = [sys.executable, "-m", MODULE, *map(str, (*flags, *publish))]
    usages = []
    with subprocess.Popen(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            for part in range(1, PARTS + 1):
                # A tenth of the votes is kept for the gate, so that a step takes somewhat more than fifty of them.
                add(votes, (line(number % 1000) for number in range(NUMBER // PARTS)))
                wait_for_votes(process, log, 0.8 * part * NUMBER / PARTS)
                usages.append(Usage.of(process.pid))
        finally:
            process.kill()
    assert served(tmp_path / "served") is not None
    assert_flat("votes in a live run", usages)


def wait_for_votes(process: subprocess.Popen[bytes], log: Path, votes: float) -> None:
    """Until so many votes have arrived."""
    while not log.exists() or _arrived(log) < votes:
        assert process.poll() is None, "the run ended by itself"
        time.sleep(0.2)


def _arrived(log: Path) -> int:
    """Votes that had arrived by the last step; its line may be half written, and is then none yet."""
    *lines, _ = log.read_text(encoding="utf-8").split("\n")
    return json.loads(lines[-1])["arrived"] if lines else 0
