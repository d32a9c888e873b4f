"""A live run trains anew in the background where that gains, and not more often than its compute allows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import CheckpointError, ConfigError
from p2l.inference import P2L
from p2l.model.checkpoint import read_model_list
from p2l.model.model import P2LModel
from p2l.online_training.online_config import derived_configuration
from p2l.online_training.online_train import main
from p2l.online_training.retraining import RetrainingState, arrange
from p2l.training.run_folder import newest_checkpoint
from tests.conftest import Command, write_votes
from tests.p2l.serving.conftest import NAMES, make_model

KNOWN = [f"m{n:02}" for n in range(10)]


def rows(count: int, seed: int, sign: float = 1.0) -> list[dict[str, object]]:
    """Votes on ten models, whose order on sums is that on poems reversed; an eleventh joins in later ones."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in range(count):
        a, b = map(int, rng.choice(10, 2, replace=False))
        is_poem = bool(rng.integers(2))
        text = f"{'write a poem about' if is_poem else 'what is the sum of'} {rng.integers(400)}"
        wins = rng.random() < 1 / (1 + np.exp((sign if is_poem else -sign) * (b - a) / 2))
        name = "new" if seed and number % 50 == 49 else KNOWN[a]
        winner = "model_a" if wins else "model_b"
        made.append({"prompt": text, "model_a": name, "model_b": KNOWN[b], "winner": winner, "tstamp": float(number)})
    return made


