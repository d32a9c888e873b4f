"""Processes that share a run, and what they say of it: `--join`, `--only-models`, progress and `status`."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.mock.server import MockServer
from coeval.phases.progress import Progress, time_text
from coeval.storage.claims import Claims
from coeval.storage.meta import main_process
from coeval.storage.run import Run
from tests.coeval.commands.test_kill import ALL, TASKS, content
from tests.coeval.helpers import STATIC_TASK, coeval, ids, meta_of, model, records, run_of, write_config
from tests.warm import warm_python

KINDS = ("data_generation", "response_collection", "evaluation", "pairwise")


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer(latency=0.02) as server:
        server.redraws = False  # a run of one process and that of several get the same items
        yield server


def joined(config: Path) -> subprocess.Popen[bytes]:
    command = [warm_python(), "-m", "coeval", "run", "--config", str(config), "--join", "--log-level", "ERROR"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def wait_for(server: MockServer, requests: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until so many requests have come, or no process is left."""
    target = server.requests + requests
    while server.requests < target and any(process.poll() is None for process in processes):
        time.sleep(0.002)


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_processes_that_join_and_are_killed_make_the_records_of_one(
    tmp_path: Path, server: MockServer, kills: int
) -> None:
    tasks = TASKS if kills > 1 else [STATIC_TASK]
    models = [*(model(name, server, roles=ALL) for name in ("ant", "bee")), model("cow", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, tasks, concurrency=2)) == 0
    single = server.requests
    config = write_config(tmp_path, models, tasks, id="two", name="two.yaml", concurrency=2)
    chance, processes = random.Random(kills), [joined(config) for _ in range(3 if kills > 1 else 2)]
    try:
        for _ in range(kills):
            wait_for(server, chance.randint(1, max(2, single // kills)), processes)
            victim = chance.randrange(len(processes))
            processes[victim].send_signal(signal.SIGKILL)
            processes[victim].wait()
            processes[victim] = joined(config)
        assert [process.wait() for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert content(run_of(tmp_path, "two")) == content(run_of(tmp_path))
    for kind in KINDS:
        assert len(set(ids(run_of(tmp_path, "two"), kind))) == len(ids(run_of(tmp_path, "two"), kind))
    assert meta_of(run_of(tmp_path, "two"))["status"] == "completed"
    # No more is asked twice than was under way when a process was killed: its places and those that waited for one.
    assert server.requests <= 2 * single + kills * len(models) * (2 * 2 + 8) * len(STATIC_TASK["rubric"])


def test_whoever_joins_makes_what_others_do_not(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with Claims(run) as one, Claims(run) as other:
        left: list[int] = []
        for claims in (one, other):
            claims.begin("evaluation+ant")
        assert list(one.take("evaluation+ant", iter("abcdefghij"), str, left.append))[:8] == list("abcdefgh")
        one.settle("evaluation+ant", "a")
        assert list(other.take("evaluation+ant", iter("abcdefghijk"), str, left.append)) == ["k"]
        assert sum(left) == 10
        assert other.is_awaited("evaluation+ant")
        one.end("evaluation+ant")  # a quota stopped it, say
        assert not other.is_awaited("evaluation+ant")
        assert other.is_left("evaluation+ant")
        assert list(other.take("evaluation+ant", iter("ab"), str, left.append)) == ["b"]
    with Claims(run) as third:  # nobody is there any more: all starts anew
        third.begin("evaluation+ant")
        assert list(third.take("evaluation+ant", iter("ab"), str, left.append)) == ["a", "b"]


def test_ids_that_hold_line_ends_are_shared_too(tmp_path: Path) -> None:
    config = write_config(tmp_path, [model("ant"), model("jay", roles=["judge"])], [])
    rows = [{"id": odd, "prompt": f"What is {n}?"} for n, odd in enumerate(["a\nb", "a\u2028b", "+", "=a\r", "\ud800"])]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_of(tmp_path)
    assert coeval("ingest", "--config", config, "--dataset", tmp_path / "odd.jsonl", "--task", "sums") == 0
    assert coeval("run", "--config", run.config, "--join") == 0
    assert meta_of(run)["status"] == "completed"
    assert len(records(run, "evaluation")) == 5


def test_only_processes_that_join_share_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL)])
    with main_process(run_of(tmp_path)):
        assert coeval("run", "--config", config, "--join") == 1
    assert "start all of them with --join" in capsys.readouterr().err
    assert coeval("run", "--config", config, "--join", "--only-models", "ant") == 1
    assert "leave --only-models out" in capsys.readouterr().err


def test_a_process_for_some_models_says_what_the_run_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL), model("bee", roles=("student", "judge"))])
    assert coeval("run", "--config", config, "--only-models", "ant") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("ant done")
    assert last.endswith("the run still lacks 4 responses of bee, 4 evaluations of bee")
    assert coeval("status", "--run", run_of(tmp_path).folder) == 0
    status = capsys.readouterr().out
    assert "4 of 8 responses" in status
    assert "4 of 16 evaluations" in status
    assert coeval("run", "--config", config, "--continue", "--only-models", "bee") == 0
    assert "the run still lacks 4 evaluations of ant" in capsys.readouterr().out
    assert coeval("run", "--config", config, "--continue", "--only-models", "ant") == 0
    assert "the run lacks nothing; `--continue` marks it completed" in capsys.readouterr().out


