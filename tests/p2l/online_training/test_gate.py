"""A candidate that forecasts new votes worse is told from one that is only unlucky."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2l.inference import P2L
from p2l.leaderboard.controls import Design, Term
from p2l.likelihood import get
from p2l.model.checkpoint import WEIGHTS_FILE, read_model_list
from p2l.model.covariates import CovariateEffects
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer
from p2l.online_training.candidates import HeldOutVotes, recent
from p2l.online_training.publishing import compare, judge, paired_difference
from tests.p2l.online_training.live_helpers import add, line, live
from tests.p2l.serving.conftest import NAMES, make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_model(tmp_path_factory.mktemp("one"), seed=1), make_model(tmp_path_factory.mktemp("two"), seed=2)


@pytest.fixture(scope="module")
def votes(models: tuple[Path, Path]) -> HeldOutVotes:
    """Votes drawn from what the first model says, sharpened; three on each of 60 prompts."""
    rng = np.random.default_rng(0)
    model = P2L.from_pretrained(models[0], device="cpu")
    prompts = [[f"what is {n} plus {n % 7}"] for n in range(60) for _ in range(3)]
    coefs = 8 * model.predict(prompts).coefs
    labels = []
    for row in coefs:
        a, b = rng.choice(4, size=2, replace=False)
        wins = rng.random() < 1 / (1 + math.exp(row[b] - row[a]))
        labels.append([a, b, 0] if wins else [b, a, 0])
    return HeldOutVotes(prompts, np.array(labels, dtype=np.int32), list(NAMES))


def test_the_difference_is_the_textbooks() -> None:
    new, old, prompt = np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0, 3.0]), np.array([5, 5, 9, 7], "u8")
    found = paired_difference(new, old, prompt)
    # d = 2, 0, 1, -1 with mean 1/2; per prompt 1 + 0 ... summed about the mean: 1, 1/2, -3/2.
    assert found.mean == 0.5
    assert found.error == pytest.approx(math.sqrt(3 / 2 * (1 + 0.25 + 2.25)) / 4)
    assert (found.votes, found.prompts, found.candidate_loss, found.served_loss) == (4, 3, 2.0, 1.5)


def test_an_equal_candidate_is_refused_as_often_as_stated() -> None:
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(2000):
        prompt = np.repeat(np.arange(100, dtype="u8"), 3)
        found = paired_difference(rng.normal(size=100).repeat(3) + rng.normal(size=300), np.zeros(300), prompt)
        refused += found.mean > 2 * found.error
    assert 0.015 < refused / 2000 < 0.035


def test_a_worse_candidate_is_refused_and_a_better_one_published(
    models: tuple[Path, Path], votes: HeldOutVotes
) -> None:
    good, bad = models
    refused, published = judge(bad, good, votes, "cpu"), judge(good, bad, votes, "cpu")
    assert not refused.good
    assert "worse beyond noise" in refused.reason
    assert published.good
    assert published.numbers["difference"] == pytest.approx(-refused.numbers["difference"])
    assert judge(good, good, votes, "cpu").good


def test_the_loss_is_the_likelihoods(models: tuple[Path, Path], votes: HeldOutVotes) -> None:
    model = P2L.from_pretrained(models[0], device="cpu")
    said = model.predict(votes.prompts)
    rows, (win, lose, _) = np.arange(len(votes.labels)), votes.labels.T
    logs = get("grk").log_probs(said.coefs[rows, win], said.coefs[rows, lose], said.eta)
    assert compare(models[0], models[1], votes, "cpu").candidate_loss == pytest.approx(-logs[:, 0].mean(), rel=1e-5)


def test_votes_on_a_newcomer_do_not_count(models: tuple[Path, Path], votes: HeldOutVotes) -> None:
    names = ["ant", "bee", "cat", "newcomer"]
    found = compare(*models, HeldOutVotes(votes.prompts, votes.labels, names), "cpu")
    assert found.votes == int((votes.labels[:, :2] < 3).all(axis=1).sum())
    assert read_model_list(models[0]) == list(NAMES)


def test_nothing_is_refused_on_too_few_prompts(models: tuple[Path, Path], votes: HeldOutVotes) -> None:
    few = HeldOutVotes(votes.prompts[:30], votes.labels[:30], votes.model_list)
    assert "10 held-out prompts are too few" in judge(models[1], models[0], few, "cpu").reason
    assert judge(models[1], models[0], few, "cpu").good
    assert judge(models[0], None, few, "cpu").good


def test_a_damaged_candidate_is_no_model(models: tuple[Path, Path], votes: HeldOutVotes, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from p2l.common.errors import CheckpointError

    shutil.copytree(models[0], tmp_path / "model")
    weights = load_file(models[0] / WEIGHTS_FILE)
    weights["head.head.bias"] = weights["head.head.bias"] * np.nan
    save_file(weights, tmp_path / "model" / WEIGHTS_FILE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not finite"):
        judge(tmp_path / "model", models[0], votes, "cpu")


def test_the_recent_slice_is_the_newest_up_to_a_place(tmp_path: Path) -> None:
    stream, _ = live(add(tmp_path / "votes.jsonl", [line(n) for n in range(400)]), held_share=0.2)
    stream.wait_for(500)
    part = recent(stream.held, 100, 10)
    before = stream.held.up_to(100)
    assert part.prompts == stream.held.prompts(list(range(before - 10, before)))
    assert max(int(prompt[0].split()[1]) for prompt in part.prompts) <= 100 + before
    assert recent(stream.held, 0, 10).labels.shape == (0, 3) or stream.held.up_to(0) > 0


def test_each_model_counts_the_covariates_of_a_vote(
    models: tuple[Path, Path], votes: HeldOutVotes, tmp_path: Path
) -> None:
    controlled = P2LModel.from_pretrained(models[0])
    terms = (Term("side", "difference", ()), Term("hard", "ties", ("hard",)))
    controlled.covariates = CovariateEffects(("side", "hard"), Design(terms), [1.0, 1.0])
    controlled.covariates.start({("side", "difference"): 0.7, ("hard", "ties"): -0.4})
    controlled.save_pretrained(tmp_path / "model")
    load_tokenizer(models[0]).save_pretrained(tmp_path / "model")
    hard = np.random.default_rng(1).normal(size=len(votes.labels))
    is_swapped = hard > 0.5
    rows = [{"hard": number} for number in hard.tolist()]
    found = compare(tmp_path / "model", models[0], replace(votes, rows=rows, is_swapped=is_swapped), "cpu")
    said = P2L.from_pretrained(models[0], device="cpu").predict(votes.prompts)
    assert said.eta is not None
    every, (win, lose, _) = np.arange(len(votes.labels)), votes.labels.T
    shift = np.where(is_swapped, -0.35, 0.35)  # half on either side
    logs = get("grk").log_probs(
        said.coefs[every, win] + shift, said.coefs[every, lose] - shift, said.eta.reshape(-1) - 0.4 * hard
    )
    assert found.candidate_loss == pytest.approx(-logs[:, 0].mean(), rel=1e-5)
    assert found.served_loss == pytest.approx(compare(models[0], models[0], votes, "cpu").served_loss)


def test_held_out_votes_come_with_what_covariates_are_read_from(tmp_path: Path) -> None:
    """Of a followed file, as of a data set."""
    written = [line(number, hard=number / 10) for number in range(40)]
    stream, _ = live(add(tmp_path / "votes.jsonl", written), held_share=0.5)
    stream.wait_for(len(written))
    held = recent(stream.held, len(written), 100, with_rows=True)
    assert held.rows is not None
    assert held.is_swapped is not None
    first = [row["model_a"] for row in held.rows]
    winners = [held.model_list[code] for code in held.labels[:, 0]]
    assert len(held.rows) == len(held.labels) > 5
    assert {"hard", "winner"} <= held.rows[0].keys()
    assert held.is_swapped.tolist() == [name != winner for name, winner in zip(first, winners, strict=True)]
    assert held.is_swapped.any()
    assert not held.is_swapped.all()
