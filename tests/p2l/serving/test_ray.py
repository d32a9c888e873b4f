"""An endpoint on Ray Serve: its contract, and nothing of what happens to its replicas reaches a client.

Here with one replica; `test_ray_replicas.py` runs the same with two of each of two models, and kills them.
"""

import contextlib
import ipaddress
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2l.model.checkpoint import revision_of, seal
from tests.p2l.serving import test_contract
from tests.p2l.serving.conftest import Running
from tests.p2l.serving.ray_service import (
    REDIS,
    Service,
    client_of,
    load,
    metric,
    service_on_ray,
    until,
)
from tests.processes import descendants

pytestmark = pytest.mark.slow  # to start Ray alone takes half a minute; `p2l eval --ray` is among the quick tests

# One suite over both: pytest finds the tests of the contract here too, with the fixture `shared` below. Those that send
# hundreds of made-up requests are about the service behind the front, and run beside two replicas.
_MANY = {"test_no_body_makes_the_service_fail", "test_every_answer_is_as_described"}
globals().update(
    {name: test for name, test in vars(test_contract).items() if name.startswith("test_") and name not in _MANY}
)


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service_on_ray(folder, tmp_path_factory.mktemp("published"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def shared(service: Service, folder: Path) -> Iterator[Running]:
    with client_of(service, folder) as running:
        yield running


def test_a_published_model_is_taken_over_without_a_lost_request(service: Service, other_folder: Path) -> None:
    copy = shutil.copytree(other_folder, service.published / ".copy")
    seal(copy)
    old, new = service.predict("hello").json()["revision"], revision_of(copy)
    reloads = 'p2l_reloads_total{result="done"}'
    before = metric(service, reloads)
    with load(service) as running:
        until(lambda: running.seen[old] > 20)
        copy.rename(service.published / "second")
        until(lambda: metric(service, reloads) >= before + service.workers)
        running.seen[new] = 0
        until(lambda: running.seen[new] > 50)
    assert set(running.seen) == {old, new}
    assert {service.predict(f"later {number}").json()["revision"] for number in range(20)} == {new}


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


def test_replicas_compute_with_the_priority_of_their_endpoint(service: Service) -> None:
    own = os.getpriority(os.PRIO_PROCESS, service.process.pid)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in service.replicas()} == {own}


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
