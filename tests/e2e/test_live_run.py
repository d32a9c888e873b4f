"""A live run that is killed at any moment, or runs in several processes, learns what an unbroken one does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from p2l.commands.model import init_main as init
from p2l.inference import P2L
from p2l.online_training.publishing import only_publisher, served
from p2l.training.run_folder import newest_checkpoint
from tests.conftest import ROOT, Command
from tests.e2e.test_train import largest_difference
from tests.faults import MOMENTS, ended
from tests.p2l.online_training.live_helpers import add, line

MODULE = "p2l.online_training.online_train"
KILLS = 1 + MOMENTS


def write_config(folder: Path, **changes: object) -> Path:
    """A bag of words that learns in small steps, so that many fit between two kills."""
    folder.mkdir(exist_ok=True)
    votes = add(folder / "first.jsonl", [line(n) for n in range(50)])
    init(["--votes", str(votes), "--model-type", "tfidf", "--output", str(folder / "tfidf"), "--quiet"])
    # Which features are dropped depends on the process; here several are to learn the same.
    bag = folder / "tfidf" / "config.json"
    bag.write_text(json.dumps(json.loads(bag.read_text(encoding="utf-8")) | {"feature_dropout": 0.0}), encoding="utf-8")
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 0}}', encoding="utf-8")
    settings = {
        "proj_name": "run",
        "output_dir": str(folder / "out"),
        "train_data_path": "unused",
        "pretrain_model_name": str(folder / "tfidf"),
        "model_type": "tfidf",
        "head_type": "rk",
        "loss_type": "grk",
        "learning_rate": 3e-3,
        "adam_epsilon": 1e-8,
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_length": 32,
        "model_capacity": 2,
        "buffer": {"type": "replay", "on": {"type": "geometric", "gamma": 0.9, "epsilon": 0.1}},
        "deepspeed_config_path": "ds.json",
        "device": "cpu",
    }
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(settings | changes), encoding="utf-8")
    return path


@pytest.mark.slow
def test_any_kill_is_survived_bit_for_bit(tmp_path: Path, command: Command) -> None:
    config = write_config(tmp_path)
    lines = [line(n, model_a=f"model {n // 40}") if n % 9 else "no vote" for n in range(150 * KILLS)]
    flags = ["--config", str(config), "--no-eval", "--quiet", "--save-steps", "3", "--poll", "0.02"]
    ends = ["--stop-when-idle", "0.1"]
    publish = ["--publish", str(tmp_path / "served"), "--publish-votes", "50", "--gate", "0.1"]
    whole = add(tmp_path / "whole.jsonl", lines)
    unbroken = ["--follow", str(whole), "--publish", str(tmp_path / "other"), "--publish-votes", "50", "--gate", "0.1"]
    done = command("python", "-m", MODULE, *flags, *ends, *unbroken)
    assert done.returncode == 0, done.stderr
    votes, run, delays = add(tmp_path / "votes.jsonl", []), tmp_path / "out" / "run_1", random.Random(1)
    for number in range(KILLS):
        resume = ["--checkpoint", str(run)] if newest_checkpoint(run) else []
        if not resume and run.exists():
            run.rename(run.with_name(f"lost-{number}"))
        words = [sys.executable, "-m", MODULE, *flags, "--follow", str(votes), *publish, *resume]
        with subprocess.Popen(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            part = lines[number * 150 : (number + 1) * 150]
            add(votes, part[:-1])
            with votes.open("a", encoding="utf-8") as file:
                file.write(part[-1][:20])
                file.flush()
                wait_for_steps(process, run / "metrics.jsonl", delays.randint(1, 12) + 25 * number)
                process.send_signal(signal.SIGKILL)
                file.write(part[-1][20:] + "\n")
        model = served(tmp_path / "served")
        assert model is None or json.loads((model / "model_list.json").read_text(encoding="utf-8"))
        ended("kill of a live run that publishes", "a whole model" if model else "none published yet")
    resume = ["--checkpoint", str(run)] if newest_checkpoint(run) else []
    done = command("python", "-m", MODULE, *flags, *ends, "--follow", votes, *publish, *resume)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "run" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_whatever_touch_of_the_disk_a_kill_of_publishing_comes_before(tmp_path: Path, command: Command) -> None:
    """Between write and rename too: what is served at each moment is whole, and never goes back."""
    config = write_config(tmp_path)
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(240)])
    folder, snapshots = tmp_path / "published", tmp_path / "snapshots"
    flags = ["--config", config, "--no-eval", "--quiet", "--follow", votes, "--stop-when-idle", "0.1"]
    publish = ["--publish", folder, "--publish-votes", "60"]
    done = command("python", "tests/e2e/snapshots.py", folder, snapshots, MODULE, *flags, *publish)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = []
    for snapshot in sorted(snapshots.glob("0-*")):
        model = served(snapshot)
        if model is not None:
            steps.append(int(model.name.rpartition("-")[2]))
            whole = folder / model.name
            assert sorted(each.name for each in model.iterdir()) == sorted(each.name for each in whole.iterdir())
            for file in model.iterdir():
                assert file.read_bytes() == (whole / file.name).read_bytes(), snapshot.name
    assert len(set(steps)) >= 3
    assert steps == sorted(steps)
    assert P2L.from_pretrained(served(snapshot)).predict(["a prompt"]).coefs.shape[0] == 1


def test_a_folder_that_another_run_publishes_into_is_refused(tmp_path: Path, command: Command) -> None:
    config, folder = write_config(tmp_path), tmp_path / "published"
    votes = add(tmp_path / "votes.jsonl", [line(n) for n in range(20)])
    flags = ["--config", config, "--no-eval", "--quiet", "--follow", votes, "--stop-when-idle", "0.1"]
    with only_publisher(folder):
        done = command("python", "-m", MODULE, *flags, "--publish", folder, "--publish-votes", "10")
    assert done.returncode == 2
    assert f"{folder}: another run publishes into it" in done.stderr
    assert served(folder) is None
    again = command("python", "-m", MODULE, *flags, "--publish", folder, "--publish-votes", "10")
    assert again.returncode == 0, again.stderr
    assert served(folder) is not None


def wait_for_steps(process: subprocess.Popen[bytes], log: Path, steps: int) -> None:
    """Until so many steps are logged, or a while has passed."""
    until = time.monotonic() + 25
    while process.poll() is None and time.monotonic() < until:
        if log.exists() and log.read_text(encoding="utf-8").count("\n") >= steps:
            return
        time.sleep(0.01)
    assert process.poll() is None, "the run ended by itself"


@pytest.mark.slow
@pytest.mark.launcher
def test_two_processes_learn_what_one_does(tmp_path: Path, command: Command) -> None:
    votes = add(tmp_path / "votes.jsonl", [line(n) if n % 7 else "no vote" for n in range(90)])
    for number, launcher in ((1, ["python", "-m", MODULE]), (2, ["deepspeed", "--num_gpus=2", MODULE])):
        config = write_config(tmp_path / str(number), batch_size=4 // number)
        folder = tmp_path / f"served{number}"
        flags = ["--follow", votes, "--stop-when-idle", "0.5", "--poll", "0.05", "--no-eval", "--quiet"]
        done = command(
            *launcher, "--config", config, *flags, "--publish", folder, "--publish-votes", "20", "--gate", "0.2"
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert largest_difference(*(tmp_path / str(number) / "out" / "run" for number in (1, 2))) < 1e-5
    one, two = ((tmp_path / f"served{n}" / "published.jsonl").read_text(encoding="utf-8") for n in (1, 2))
    steps = [[json.loads(text)["step"] for text in log.splitlines()] for log in (one, two)]
    assert steps[0] == steps[1]
