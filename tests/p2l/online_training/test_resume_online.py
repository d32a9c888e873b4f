"""Kill -9 at any moment: an online run goes on to the weights of one that never stopped, bit for bit."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from p2l.training.run_folder import newest_checkpoint
from tests.conftest import ROOT, Command, Configure, make_configure
from tests.e2e.test_train import largest_difference, lines
from tests.p2l.online_training.online_helpers import online, run_all, write_stream
from tests.warm import warm_python

REPLAY = {"type": "replay", "epsilon": 0.4, "limit": 30, "min_batches": 1, "on": {"type": "geometric", "epsilon": 0.3}}


def long_run(folder: Path, configure: Configure, name: str, **changes: object) -> Path:
    votes = folder / "stream.jsonl"
    if not votes.exists():
        write_stream(votes, 320)
    usual = {"buffer": REPLAY, "model_capacity": 2, "lr_schedule": "cosine", "average_steps": 9}
    return online(configure, votes, name, **usual | changes)


def start(config: Path, *flags: str | Path) -> subprocess.Popen[bytes]:
    line = [warm_python(), "-m", "p2l.online_training.online_train", "--config", str(config), "--no-eval"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*line, *map(str, flags)], cwd=ROOT, stdout=quiet, stderr=quiet)


def same_bytes(one: Path, other: Path) -> bool:
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_kill_is_survived_bit_for_bit(command: Command, configure: Configure, tmp_path: Path) -> None:
    """The run is killed between two checkpoints; its head has grown, votes wait, others stand ready to be replayed."""
    killed, whole = tmp_path / "out" / "killed", tmp_path / "out" / "whole"
    config = long_run(tmp_path, configure, "killed")
    with start(config, "--save-steps", "4") as run:
        while run.poll() is None and not (killed / "checkpoint-12").exists():
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    (killed / ".growing").mkdir()
    flags = ["--no-eval", "--save-steps", "4", "--config"]
    resumed = ["online", *flags, config, "--checkpoint", killed]
    run_all(command, tmp_path / "plan", [resumed, ["online", *flags, long_run(tmp_path, configure, "whole")]])
    assert same_bytes(killed, whole)
    assert not (killed / ".growing").exists()
    logs = [
        [{**line, "seconds": 0, "tokens_per_second": 0} for line in lines(run / "metrics.jsonl")]
        for run in (killed, whole)
    ]
    assert logs[0] == logs[1]
    for checkpoint in whole.glob("checkpoint-*"):
        assert same_bytes(checkpoint, killed / checkpoint.name)
        for file in ("stream_state.npz", "averaged_weights.npz"):
            one, two = (np.load(folder / checkpoint.name / file) for folder in (whole, killed))
            assert all(
                np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f") for name in one.files
            )


@pytest.mark.slow
@pytest.mark.launcher
def test_two_processes_train_as_one_does(
    command: Command, tmp_path: Path, votes_file: Path, validation_file: Path, backbone: Path
) -> None:
    configure = make_configure(tmp_path, votes_file, validation_file, backbone)
    votes = write_stream(tmp_path / "stream.jsonl")
    zero = {"zero_optimization": {"stage": 2}}
    alone = online(configure, votes, "alone", model_capacity=2, zero=zero)
    run_all(command, tmp_path / "plan", [["online", "--config", alone, "--no-eval"]])
    pair = online(configure, votes, "pair", model_capacity=2, zero=zero, gradient_accumulation_steps=2)
    flags = ["--config", pair, "--no-eval", "--save-steps", "4", "--keep", "1"]
    done = command("deepspeed", "--num_gpus=2", "p2l.online_training.online_train", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    out = tmp_path / "out"
    assert largest_difference(out / "alone", out / "pair") < 1e-4
    assert (out / "alone" / "model_list.json").read_text() == (out / "pair" / "model_list.json").read_text()
    assert [path.name for path in (out / "pair").glob("checkpoint-*")] == ["checkpoint-8"]


@pytest.mark.slow
@pytest.mark.launcher
@pytest.mark.parametrize("form", ["--module", "file"])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_two_processes_go_on_and_grow_at_every_stage(
    command: Command, configure: Configure, tmp_path: Path, stage: int, form: str
) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    folders = []
    for capacity in (2, 64):
        name = f"room{capacity}"
        votes = write_stream(tmp_path / "stream.jsonl")
        settings = {"model_capacity": capacity, "zero": zero, "gradient_accumulation_steps": 2}
        config = online(configure, votes, name, **settings)
        words = ["--module"] if form == "--module" else []
        flags = ["p2l.online_training.online_train", "--config", config, "--no-eval", "--save-steps", "2"]
        done = command("deepspeed", "--num_gpus=2", *words, *flags)
        assert done.returncode == 0, done.stderr[-3000:]
        folders.append(tmp_path / "out" / name)
        resumed = tmp_path / f"resumed{capacity}"
        (resumed).mkdir()
        (folders[-1] / "checkpoint-2").rename(resumed / "checkpoint-2")
        done = command("deepspeed", "--num_gpus=2", *words, *flags, "--checkpoint", resumed)
        assert done.returncode == 0, done.stderr[-3000:]
        assert largest_difference(folders[-1], resumed) < 1e-5
    assert largest_difference(*folders) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (1, "bfloat16"), (2, "float32"), (3, "bfloat16")])
def test_any_kill_is_survived_bit_for_bit(
    command: Command, configure: Configure, tmp_path: Path, stage: int, dtype: str
) -> None:
    settings: dict[str, object] = {"zero": {"zero_optimization": {"stage": stage}}, "dtype": dtype}
    settings |= {"average_steps": "absent"} if stage == 3 else {}
    flags = ["--no-eval", "--save-steps", "3", "--config"]
    whole, killed = tmp_path / "out" / "whole", tmp_path / "out" / "killed"
    run_all(command, tmp_path / "plan", [["online", *flags, long_run(tmp_path, configure, "whole", **settings)]])
    config = long_run(tmp_path, configure, "killed", **settings)
    moments, kills = random.Random(stage), 0
    while not (killed / "model.safetensors").exists():
        resume = ["--checkpoint", killed] if killed.exists() and newest_checkpoint(killed) else []
        if not resume and killed.exists():
            killed.rename(killed.with_name(f"lost-{kills}"))
        run = start(config, "--save-steps", "3", *resume)
        kills += kill_after(run, killed / "metrics.jsonl", moments.randint(1, 6), moments.uniform(0, 0.05))
    assert kills >= 3
    assert same_bytes(killed, whole)
    logs = [[(line["step"], line["loss"]) for line in lines(run / "metrics.jsonl")] for run in (killed, whole)]
    assert logs[0] == logs[1]
    assert json.loads((killed / "model_list.json").read_text()) == json.loads((whole / "model_list.json").read_text())


def kill_after(run: subprocess.Popen[bytes], log: Path, steps: int, seconds: float) -> bool:
    """Kill a run so long after it has made so many steps, however slow the machine is; whether it still ran."""
    before = log.read_bytes().count(b"\n") if log.exists() else 0
    with run:
        while run.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < before + steps):
            time.sleep(0.002)
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            return True
    assert run.returncode == 0
    return False