@pytest.fixture(scope="module")
def first(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of ten models, trained in one line on 150 votes, with their file beside it."""
    folder = tmp_path_factory.mktemp("first")
    votes, bag = write_votes(folder / "votes.jsonl", rows(150, 0, sign=0.0)), folder / "bag"
    for words in (
        ("init", "--quiet", "--votes", votes, "--model-type", "tfidf", "--output", bag, "--min-df", "1"),
        ("train", "--quiet", "--votes", votes, "--backbone", bag, "--output", folder / "model"),
    ):
        done = command("python", "-m", "p2l.cli", *words)
        assert done.returncode == 0, done.stderr
    return folder / "model"


def flags(first: Path, votes: Path, served: Path, *more: str) -> list[str]:
    words = ["--checkpoint", str(first), "--no-eval", "--quiet", "--follow", str(votes), "--poll", "0.01"]
    return [*words, "--publish", str(served), "--publish-votes", "5000", "--hold-out", "0.1", *more]


def state(**changes: Any) -> RetrainingState:
    usual = {"request": {}, "epochs": 3, "folds": 0, "before": 9000, "first": 27_000, "interval": 1800}
    return RetrainingState(**(usual | changes))


@given(st.integers(1, 10**6), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0))
def test_what_gains_more_is_repeated_sooner(since: int, small: float, large: float) -> None:
    waits = []
    for gain in sorted((small, large)):
        one = state(fresh=500, tried=500)
        one.judged(500 + since, gain, taken=True)
        assert since / 2 - 1 <= one.interval <= 2 * since + 1
        assert (one.fresh, one.tried) == (500 + since, 500 + since)
        waits.append(one.interval)
    assert waits[0] >= waits[1]
    one = state(fresh=500, tried=500)
    one.judged(500 + since, small, taken=False)
    assert one.tried + one.interval == one.fresh + 2 * since


def test_compute_counts_the_first_model_replay_and_folds() -> None:
    one = state(followed=8000)
    assert one.compute(4000) == pytest.approx((27_000 + 8000) / (27_000 + 4000))
    assert one.compute(4000, one.passes(13_000)) == pytest.approx((27_000 + 8000 + 39_000) / 31_000)
    assert state(folds=5).passes(1000) == 6 * state().passes(1000)
    assert state(folds=5).passes(5000) == state().passes(5000)


def test_rows_of_a_model_trained_anew_stand_as_those_of_the_run(tmp_path: Path) -> None:
    model = P2LModel.from_pretrained(make_model(tmp_path, seed=1))
    weight, bias = (model.get_parameter(name).detach().clone() for name in model.row_names)
    order = [NAMES[2], NAMES[0], "unknown", NAMES[1], NAMES[3]]
    arrange(model, order, 8)
    after, after_bias = (model.get_parameter(name).detach() for name in model.row_names)
    for row, name in enumerate(order):
        expected = weight.mean(0) if name == "unknown" else weight[list(NAMES).index(name)]
        assert torch.allclose(after[row], expected)
    assert torch.allclose(after_bias[2], bias.mean())
    assert not after[5:].any()
    assert model.model_list == order


@pytest.mark.slow
def test_a_run_takes_over_what_is_better_and_goes_on(first: Path, tmp_path: Path) -> None:
    served, votes = tmp_path / "served", write_votes(tmp_path / "votes.jsonl", rows(1000, 1, sign=2.0))
    config = tmp_path / "slow.yaml"
    record, changes = derived_configuration(str(first), votes)
    slow = {"learning_rate": 1e-7, "head_learning_rate": 1e-7}  # so that following falls behind
    settings = json.loads(record.read_text(encoding="utf-8")) | changes | slow
    config.write_text(json.dumps(settings), encoding="utf-8")
    main([*flags(first, votes, served, "--retrain", "8"), "--stop-when-idle", "0", "--config", str(config)])
    log = [json.loads(text) for text in (served / "published.jsonl").read_text(encoding="utf-8").splitlines()]
    line = next(entry for entry in log if entry["event"] == "retrained")
    assert line["taken_over"], line["reason"]
    assert line["gain"] > 2 * line["error"]
    assert line["compute"] <= 8
    run = first.with_name("model-online")
    assert read_model_list(run) == [*KNOWN, "new"]
    assert not (run / ".retraining").exists()
    # The first model's votes are tossed coins: what is known of poems was learned anew.
    coefs = P2L.from_pretrained(run, device="cpu").predict([["write a poem about 3"]]).coefs[0]
    assert coefs[9] > coefs[0] + 1.0
    kept = RetrainingState.of_checkpoint(newest_checkpoint(run) or run)
    assert (kept.fresh, kept.retrained) == (line["began"], kept.passes(150 + line["began"]))
    # It goes on from there.
    main([*flags(run, votes, served, "--retrain", "8"), "--stop-when-idle", "0"])
    assert read_model_list(run) == [*KNOWN, "new"]


@pytest.mark.slow
def test_a_killed_run_takes_its_child_along_and_begins_anew(first: Path, tmp_path: Path) -> None:
    served, votes = tmp_path / "served", write_votes(tmp_path / "votes.jsonl", rows(700, 1, sign=2.0))
    words = [sys.executable, "-m", "p2l.cli", "online-train", *flags(first, votes, served, "--retrain", "8")]
    before = set(first.parent.glob("model-online*"))
    with subprocess.Popen(words) as process:
        job = None
        while process.poll() is None and job is None:
            new = set(first.parent.glob("model-online*")) - before
            job = next((path for run in new for path in run.glob(".retraining/job.json")), None)
            time.sleep(0.02)
        assert job is not None
        process.send_signal(signal.SIGKILL)
    for _ in range(1000):  # whatever the child writes, it ends
        if not children_at(job.parent):
            break
        time.sleep(0.02)
    assert not children_at(job.parent)
    assert not any("retrained" in text for text in (served / "published.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_a_signal_to_all_processes_ends_a_run_that_waits_for_its_child(first: Path, tmp_path: Path) -> None:
    served, votes = tmp_path / "served", write_votes(tmp_path / "votes.jsonl", rows(700, 1, sign=2.0))
    line = [*flags(first, votes, served, "--retrain", "8"), "--stop-when-idle", "0"]
    words = [sys.executable, "-m", "p2l.cli", "online-train", *line]
    before = set(first.parent.glob("model-online*"))
    with subprocess.Popen(words, start_new_session=True) as process:
        while process.poll() is None and not any(
            (run / ".retraining/job.json").is_file() for run in {*first.parent.glob("model-online*")} - before
        ):
            time.sleep(0.02)
        time.sleep(2.0)  # the stream has ended, and the child has begun to train
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 0
    events = [json.loads(text)["event"] for text in (served / "published.jsonl").read_text().splitlines()]
    assert "retrained" not in events


def children_at(folder: Path) -> list[str]:
    """The processes whose command names a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = place.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and str(os.getpid()) != place.parent.name:
            found.append(place.parent.name)
    return found


def test_it_says_what_it_needs(first: Path, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", rows(20, 1))
    with pytest.raises(ConfigError, match="--retrain judges by held-out votes"):
        main(["--checkpoint", str(first), "--no-eval", "--follow", str(votes), "--retrain"])
    with pytest.raises(ConfigError, match="repeats the line that trained the first model"):
        RetrainingState.of_model(tmp_path, has_past=True)
    with pytest.raises(CheckpointError, match="by a run without --retrain"):
        RetrainingState.of_checkpoint(tmp_path)
