"""Batch inference as it is typed: one process, several, and one that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from p2l.batch_inference.output import PartFolder
from tests.conftest import ROOT, Command, free_port
from tests.p2l.eval_helpers import make_model, prompt_rows, write_jsonl
from tests.warm import warm_python

IN_SMALL_CHUNKS = "tests/e2e/eval_in_small_chunks.py"
COUNT = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny", kind="qwen2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "prompts.jsonl", prompt_rows(COUNT))


@pytest.fixture(scope="module")
def alone(command: Command, model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process writes, in chunks of 8."""
    out = tmp_path_factory.mktemp("alone")
    done = command("python", IN_SMALL_CHUNKS, "--model", model, "--dataset", data, "--output-dir", out)
    assert done.returncode == 0, done.stderr
    return (out / "tiny.json").read_bytes()


def torchrun(*words: str | Path) -> list[str | Path]:
    """Two processes of a script."""
    return ["python", "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", *words]


def test_the_documented_line_works_as_it_stands(command: Command, model: Path, data: Path, tmp_path: Path) -> None:
    line = ["--model", model, "--dataset", data, "--head-type", "rk", "--model-type", "qwen2", "--batch-size", "2"]
    done = command("python", "-m", "p2l.eval", *line, "--output-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert [row["question_id"] for row in rows] == [row["question_id"] for row in prompt_rows(COUNT)]
    assert len(rows[0]["coefs"][0]) == 3


@pytest.mark.slow
def test_a_killed_run_is_gone_on_with_by_two_processes(
    command: Command, model: Path, data: Path, alone: bytes, tmp_path: Path
) -> None:
    flags = ["--model", model, "--dataset", data, "--output-dir", tmp_path]
    parts = PartFolder(tmp_path / "tiny.parts")
    running = subprocess.Popen(
        [warm_python(), IN_SMALL_CHUNKS, *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, "EVAL_REST": "0.1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(parts.refresh()) < 3:
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    saved = len(parts.refresh())
    assert 3 <= saved < COUNT // 8
    assert not (tmp_path / "tiny.json").exists()
    done = command(*torchrun(IN_SMALL_CHUNKS, *flags))
    assert done.returncode == 0, done.stderr
    assert sum(map(int, re.findall(r"^chunks: (\d+)$", done.stderr, re.MULTILINE))) == COUNT // 8 - saved
    assert (tmp_path / "tiny.json").read_bytes() == alone
    assert not parts.folder.exists()


@pytest.mark.launcher
def test_the_deepspeed_launcher_finds_the_command(
    command: Command, model: Path, data: Path, alone: bytes, tmp_path: Path
) -> None:
    flags = ["--model", model, "--dataset", data, "--output-dir", tmp_path]
    done = command("deepspeed", "--num_gpus=2", "p2l.eval", *flags)
    assert done.returncode == 0, done.stderr
    found, expected = (json.loads(text) for text in ((tmp_path / "tiny.json").read_bytes(), alone))
    assert [row["coefs"][0] for row in found] == [pytest.approx(row["coefs"][0], abs=1e-5) for row in expected]