def test_status_tells_speed_and_the_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models: list[Any] = [model("ant", roles=ALL), model("bee", roles=("student", "judge"))]
    task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 6}}
    config = write_config(tmp_path, models, [task], quota={"bee": {"max_calls": 4}})
    assert coeval("run", "--config", config) == 0
    capsys.readouterr()
    assert coeval("status", "--run", run_of(tmp_path).folder) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "responses" in line)
    assert re.search(r"10 of 12 responses in 2 files, [\d,]+ a minute, \d+ s left", line)
    assert len(records(run_of(tmp_path), "response_collection")) == 10
    with run_of(tmp_path).records("response_collection", "mail", "ant").open("a") as file:
        file.write('{"id": "x", "generated_at": "tomorrow"}\n')
    assert coeval("status", "--run", run_of(tmp_path).folder) == 0
    assert "10 of 12 responses in 2 files\n" in capsys.readouterr().out


def test_progress_weighs_phases_by_what_is_left_of_them() -> None:
    now = 0.0
    progress = Progress({"items": 100.0, "answers": 300.0}, lambda: 0.25, lambda: now)
    progress.begin("items")
    progress.expect(10)
    for _ in range(10):
        progress.advance()
    now = 30.0
    progress.begin("answers")
    progress.expect(30)
    assert (progress.share, progress.seconds_left) == (0.25, 90.0)
    for failed in (True, *[False] * 9):
        progress.advance(failed=failed)
    now = 60.0
    assert progress.line() == "answers: 10 of 30 records; run 50%, $0.2500, 60 s left, 1 failed"
    progress.close()
    assert progress.share == 1.0
    assert [time_text(seconds) for seconds in (0.2, 100, 7200, 10**6)] == ["1 s", "2 min", "2.0 h", "11.6 days"]


def test_a_bar_has_dollars_and_the_time_left_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    now = 0.0
    with os.fdopen(screen, "rb", buffering=0) as shown, os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        progress = Progress({"response_collection": 1.0}, lambda: 123.4567, lambda: now)
        progress.begin("response_collection")
        progress.expect(10_000)
        now = 600.0
        for number in range(1_000):
            progress.advance(failed=number < 20)
        progress.expect(0)  # draws it anew
        drawn = ""
        while not ("1000/10000" in drawn and drawn.endswith(" failed")):  # a busy machine hands it on in pieces
            drawn += shown.read(1 << 16).decode()
        bar = drawn.split("\r")[-1]
        progress.close()
    assert bar.startswith("response_collection |")
    assert bar.endswith("| 1000/10000, run 10%, $123.4567, 1.5 h left, 20 failed")
    assert len(bar) < 80


def test_a_plan_of_a_run_to_join_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, [model("ant", roles=ALL)])
    assert coeval("run", "--config", config, "--join", "--dry-run") == 0
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").write_text("no folder")
    assert coeval("run", "--config", config, "--join") == 1
    assert "runs" in capsys.readouterr().err
