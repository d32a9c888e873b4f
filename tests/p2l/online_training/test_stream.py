"""A data set as a stream: its order, its models by first appearance, and what tells it from another."""

from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import VoteError
from p2l.online_training.schedule import StreamFingerprint
from p2l.online_training.stream import in_time_order
from p2l.votes import VoteStore, open_votes
from tests.conftest import write_votes
from tests.p2l.online_training.online_helpers import ORDER, stream_rows


def stream(path: Path, rows: list[dict[str, object]], order: str = "time", known: tuple[str, ...] = ()) -> VoteStore:
    return in_time_order(open_votes(write_votes(path, rows)), order, known)


def test_models_are_numbered_by_first_appearance_after_those_that_are_known(tmp_path: Path) -> None:
    rows = stream_rows(60)
    with stream(tmp_path / "a.jsonl", rows) as votes:
        assert votes.model_list == list(ORDER)
    with stream(tmp_path / "b.jsonl", rows, known=("dog", "gnu")) as votes:
        assert votes.model_list == ["dog", "gnu", "bee", "ant", "cat"]
        names = [[votes.model_list[place] for place in pair] for pair in votes.pairs()]
        assert names == [[row["model_a"], row["model_b"]] for row in rows]
        with pytest.raises(ValueError, match="lacks"):
            votes.relist(["dog"])


def test_sorting_is_by_time_and_leaves_equal_times_as_they_stand(tmp_path: Path) -> None:
    rows = [row | {"tstamp": float(number // 4)} for number, row in enumerate(stream_rows(40))]
    mixed = sorted(rows, key=lambda row: str(row["prompt"]))
    found = stream(tmp_path / "mixed.jsonl", mixed, "sort")
    wanted = sorted(mixed, key=lambda row: float(str(row["tstamp"])))
    with found:
        assert [turns[0] for turns in found.prompts()] == [row["prompt"] for row in wanted]
        times = found.tstamps(np.arange(len(found)))
        assert times is not None
        assert list(times) == [row["tstamp"] for row in wanted]
        assert len(found.labels(np.array([5, 3]))) == 2
    given = stream(tmp_path / "given.jsonl", mixed, "given")
    with given:
        assert [turns[0] for turns in given.prompts()] == [row["prompt"] for row in mixed]
    with pytest.raises(VoteError, match=r"vote \d+ is older than the one before it"):
        stream(tmp_path / "bad.jsonl", mixed)


def test_a_fingerprint_tells_the_first_votes_whatever_follows_them(tmp_path: Path) -> None:
    rows = stream_rows(60)
    more = stream(tmp_path / "more.jsonl", rows)
    less = stream(tmp_path / "less.jsonl", rows[:40])
    with more, less:
        wanted = StreamFingerprint(less).of_first(40)
        assert StreamFingerprint(more).of_first(40) == wanted
        grown = StreamFingerprint(more)
        assert grown.of_first(7) != wanted
        assert grown.of_first(40) == wanted
        assert grown.of_first(60) != wanted
        assert grown.of_first(40) == wanted
    for key, value in (("winner", "tie (bothbad)"), ("tstamp", 1391.0), ("prompt", "else"), ("model_b", "gnu")):
        changed = [*rows[:39], {**rows[39], key: value}]
        with (other := stream(tmp_path / f"{key}.jsonl", changed)):
            assert StreamFingerprint(other).of_first(40) != wanted


def test_votes_among_some_models_are_a_store_of_their_own(tmp_path: Path) -> None:
    rows = stream_rows(60)
    with open_votes(write_votes(tmp_path / "a.jsonl", rows)) as votes:
        some = votes.among(["bee", "emu", "ant"])
        assert some is not None
        kept = [row for row in rows if {row["model_a"], row["model_b"]} <= {"bee", "ant"}]
        assert [turns[0] for turns in some.prompts()] == [row["prompt"] for row in kept]
        assert set(some.labels()[:, :2].ravel()) == {0, 2}
        assert some.dropped == 60 - len(kept)
        assert votes.among(["emu"]) is None
        assert len(votes) == 60
