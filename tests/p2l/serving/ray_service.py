"""Endpoints on Ray Serve as processes of their own, and clients that ask them without end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from p2l.inference import P2L
from p2l.serving.settings import Settings
from tests.p2l.serving.conftest import Running, needs_ray
from tests.processes import descendants, words_of
from tests.serving_process import serving

__all__ = ["REDIS", "Load", "Service", "client_of", "load", "metric", "service_on_ray", "until"]

KEY = {"api-key": "a key"}
# Ray starts its own processes with the Python that it is started with, and knows them by their ids.
_PYTHON = sys.executable
REDIS = os.environ.get("P2L_TEST_REDIS", "redis://127.0.0.1:6379/0")


@dataclass
class Service:
    """An endpoint with some replicas, and the folder that it watches."""

    url: str
    process: subprocess.Popen[str]
    published: Path
    workers: int

    def predict(self, prompt: str, *, model: str = "") -> httpx2.Response:
        return httpx2.post(f"{self.url}{model}/predict", json={"prompt": [prompt]}, headers=KEY, timeout=60)

    def replicas(self) -> list[int]:
        """Process ids of the replicas of the first model."""
        return [pid for pid in descendants(self.process.pid) if "ServeReplica:p2l-:" in words_of(pid)]


@contextlib.contextmanager
def service_on_ray(folder: Path, published: Path, workers: int, *more: str | Path) -> Iterator[Service]:
    """Start it on a model, with `more` flags; nothing of it is left at the end."""
    needs_ray()
    shutil.copytree(folder, published / "first")
    flags = ["--watch", published, *more, "--no-cuda", "--dtype", "float32"]
    flags += ["--host", "127.0.0.1", "--ray", "--workers", str(workers), "--cache-size", "0", "--score-cache", REDIS]
    keys = {"P2L_API_KEY": "a key", "P2L_ADMIN_KEY": "the-admin-key"}
    with serving("p2l.endpoint", *flags, probe="/health", python=_PYTHON, **keys) as (url, process):
        yield Service(url, process, published, workers)
        processes = descendants(process.pid)
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in log
        until(lambda: not [pid for pid in processes if words_of(pid)])


@contextlib.contextmanager
def client_of(service: Service, folder: Path) -> Iterator[Running]:
    """What the tests of the contract ask, and the model of `folder` to compare with."""
    settings = Settings(str(folder), device="cpu", dtype="float32")
    with httpx2.Client(base_url=service.url, headers=KEY, timeout=60) as client:
        model = P2L.from_pretrained(folder, device="cpu")
        yield Running(client, settings, model, service.url, service.process.terminate)


def until(condition: Callable[[], bool]) -> None:
    """Wait a minute at most."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


@dataclass
class Load:
    """Clients that ask one prompt after the other, and try nothing twice."""

    service: Service
    seen: Counter[str] = field(default_factory=Counter)
    stopped: threading.Event = field(default_factory=threading.Event)

    def ask(self, client: int) -> None:
        with httpx2.Client(base_url=self.service.url, headers=KEY, timeout=60) as http:
            number = 0
            while not self.stopped.is_set():
                number += 1
                try:
                    answer = http.post("/predict", json={"prompt": [f"client {client} asks {number}"]})
                    self.seen[answer.json().get("revision") or f"{answer.status_code} {answer.text}"] += 1
                except httpx2.TransportError as error:
                    self.seen[repr(error)] += 1


@contextlib.contextmanager
def load(service: Service, clients: int = 6) -> Iterator[Load]:
    running = Load(service)
    threads = [threading.Thread(target=running.ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.stopped.set()
        for thread in threads:
            thread.join()


def metric(service: Service, name: str) -> float:
    text = httpx2.get(f"{service.url}/metrics", timeout=60).text
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))
