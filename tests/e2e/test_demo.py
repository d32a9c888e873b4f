"""The demo from end to end, on too few votes to learn much: every table is there, and the commands it prints work."""

import re
from pathlib import Path

import pytest

from p2l.demo.online import forgetting, show_online
from p2l.demo.story import STREAM, VOTES, ZERO0, Shell
from tests.conftest import Command


def test_the_demo_tells_its_story_and_its_commands_can_be_repeated(command: Command, tmp_path: Path) -> None:
    done = command("python", "-m", "p2l.cli", "demo", "--votes", "500", "--output", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    closed = dict(re.findall(r"^(\S.*?)  +\d\.\d{4} +(-?\d+)%$", done.stdout, flags=re.MULTILINE))
    assert len(closed) == 5
    assert closed["one leaderboard for all prompts"] == "0"
    assert closed["the truth itself (Bayes optimum)"] == "100"
    assert done.stdout.count("rank correlation over all 12 models") == 3
    assert "THE SAME WORDS IN ANOTHER ORDER" in done.stdout
    commands = re.findall(r"^  \$ (p2l .*)$", done.stdout, flags=re.MULTILINE)
    assert [line.split()[:2] for line in commands] == [
        ["p2l", "simulate"],
        *[["p2l", "init"], ["p2l", "train"]] * 2,
        ["p2l", "auto-evals"],
        ["p2l", "explain"],
        ["p2l", "endpoint"],
        ["p2l", "simulate"],
        ["p2l", "votes"],
        ["p2l", "init"],
        *[["p2l", "online-train"], ["p2l", "eval-chrono"]] * 2,
        ["p2l", "visualize"],
        ["p2l", "leaderboard"],
    ]
    assert re.search(r"forgotten\): plain [+-]\d\.\d{3}, replay [+-]\d\.\d{3}$", done.stdout, flags=re.MULTILINE)
    assert '{"leaderboard": [{"rank": 1, "model": ' in done.stdout
    assert "stopped, after every request was answered" in done.stdout
    made = ("figures/loss/plain-heat-map.png", "report/index.html", "strengths.png")
    assert all((tmp_path / "demo" / name).is_file() for name in made)
    asked = command("bash", "-c", commands[-1])
    assert asked.returncode == 0, asked.stderr
    assert "beats the field" in asked.stdout


@pytest.mark.slow
def test_plain_training_forgets_what_replay_keeps(tmp_path: Path) -> None:
    (tmp_path / "zero0.json").write_text(ZERO0, "utf-8")
    with (tmp_path / "log").open("w") as log:
        lines = list(show_online(tmp_path, Shell(tmp_path, log).run, round(STREAM * VOTES)))
    plain, replay = forgetting(tmp_path)
    assert plain.change > 0.05
    assert replay.change < plain.change / 2
    assert any(f"plain {plain.change:+.3f}, replay {replay.change:+.3f}" in line for line in lines)
