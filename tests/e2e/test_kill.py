"""Kill -9 at any moment: what was reported as saved is there, and going on gives the weights of an unbroken run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2l.run_folder import newest_checkpoint
from tests.conftest import ROOT, Command, Configure
from tests.e2e.test_train import train

pytestmark = pytest.mark.slow

RUNS = 12


def test_any_kill_is_survived_bit_for_bit(command: Command, configure: Configure) -> None:
    config = configure(num_train_epochs=4, shuffle=True, lr_schedule="cosine")
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
