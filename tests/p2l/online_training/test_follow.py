"""A run that follows votes as they come: by the command, on a file that grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from p2l.commands.model import init_main as init
from p2l.common.errors import CheckpointError, ConfigError
from p2l.model.checkpoint import WEIGHTS_FILE, check_complete, read_model_list
from p2l.online_training.online_train import main
from p2l.serving.watching import newest_model
from p2l.training.run_records import read_run
from tests.conftest import ROOT
from tests.p2l.online_training.live_helpers import add, line
from tests.warm import warm_python

QUIET = ["--no-eval", "--quiet", "--poll", "0.05"]


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bag of words: a backbone that trains in milliseconds."""
    folder = tmp_path_factory.mktemp("bag")
    votes = add(folder / "votes.jsonl", [line(n) for n in range(60)])
    init(["--votes", str(votes), "--model-type", "tfidf", "--output", str(folder / "tfidf"), "--quiet"])
    return folder / "tfidf"


@pytest.fixture
def config(tmp_path: Path, bag: Path) -> Path:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 0}}', encoding="utf-8")
    settings = {
        "proj_name": "run",
        "output_dir": str(tmp_path / "out"),
        "train_data_path": "unused",
        "pretrain_model_name": str(bag),
        "model_type": "tfidf",
        "head_type": "rk",
        "loss_type": "grk",
        "learning_rate": 3e-3,
        "adam_epsilon": 1e-8,
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_length": 32,
        "buffer": {"type": "replay", "epsilon": 0.2},
        "deepspeed_config_path": "ds.json",
        "device": "cpu",
    }
    path = tmp_path / "live.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def follow(config: Path, votes: Path, *flags: str) -> None:
    main(["--config", str(config), "--follow", str(votes), "--stop-when-idle", "0.1", *QUIET, *flags])


def decisions(served: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (served / "published.jsonl").read_text(encoding="utf-8").splitlines()]


def test_it_trains_publishes_and_goes_on_with_what_came_since(tmp_path: Path, config: Path) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n % 3) if n % 10 else "no vote" for n in range(100)])
    served = tmp_path / "served"
    publish = ["--publish", str(served), "--publish-votes", "40", "--gate", "0.2"]
    follow(config, votes, *publish)
    run = tmp_path / "out" / "run"
    first = decisions(served)
    assert [entry["event"] for entry in first[:1]] == ["published"]
    assert newest_model(served) is not None
    assert read_model_list(run) == ["ant", "bee", "cat", "dog"]
    # Votes come, a model that was never seen among them; the run goes on where it was.
    add(votes, [line(n % 3, model_b="new" if n % 2 else None, model_a="eel") for n in range(100) if n % 2])
    follow(config, votes, "--checkpoint", str(run), *publish)
    last = decisions(served)[-1]
    assert last["votes"] > first[-1]["votes"]
    assert read_model_list(run) == ["ant", "bee", "cat", "dog", "eel", "new"]
    steps = [json.loads(text)["step"] for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == sorted(set(steps))
    told = [one.event for one in read_run(run).publications]  # as `p2l report` of the run's own folder shows them
    assert told == [entry["event"] for entry in decisions(served)]


def test_a_stop_in_between_changes_nothing(tmp_path: Path, config: Path) -> None:
    lines = [line(n) for n in range(90)]
    whole = add(tmp_path / "whole.jsonl", lines)
    follow(config, whole)
    votes = add(tmp_path / "votes.jsonl", lines[:50])
    flags = ("--config", config, "--follow", votes, *QUIET)
    words = [warm_python(), "-m", "p2l.online_training.online_train", *map(str, flags)]
    # The run in this process has set a launcher's variables, and may still listen on its port.
    launcher = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    own = {name: value for name, value in os.environ.items() if name not in launcher}
    with subprocess.Popen(words, cwd=ROOT, env=own, stderr=subprocess.PIPE) as run:
        log = tmp_path / "out" / "run_1" / "metrics.jsonl"
        while run.poll() is None and not (log.exists() and log.read_text(encoding="utf-8").count("\n") >= 6):
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=120)
    assert run.returncode == 0, error
    add(votes, lines[50:])
    follow(config, votes, "--checkpoint", str(tmp_path / "out" / "run_1"))
    one, two = (load_file(tmp_path / "out" / name / WEIGHTS_FILE) for name in ("run", "run_1"))
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_file_that_lost_votes_is_another_stream(tmp_path: Path, config: Path) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(20)])
    follow(config, votes)
    run = str(tmp_path / "out" / "run")
    kept = votes.read_text(encoding="utf-8").splitlines()
    votes.write_text("\n".join(kept[:9]) + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"was trained on 20 votes, .*votes.jsonl holds 9"):
        follow(config, votes, "--checkpoint", run)
    votes.write_text("\n".join(kept[1:] + kept[:1]) + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="was trained on other votes than the first 20"):
        follow(config, votes, "--checkpoint", run)


