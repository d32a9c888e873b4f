"""The store of a test: a SQLite file, unless the test runs over several of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.route.keep import ledger_helpers
from tests.route.keep.stores import Store, a_store, why_not
from tools.services import Servers, ServiceError


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Where this test's databases and limits are."""
    kind = getattr(request, "param", "sqlite")
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    with a_store(kind) as opened:
        monkeypatch.setattr(ledger_helpers, "STORE", opened)
        yield opened


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers of these tests alone, which they kill."""
    pytest.importorskip("psycopg", reason="needs `pip install 'p2l[replicas]'`")
    with tempfile.TemporaryDirectory() as folder:  # of pytest's own, another user may enter none
        started = Servers(Path(folder) / "servers")
        try:
            started.start()
        except ServiceError as error:
            pytest.skip(f"no PostgreSQL and Redis of its own can be started: {error}")
        yield started
        started.stop()


@pytest.fixture
def alive(servers: Servers) -> Iterator[Servers]:
    """The same, with both of them running at the end."""
    yield servers
    if servers.redis is None or servers.redis.poll() is not None:
        servers.start_redis()
    try:
        open_once(servers.postgres_url)
    except Exception:
        servers.start_postgres()


def open_once(url: str) -> None:
    import psycopg

    psycopg.connect(url, connect_timeout=2).close()
