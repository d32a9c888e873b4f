"""Which votes choose a step, and what a run does with their choice."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from p2l.common.errors import CheckpointError, InputError
from p2l.inference import P2L
from p2l.training.forecasts import marginal_board
from p2l.training.loop import RunOptions
from p2l.training.offline import train
from p2l.training.run_folder import read_state
from p2l.training.selection import BEST_FILE, CROSS_FIT_FILE, deal_prompts, hold_out, points_of
from p2l.training.train_config import load_config
from p2l.votes import open_votes
from tests.conftest import Configure, vote_rows, write_votes

Write = Callable[..., Path]


@given(st.integers(1, 500))
def test_a_run_is_looked_at_ten_times_and_at_its_end(total: int) -> None:
    points = points_of(total)
    assert len(points) == 10
    assert points == sorted(points)
    assert points[-1] == total
    assert points[0] >= 1


def test_prompts_that_choose_are_not_trained_on(configure: Configure, votes_file: Path) -> None:
    config = load_config(configure(selection_share=0.2))
    with open_votes(str(votes_file)) as votes:
        parts = hold_out(votes, config)
        assert parts is not None
        trained, chosen = parts
        assert len(trained) + len(chosen) == len(votes) == 120
        assert 15 <= len(chosen) <= 35
        assert not set(map(str, trained.prompts())) & set(map(str, chosen.prompts()))
        assert hold_out(votes, load_config(configure(selection_share=0.0))) is None


def test_a_prompt_that_cannot_be_spared_is_trained_on(configure: Configure, tmp_path: Path) -> None:
    config = load_config(configure(selection_share=0.1))
    for prompts in (1, 2):
        rows = [row | {"prompt": f"prompt {number % prompts}"} for number, row in enumerate(vote_rows(60))]
        with open_votes(str(write_votes(tmp_path / f"{prompts}.jsonl", rows))) as votes:
            assert hold_out(votes, config) is None


def test_folds_hold_whole_prompts_and_are_of_a_size(votes_file: Path) -> None:
    with open_votes(str(votes_file)) as votes:
        fold = deal_prompts(votes, 5, 42)
        prompts = np.array([str(prompt) for prompt in votes.prompts()])
        assert all(len(set(fold[prompts == prompt])) == 1 for prompt in set(prompts))
        dealt = [len(set(prompts[fold == number])) for number in range(5)]
        assert max(dealt) - min(dealt) <= 1
        some = votes.subset(np.arange(4))
        assert set(deal_prompts(some, 5, 42)) == set(range(len({str(prompt) for prompt in some.prompts()})))


def memorised(folder: Path) -> Path:
    """Votes by the toss of a coin: a model can only learn them by heart."""
    rng = np.random.default_rng(3)
    sides = ("model_a", "model_b")
    rows = [row | {"prompt": f"p{n} {n * n}", "winner": sides[rng.integers(2)]} for n, row in enumerate(vote_rows(300))]
    return write_votes(folder / "tossed.jsonl", rows)


OVERFIT = {"num_train_epochs": 20, "learning_rate": 1e-2, "shuffle": True, "head_type": "bt", "loss_type": "bt"}
OVERFIT |= {"batch_size": 16, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    "chosen_by",
    [{"selection_share": 0.3}, pytest.param({"cross_fit": 2, "num_train_epochs": 8}, marks=pytest.mark.slow)],
)
def test_coin_tosses_train_one_leaderboard(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen_by: dict[str, object]
) -> None:
    votes = memorised(tmp_path)
    config = configure(**{**OVERFIT, "train_data_path": str(votes), "val_data_path": None, **chosen_by})
    if "cross_fit" not in chosen_by:
        val = write_votes(tmp_path / "val.jsonl", vote_rows(60, seed=5))
        config = configure(**{**OVERFIT, "train_data_path": str(votes), "val_data_path": str(val), **chosen_by})
    folder = train(str(config), RunOptions(eval_steps=1000, quiet=True))
    comparison = json.loads((folder / "comparison.json").read_text())
    assert comparison["factor"] < 0.2
    assert "one leaderboard" in capsys.readouterr().out
    # The served model is the shrunk one.
    coefs = P2L.from_pretrained(folder).predict(["p1 1", "anything else"]).coefs
    with open_votes(str(votes)) as store:
        board = marginal_board(store, "bt").coefs
    difference = np.abs((coefs - coefs.mean(1, keepdims=True)) - (board - board.mean())).max()
    assert difference < (0.2 if comparison["factor"] == 0 else 1.0)


def test_every_head_is_folded_into_its_weights(configure: Configure, tmp_path: Path) -> None:
    votes = memorised(tmp_path)
    for head, loss, more in (
        ("rk", "rk", {"head_config": {"eta_dim": 4}}),
        ("ba", "ba", {"linear_head_downsize_factor": 2}),
        ("rk", "grk", {"shared_level": True}),
    ):
        settings = {
            **OVERFIT,
            "num_train_epochs": 1,
            "batch_size": 60,
            "head_type": head,
            "loss_type": loss,
            "cross_fit": 2,
            **more,
        }
        config = configure(**settings, proj_name=loss, train_data_path=str(votes), val_data_path=None)
        folder = train(str(config), RunOptions(eval_steps=1000, quiet=True))
        assert json.loads((folder / "comparison.json").read_text())["folds"] == 2
        rows = (folder / "eval_output.jsonl").read_text().splitlines()
        assert len(rows) == 300
        assert P2L.from_pretrained(folder).predict(["hello"]).eta is not None


def test_no_eval_holds_nothing_out_and_shrinks_nothing(configure: Configure) -> None:
    options = RunOptions(eval_steps=None, quiet=True, save_steps=4)
    whole = train(str(configure(proj_name="whole", selection_share=0.3)), options)
    none = train(str(configure(proj_name="none", selection_share=0.0)), options)
    assert (whole / "model.safetensors").read_bytes() == (none / "model.safetensors").read_bytes()
    assert read_state(whole / "checkpoint-4").num_votes == 120
    assert not (whole / "comparison.json").exists()
    assert not (whole / "checkpoint-4" / BEST_FILE).exists()


@pytest.mark.parametrize("chosen_by", [{"selection_share": 0.2, "shared_level": True}, {"cross_fit": 3}])
def test_a_run_that_goes_on_saves_the_same_step(
    configure: Configure, tmp_path: Path, chosen_by: dict[str, object]
) -> None:
    import shutil

    config = configure(**{**OVERFIT, "num_train_epochs": 4, "head_type": "rk", "loss_type": "grk", **chosen_by})
    whole = train(str(config), RunOptions(eval_steps=1000, quiet=True, save_steps=6))
    checkpoint = whole / "checkpoint-18"
    assert (checkpoint / BEST_FILE).exists() == ("selection_share" in chosen_by)
    assert (checkpoint / CROSS_FIT_FILE).exists() == ("cross_fit" in chosen_by)
    stopped = tmp_path / "stopped"
    shutil.copytree(checkpoint, stopped / checkpoint.name)
    options = RunOptions(checkpoint=str(stopped), eval_steps=1000, quiet=True, save_steps=6)
    resumed = train(str(config), options)
    assert resumed == stopped
    one, other = load_file(whole / "model.safetensors"), load_file(stopped / "model.safetensors")
    assert all((one[name] == other[name]).all() for name in one)
    files = [json.loads((folder / "comparison.json").read_text()) for folder in (whole, stopped)]
    assert files[0] == files[1]
    if "selection_share" in chosen_by:
        (stopped / checkpoint.name / BEST_FILE).write_bytes(b"cut")
        for later in stopped.glob("checkpoint-2*"):
            shutil.rmtree(later)
        with pytest.raises(CheckpointError, match=BEST_FILE):
            train(str(config), options)


def test_folds_need_prompts_and_a_table_needs_votes(configure: Configure, tmp_path: Path) -> None:
    rows = [row | {"prompt": "the same"} for row in vote_rows(30)]
    config = configure(cross_fit=3, train_data_path=str(write_votes(tmp_path / "one.jsonl", rows)))
    with pytest.raises(InputError, match="one prompt"):
        train(str(config), RunOptions(eval_steps=10, quiet=True))
    with pytest.raises(InputError, match="val_data_path"):
        train(str(configure(val_data_path=None)), RunOptions(eval_steps=10, quiet=True))
