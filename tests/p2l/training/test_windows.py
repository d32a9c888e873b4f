from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.commands.votes import main as vote_files
from p2l.model.encoding import PromptTokenizer
from p2l.model.tokenizer import load_tokenizer
from p2l.training.trainer import Windows, deal
from p2l.votes import VoteStore, open_votes, open_votes_together
from tests.conftest import write_votes


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoteStore]:
    rows = [
        {"prompt": f"prompt {number % 7} " + "word " * (number % 7) ** 2, "model_a": "ant", "model_b": "bee"}
        | {"winner": "model_a"}
        for number in range(40)
    ]
    with open_votes(str(write_votes(tmp_path_factory.mktemp("windows") / "votes.jsonl", rows))) as store:
        yield store


@pytest.fixture(scope="module")
def tokenizer(backbone: Path) -> PromptTokenizer:
    return load_tokenizer(backbone, max_length=64)


def test_every_vote_of_a_window_is_in_one_micro_batch(votes: VoteStore, tokenizer: PromptTokenizer) -> None:
    for world_size in (1, 2, 3):
        ids = np.arange(3, 40)
        ranks = [Windows(tokenizer, votes, True, 100, rank, world_size).read(ids) for rank in range(world_size)]
        taken = np.concatenate([part.votes for parts in ranks for part in parts])
        assert sorted(taken) == list(range(len(ids)))


def test_nodes_share_the_votes_of_a_window_by_the_prompts_that_they_hold(
    votes: VoteStore, tokenizer: PromptTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_votes(tmp_path / "votes.jsonl", votes.rows())
    vote_files(["lake", str(tmp_path / "votes.jsonl"), "--output", str(tmp_path / "lake")])
    ids, taken, encoded = np.arange(3, 40), list[int](), 0
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    for node in (0, 1):
        monkeypatch.setenv("GROUP_RANK", str(node))
        store = open_votes_together(str(tmp_path / "lake"), spread=True)
        for rank in (0, 1):
            windows = Windows(tokenizer, store, True, 100, 2 * node + rank, 4, local_rank=rank, local_size=2)
            parts = windows.read(ids)
            taken += [vote for part in parts for vote in part.votes.tolist()]
            encoded += sum(len(part.batch["lengths"]) for part in parts)
    assert sorted(taken) == list(range(len(ids)))
    assert encoded == 7


def test_a_prompt_is_encoded_once_and_its_votes_point_at_it(votes: VoteStore, tokenizer: PromptTokenizer) -> None:
    ids = np.arange(40)
    parts = Windows(tokenizer, votes, True, 100).read(ids)
    assert sum(len(part.batch["lengths"]) for part in parts) == 7
    for part in parts:
        prompts = part.batch["input_ids"][0].split(part.batch["lengths"].tolist())
        for vote, place in zip(part.votes, part.prompt, strict=True):
            [expected] = tokenizer.encode(votes.prompts(ids[[vote]]))
            assert prompts[place].tolist() == expected.ids.tolist()


@pytest.mark.parametrize("packed", [True, False])
def test_micro_batches_keep_to_their_tokens(packed: bool, votes: VoteStore, tokenizer: PromptTokenizer) -> None:
    parts = Windows(tokenizer, votes, packed, 100).read(np.arange(40))
    assert len(parts) > 1
    assert all(part.batch["input_ids"].numel() <= 100 for part in parts)


def test_windows_read_ahead_are_those_read_one_by_one(votes: VoteStore, tokenizer: PromptTokenizer) -> None:
    windows = Windows(tokenizer, votes, True, 100)
    wanted = [np.arange(start, start + 8) for start in range(0, 40, 8)]
    found = list(windows.read_ahead(iter(wanted)))
    assert [ids.tolist() for ids, _ in found] == [ids.tolist() for ids in wanted]
    for ids, parts in found:
        assert [part.votes.tolist() for part in parts] == [part.votes.tolist() for part in windows.read(ids)]


def test_a_failure_while_reading_ahead_reaches_the_caller(votes: VoteStore, tokenizer: PromptTokenizer) -> None:
    windows = Windows(tokenizer, votes, True, 100)
    with pytest.raises(IndexError):
        list(windows.read_ahead([np.arange(4), np.array([400])]))


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 5))
def test_prompts_are_dealt_evenly(sizes: list[int], hands: int) -> None:
    dealt = deal(sizes, hands)
    assert sorted(item for hand in dealt for item in hand) == list(range(len(sizes)))
    held = [sum(sizes[item] + 1 for item in hand) for hand in dealt]
    assert max(held) - min(held) <= max(sizes, default=0) + 1
