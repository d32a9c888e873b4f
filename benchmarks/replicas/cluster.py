"""The processes of the benchmark: routers, P2L endpoints, PostgreSQL, Redis, and what starts them again."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.serving.folders import write_tfidf
from tools.services import Servers

PATIENCE = 120.0
"""Seconds for everything to start."""
ADMIN = "the-admin-key-of-the-benchmark"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Program:
    """One process that is started again when it has ended."""

    name: str
    words: Sequence[str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, *self.words], stdout=log, stderr=log)

    def watch(self) -> None:
        """Start it again if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """Kill it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as an operator does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait()

    def answers(self) -> bool:
        """Return whether it listens."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False


@dataclass
class Cluster:
    """Everything but the provider and the clients."""

    folder: Path
    provider: str
    keys: Sequence[dict[str, object]]
    replicas: int = 3
    servers: Servers = field(init=False)
    routers: list[Program] = field(default_factory=list)
    endpoints: list[Program] = field(default_factory=list)

    def start(self) -> None:
        """Start it, and wait until all of it listens."""
        self.servers = Servers(self.folder / "servers")
        self.servers.start()
        model = write_tfidf(self.folder)
        for number in range(2):
            port = free_port()
            words = ["-m", "p2l.endpoint", "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
            self.endpoints.append(Program(f"endpoint {number}", words, port, self.folder / f"endpoint-{number}.log"))
        for number in range(self.replicas):
            self.routers.append(self._router(number))
        for program in (*self.endpoints, *self.routers):
            program.start()
        self.wait()

    def _router(self, number: int) -> Program:
        own = self.folder / f"replica-{number}"
        own.mkdir()
        path = own / "router.yaml"
        models = {
            f"model-{each}": {"name": f"m{each}", "type": "openai", "base_url": self.provider, "cost": 1.0}
            | {"api_key": "none"}
            for each in range(3)
        }
        config = {
            "model_configs": models,
            "keys": list(self.keys),
            "admin_key": ADMIN,
            "database": self.servers.postgres_url,
            "limits": self.servers.redis_url,
            "timeouts": {"connect": 2.0, "answer": 10.0, "total": 20.0},
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        port, endpoint = free_port(), self.endpoints[number % 2]
        words = ["-m", "route.openai_server", "-c", str(path), "--router-type", "bt-endpoint", "--router-api-key", "-"]
        words += ["--router-model-endpoint", f"http://127.0.0.1:{endpoint.port}", "--host", "127.0.0.1"]
        return Program(f"router {number}", [*words, "--port", str(port)], port, own / "log")

    def wait(self) -> None:
        """Wait until all of it listens."""
        late = time.monotonic() + PATIENCE
        while not all(program.answers() for program in (*self.endpoints, *self.routers)):
            self.watch()
            if time.monotonic() > late:
                raise SystemExit(f"the cluster did not start; its logs are in {self.folder}")
            time.sleep(0.1)

    def watch(self) -> None:
        """Start what has ended."""
        for program in (*self.routers, *self.endpoints):
            program.watch()

    def victims(self) -> list[str]:
        """Return the processes to kill, in turn."""
        return [
            "router 0",
            "redis",
            "postgres",
            "endpoint 0",
            "router 1",
            "redis",
            "postgres",
            "endpoint 1",
            "router 2",
        ]

    def kill(self, victim: str) -> None:
        """Kill a process and start it again."""
        if victim == "redis":
            self.servers.kill_redis()
            self.servers.start_redis()
        elif victim == "postgres":
            self.servers.kill_postgres()
            self.servers.start_postgres()
        else:
            program = next(each for each in (*self.routers, *self.endpoints) if each.name == victim)
            if program.process is not None and program.process.poll() is None:
                program.kill()
            program.start()

    def stop(self) -> None:
        """End everything."""
        for program in (*self.routers, *self.endpoints):
            program.stop()
        self.servers.stop()
