"""Answers and votes: who may vote on what, what is kept, and for how long."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2l.commands.votes import export_votes
from p2l.commands.votes import main as votes_main
from p2l.common.errors import InputError
from p2l.online_training.router_votes import RouterVotes
from p2l.votes import open_votes, read_columns
from route.keep.feedback import COLUMNS, KEPT_SECONDS, Feedback, ShownAnswer, StoredVote, Vote, VoteLimits, parse_vote
from route.keep.ledger import Refusal
from tests.route.keep.ledger_helpers import NOON, Clock, database, feedback, new_database, rows, worker
from tests.route.keep.stores import every_database

SINGLE = ShownAnswer("one", "ops", ("ant",), 0.5)
NO_VISITOR = (None, None, None)
PAIR = ShownAnswer("two", "ops", ("bee", "ant"), 0.25, ("b-1", "a-1"), "r1", ("What is a bee?", "And an ant?"))


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ({"thumbs": "up"}, "up"),
        ({"thumbs": "down", "better": None}, "down"),
        ({"better": 0}, "first"),
        ({"better": 1}, "second"),
        ({"better": "tie"}, "tie"),
        ({"better": "both_bad"}, "both_bad"),
    ],
)
def test_a_vote_is_thumbs_or_the_better_choice(body: dict[str, Any], verdict: str) -> None:
    assert parse_vote({"request_id": "r", **body}) == Vote("r", verdict)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "request_id must be"),
        ({"request_id": 7, "thumbs": "up"}, "request_id must be"),
        ({"request_id": "", "thumbs": "up"}, "request_id must be"),
        ({"request_id": "r" * 500, "thumbs": "up"}, "request_id must be"),
        ({"request_id": "\ud800", "thumbs": "up"}, "request_id must be"),
        ({"request_id": "r"}, "either thumbs or better"),
        ({"request_id": "r", "thumbs": "up", "better": 0}, "either thumbs or better"),
        ({"request_id": "r", "thumbs": "sideways"}, 'thumbs must be "up" or "down"'),
        ({"request_id": "r", "thumbs": 1}, 'thumbs must be "up" or "down"'),
        ({"request_id": "r", "better": 2}, "better must be 0 or 1"),
        ({"request_id": "r", "better": True}, "better must be 0 or 1"),
        ({"request_id": "r", "better": [0]}, "better must be 0 or 1"),
        ({"request_id": "r", "better": 0.0}, "better must be 0 or 1"),
        ({"request_id": "r", "thumb": "up"}, "unknown field 'thumb'"),
    ],
)
def test_what_is_no_vote_is_refused_in_one_line(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_vote(body)


@pytest.mark.parametrize(
    "answer",
    [
        ShownAnswer("r", "k", (), 1.0),
        ShownAnswer("r", "k", ("a", "a"), 1.0),
        ShownAnswer("r", "k", ("a", "b", "c"), 1.0),
        ShownAnswer("r", "k", ("a",), 0.0),
        ShownAnswer("r", "k", ("a",), float("nan")),
        ShownAnswer("r", "k", ("a",), 1.5),
    ],
)
def test_what_nobody_can_have_been_shown_is_refused(answer: ShownAnswer) -> None:
    with pytest.raises(ValueError, match=r"models|different|propensity"):
        Feedback(new_database()).remember(answer)


@every_database
def test_votes_are_stored_with_what_was_shown(tmp_path: Path) -> None:
    async def main() -> None:
        path, clock = tmp_path / "router.sqlite", Clock()
        async with feedback(path, clock=clock, store_prompts=True) as votes:
            votes.remember(SINGLE)
            votes.remember(PAIR)
            clock.now += 60
            assert await votes.vote(Vote("one", "up"), key="ops") == StoredVote("one", "up", ("ant",), replaced=False)
            stored = await votes.vote(Vote("two", "second"), key="ops")
            assert stored == StoredVote("two", "second", ("bee", "ant"), replaced=False)
            found = rows(
                path, f"SELECT {COLUMNS}, verdict, voted FROM votes ORDER BY request_id"
            )  # on the disk, not in memory
        assert found == [
            ("one", NOON, "ops", "ant", None, None, None, 0.5, "", None, *NO_VISITOR, "up", NOON + 60),
            (
                "two",
                NOON,
                "ops",
                "bee",
                "ant",
                "b-1",
                "a-1",
                0.25,
                "r1",
                json.dumps(PAIR.prompt),
                *NO_VISITOR,
                "second",
                NOON + 60,
            ),
        ]

    asyncio.run(main())


@every_database
def test_people_change_their_minds(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        async with feedback(path) as votes:
            votes.remember(PAIR)
            await votes.vote(Vote("two", "first"), key="ops")
            again = await votes.vote(Vote("two", "tie"), key="ops")
            assert isinstance(again, StoredVote)
            assert again.replaced
        assert rows(path, "SELECT verdict FROM votes") == [("tie",)]

    asyncio.run(main())


def test_a_vote_that_is_sent_again_is_the_same_vote(tmp_path: Path) -> None:
    """However often it is sent, changed and polled, one answer gives one vote to train on."""

    async def main() -> None:
        path, copy = tmp_path / "router.sqlite", tmp_path / "copy.jsonl"
        async with feedback(path, store_prompts=True) as votes:
            votes.remember(PAIR)
            await votes.vote(Vote("two", "first"), key="ops")
            following = RouterVotes(path, copy)
            for number in range(25):
                again = await votes.vote(Vote("two", "tie" if number > 20 else "first"), key="ops")
                assert isinstance(again, StoredVote)
                assert again.replaced == (number == 21)
                following.gather()
            assert export_votes(path, tmp_path / "votes.jsonl").written == 1
        [line] = copy.read_text(encoding="utf-8").splitlines()
        assert json.loads(line)["winner"] == "model_a"

    asyncio.run(main())


@every_database
def test_a_key_votes_as_often_a_day_as_its_setting_says(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with feedback(tmp_path / "router.sqlite", clock=clock) as votes:
            for name in "abcd":
                votes.remember(ShownAnswer(name, "ops", ("ant", "bee"), 1.0))
            votes.remember(ShownAnswer("mute", "mute", ("ant",), 1.0))
            votes.remember(ShownAnswer("free", "free", ("ant",), 1.0))
            for verdict in ("first", "first", "tie"):  # one vote, changed
                assert isinstance(
                    await votes.vote(Vote("a", verdict), key="ops", limits=VoteLimits(of_key=2)), StoredVote
                )
            assert isinstance(await votes.vote(Vote("b", "tie"), key="ops", limits=VoteLimits(of_key=2)), StoredVote)
            refusal = await votes.vote(Vote("c", "tie"), key="ops", limits=VoteLimits(of_key=2))
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
            assert refusal.retry_after == 12 * 3600
            assert isinstance(await votes.vote(Vote("mute", "up"), key="mute", limits=VoteLimits(of_key=0)), Refusal)
            assert isinstance(await votes.vote(Vote("free", "up"), key="free"), StoredVote)
            assert isinstance(
                await votes.vote(Vote("b", "first"), key="ops", limits=VoteLimits(of_key=2)), StoredVote
            )  # that one counted already
            clock.now += 12 * 3600
            assert isinstance(await votes.vote(Vote("c", "tie"), key="ops", limits=VoteLimits(of_key=2)), StoredVote)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("vote", "key", "status"),
    [
        (Vote("two", "up"), "ops", 400),
        (Vote("one", "first"), "ops", 400),
        (Vote("one", "up"), "another key", 404),
        (Vote("three", "up"), "ops", 404),
    ],
)
def test_votes_that_fit_no_answer_are_refused(vote: Vote, key: str, status: int) -> None:
    async def main() -> None:
        opened = new_database(flush_seconds=0.01)
        await opened.start()
        votes = Feedback(opened, clock=Clock())
        await votes.start()
        votes.remember(SINGLE)
        votes.remember(PAIR)
        refusal = await votes.vote(vote, key=key)
        assert isinstance(refusal, Refusal)
        assert refusal.status == status
        await opened.close()

    asyncio.run(main())


def test_prompts_are_stored_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        async with feedback(path) as votes:
            votes.remember(PAIR)
            await votes.vote(Vote("two", "first"), key="ops")
        assert rows(path, "SELECT prompt FROM votes UNION ALL SELECT prompt FROM answers") == [(None,), (None,)]
        assert not any(b"What is a bee?" in file.read_bytes() for file in tmp_path.iterdir())

    asyncio.run(main())


@every_database
def test_an_answer_is_forgotten_after_a_day_and_a_vote_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        path, clock = tmp_path / "router.sqlite", Clock()
        async with database(path) as opened:
            opened.flush_seconds = 0.01
            votes = Feedback(opened, store_prompts=True, clock=clock)
            await votes.start()
            votes.remember(SINGLE)
            votes.remember(PAIR)
            await votes.vote(Vote("two", "first"), key="ops")
            clock.now += KEPT_SECONDS + 1
            for late in ("one", "two"):
                refusal = await votes.vote(Vote(late, "up"), key="ops")
                assert isinstance(refusal, Refusal)
                assert refusal.status == 404
            votes.remember(ShownAnswer("new", "ops", ("ant",), 1.0))
            await opened.flush()
        assert rows(path, "SELECT request_id FROM answers") == [("new",)]
        assert rows(path, "SELECT request_id FROM votes") == [("two",)]

    asyncio.run(main())


@every_database
def test_a_vote_may_reach_another_worker_than_the_one_that_answered(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        here, there = new_database(path, flush_seconds=0.05), new_database(path, flush_seconds=0.05)
        await here.start()
        await there.start()
        shown, voted = Feedback(here), Feedback(there)
        await shown.start()
        await voted.start()
        pair = replace(PAIR, request_id=shown.ids.new())
        shown.remember(pair)
        assert isinstance(await voted.vote(Vote(pair.request_id, "tie"), key="ops"), StoredVote)
        await here.close()
        await there.close()

    asyncio.run(main())


def test_a_vote_that_cannot_be_written_is_not_taken() -> None:
    async def main() -> None:
        async with feedback() as votes:
            votes.remember(PAIR)
            database_of = votes._database
            await database_of.run(lambda connection: connection.execute("ALTER TABLE votes RENAME TO away"))
            refusal = await votes.vote(Vote("two", "tie"), key="ops")
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.retry_after) == (503, 5.0)
            await database_of.run(lambda connection: connection.execute("ALTER TABLE away RENAME TO votes"))
            assert isinstance(await votes.vote(Vote("two", "tie"), key="ops"), StoredVote)

    asyncio.run(main())


def test_the_votes_of_people_become_training_data(tmp_path: Path) -> None:
    """From the answers that were shown to a file that `p2l votes check` finds fit, and the readers of training read."""

    async def main() -> None:
        async with feedback(tmp_path / "router.sqlite", store_prompts=True) as votes:
            for number, verdict in enumerate(["first", "second", "tie", "both_bad"]):
                name = f"r{number}"
                prompt = (f"Question {number}?", "Sure \ud800?", "")
                votes.remember(ShownAnswer(name, "ops", ("ant", "bee"), 1 + 1e-12, ("", "b-1"), "r1", prompt))
                await votes.vote(Vote(name, verdict), key="ops")
            votes.remember(ShownAnswer("none", "ops", ("ant", "bee"), 0.5, prompt=()))
            await votes.vote(Vote("none", "tie"), key="ops")
            # While the router goes on:
            done = export_votes(tmp_path / "router.sqlite", tmp_path / "votes.parquet")
            assert (done.written, done.without_prompt) == (4, 1)

    asyncio.run(main())
    assert votes_main(["check", str(tmp_path / "votes.parquet"), "--quiet"]) == 0
    with open_votes(tmp_path / "votes.parquet") as store:
        assert len(store) == 4
    columns = read_columns(tmp_path / "votes.parquet", ["model_a", "model_b", "winner", "propensity", "model_version"])
    assert columns["winner"].to_pylist() == ["model_a", "model_b", "tie", "tie (bothbad)"]
    assert columns["propensity"].to_pylist() == [1.0] * 4
    assert columns["model_version"].to_pylist() == [[None, "b-1"]] * 4


def test_answers_that_a_full_disk_keeps_in_memory_are_not_denied(tmp_path: Path) -> None:
    async def main() -> None:
        async with feedback(tmp_path / "router.sqlite", store_prompts=True) as votes:
            pages = await votes._database.run(lambda one: one.execute("PRAGMA page_count").fetchone()[0])
            await votes._database.read(lambda one: one.execute(f"PRAGMA max_page_count = {pages}"))
            votes.remember(ShownAnswer("two", "ops", ("bee", "ant"), 0.25, prompt=("long " * 10_000,)))
            refusal = await votes.vote(Vote("two", "tie"), key="ops")
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.retry_after) == (503, 5.0)
            await votes._database.read(lambda one: one.execute("PRAGMA max_page_count = 1000000"))
            assert isinstance(await votes.vote(Vote("two", "tie"), key="ops"), StoredVote)

    asyncio.run(main())


FULL = """
import asyncio, resource, sys
from pathlib import Path
from route.keep.location import open_database
from route.keep.feedback import Feedback, Vote

