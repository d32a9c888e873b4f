"""Several nodes: a hostfile with ssh between two network namespaces, and two launchers that know of each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command, Configure, free_port
from tests.e2e.nodes import INTERFACE, Node, can_make_nodes, two_nodes
from tests.e2e.test_train import largest_difference, lines, train

pytestmark = [pytest.mark.slow, pytest.mark.launcher]

needs_nodes = pytest.mark.skipif(not can_make_nodes(), reason="needs root, ip, sshd and pdsh")


def start(words: Sequence[str | Path], **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [str(word) for word in words], cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, out[-2000:] + err[-2000:]
    return out


def launch_by_hostfile(nodes: Sequence[Node], folder: Path, env: dict[str, str], *flags: str | Path) -> tuple[int, str]:
    """Run the documented command on the first node; what both of them say."""
    hostfile, variables = folder / "hostfile", folder / "variables"
    hostfile.write_text("".join(f"{node.address} slots=1\n" for node in nodes), encoding="utf-8")
    kept = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables.write_text("".join(f"{name}={value}\n" for name, value in kept.items()), encoding="utf-8")
    words = nodes[0].inside("deepspeed", "--hostfile", str(hostfile), "--master_addr", nodes[0].address)
    process = start([*words, "--no_ssh_check", "p2l.train", *flags], DS_ENV_FILE=str(variables), **env)
    out, err = process.communicate()
    return process.returncode, out + err


@needs_nodes
def test_a_hostfile_trains_on_two_nodes(command: Command, configure: Configure, tmp_path: Path) -> None:
    alone = train(command, configure(proj_name="alone"), "--no-eval")
    config = configure(proj_name="pair", gradient_accumulation_steps=2, zero={"zero_optimization": {"stage": 3}})
    pair = config.parent / "out" / "pair"
    resume = ["--config", config, "--no-eval", "--checkpoint", pair]
    with two_nodes(tmp_path) as (nodes, env):
        code, said = launch_by_hostfile(nodes, tmp_path, env, "--config", config, "--no-eval", "--save-steps", "4")
        assert code == 0, said
        assert largest_difference(alone, pair) < 1e-5
        shutil.rmtree(pair / "checkpoint-8")
        code, said = launch_by_hostfile(nodes, tmp_path, env, *resume)
        assert code == 0, said
        assert f"resuming from {pair / 'checkpoint-4'}" in said
        assert largest_difference(alone, pair) < 1e-5
        # A part that stayed on the other node is missed by name.
        for part in (pair / "checkpoint-4" / "deepspeed").glob("*pp_rank_1_*"):
            part.unlink()
        code, said = launch_by_hostfile(nodes, tmp_path, env, *resume)
        assert code != 0
        assert "process 1 is missing" in said


@needs_nodes
def test_an_output_folder_that_one_node_lacks_is_refused(configure: Configure, tmp_path: Path) -> None:
    config = configure(gradient_accumulation_steps=2)
    out = config.parent / "out"
    out.mkdir()
    with two_nodes(tmp_path, hidden_on_second=out) as (nodes, env):
        code, said = launch_by_hostfile(nodes, tmp_path, env, "--config", config, "--no-eval", "--save-steps", "4")
    assert code != 0
    assert "'output_dir' must name a folder that all nodes share" in said
    assert "Traceback" not in said


def test_two_launchers_without_ssh_make_one_run(command: Command, configure: Configure, tmp_path: Path) -> None:
    alone = train(command, configure(proj_name="alone"), "--no-eval")
    config = configure(proj_name="pair", gradient_accumulation_steps=2, zero={"zero_optimization": {"stage": 2}})
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("one slots=1\nother slots=1\n", encoding="utf-8")
    common = ["--hostfile", hostfile, "--no_ssh", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    run = ["p2l.train", "--config", config, "--no-eval", "--save-steps", "4"]
    groups = [start(["deepspeed", *common, "--node_rank", str(rank), *run]) for rank in (0, 1)]
    for group in groups:
        finished(group)
    pair = config.parent / "out" / "pair"
    assert largest_difference(alone, pair) < 1e-5
    assert json.loads((pair / "checkpoint-4" / "trainer_state.json").read_text())["world_size"] == 2
    assert len(lines(pair / "metrics.jsonl")) == len(lines(alone / "metrics.jsonl"))
