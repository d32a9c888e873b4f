"""The tests of `test_ray.py` and the whole contract over two replicas of each model, which are killed too."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from p2l.model.checkpoint import revision_of
from tests.p2l.serving import test_contract, test_ray
from tests.p2l.serving.conftest import Running
from tests.p2l.serving.ray_service import Service, client_of, load, service_on_ray, until

pytestmark = pytest.mark.slow

globals().update(
    {
        name: test
        for module in (test_contract, test_ray)
        for name, test in vars(module).items()
        if name.startswith("test_")
    }
)


@pytest.fixture(scope="module")
def service(folder: Path, other_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    more = ("--models", f"other={other_folder}")
    with service_on_ray(folder, tmp_path_factory.mktemp("published"), 2, *more) as running:
        yield running


@pytest.fixture(scope="module")
def shared(service: Service, folder: Path) -> Iterator[Running]:
    with client_of(service, folder) as running:
        yield running


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


def test_a_model_has_its_id_in_the_path(service: Service, other_folder: Path) -> None:
    assert service.predict("hello", model="/m/other").json()["revision"] == revision_of(other_folder)
    assert httpx2.get(f"{service.url}/m/other/health", timeout=60).status_code == 200
    assert httpx2.get(f"{service.url}/m/other/models", timeout=60).status_code == 403
    assert service.predict("hello", model="/m/nobody").status_code == 404
