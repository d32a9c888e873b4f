"""Kill -9, full disks, broken files, two writers at once: what was reported as saved is there afterwards, and whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from p2l.common.errors import InputError
from p2l.votes import read_votes
from p2l.votes.lake import Lake
from route.keep.feedback import Feedback, ShownAnswer, StoredVote, Vote
from route.keep.sqlite import SqliteDatabase
from route.keep.stored_responses import NoRoomError, ResponseStore
from tests.conftest import ROOT, Command, vote_rows, write_votes
from tests.faults import MOMENTS, ended
from tests.serving_process import serving

VOTES = 30_000  # enough that a kill meets a command at work


@pytest.fixture(scope="module")
def many_votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Votes that take a command a second."""
    rows = vote_rows(300)
    many = [
        row | {"question_id": f"{row.get('question_id', '')}-{turn}"} for turn in range(VOTES // 300) for row in rows
    ]
    return write_votes(tmp_path_factory.mktemp("votes") / "many.jsonl", many)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A disk in memory, where this user may mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no disk in memory can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # lazy: a test that failed has files open


def count_of(path: Path) -> int:
    return sum(batch.batch.num_rows for batch in read_votes(path))


def started(*words: str | Path) -> subprocess.Popen[bytes]:
    code = "import sys; from p2l.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run(*words: str | Path) -> tuple[int, str]:
    process = started(*words)
    _, errors = process.communicate()
    return process.returncode, errors.decode()


def killed_at_moments(*words: str | Path) -> Iterator[None]:
    """Kill a command at random moments of the time that it takes whole, which is measured first; yield after each."""
    begun = time.monotonic()
    code, errors = run(*words)
    assert code == 0, errors
    whole = time.monotonic() - begun
    moments = random.Random(0)
    for _ in range(MOMENTS):
        process = started(*words)
        time.sleep(moments.uniform(0.3, 1.0) * whole)
        process.kill()
        process.communicate()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_kill_of_an_import_leaves_the_old_file_or_the_new_one(
    many_votes: Path, votes_file: Path, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"votes.{ending}"
    words = ("votes", "import", many_votes, "--output", output, "--quiet")
    for _ in killed_at_moments(*words):
        count = count_of(output)
        assert count in (120, VOTES)
        ended(f"kill of an import as {ending}", "old file" if count == 120 else "new file")
        assert run("votes", "import", votes_file, "--output", output, "--quiet")[0] == 0
        assert count_of(output) == 120
    assert run(*words)[0] == 0
    assert count_of(output) == VOTES
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [output.name]


@pytest.mark.slow
def test_a_kill_of_a_lake_loses_and_doubles_nothing(many_votes: Path, votes_file: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    lake = tmp_path / "lake"
    assert run("votes", "lake", votes_file, "--output", lake)[0] == 0
    for _ in killed_at_moments("votes", "lake", many_votes, "--output", scratch):
        process = started("votes", "lake", many_votes, "--output", lake)
        time.sleep(random.Random(Lake(lake).rows).uniform(0.5, 2.0))
        process.kill()
        process.communicate()
        assert Lake(lake).rows in (120, 120 + VOTES)
        assert count_of(lake) == Lake(lake).rows
        ended("kill of an import into a lake", "not there" if Lake(lake).rows == 120 else "there")
    assert run("votes", "lake", many_votes, "--output", lake)[0] == 0
    assert (Lake(lake).rows, count_of(lake)) == (120 + VOTES, 120 + VOTES)


@pytest.mark.slow
def test_two_imports_into_one_file_leave_one_of_them_whole(many_votes: Path, votes_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "votes.parquet"
    for _ in range(MOMENTS):
        both = [started("votes", "import", path, "--output", output, "--quiet") for path in (many_votes, votes_file)]
        for process in both:
            process.communicate()
        assert 0 in [process.returncode for process in both]
        count = count_of(output)
        assert count in (120, VOTES)
        ended("two imports into one file", f"whole, of {count:,} votes")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_full_disk_ends_an_import_in_one_line_and_keeps_what_was_there(
    many_votes: Path, votes_file: Path, tmp_path: Path, ending: str
) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        output = disk / f"votes.{ending}"
        assert run("votes", "import", votes_file, "--output", output, "--quiet")[0] == 0
        (disk / "filler").write_bytes(bytes(1_000_000 - output.stat().st_size))
        code, errors = run("votes", "import", many_votes, "--output", output, "--quiet")
        assert code not in (0, None)
        assert "Traceback" not in errors
        assert len(errors.strip().splitlines()) == 1
        assert count_of(output) == 120
        assert {path.name for path in disk.iterdir()} == {output.name, "filler"}


def test_stored_responses_leave_a_small_disk_to_votes(tmp_path: Path) -> None:
    """On a disk that they could fill, the last eighth takes votes and spend."""

    async def main(disk: Path) -> None:
        database = SqliteDatabase(disk / "router.sqlite")
        await database.start()
        store = ResponseStore(database, enabled=True, most_mb=1000.0)
        votes = Feedback(database)
        await votes.start()
        text = [{"type": "message", "content": "x" * 200_000}]
        kept = 0
        with contextlib.suppress(NoRoomError):
            while kept < 1000:
                await store.put("ops", {"id": f"resp-{kept}", "previous_response_id": None, "output": []}, text)
                kept += 1
        assert 10 < kept < 1000
        for number in range(300):
            name = votes.ids.new()
            votes.remember(ShownAnswer(name, "ops", ("ant", "bee"), 1.0))
            assert isinstance(await votes.vote(Vote(name, "tie"), key="ops"), StoredVote), number
        assert database.fault is None
        await votes.close()
        await database.close()

    with small_disk(tmp_path / "disk", megabytes=24) as disk:
        asyncio.run(main(disk))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_file_that_was_cut_off_is_read_whole_or_refused_in_one_line(
    votes_file: Path, tmp_path: Path, ending: str, share: float
) -> None:
    whole = tmp_path / f"whole.{ending}"
    assert run("votes", "import", votes_file, "--output", whole, "--quiet")[0] == 0
    content = whole.read_bytes()
    torn = tmp_path / f"torn.{ending}"
    kept = content[: int(len(content) * share)]
    # A line of CSV that is cut off within its last cell cannot be told from a whole one.
    torn.write_bytes(kept.rpartition(b",")[0].rpartition(b",")[0] if ending == "csv" else kept)
    with pytest.raises(InputError) as caught:
        count_of(torn)
    assert "\n" not in str(caught.value)
    assert torn.name in str(caught.value)


def test_a_commit_of_a_lake_that_was_cut_off_is_named(command: Command, votes_file: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert run("votes", "lake", votes_file, "--output", lake)[0] == 0
    commit = sorted((lake / "_commits").iterdir())[-1]
    commit.write_bytes(commit.read_bytes()[:20])
    shown = command("p2l", "leaderboard", "--votes", lake)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    assert commit.name in shown.stderr


@pytest.mark.slow
def test_keys_that_the_console_made_and_revoked_outlive_a_kill_at_once(tmp_path: Path) -> None:
    """What the router has answered with 200 holds after a kill -9 in the next moment."""
    admin = {"authorization": "Bearer key-of-the-operators"}
    config = tmp_path / "router.yaml"
    model = {"name": "s", "type": "mock", "cost": 1, "options": {"text": "hello"}}
    settings = {"model_configs": {"small": model}, "admin_key": "key-of-the-operators", "database": "route.sqlite"}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    flags = ("-c", config, "--router-type", "random", "--host", "127.0.0.1")
    kept: dict[str, str] = {}
    revoked: dict[str, str] = {}
    for moment in range(MOMENTS):
        with serving("route.openai_server", *flags, probe="/ready") as (url, process), httpx2.Client() as http:
            for name, key in [*kept.items(), *revoked.items()]:
                reply = http.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
                assert reply.status_code == (200 if name in kept else 401), name
            made = [f"key-{moment}-{number}" for number in range(4)]
            for name in made:
                reply = http.post(f"{url}/admin/keys", json={"name": name}, headers=admin)
                assert reply.status_code in (200, 201), reply.text
                kept[name] = reply.json()["key"]
            assert http.delete(f"{url}/admin/keys/{made[0]}", headers=admin).status_code in (200, 204)
            process.kill()
            process.communicate(timeout=60)
        revoked[made[0]] = kept.pop(made[0])
        ended("kill of a router behind edits of keys", "each edit held")
