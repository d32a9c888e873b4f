"""The demo from end to end, on few of its real votes: every step is there, and the commands it prints work."""

import re
from pathlib import Path

import pytest

from p2l.common.errors import P2LError
from p2l.demo.services import running, wait_for
from p2l.model.sentence import packaged_encoder
from tests.conftest import Command


@pytest.mark.slow
@pytest.mark.skipif(packaged_encoder() is None, reason="the extra `encoder` is not installed")
def test_the_demo_shows_the_main_job_on_real_data(command: Command, tmp_path: Path) -> None:
    done = command("python", "-m", "p2l.cli", "demo", "--votes", "300", "--output", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^  \$ ((?:p2l|p2l-route) .*)$", done.stdout, flags=re.MULTILINE)
    assert [line.split()[:2] for line in commands] == [
        ["p2l", "leaderboard"],
        ["p2l", "votes"],
        ["p2l", "train"],
        ["p2l", "endpoint"],
        ["p2l-route", "serve"],
        ["p2l", "online-train"],
        ["p2l", "leaderboard"],
    ]
    assert "By the public P2L of" in done.stdout
    assert "one leaderboard for all prompts" in done.stdout
    assert len(re.findall(r"by \S+: \$\S+ an answer buys ", done.stdout)) == 2
    fields = [int(size) for size in re.findall(r"beats the field of (\d+) ", done.stdout)]
    assert fields[-1] == fields[0] + 1, "the new LLM has joined the board that is served"
    assert done.stdout.count("<- the new LLM") == 1
    asked = command("bash", "-c", commands[-1])
    assert asked.returncode == 0, asked.stderr
    assert "beats the field" in asked.stdout


def test_a_service_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    with (
        running(tmp_path, ["p2l.cli", "endpoint", "--model", "nowhere"], "log") as process,
        pytest.raises(P2LError, match=r"ended with exit code 2; .*log says why"),
    ):
        wait_for("Uvicorn running on", process, tmp_path / "log")
