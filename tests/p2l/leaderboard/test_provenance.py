"""A leaderboard says where it comes from, and the votes give it again, digit by digit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from p2l.commands.leaderboard import main
from p2l.commands.votes import main as votes_command
from p2l.common.errors import InputError
from tests.conftest import write_votes

MODELS = ["ant", "bee", "cat", "dog"]
FLAGS = [["--likelihood", "rk"], ["--by", "topic", "--level", "0.9"], ["--over", "month"], ["--control", "side"]]


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(400):
        a, b = rng.choice(4, 2, replace=False).tolist()
        winner = "tie" if rng.random() < 0.1 else "model_a" if rng.random() < 1 / (1 + np.exp(b - a)) else "model_b"
        row = {"model_a": MODELS[a], "model_b": MODELS[b], "winner": winner, "tstamp": 1.7e9 + 20_000.0 * number}
        rows.append(row | {"topic": ["maths", "poems"][number % 2], "voter": f"v{number // 8}"})
    return write_votes(tmp_path / "votes.jsonl", rows)


def verify(page: Path, votes: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main(["--verify", str(page), "--votes", str(votes)])
    return capsys.readouterr().out


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: flags[0])
@pytest.mark.parametrize("ending", ["html", "json"])
def test_the_votes_give_the_page_again(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], ending: str
) -> None:
    page = tmp_path / f"board.{ending}"
    main(["--votes", str(votes), "--quiet", *flags, "--html" if ending == "html" else "--output", str(page)])
    capsys.readouterr()
    moved = votes.rename(tmp_path / "moved.jsonl")
    said = verify(page, moved, capsys)
    assert said.startswith(f"board.{ending}: all ")
    # Any digit that somebody changes is found.
    text = page.read_text(encoding="utf-8")
    place = text.index("ant", text.index('"models"') if ending == "json" else text.index("<tbody"))
    digit = next(at for at in range(place, len(text)) if text[at].isdigit())
    page.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :], encoding="utf-8")
    with pytest.raises(InputError, match="texts differ from what the votes give"):
        verify(page, moved, capsys)


def test_the_page_names_the_line_that_makes_it_again(votes: Path, tmp_path: Path) -> None:
    page = tmp_path / "board.html"
    main(["--votes", str(votes), "--quiet", "--likelihood", "rk", "--html", str(page)])
    text = page.read_text(encoding="utf-8")
    assert "p2l leaderboard --votes votes.jsonl --likelihood rk --html page.html" in text
    assert "p2l leaderboard --verify page.html --votes votes.jsonl" in text


def test_other_votes_and_pages_of_strangers_are_refused(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "board.json"
    main(["--votes", str(votes), "--quiet", "--output", str(page)])
    content = json.loads(page.read_text())
    other = tmp_path / "other.jsonl"
    other.write_text(votes.read_text() + votes.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match=r"is not the file that board\.json was made of"):
        verify(page, other, capsys)
    victim = tmp_path / "victim.csv"
    for flags in (["--output", str(victim)], ["--model", "x"], ["--verify", str(page)], ["--html", str(victim)]):
        content[0]["p2l-provenance"]["flags"] = flags
        page.write_text(json.dumps(content))
        with pytest.raises(InputError, match="which decides no leaderboard"):
            verify(page, votes, capsys)
    assert not victim.exists()
    for text in ("[]", "{", json.dumps([{"models": []}]), json.dumps([{"p2l-provenance": 3}])):
        page.write_text(text)
        with pytest.raises(InputError, match="does not say where it comes from"):
            verify(page, votes, capsys)
    with pytest.raises(InputError, match="goes with --votes FILE"):
        main(["--verify", str(page)])


def test_a_lake_gives_its_page_again_though_boards_keep_counts_in_it(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, page = tmp_path / "lake", tmp_path / "board.json"
    votes_command(["lake", str(votes), "--output", str(lake)])
    main(["--votes", str(lake), "--quiet", "--output", str(page)])
    assert list((lake / "_counts").iterdir())
    assert "are those that lake gives" in verify(page, lake, capsys)