def test_a_data_set_can_be_published_from_and_held_out(tmp_path: Path, config: Path) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(80)])
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) | {"train_data_path": str(votes)}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    served = tmp_path / "served"
    main(["--config", str(config), *QUIET, "--publish", str(served), "--publish-votes", "20", "--gate", "0.4"])
    last = decisions(served)[-1]
    held = last["held_votes"]
    assert held >= 20
    assert last["votes"] + held == 80


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gate"], "need --publish DIR"),
        (["--publish-votes", "5"], "need --publish DIR"),
        (["--hold-out", "0.1"], "need --publish DIR"),
        (["--publish", "served", "--publish-votes", "5", "--hold-out", "0", "--gate"], "leave out --hold-out 0"),
        (["--publish", "served", "--publish-votes", "5", "--hold-out", "0.1", "--gate", "0.2"], "different shares"),
        (["--publish", "served"], "--publish needs --publish-votes"),
        (["--stop-when-idle", "5"], "goes with --follow"),
        (["--follow", "votes.jsonl", "--sort"], "--sort does not go with --follow"),
        (["--follow", "votes.jsonl", "--past", "./votes.jsonl"], "--past and --follow name one file"),
    ],
)
def test_flags_that_need_others_are_refused(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        main(["--config", "none.yaml", "--no-eval", *flags])


def test_the_runs_own_folder_is_not_served(tmp_path: Path, config: Path) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(9)])
    with pytest.raises(ConfigError, match="is the folder of the run itself"):
        follow(config, votes, "--publish", str(tmp_path / "out" / "run"), "--publish-votes", "5")


def test_what_is_published_is_shrunk_and_what_trains_is_not(tmp_path: Path, config: Path) -> None:
    """Prompts decide nothing here, so that the published model is nearly one leaderboard."""
    rng = np.random.default_rng(0)
    sides = ("model_a", "model_b")
    lines = [line(n, prompt=f"w{n * 7919 % 400}", winner=sides[int(rng.random() < 0.3)]) for n in range(500)]
    votes, served = add(tmp_path / "votes.jsonl", lines), tmp_path / "served"
    publish = ["--publish", str(served), "--publish-votes", "150", "--hold-out", "0.3"]
    follow(config, votes, *publish)
    run = tmp_path / "out" / "run"
    last = decisions(served)[-1]
    assert last["reason"] == "not judged (no --gate)"
    assert last["factor_votes"] >= 100
    assert 0 <= last["factor"] < 1
    model = newest_model(served)
    assert model is not None
    assert (model / "posterior.safetensors").is_file()
    check_complete(model)
    final, newest = (load_file(folder / WEIGHTS_FILE) for folder in (run, served / f"checkpoint-{last['step']}"))
    assert np.allclose(newest["head.head.weight"], last["factor"] * final["head.head.weight"], atol=1e-6)
    # How often a model is published changes nothing that trains.
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) | {"proj_name": "often"}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    often = ["--publish", str(tmp_path / "often"), "--publish-votes", "60", "--gate", "0.3"]
    follow(config, votes, *often)
    assert decisions(tmp_path / "often")[-1]["held_votes"] == last["factor_votes"]
    assert (tmp_path / "out" / "often" / WEIGHTS_FILE).read_bytes() == (run / WEIGHTS_FILE).read_bytes()
    assert len(decisions(tmp_path / "often")) > len(decisions(served))
    assert decisions(tmp_path / "often")[-1]["factor"] == last["factor"]


def test_a_run_says_which_votes_it_keeps_out_of_training(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(60)])
    flags = ["--stop-when-idle", "0.1", "--no-eval", "--poll", "0.05", "--publish", str(tmp_path / "served")]
    main(["--config", str(config), "--follow", str(votes), *flags, "--publish-votes", "20"])
    shown = capsys.readouterr()
    note = "votes on 2.0% of the prompts are kept out of training, to judge models by"
    assert f"{votes}: {note}" in shown.out + shown.err
