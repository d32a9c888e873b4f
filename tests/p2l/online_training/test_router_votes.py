"""A router's votes copied into a file that only grows."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from p2l.common.errors import InputError
from p2l.online_training.router_votes import RouterVotes, is_database
from route.keep.sqlite import prepare

COLUMNS = "request_id, time, key, model_a, model_b, version_a, version_b, propensity, revision, prompt, verdict, voted"


class Router:
    """A database as routers write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.open() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            prepare(connection)

    @contextlib.contextmanager
    def open(self):  # type: ignore[no-untyped-def]
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            yield connection

    def vote(
        self, name: str, verdict: str = "first", *, at: float = 1.0, prompt: bool = True, pair: bool = True
    ) -> None:
        text = json.dumps([f"about {name}"]) if prompt else None
        row = (name, at, "ops", "ant", "bee" if pair else None, None, None, 0.5, "r", text, verdict, at)
        with self.open() as connection:
            connection.execute(f"INSERT OR REPLACE INTO votes ({COLUMNS}) VALUES ({', '.join('?' * 12)})", row)


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return Router(tmp_path / "router.sqlite")


def copied(path: Path) -> list[tuple[str, str]]:
    votes = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [(vote["question_id"], vote["winner"]) for vote in votes]


def test_votes_come_in_the_order_they_were_given(router: Router, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    votes = RouterVotes(router.path, copy)
    router.vote("late", at=9)
    router.vote("early", "tie", at=3)
    votes.gather()
    votes.gather()
    router.vote("thumbs", "up", pair=False)
    router.vote("third", "both_bad", at=1)
    votes.gather()
    assert copied(copy) == [("late", "model_a"), ("early", "tie"), ("third", "tie (bothbad)")]
    assert copy.stat().st_mode & 0o077 == 0


def test_an_answer_is_one_vote_whenever_it_is_voted_on_and_polled(router: Router, tmp_path: Path) -> None:
    """The vote that was there first counts; rows that moved (older routers moved them) are no other votes."""
    copy = tmp_path / "copy.jsonl"
    router.vote("a", at=1)
    router.vote("b", at=2)
    following = RouterVotes(router.path, copy)
    following.gather()
    for at in range(3, 28):
        router.vote("b", "second" if at % 2 else "first", at=at)
        following.gather()
    router.vote("a", "second", at=28)
    router.vote("c", at=29)
    # A run that starts again finds where it was, though nothing of what it copied is as it was.
    RouterVotes(router.path, copy).gather()
    RouterVotes(router.path, copy).gather()
    assert copied(copy) == [("a", "model_a"), ("b", "model_a"), ("c", "model_a")]


def test_the_copy_names_voters_by_pseudonyms(router: Router, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    router.vote("a")
    router.vote("b")
    RouterVotes(router.path, copy).gather()
    voters = {json.loads(line)["voter"] for line in copy.read_text(encoding="utf-8").splitlines()}
    assert len(voters) == 1
    assert b'"ops"' not in copy.read_bytes()


def test_rows_may_get_other_numbers(router: Router, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    votes = RouterVotes(router.path, copy)
    for name in "abcd":
        router.vote(name)
    votes.gather()
    with router.open() as connection:
        connection.execute("UPDATE votes SET rowid = rowid + 100")
        connection.execute("CREATE TABLE other (x)")  # as VACUUM does, it counts the schema up
    router.vote("e")
    votes.gather()
    assert [name for name, _ in copied(copy)] == list("abcde")


def test_half_a_line_of_a_killed_run_is_copied_again(router: Router, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    router.vote("a")
    router.vote("b")
    RouterVotes(router.path, copy).gather()
    os.truncate(copy, copy.stat().st_size - 30)
    RouterVotes(router.path, copy).gather()
    assert [name for name, _ in copied(copy)] == ["a", "b"]


def test_runs_share_one_copy(router: Router, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    one, two = RouterVotes(router.path, copy), RouterVotes(router.path, copy)
    for number, name in enumerate("abcde"):
        router.vote(name)
        (one, two)[number % 2].gather()
    assert [name for name, _ in copied(copy)] == list("abcde")


def test_votes_without_a_prompt_are_told_about_once(router: Router, tmp_path: Path) -> None:
    said: list[str] = []
    votes = RouterVotes(router.path, tmp_path / "copy.jsonl", said.append)
    for name in ("a", "b"):
        router.vote(name, prompt=False)
        votes.gather()
    assert len(said) == 1
    assert "left out, 1 vote without a prompt; set `store_prompts: true`" in said[0]


def test_another_database_is_refused(router: Router, tmp_path: Path) -> None:
    router.vote("a")
    copy = tmp_path / "copy.jsonl"
    RouterVotes(router.path, copy).gather()
    other = Router(tmp_path / "other.sqlite")
    other.vote("z")
    with pytest.raises(InputError, match=r"other.sqlite: holds none of the votes that were copied to .*copy.jsonl"):
        RouterVotes(other.path, copy).gather()
    with pytest.raises(InputError, match="no such file"):
        RouterVotes(tmp_path / "none.sqlite", copy)


def test_a_database_is_known_by_its_first_bytes(router: Router, tmp_path: Path) -> None:
    lines = tmp_path / "votes.jsonl"
    lines.touch()
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    assert [is_database(path) for path in (router.path, empty, lines, tmp_path / "none")] == [True, True, False, False]


def test_nothing_is_written_beside_a_database_of_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE sales (price)")
    with pytest.raises(InputError, match="no such table: votes"):
        RouterVotes(other, tmp_path / "copy.jsonl")
    assert not (tmp_path / "copy.jsonl").exists()
