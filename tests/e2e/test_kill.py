"""Kill -9 at any moment: what was reported as saved is there, and going on gives the weights of an unbroken run."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2l.training.run_folder import newest_checkpoint
from tests.conftest import ROOT, Command, Configure
from tests.e2e.test_train import largest_difference, train
from tests.faults import MOMENTS, ended
from tests.in_turn import run_in_turn

RUNS = 4 * MOMENTS
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}  # a file of it that is cut short is taken for whole later


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_any_kill_is_survived_bit_for_bit(command: Command, configure: Configure, stage: int) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    config = configure(num_train_epochs=4, shuffle=True, lr_schedule="cosine", zero=zero)
    whole = train(command, config, "--no-eval", "--save-steps", "2")
    folder = whole.parent / "run_1"
    delays = random.Random(0)
    started = time.monotonic()
    for _ in range(RUNS):
        resume = ["--checkpoint", str(folder)] if newest_checkpoint(folder) else []
        if not resume and folder.exists():
            folder.rename(folder.with_name(f"lost-{time.monotonic_ns()}"))
        kill_after(config, resume, folder / "metrics.jsonl", delays.uniform(0.0, 1.0))
    done = command(
        "python", "-m", "p2l.train", "--config", config, "--no-eval", "--save-steps", "2", "--checkpoint", folder
    )
    assert done.returncode == 0, (done.stderr, time.monotonic() - started)
    assert (whole / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (whole / "metrics.jsonl").read_text().count("\n") == (folder / "metrics.jsonl").read_text().count("\n")
    ended(f"kill of training under ZeRO stage {stage}", "the same model, bit for bit", RUNS)


SNAPSHOTS = "tests/e2e/snapshots.py"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.launcher)], ids=["one", "two"])
@pytest.mark.parametrize("stage", [0, 3])
def test_whatever_touch_of_the_disk_a_kill_comes_before(
    command: Command, configure: Configure, tmp_path: Path, stage: int, processes: int
) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    config = configure(shuffle=True, zero=zero, gradient_accumulation_steps=4 // processes)
    launcher = ["python"] if processes == 1 else ["deepspeed", "--num_gpus=2"]
    run = config.parent / "out" / "run"
    flags = ["--config", config, "--no-eval", "--quiet", "--save-steps", "2"]
    told: dict[str, list[int]] = {}
    # The second time checkpoint-6 and checkpoint-8 are there already, and get replaced.
    for part, more in (("first", []), ("again", ["--checkpoint", run / "checkpoint-4"])):
        done = command(*launcher, SNAPSHOTS, run, tmp_path / part, "p2l.train", *flags, *more)
        assert done.returncode == 0, done.stderr[-3000:]
        told[part] = steps_found(tmp_path / part, run)
    assert sorted(set(told["first"])) == [0, 2, 4, 6, 8]
    assert told["first"] == sorted(told["first"])
    assert set(told["again"]) == {8}
    assert min(map(len, told.values())) > 50
    going_on = [last_with(tmp_path / "first", ".checkpoint-6.unfinished"), last_with(tmp_path / "again", ".replaced")]
    for number, snapshot in enumerate(going_on):
        shutil.copytree(snapshot, tmp_path / f"resumed{number}")
    resumed = [["train", *flags, "--checkpoint", tmp_path / f"resumed{number}"] for number in (0, 1)]
    run_in_turn(command, tmp_path / "plan", resumed, *launcher)
    for number in (0, 1):
        assert largest_difference(run, tmp_path / f"resumed{number}") < (1e-12 if processes == 1 else 1e-5)


def steps_found(snapshots: Path, run: Path) -> list[int]:
    """The step that a run would go on from after a kill at each moment; what it goes on from is always whole."""
    found = []
    for snapshot in sorted(snapshots.glob("0-*")):
        newest = newest_checkpoint(snapshot)
        found.append(0 if newest is None else json.loads((newest / "trainer_state.json").read_text())["step"])
        if newest is not None:
            assert sizes(newest) == sizes(run / newest.name), snapshot
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Of the large files; the others say in other words where weights come from, and are listed alone."""
    large = {".pt", ".safetensors"}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_size if path.suffix in large else 0 for path in files}


def last_with(snapshots: Path, ending: str) -> Path:
    """The last moment at which something with this ending was there."""
    return max(path.parent for path in snapshots.glob("0-*/.*") if path.name.endswith(ending))


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [40, 100])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_kill_in_the_middle_of_a_file(command: Command, configure: Configure, stage: int, kilobytes: int) -> None:
    config = configure(zero={"zero_optimization": {"stage": stage}})
    whole = train(command, config, "--no-eval", "--save-steps", "3")
    shutil.rmtree(whole / "checkpoint-6")
    weights = (whole / "model.safetensors").read_bytes()
    flags = ["--config", str(config), "--no-eval", "--save-steps", "3", "--checkpoint", str(whole)]
    # The signal of a file that grows too long ends a process in the middle of the write, as kill -9 does.
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); from p2l.train import main; main({flags!r})"
    done = command("bash", "-c", f'ulimit -c 0 -f {kilobytes}; exec python -c "$0"', code, env=NO_BYTECODE)
    assert done.returncode == -signal.SIGXFSZ
    assert (whole / ".checkpoint-6.unfinished").exists()
    assert newest_checkpoint(whole) == whole / "checkpoint-3"
    resumed = train(command, config, *flags[2:])
    assert (resumed / "model.safetensors").read_bytes() == weights
    assert not list(whole.glob(".checkpoint*"))


@pytest.mark.slow
@pytest.mark.launcher
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_of_one_process_ends_the_run_and_loses_nothing(
    command: Command, configure: Configure, rank: int
) -> None:
    settings = {"num_train_epochs": 6, "gradient_accumulation_steps": 2}
    config = configure(zero={"zero_optimization": {"stage": 2}}, **settings)
    flags = ["--config", config, "--no-eval", "--quiet", "--save-steps", "4"]
    done = command("deepspeed", "--num_gpus=2", "p2l.train", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    whole, killed = config.parent / "out" / "run", config.parent / "out" / "run_1"
    line = ["deepspeed", "--num_gpus=2", "p2l.train", *map(str, flags)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    quiet = subprocess.DEVNULL
    with subprocess.Popen(line, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet) as launcher:
        while not newest_checkpoint(killed):
            time.sleep(0.01)
        os.kill(process_of(config, rank), signal.SIGKILL)
        launcher.wait()
    assert launcher.returncode != 0
    assert newest_checkpoint(killed)
    done = command("deepspeed", "--num_gpus=2", "p2l.train", *flags, "--checkpoint", killed)
    assert done.returncode == 0, done.stderr[-3000:]
    assert largest_difference(whole, killed) < 1e-5


def process_of(config: Path, rank: int) -> int:
    """The process of this rank that trains as `config` says."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(config).encode() in words and f"\0RANK={rank}\0".encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


def kill_after(config: Path, resume: list[str], log: Path, seconds: float) -> None:
    """Start a run and kill it so long after its first sign of life, whenever a busy machine lets that come."""
    line = [sys.executable, "-m", "p2l.train", "--config", str(config), "--no-eval", "--save-steps", "2", *resume]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = changed(log)
    with subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        while run.poll() is None and changed(log) == before:
            time.sleep(0.01)
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            return
        assert run.stderr is not None
        assert run.returncode == 0, run.stderr.read()


def changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
