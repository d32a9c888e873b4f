"""Votes that come while they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import VoteError
from p2l.online_training.live_votes import LiveVotes, StopRequestedError, Waiting, is_held_out
from p2l.votes import open_votes
from tests.p2l.online_training.live_helpers import add, line, live, seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return add(tmp_path / "votes.jsonl", [])


def test_votes_are_those_that_a_data_set_has(path: Path) -> None:
    times = [f"2026-01-0{day}T03:04:05" for day in (1, 2, 3)]
    add(path, [line(0, prompt=["Ünï \U0001f41d", "two"], weight=1, tstamp=times[0])])
    add(path, [line(3, weight=2, tstamp=times[1]), line(2, weight=0.5, tstamp=times[2])])
    votes, said = live(path)
    assert votes.wait_for(4) == 3
    with open_votes(path, model_list=votes.model_list) as store:
        assert votes.prompts([2, 0]) == store.prompts([2, 0])
        assert votes.labels().tolist() == store.labels().tolist()
        assert votes.weights([1, 0]).tolist() == [2, 1]
        assert votes.tstamps().tolist() == np.asarray(store.tstamps()).tolist()
    assert votes.model_list == ["ant", "bee", "dog", "cat"]
    assert votes.pairs().tolist() == [[0, 1], [2, 0], [3, 2]]
    assert said == []


def test_a_vote_is_given_out_when_its_line_has_an_end(path: Path) -> None:
    votes, said = live(path)
    whole = line(7) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line(1) + "\n" + whole[:20])
        file.flush()
        assert votes.wait_for(2) == 1
        assert said == [f"warning: {path}: its last line has no end and was left out"]
        file.write(whole[20:])
        file.flush()
        assert votes.wait_for(2) == 2
    assert seen(votes) == ["question 1", "question 7"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**20))
def test_the_stream_does_not_depend_on_how_it_comes(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    # Faulty lines, blank ones and held-out prompts stand between the votes, and so do names that are new.
    rng = np.random.default_rng(seed)
    kinds = [
        line(n, model_a=f"m{rng.integers(9)}")
        if rng.random() < 0.7
        else rng.choice(["", "{", "[]", line(n, winner="x")])
        for n in range(sum(cuts))
    ]
    whole, _ = live(add(tmp_path_factory.mktemp("whole") / "votes.jsonl", kinds), held_share=0.3)
    whole.wait_for(10**6)
    growing = add(tmp_path_factory.mktemp("cut") / "votes.jsonl", [])
    parts, _ = live(growing, held_share=0.3)
    for cut in cuts:
        add(growing, kinds[:cut])
        kinds = kinds[cut:]
        parts.wait_for(10**6)
    for ours, theirs in ((parts, whole), (parts.held, whole.held)):
        assert ours.prompts() == theirs.prompts()
        assert ours.model_list == theirs.model_list
        assert ours.labels().tolist() == theirs.labels().tolist()
    assert parts.bad_lines == whole.bad_lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a list"),
        (line(1, winner="ant"), "unknown winner 'ant'"),
        (line(1, winner=None), "winner is missing"),
        (line(1, model_a="cat"), "both 'cat'"),
        (line(1, model_a=" "), "model_a has no name"),
        (line(1, model_a=3), "model_a must be text, not 3"),
        (line(1, prompt=None), "prompt is missing"),
        (line(1, prompt=[]), "prompt must be"),
        (line(1, prompt=["a", None]), "prompt must be"),
        (line(1, prompt="\ud800"), "surrogate"),
        (line(1, weight=-1), "weight is -1"),
        (line(1, weight=True), "weight is True"),
        (line(1, tstamp="tomorrow"), "tstamp is 'tomorrow'"),
    ],
)
def test_a_line_that_is_no_vote_is_left_out_and_told_about_once(path: Path, text: str, says: str) -> None:
    add(path, [line(0), text, text, line(2)])
    votes, said = live(path)
    assert votes.wait_for(4) == 2
    assert votes.bad_lines == 2
    assert len(said) == 1
    assert said[0].startswith(f"warning: {path}: line 2: ")
    assert says in said[0]


def test_no_prompt_is_in_both_parts(path: Path) -> None:
    add(path, [line(n, prompt=f"question {n % 300}") for n in range(900)])
    votes, _ = live(path, held_share=0.1)
    there = votes.wait_for(1000)
    kept, held = set(seen(votes)), {prompt[0] for prompt in votes.held.prompts()}
    assert there + len(votes.held) == 900
    assert len(votes.held) == 3 * len(held)
    assert not kept & held
    assert 10 < len(held) < 60
    assert held == {text for text in kept | held if is_held_out([text], 0.1)}
    # Where each stood in the stream is known: those before the first hundred votes to train on, say.
    before = votes.held.up_to(100)
    assert before == sum(is_held_out([f"question {n}"], 0.1) for n in range(100 + before))


def test_models_of_the_run_come_first(path: Path) -> None:
    add(path, [line(0), line(5)])
    votes, _ = live(path, model_list=["zoo", "cat"])
    votes.wait_for(2)
    assert votes.model_list == ["zoo", "cat", "ant", "bee"]


@pytest.mark.parametrize("how", ["cut short", "replaced", "gone"])
def test_a_file_that_is_another_one_now_ends_the_run(path: Path, how: str) -> None:
    add(path, [line(n) for n in range(5)])
    votes, _ = live(path)
    votes.wait_for(5)
    if how == "cut short":
        os.truncate(path, 10)
    elif how == "replaced":
        other = add(path.with_name("other"), [line(n) for n in range(9)])
        other.replace(path)
    else:
        path.unlink()
    with pytest.raises(VoteError, match=f"votes.jsonl: (was|is) {how}"):
        votes.wait_for(6)


def test_a_line_that_was_changed_is_told(path: Path) -> None:
    add(path, [line(1)])
    votes, _ = live(path)
    votes.wait_for(1)
    path.write_bytes(b"#" * path.stat().st_size)
    with pytest.raises(VoteError, match="was changed at byte 0"):
        votes.prompts([0])


def test_a_file_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(VoteError, match="cannot be followed: No such file or directory; create it empty"):
        LiveVotes(tmp_path / "votes.jsonl")


def test_what_lines_are_not_appended_to_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(VoteError, match="it is not a file; name a JSONL file"):
        live(tmp_path)
    table = tmp_path / "votes.parquet"
    table.write_bytes(b"PAR1\x15")
    with pytest.raises(VoteError, match=r"Parquet does not grow.*train_data_path"):
        live(table)


def test_nobody_waits_for_votes_that_were_there_before(path: Path) -> None:
    add(path, [line(n) for n in range(5)])
    votes = LiveVotes(path, at_least=7, waiting=Waiting(poll_seconds=60))
    assert votes.wait_for(7) == 5


def test_a_signal_ends_the_wait(path: Path) -> None:
    waiting = Waiting(poll_seconds=60)
    votes = LiveVotes(path, waiting=waiting)
    waiting.stop.set()
    with pytest.raises(StopRequestedError):
        votes.wait_for(1)


def test_a_long_line_is_one_vote(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.online_training.live_votes._BLOCK_BYTES", 64)
    add(path, [line(0), line(1, prompt="long " * 500), line(2)])
    votes, _ = live(path)
    assert votes.wait_for(9) == 3
    assert votes.prompts([1]) == [["long " * 500]]
    assert json.loads(line(2))["prompt"] == seen(votes)[2]
