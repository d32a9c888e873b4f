"""A SQLite file moves to PostgreSQL whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2l.common.errors import ConfigError, InputError
from route.keep.feedback import Vote
from route.keep.ledger import key_record
from route.keep.stored_keys import add_key
from route.migrate import main
from tests.route.keep import ledger_helpers
from tests.route.keep.ledger_helpers import Clock, database, feedback, ledger, spend
from tests.route.keep.stores import Store, a_store, why_not
from tests.route.keep.test_outages import answer

TARGET = Path("target")


@pytest.fixture
def target() -> Iterator[Store]:
    """An empty schema."""
    reason = why_not("postgres")
    if reason is not None:
        pytest.skip(reason)
    with a_store("postgres") as store:
        yield store


def filled(path: Path) -> Path:
    """A file with votes, spend and a key."""

    async def fill() -> None:
        async with feedback(path, clock=Clock(), store_prompts=True) as votes:
            for name in ("one", "two"):
                votes.remember(answer(name))
                await votes.vote(Vote(name, "first"), key="ops")
        async with ledger(key_record("k", name="ops"), path=path) as accounts:
            await spend(accounts, key_record("k", name="ops"), "m", 1.5, prompt_tokens=1, completion_tokens=2)
        async with database(path) as opened:
            await opened.run(lambda connection: add_key(connection, "app", {"spend_per_day": 5.0}, now=1.0))

    asyncio.run(fill())
    return path


def configuration(folder: Path, location: str) -> str:
    path = folder / "router.yaml"
    path.write_text(f"database: {location}\n", encoding="utf-8")
    return str(path)


def test_everything_moves_and_a_second_time_is_refused(
    tmp_path: Path, target: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    source = filled(tmp_path / "router.sqlite")
    config = configuration(tmp_path, str(target.location(TARGET)))
    assert main(["--from", str(source), "--config", config]) is None
    counts = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (counts["votes"], counts["keys"], counts["usage"], counts["spend"]) == ("2", "1", "1", "1")
    for query in (
        "SELECT request_id, time, key, prompt, verdict FROM votes ORDER BY request_id",
        "SELECT * FROM usage",
        "SELECT name, digest, limits FROM keys",
        "SELECT secret FROM voters",
        "SELECT number FROM changes",
    ):
        assert target.rows(TARGET, query) == ledger_helpers.rows(source, query), query
    with pytest.raises(InputError, match="votes has rows already"):
        main(["--from", str(source), "--config", config])


def test_what_cannot_be_moved_is_one_line(tmp_path: Path, target: Store) -> None:
    config = configuration(tmp_path, str(target.location(TARGET)))
    with pytest.raises(InputError, match="no such file"):
        main(["--from", str(tmp_path / "none.sqlite"), "--config", config])
    (tmp_path / "other.sqlite").write_text("no database " * 100, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as the database of a router"):
        main(["--from", str(tmp_path / "other.sqlite"), "--config", config])
    with pytest.raises(ConfigError, match="must be the postgresql:// URL"):
        main(["--from", "router.sqlite", "--config", configuration(tmp_path, "router.sqlite")])
