"""Ray Serve as an operator runs it: `serve deploy` of the shipped configuration, and replicas that come and go."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import yaml

from p2l.model.checkpoint import revision_of
from tests.conftest import ROOT, free_port
from tests.p2l.serving.conftest import needs_ray
from tests.p2l.serving.ray_service import KEY, load, service_on_ray
from tests.processes import descendants, words_of

pytestmark = pytest.mark.slow

_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_SERVE = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()"]


class Cluster(NamedTuple):
    """Ray as `ray start` makes it, on loopback."""

    process: subprocess.Popen[bytes]
    dashboard: str
    log: Path

    def serve(self, *words: str | Path) -> str:
        line = [*_SERVE, *words, "--address", self.dashboard]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def is_running(self) -> bool:
        status = yaml.safe_load(self.serve("status"))["applications"].get("p2l", {})
        assert status.get("status") != "DEPLOY_FAILED", status
        return bool(status.get("status") == "RUNNING")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    needs_ray()
    folder = tempfile.mkdtemp(prefix="p2l-ray-")  # the names of sockets in it may not be long
    dashboard, log = free_port(), tmp_path / "ray.log"
    ports = {"port": free_port(), "dashboard-port": dashboard, "dashboard-agent-listen-port": free_port()}
    flags = [f"--{name}={port}" for name, port in ports.items()] + [f"--ray-client-server-port={free_port()}"]
    flags += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats", "--num-cpus=8"]
    environment = {
        **os.environ,
        "P2L_API_KEY": "a key",
        "HF_HUB_OFFLINE": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    line = [*_RAY, "start", "--head", "--block", f"--temp-dir={folder}", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        running = Cluster(process, f"http://127.0.0.1:{dashboard}", log)
        running.until(lambda: is_up(running.dashboard + "/api/version"))
        yield running
    finally:
        ours = descendants(process.pid)
        process.terminate()
        process.wait()
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        shutil.rmtree(folder, ignore_errors=True)


def is_up(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=60).status_code == 200
    except httpx2.TransportError:
        return False


def test_the_shipped_configuration_is_deployed_and_takes_another_model_over(
    cluster: Cluster, folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text(encoding="utf-8"))
    port = free_port()
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    [application] = config["applications"]
    path = tmp_path / "serve.yaml"

    def deploy(model: Path) -> None:
        application["args"]["model_path"] = str(folder)
        application["deployments"][0]["user_config"]["model_path"] = str(model)
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        cluster.serve("deploy", path)
        cluster.until(cluster.is_running)

    def ask(**headers: str) -> httpx2.Response:
        return httpx2.post(f"http://127.0.0.1:{port}/predict", json={"prompt": ["hello"]}, headers=headers, timeout=60)

    def replicas() -> set[int]:
        return {pid for pid in descendants(cluster.process.pid) if "ServeReplica:p2l:P2L" in words_of(pid)}

    deploy(folder)
    assert ask(**KEY).json()["revision"] == revision_of(folder)
    assert ask().status_code == 403
    before = replicas()
    assert len(before) == 2
    deploy(other_folder)
    cluster.until(lambda: {ask(**KEY).json()["revision"] for _ in range(8)} == {revision_of(other_folder)})
    assert replicas() == before


def test_replicas_come_while_requests_queue_and_go_when_they_do_not(folder: Path, tmp_path: Path) -> None:
    flags = ("--max-workers", "2", "--queue-per-worker", "1")
    with service_on_ray(folder, tmp_path / "published", 1, *flags) as service:
        revision = service.predict("hello").json()["revision"]
        assert len(service.replicas()) == 1

        def until(count: int) -> None:
            while len(service.replicas()) != count:
                assert service.process.poll() is None
                time.sleep(0.2)

        with load(service) as running:
            until(2)
            running.seen[revision] = 0
            while running.seen[revision] < 50:
                time.sleep(0.05)
            assert len(service.replicas()) == 2
        until(1)
        assert set(running.seen) == {revision}
        assert service.predict("later").json()["revision"] == revision
