"""Processes of one launch read the votes once; each test starts real ones."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.p2l.votes_helpers import save, vote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets")

ROOT = Path(__file__).parents[3]
# Prints the votes, then waits until its input ends.
READER = """
import sys
from p2l.common.errors import P2LError
from p2l.votes import open_votes_together

try:
    with open_votes_together(sys.argv[1], drop_unknown=True) as store:
        print(store.model_list, store.prompts([3]), store.labels([0, 3]).tolist(), len(store), store.weights([1]))
        print(store.fingerprint, flush=True)
        sys.stdin.read()
except P2LError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def start(path: Path, rank: int, spool: Path, *, size: int = 3, **launch: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}}
    launched = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    env = {**kept, **launched, "TMPDIR": str(spool), "PYTHONPATH": str(ROOT), **launch}
    line = [sys.executable, "-c", READER, str(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def first_lines(reader: subprocess.Popen[str]) -> list[str]:
    assert reader.stdout is not None
    return [reader.stdout.readline() for _ in range(2)]


def spools(reader: subprocess.Popen[str], folder: Path) -> set[int]:
    """Inodes of the unnamed files in `folder` that a process has open."""
    found = (entry.stat().st_ino for entry in Path(f"/proc/{reader.pid}/fd").iterdir() if str(folder) in _target(entry))
    return set(found)


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def test_one_spool_serves_all_processes_and_goes_with_them(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [vote(n) for n in range(50)]
    path, spool = save(tmp_path / "v.jsonl", rows), tmp_path / "spool"
    spool.mkdir()
    readers = [start(path, rank, spool) for rank in range(3)]
    lines = [first_lines(reader) for reader in readers]
    assert lines[0] == lines[1] == lines[2]
    assert "question 3" in lines[0][0]
    files = [spools(reader, spool) for reader in readers]
    assert len(files[0]) == 2
    assert files[0] == files[1] == files[2]
    # A launch of its own shares nothing with this one.
    other = start(path, 0, spool, MASTER_PORT="29512")
    assert first_lines(other) == lines[0]
    assert not spools(other, spool) & files[0]
    for reader in [*readers, other]:
        reader.kill()
        reader.communicate()
    assert list(spool.iterdir()) == []


def test_a_broken_file_is_told_to_every_process(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(5)] + [vote(5, winner="nobody")])
    readers = [start(path, rank, tmp_path, size=2) for rank in range(2)]
    for reader in readers:
        _, said = reader.communicate()
        assert said.startswith(("VoteError: ", "FaultyRowError: "))
        assert "v.jsonl: line 6" in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_another_process_takes_over_when_the_reading_one_is_killed(tmp_path: Path) -> None:
    line = save(tmp_path / "one.jsonl", [vote(0)]).read_text(encoding="utf-8")
    path, spool = tmp_path / "v.jsonl", tmp_path / "spool"
    path.write_text(line * 200_000, encoding="utf-8")
    spool.mkdir()
    readers = [start(path, rank, spool, size=2) for rank in range(2)]
    while not (reading := [reader for reader in readers if len(spools(reader, spool)) == 2]):
        time.sleep(0.001)
    reading[0].send_signal(signal.SIGSTOP)
    other = readers[1 - readers.index(reading[0])]
    while _waits_in(other) not in {"unix_stream_read_generic", "unix_stream_data_wait"}:
        time.sleep(0.01)
    for reader in reading:
        reader.kill()
        reader.communicate()
    first, _ = first_lines(other)
    assert "200000" in first
    other.communicate()
    assert list(spool.iterdir()) == []


def _waits_in(reader: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{reader.pid}/wchan").read_text(encoding="utf-8")


def test_a_process_that_can_open_no_more_files_leaves_the_others_to_read(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(50)])
    first = start(path, 0, tmp_path)
    lines = first_lines(first)
    limit_files(first, more=0)
    # Linux has a number ready for the first that asks.
    second, third = (start(path, rank, tmp_path) for rank in (1, 2))
    assert first_lines(second) == first_lines(third) == lines
    assert spools(first, tmp_path) != spools(second, tmp_path) or spools(first, tmp_path) != spools(third, tmp_path)
    for reader in (first, second, third):
        reader.communicate()


def test_more_files_than_a_process_may_open_are_one_line(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(50)])
    first = start(path, 0, tmp_path, size=2)
    first_lines(first)
    first.send_signal(signal.SIGSTOP)
    second = start(path, 1, tmp_path, size=2)
    while _waits_in(second) not in {"unix_stream_read_generic", "unix_stream_data_wait"}:
        time.sleep(0.01)
    limit_files(second, more=1)
    first.send_signal(signal.SIGCONT)
    _, said = second.communicate()
    assert "ulimit -n" in said
    assert said.count("\n") == 1
    first.communicate()


def limit_files(reader: subprocess.Popen[str], *, more: int) -> None:
    """Let a process open this many files beside those that it has."""
    taken = {int(entry.name) for entry in Path(f"/proc/{reader.pid}/fd").iterdir()}
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    resource.prlimit(reader.pid, resource.RLIMIT_NOFILE, (free + more, free + more))
