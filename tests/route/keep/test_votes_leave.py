"""Votes leave a router's database, of either kind, as exports and into a lake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from p2l.commands.votes import export_votes
from p2l.commands.votes import main as votes_main
from p2l.common.errors import InputError
from p2l.votes import read_votes
from p2l.votes.lake import Lake
from route.keep.feedback import Vote
from tests.route.keep.ledger_helpers import Clock, feedback
from tests.route.keep.stores import Store, every_database
from tests.route.keep.test_outages import answer


def vote_on(path: Path, *names: str) -> None:
    async def main() -> None:
        async with feedback(path, clock=Clock(), store_prompts=True) as votes:
            for name in names:
                votes.remember(answer(name))
                await votes.vote(Vote(name, "first"), key="ops")

    asyncio.run(main())


def ids(source: Path) -> list[str]:
    return [row["question_id"] for batch in read_votes(source) for row in batch.batch.to_pylist()]


@every_database
def test_a_lake_takes_what_is_new_in_a_database(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lake = tmp_path / "router.sqlite", tmp_path / "lake"
    words = ["lake", "--database", str(store.location(path)), "--output", str(lake)]
    vote_on(path, "one", "two")
    assert votes_main(words) == 0
    assert votes_main(words) == 0
    assert "router: no new votes" in capsys.readouterr().out
    vote_on(path, "three")
    assert votes_main(words) == 0
    assert ids(lake) == ["one", "two", "three"]
    (
        lake / "_commits" / sorted(file.name for file in (lake / "_commits").iterdir())[-1]
    ).unlink()  # as a kill leaves it
    assert votes_main(words) == 0
    assert ids(lake) == ["one", "two", "three"]
    store.execute_in(path, "DELETE FROM votes")
    with pytest.raises(InputError, match="lacks the last vote"):
        votes_main(words)
    assert Lake(lake).rows == 3


@every_database
def test_votes_of_a_database_are_exported(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "router.sqlite"
    vote_on(path, "one", "two")
    done = export_votes(str(store.location(path)), tmp_path / "votes.parquet")
    assert (done.written, done.thumbs) == (2, 0)
    assert ids(tmp_path / "votes.parquet") == ["one", "two"]
