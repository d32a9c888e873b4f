"""A clock that is set back an hour, and forward a month, beneath a router that runs: nothing stored is lost.

It takes the library `libfaketime` (`pip install libfaketime`, or Debian's package); P2L_FAKETIME names its file.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from httpx2 import Client

from p2l.votes import read_votes
from tests.conftest import Command
from tests.e2e.test_router import HELLO, SMALL, a_process, client, write

HOUR, MONTH = 3600, 31 * 86_400
FLAGS = ("--router-type", "random", "--host", "127.0.0.1")


def library() -> str | None:
    """The file of libfaketime, where there is one."""
    found = importlib.util.find_spec("libfaketime")
    folders = [Path("/usr/lib/x86_64-linux-gnu/faketime"), Path("/usr/lib/aarch64-linux-gnu/faketime")]
    if found is not None and found.origin is not None:
        folders.append(Path(found.origin).parent)
    files = [path for folder in folders for path in folder.rglob("libfaketime.so.1")]
    named = os.environ.get("P2L_FAKETIME")
    return named or (str(files[0]) if files else None)


@pytest.fixture
def clock(tmp_path: Path) -> tuple[dict[str, str], Any]:
    """The environment of a process with a clock of its own, and what sets it so many seconds off."""
    preloaded = library()
    if preloaded is None:
        pytest.skip("needs `pip install libfaketime`")
    file = tmp_path / "offset"

    def move(seconds: int) -> None:
        file.write_text(f"{seconds:+d}s\n", encoding="utf-8")

    file.write_text("+0s\n", encoding="utf-8")
    return (
        {
            "LD_PRELOAD": preloaded,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
        move,
    )


def wait_for_clock(http: Client, url: str, offset: int) -> None:
    """Until the router's clock is so many seconds off: the id of a request says when it was made."""
    while True:
        refused = http.post(f"{url}/v1/chat/completions", json={}, headers={"authorization": "Bearer k"})
        request_id = refused.headers["x-request-id"]
        if abs(int(request_id[4:12], 16) - time.time() - offset) < 20:
            return
        time.sleep(0.1)


def asked_and_voted(asked: openai.OpenAI, http: Client, url: str) -> str:
    """A request with two answers and the vote on it, which is stored; the request's id."""
    both = asked.chat.completions.create(model="-", messages=HELLO, extra_body={"compare": True})
    headers = {"authorization": "Bearer k"}
    vote = {"request_id": both.id, "better": 0}
    for _ in range(2):  # the second time as a client that did not hear the first reply
        reply = http.post(f"{url}/v1/feedback", json=vote, headers=headers)
        assert reply.status_code == 200, reply.text
    return both.id


@pytest.mark.slow
def test_votes_and_spend_outlive_a_clock_that_jumps(tmp_path: Path, clock: Any, command: Command) -> None:
    environment, move = clock
    keys = [{"key": "k", "name": "app", "spend_per_day": 1000}]
    settings = {"keys": keys, "database": "route.sqlite", "store_prompts": True}
    config = write(tmp_path, {"small": SMALL, "other": SMALL}, **settings)
    voted = []
    with a_process(config, *FLAGS, **environment) as (url, process), client(url) as asked, Client() as http:
        for offset in (0, -HOUR, 0, MONTH, 0):
            move(offset)
            voted.append(asked_and_voted(asked, http, url))
            assert http.get(f"{url}/ready").status_code == 200
        process.kill()
        process.communicate(timeout=60)
    votes = tmp_path / "votes.parquet"
    done = command("p2l", "export-votes", "--database", tmp_path / "route.sqlite", "--output", votes)
    assert done.returncode == 0, done.stderr
    stored = [request for batch in read_votes(votes) for request in batch.batch.column("question_id").to_pylist()]
    assert sorted(stored) == sorted(voted)


@pytest.mark.slow
def test_a_limit_of_a_day_holds_when_the_clock_is_set_back(tmp_path: Path, clock: Any) -> None:
    environment, move = clock
    keys = [{"key": "k", "name": "app", "spend_per_day": 3}]
    config = write(tmp_path, {"small": SMALL}, keys=keys, database="route.sqlite")
    with a_process(config, *FLAGS, **environment) as (url, _), client(url) as asked, Client() as http:
        for offset in (0, -60, 0):
            move(offset)
            wait_for_clock(http, url, offset)
            asked.chat.completions.create(model="-", messages=HELLO)
        for offset in (0, -60):
            move(offset)
            wait_for_clock(http, url, offset)
            with pytest.raises(openai.RateLimitError):
                asked.chat.completions.create(model="-", messages=HELLO)
        move(86_400)  # the next day, on which all of it may be spent
        wait_for_clock(http, url, 86_400)
        for _ in range(3):
            asked.chat.completions.create(model="-", messages=HELLO)
