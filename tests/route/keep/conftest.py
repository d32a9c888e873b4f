"""The store of a test: a SQLite file, unless the test runs over several of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.route.keep import ledger_helpers
from tests.route.keep.stores import Store, a_store, why_not


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
