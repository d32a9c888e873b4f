"""What is measured before settings are derived: outcomes, weights, prompts, memory."""

from pathlib import Path

import pytest

from p2l.common.errors import VoteError
from p2l.training.forecasts import check_counted
from p2l.training.planning import count_ties, measure_machine, memory_limits, one_prompt_only
from p2l.votes import open_votes
from tests.conftest import vote_rows, write_votes


def test_outcomes_are_counted(tmp_path: Path) -> None:
    with open_votes(str(write_votes(tmp_path / "votes.jsonl", vote_rows(140)))) as votes:
        assert count_ties(votes) == (10, 10)
        assert not one_prompt_only(votes)


def test_one_prompt_is_seen(tmp_path: Path) -> None:
    rows = [row | {"prompt": "hi"} for row in vote_rows(20)]
    with open_votes(str(write_votes(tmp_path / "votes.jsonl", rows))) as votes:
        assert one_prompt_only(votes)


def test_votes_that_the_loss_leaves_out_are_refused(tmp_path: Path) -> None:
    ties = [row | {"winner": "tie"} for row in vote_rows(20)]
    with open_votes(str(write_votes(tmp_path / "ties.jsonl", ties))) as votes:
        check_counted(votes, "rk")
        with pytest.raises(VoteError, match=r"ties\.jsonl: holds ties alone, which loss_type 'bt' leaves out$"):
            check_counted(votes, "bt")


def test_votes_without_weight_are_refused_when_weights_count(tmp_path: Path) -> None:
    rows = [row | {"weight": 0.0} for row in vote_rows(20)]
    with open_votes(str(write_votes(tmp_path / "votes.jsonl", rows))) as votes:
        check_counted(votes, "grk")
        with pytest.raises(VoteError, match="of weight zero"):
            check_counted(votes, "grk", weighted=True)
    rows[7] = rows[7] | {"weight": 2.0, "winner": "model_a"}
    with open_votes(str(write_votes(tmp_path / "one.jsonl", rows))) as votes:
        check_counted(votes, "bt", weighted=True)


def test_the_memory_of_a_container_is_that_of_its_tightest_limit(tmp_path: Path) -> None:
    assert memory_limits(tmp_path) == []
    groups = tmp_path / "sys/fs/cgroup"
    (groups / "outer/inner").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("12:cpu:/x\n0::/outer/inner\n")
    (groups / "outer/memory.max").write_text("3000\n")
    (groups / "outer/inner/memory.max").write_text("max\n")
    assert memory_limits(tmp_path) == [3000]
    (groups / "memory").mkdir()
    (groups / "memory/memory.limit_in_bytes").write_text("2000\n")
    assert sorted(memory_limits(tmp_path)) == [2000, 3000]


def test_processes_share_the_memory_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measure_machine()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    shared = measure_machine()
    assert shared.processes == 4
    if not alone.gpu:
        assert shared.memory == alone.memory // 2
