"""An endpoint on Ray Serve: its contract, and nothing of what happens to its replicas reaches a client."""

import contextlib
import ipaddress
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from p2l.common.errors import ConfigError
from p2l.endpoint import main
from p2l.inference import P2L
from p2l.model.checkpoint import revision_of
from p2l.model.manifest import seal
from p2l.serving.settings import Settings
from tests.conftest import free_port
from tests.p2l.serving import test_contract
from tests.p2l.serving.conftest import Running, needs_ray
from tests.serving_process import serving

# One suite over both: pytest finds the tests of the contract here too, with the fixture `shared` below.
globals().update({name: test for name, test in vars(test_contract).items() if name.startswith("test_")})

KEY = {"api-key": "a key"}
REDIS = os.environ.get("P2L_TEST_REDIS", "redis://127.0.0.1:6379/0")


@dataclass
class Service:
    """An endpoint with two replicas, and the folder that it watches."""

    url: str
    process: subprocess.Popen[str]
    published: Path

    def predict(self, prompt: str, *, model: str = "") -> httpx2.Response:
        return httpx2.post(f"{self.url}{model}/predict", json={"prompt": [prompt]}, headers=KEY, timeout=60)

    def replicas(self) -> list[int]:
        """Process ids of the replicas of the first model."""
        return [pid for pid in descendants(self.process.pid) if "ServeReplica:p2l-:" in words_of(pid)]


@pytest.fixture(scope="module")
def service(folder: Path, other_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    needs_ray()
    published = tmp_path_factory.mktemp("published")
    shutil.copytree(folder, published / "first")
    flags = ["--watch", published, "--models", f"other={other_folder}", "--no-cuda", "--dtype", "float32"]
    flags += ["--host", "127.0.0.1", "--ray", "--workers", "2", "--cache-size", "0", "--score-cache", REDIS]
    with serving("p2l.endpoint", *flags, probe="/health", P2L_API_KEY="a key", P2L_ADMIN_KEY="admin") as (
        url,
        process,
    ):
        yield Service(url, process, published)
        processes = descendants(process.pid)
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in log
        until(lambda: not [pid for pid in processes if words_of(pid)])


@pytest.fixture(scope="module")
def shared(service: Service, folder: Path) -> Iterator[Running]:
    settings = Settings(str(folder), device="cpu", dtype="float32")
    with httpx2.Client(base_url=service.url, headers=KEY, timeout=60) as client:
        model = P2L.from_pretrained(folder, device="cpu")
        yield Running(client, settings, model, service.url, service.process.terminate)


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        others = {
            int(text) for path in Path(f"/proc/{pid}/task").glob("*/children") for text in path.read_text().split()
        }
        return [each for child in {*map(int, children), *others} for each in (child, *descendants(child))]
    return []


def words_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def until(condition) -> None:
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


def test_a_killed_replica_costs_no_client_a_request(service: Service) -> None:
    until(lambda: len(service.replicas()) == 2)
    revision = service.predict("hello").json()["revision"]
    with load(service) as running:
        before = set(service.replicas())
        for pid in before:
            until(lambda: running.seen[revision] > 50)
            os.kill(pid, signal.SIGKILL)
            until(lambda: len(service.replicas()) == 2)
            running.seen[revision] = 0
        until(lambda: running.seen[revision] > 50)
    assert set(running.seen) == {revision}
    assert not before & set(service.replicas())


def test_a_published_model_is_taken_over_without_a_lost_request(service: Service, other_folder: Path) -> None:
    copy = shutil.copytree(other_folder, service.published / ".copy")
    seal(copy)
    old, new = service.predict("hello").json()["revision"], revision_of(copy)
    reloads = 'p2l_reloads_total{result="done"}'
    before = metric(service, reloads)
    with load(service) as running:
        until(lambda: running.seen[old] > 20)
        copy.rename(service.published / "second")
        until(lambda: metric(service, reloads) >= before + 2)
        running.seen[new] = 0
        until(lambda: running.seen[new] > 50)
    assert set(running.seen) == {old, new}
    assert {service.predict(f"later {number}").json()["revision"] for number in range(20)} == {new}


def test_a_model_has_its_id_in_the_path(service: Service, other_folder: Path) -> None:
    assert service.predict("hello", model="/m/other").json()["revision"] == revision_of(other_folder)
    assert httpx2.get(f"{service.url}/m/other/health", timeout=60).status_code == 200
    assert httpx2.get(f"{service.url}/m/other/models", timeout=60).status_code == 403
    assert service.predict("hello", model="/m/nobody").status_code == 404


def test_replicas_share_what_they_have_computed_and_no_prompt_is_in_redis(service: Service) -> None:
    redis = pytest.importorskip("redis").Redis.from_url(REDIS)
    try:
        redis.ping()
    except Exception:
        pytest.skip("no Redis here: make services")
    keys = set(redis.keys("p2l:score:*"))
    hits = metric(service, "p2l_shared_cache_hits_total")
    prompt = f"a secret of {time.time_ns()}"
    answers = [service.predict(prompt) for _ in range(12)]
    assert len({answer.text for answer in answers}) == 1
    assert metric(service, "p2l_shared_cache_hits_total") >= hits + 10
    (key,) = set(redis.keys("p2l:score:*")) - keys
    assert b"secret" not in key + redis.get(key)
    assert redis.ttl(key) > 0


def metric(service: Service, name: str) -> float:
    text = httpx2.get(f"{service.url}/metrics", timeout=60).text
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_nothing_of_ray_can_be_reached_from_another_machine(service: Service) -> None:
    inodes = set()
    for pid in descendants(service.process.pid):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(link.readlink().name.removeprefix("socket:[").removesuffix("]"))
    listening = [
        address_of(line.split()[1])
        for file in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{file}").read_text(encoding="ascii").splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]
    assert len(listening) > 3
    assert [address for address in listening if not address.is_loopback] == []


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address of a line of /proc/net/tcp: words of four bytes, each turned around."""
    raw = bytes.fromhex(text.partition(":")[0])
    whole = b"".join(raw[place : place + 4][::-1] for place in range(0, len(raw), 4))
    address = ipaddress.ip_address(whole)
    return getattr(address, "ipv4_mapped", None) or address


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--max-workers", "2"], "--max-workers is of Ray Serve; add --ray"),
        (["--models", "a=b"], "--models is of Ray Serve; add --ray"),
        (["--ray", "--reload"], "leave out --reload or --ray"),
        (["--ray", "--workers", "3", "--max-workers", "2"], "--max-workers 2 is less than --workers 3"),
        (["--ray", "--models", "a=b", "a=c"], "an id is there twice"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        main(["-m", "any", "--host", "127.0.0.1", "--port", str(free_port()), *flags])
