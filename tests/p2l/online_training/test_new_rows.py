"""Models that join a live run are placed by their first votes, and replay knows the votes before the stream."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import CheckpointError, ConfigError
from p2l.inference import P2L
from p2l.model.checkpoint import read_model_list
from p2l.online_training.online_config import OnlineConfig, derived_configuration
from p2l.online_training.online_train import main as online_train
from p2l.online_training.stream import StreamWithPast, open_past
from p2l.training.train_config import load_config_as
from p2l.votes import open_votes
from tests.conftest import Command, write_votes
from tests.p2l.online_training.live_helpers import live

KNOWN = [f"m{n:02}" for n in range(10)]
LEVELS = dict(zip(KNOWN, np.linspace(-1.0, 1.0, 10), strict=True)) | {"best": 2.5, "worst": -2.5}


def rows(count: int, seed: int, new: tuple[str, ...] = (), every: int = 4) -> list[dict[str, object]]:
    """Votes by levels that are the same for all prompts; each `every`-th one is on a new model."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in range(count):
        a, b = rng.choice(KNOWN, 2, replace=False)
        if new and number % every == 0:
            a = new[number // every % len(new)]
        wins = rng.random() < 1 / (1 + np.exp(LEVELS[b] - LEVELS[a]))
        text = f"{'write a poem about' if rng.integers(2) else 'what is the sum of'} {rng.integers(50)}"
        winner = "model_a" if wins else "model_b"
        made.append({"prompt": text, "model_a": str(a), "model_b": str(b), "winner": winner, "tstamp": float(number)})
    return made


@pytest.fixture(scope="module")
def first(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of ten models, trained on 600 votes, with their file beside it."""
    folder = tmp_path_factory.mktemp("first")
    votes = write_votes(folder / "votes.jsonl", rows(600, 0))
    bag, made = folder / "bag", ("--quiet", "--votes", votes)
    for words in (
        ("init", *made, "--model-type", "tfidf", "--output", bag, "--min-df", "1"),
        ("train", *made, "--backbone", bag, "--output", folder / "model"),
    ):
        done = command("python", "-m", "p2l.cli", *words)
        assert done.returncode == 0, done.stderr
    return folder / "model"


def follow(first: Path, votes: Path, *flags: str) -> Path:
    """Run until no vote comes; return the run's folder."""
    words = ["--checkpoint", str(first), "--no-eval", "--follow", str(votes), "--stop-when-idle", "0", "--poll", "0.01"]
    online_train([*words, "--quiet", *flags])
    return max(first.parent.glob("model-online*"), key=lambda path: path.stat().st_mtime)


def test_new_models_are_placed_by_forty_votes(first: Path, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "live.jsonl", rows(320, 1, ("best", "worst")))
    folder = follow(first, votes)
    assert read_model_list(folder) == sorted([*KNOWN, "best", "worst"])
    coefs = P2L.from_pretrained(folder, device="cpu").predict(["what is the sum of 3", "write a poem about 4"]).coefs
    of = dict(zip(read_model_list(folder), coefs.mean(axis=0).tolist(), strict=True))
    known = [of[name] for name in KNOWN]
    assert of["best"] > np.quantile(known, 0.8)
    assert of["worst"] < np.quantile(known, 0.2)
    # A step is short, and three tenths of what it trains on are the votes of the model that the run began with.
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[0]["arrived"] <= 64
    assert log[0]["votes"] == round(log[0]["arrived"] / 0.7)
    config = json.loads((folder / "training_config.json").read_text(encoding="utf-8"))
    assert config["past_data_path"] == str(first.parent / "votes.jsonl")


def test_a_run_goes_on_with_its_past_and_not_without_it(first: Path, tmp_path: Path) -> None:
    lines = rows(240, 2, ("best",))
    whole = follow(first, write_votes(tmp_path / "whole.jsonl", lines))
    votes = write_votes(tmp_path / "votes.jsonl", lines[:128])
    begun = follow(first, votes)
    write_votes(votes, lines)
    with pytest.raises(CheckpointError, match="votes that it was to replay are gone"):
        follow(begun, votes, "--past", "none")
    online_train(["--checkpoint", str(begun), "--no-eval", "--follow", str(votes), "--stop-when-idle", "0", "--quiet"])
    ends = [
        P2L.from_pretrained(folder, device="cpu").predict(["what is the sum of 3"]).coefs for folder in (whole, begun)
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)


def test_which_past_a_run_takes(first: Path, tmp_path: Path) -> None:
    record, changes = derived_configuration(str(first), tmp_path / "live.jsonl")
    config = load_config_as(OnlineConfig, record, changes)
    assert config.past_data_path == str(first.parent / "votes.jsonl")
    assert (config.buffer.epsilon, config.buffer.min_batches) == (0.3, 0)
    # Lines of the followed file come again anyway.
    assert derived_configuration(str(first), first.parent / "votes.jsonl")[1]["past_data_path"] is None
    with pytest.raises(ConfigError, match="--past goes with --checkpoint"):
        online_train(["--config", str(record), "--past", "x.jsonl"])


def test_ids_below_zero_are_past_votes(tmp_path: Path) -> None:
    past = open_past(str(write_votes(tmp_path / "past.jsonl", rows(30, 3))), KNOWN)
    stream, _ = live(write_votes(tmp_path / "live.jsonl", rows(20, 4)), model_list=KNOWN)
    stream.wait_for(20)
    both = StreamWithPast(past, stream)
    with open_votes(str(tmp_path / "past.jsonl"), model_list=KNOWN) as before:
        ids = np.array([-1, 3, -30, 0])
        assert both.prompts(ids) == [
            before.prompts([29])[0], stream.prompts([3])[0], before.prompts([0])[0], stream.prompts([0])[0]
        ]  # fmt: skip
        parts = [before.labels([29]), stream.labels([3]), before.labels([0]), stream.labels([0])]
        np.testing.assert_array_equal(both.labels(ids), np.concatenate(parts))
    assert both.weights(ids).tolist() == [1.0] * 4
    assert len(both) == 20


def test_a_model_with_covariates_goes_on_with_the_votes_before_the_stream(command: Command, tmp_path: Path) -> None:
    """What `p2l train --control` writes is followed with replay, and votes past and new count with their covariate."""
    past = [{**row, "hall": "AB"[number % 2]} for number, row in enumerate(rows(300, 5))]
    votes = write_votes(tmp_path / "votes.jsonl", past)
    bag, made = tmp_path / "bag", ("--quiet", "--votes", votes)
    for words in (
        ("init", *made, "--model-type", "tfidf", "--output", bag, "--min-df", "1"),
        ("train", *made, "--backbone", bag, "--control", "hall", "--output", tmp_path / "model"),
    ):
        done = command("python", "-m", "p2l.cli", *words)
        assert done.returncode == 0, done.stderr
    new = [{**row, "hall": "AB"[number % 2]} for number, row in enumerate(rows(200, 6, new=("best",)))]
    run = follow(tmp_path / "model", write_votes(tmp_path / "new.jsonl", new))
    model = P2L.from_pretrained(run, device="cpu")
    assert "best" in model.model_list
    assert {effect.name.split(" = ")[0] for effect in model.effects()} == {"hall"}