async def main():
    database = open_database(sys.argv[1])
    await database.start()
    feedback = Feedback(database)
    await feedback.start()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    refusal = await feedback.vote(Vote(feedback.ids.new(), "tie"), key="ops")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    print(refusal.status, flush=True)

asyncio.run(main())
"""


def test_a_worker_on_a_full_disk_does_not_deny_answers_of_other_workers(tmp_path: Path) -> None:
    with worker(FULL, tmp_path / "router.sqlite") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "503\n"


def test_a_vote_waits_for_an_answer_that_a_busy_worker_writes_late(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        async with feedback(path) as busy:
            single = replace(SINGLE, request_id=busy.ids.new())

            async def answer_late() -> None:
                await asyncio.sleep(0.5)
                busy.remember(single)
                await busy._database.flush()

            opened = new_database(path, flush_seconds=0.1)
            await opened.start()
            other, late = Feedback(opened, clock=Clock()), asyncio.ensure_future(answer_late())
            await other.start()
            stored = await other.vote(Vote(single.request_id, "up"), key="ops")
            assert isinstance(stored, StoredVote)
            assert stored.models == ("ant",)
            await late
            await other.close()
            await opened.close()

    asyncio.run(main())


VOTING = """
import asyncio, itertools, sys
from pathlib import Path
from route.keep.location import open_database
from route.keep.feedback import Feedback, ShownAnswer, Vote

