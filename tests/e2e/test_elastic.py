"""Two nodes of torchrun on one machine: what kill -9 takes, of a worker or of a node, costs steps and no votes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2l.training.run_folder import newest_checkpoint
from tests.conftest import ROOT, Command, Configure, free_port
from tests.e2e.test_train import largest_difference, lines, train
from tests.processes import descendants, words_of

pytestmark = [pytest.mark.slow, pytest.mark.launcher]

EVERY = 4


class Nodes:
    """Launchers that know of each other by a port of the first one; each with a group of processes of its own."""

    def __init__(self, config: Path, logs: Path, least: int) -> None:
        self.config, self.logs, self.least, self.port = config, logs, least, free_port()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        conf = f"is_host={'false' if self.started else 'true'},last_call_timeout=5"
        words = ["torch.distributed.run", f"--nnodes={self.least}:2", "--nproc-per-node=1", "--max-restarts=3"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf={conf}"]
        words += ["--local-addr=127.0.0.1", "-m", "p2l.train", "--config", str(self.config), "--no-eval"]
        line = [sys.executable, "-m", *words, "--save-steps", str(EVERY), "--resume"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with self.log(len(self.started)).open("wb") as log:
            node = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.started.append(node)
        return node

    def log(self, number: int) -> Path:
        return self.logs / f"node-{number}.log"

    def said(self) -> str:
        return "".join(self.log(number).read_text(errors="replace")[-3000:] for number in range(len(self.started)))

    def end(self) -> None:
        for node in self.started:
            kill_node(node)


def workers(node: subprocess.Popen[bytes]) -> list[int]:
    return [pid for pid in descendants(node.pid) if "p2l.train" in words_of(pid)]


def kill_node(node: subprocess.Popen[bytes]) -> None:
    for pid in [node.pid, *descendants(node.pid)] if node.poll() is None else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


@pytest.mark.parametrize("lost", ["a worker", "a node that comes back", "a node for good"])
def test_a_run_goes_on_from_its_last_checkpoint(
    command: Command, configure: Configure, votes_file: Path, tmp_path: Path, lost: str
) -> None:
    # A lake, of which each of two nodes holds the prompts of its part.
    lake = tmp_path / "lake"
    done = command("python", "-m", "p2l.cli", "votes", "lake", votes_file, "--output", lake)
    assert done.returncode == 0, done.stderr
    settings = {"train_data_path": str(lake), "num_train_epochs": 12, "shuffle": "by_prompt"}
    alone = train(command, configure(proj_name="alone", **settings), "--no-eval")
    config = configure(proj_name="pair", gradient_accumulation_steps=2, **settings)
    pair = alone.with_name("pair")
    nodes = Nodes(config, tmp_path, 1 if lost == "a node for good" else 2)
    try:
        first, second = nodes.start(), nodes.start()
        while not newest_checkpoint(pair):
            assert first.poll() is None, nodes.said()
            assert second.poll() is None, nodes.said()
            time.sleep(0.01)
        if lost == "a worker":
            os.kill(workers(second)[0], signal.SIGKILL)
        else:
            kill_node(second)
            second = nodes.start() if lost == "a node that comes back" else first
        assert not (pair / "config.json").exists()
        assert first.wait() == 0, nodes.said()
        assert second.wait() == 0, nodes.said()
    finally:
        nodes.end()
    assert "resuming from" in nodes.log(0).read_text() + nodes.log(len(nodes.started) - 1).read_text()
    # A step more or less would be 3e-3, the learning rate; sums of float32 in another order grow over 96 steps.
    assert largest_difference(alone, pair) < 1e-4
    # Each step once, with the votes of the run that nothing happened to.
    steps, whole = lines(pair / "metrics.jsonl"), lines(alone / "metrics.jsonl")
    assert [(line["step"], line["votes"]) for line in steps] == [(line["step"], line["votes"]) for line in whole]
    newest = newest_checkpoint(pair)
    assert newest is not None
    state = json.loads((newest / "trainer_state.json").read_text(encoding="utf-8"))
    assert (state["processes"], state["world_size"]) == (2, 1 if lost == "a node for good" else 2)
    assert state["step"] == len(whole) - len(whole) % EVERY
