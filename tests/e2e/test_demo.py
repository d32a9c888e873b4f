"""The demo from end to end, on too few votes to learn much: every table is there, and the commands it prints work."""

import re
from pathlib import Path

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
        ["p2l", "train"],
        ["p2l", "init"],
        ["p2l", "train"],
        ["p2l", "auto-evals"],
        ["p2l", "explain"],
        ["p2l", "endpoint"],
        ["p2l", "init"],
        ["p2l", "online-train"],
        ["p2l", "votes"],
        ["p2l", "eval-chrono"],
        ["p2l", "visualize"],
        ["p2l", "leaderboard"],
    ]
    assert '{"leaderboard": [{"rank": 1, "model": ' in done.stdout
    assert "stopped, after every request was answered" in done.stdout
    made = ("figures/loss/online-heat-map.png", "report/index.html", "strengths.png")
    assert all((tmp_path / "demo" / name).is_file() for name in made)
    asked = command("bash", "-c", commands[-1])
    assert asked.returncode == 0, asked.stderr
    assert "beats the field" in asked.stdout