async def main():
    database = open_database(sys.argv[1])
    await database.start()
    feedback = Feedback(database)
    await feedback.start()
    for number in itertools.count():
        feedback.remember(ShownAnswer(str(number), "ops", ("ant", "bee"), 1.0))
        await feedback.vote(Vote(str(number), "tie"), key="ops")
        print(number, flush=True)

asyncio.run(main())
"""


@every_database
def test_a_vote_that_was_answered_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "router.sqlite"
    with worker(VOTING, path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.kill()
        lines += process.stdout.readlines()
    answered = {int(line) for line in lines if line.endswith("\n")}
    stored = {int(number) for (number,) in rows(path, "SELECT request_id FROM votes")}
    assert answered <= stored
    assert len(stored - answered) <= 1


def test_answers_that_cannot_be_written_do_not_fill_the_memory(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        opened = new_database(path)
        await opened.start()
        votes = Feedback(opened, clock=Clock())
        await votes.start()
        for number in range(250_000):
            votes.remember(ShownAnswer(str(number), "ops", ("ant",), 1.0))
        await opened.close()
        [(count, newest)] = rows(path, "SELECT count(*), max(CAST(request_id AS INTEGER)) FROM answers")
        assert count < 250_000
        assert newest == 249_999

    asyncio.run(main())
