"""Shared fixtures: small votes, a small backbone, commands run as a user runs them."""

import gc
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from tests.faults import ENDINGS
from tests.warm import alone, warm_python

# Test processes share the cores already; threads of theirs would wait for each other. Read while torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("ant", "bee", "cat", "dog")
LONG = {"e2e", "training", "online_training", "serving", "view", "test_house.py"}

# The same examples on every machine, and no clock: a slow machine is not a failure. The fuzzers of the slow tests draw
# more of them.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")

Command = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Of a run in several processes the first starts what all are forked from, the workers of the run too."""
    if config.getoption("numprocesses", None):
        config.option.tx = [f"popen//python={warm_python()}"] * len(config.option.tx)
    elif hasattr(config, "workerinput"):
        sys.executable = str(Path(sys.prefix, "bin", "python"))  # tests look for commands beside it


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was broken on purpose, and how it ended."""
    for (what, how), times in sorted(ENDINGS.items()):
        terminalreporter.write_line(f"{what}: {times} times, {how}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect one worker after the other, for the first leaves the others bytecode.

    What is imported here lives as long as the process: no collection of garbage goes through it, now or later.
    """
    gc.disable()
    try:
        with alone():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts whole commands or trains comes first: a long file begun last would keep one worker at the end."""
    items.sort(key=lambda item: not any(part in LONG for part in item.path.parts))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test inherits a launcher's variables, not even from one that trained in this process."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def seeds(count: int) -> list[Any]:
    """Seeds 0 to `count` - 1 of a parametrized test: the first for every run, the others for the slow one."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]


def free_port() -> int:
    """A port that nobody listens on, below those of outgoing connections: one of them may take it before it is used."""
    draw = random.SystemRandom()  # another one in each process of tests
    while True:
        port = draw.randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def command() -> Command:
    """Run a command line in the root of the checkout; text in, text out."""

    def run(
        *words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **(env or {})}
        binaries = Path(sys.executable).parent
        environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
        line = [str(word) for word in words]
        if line[0] == "python":  # code of a test may ask what is imported
            line[0] = sys.executable if line[1] == "-c" else warm_python()
        elif line[0] == "deepspeed":
            if not any(word.startswith("--master_port") for word in line):
                line.insert(1, f"--master_port={free_port()}")  # two test runs on one machine must not meet
            line[:1] = [warm_python(), str(binaries / "deepspeed")]
        return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def warm_children() -> Iterator[None]:
    """What the package starts with `sys.executable` in this process starts at once too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python())
        yield


def write_votes(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """A JSON-lines file of votes."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def vote_rows(count: int, *, seed: int = 0) -> list[dict[str, object]]:
    """Votes whose winner depends on the prompt: sums favour the first model, poems the last."""
    import numpy as np

    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        a, b = rng.choice(len(MODELS), size=2, replace=False)
        is_sum = bool(rng.integers(2))
        better = min(a, b) if is_sum else max(a, b)
        winner = "model_a" if better == a else "model_b"
        if number % 7 == 0:
            winner = "tie" if number % 2 else "tie (bothbad)"
        text = f"what is {rng.integers(99)} plus {rng.integers(99)}" if is_sum else f"write a poem about {MODELS[b]}s"
        row = {"prompt": text, "model_a": MODELS[a], "model_b": MODELS[b], "winner": winner, "weight": 1.0 + number % 3}
        rows.append(row | {"question_id": str(number)})
    return rows


@pytest.fixture(scope="session")
def votes_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 votes on four models."""
    return write_votes(tmp_path_factory.mktemp("votes") / "votes.jsonl", vote_rows(120))


@pytest.fixture(scope="session")
def validation_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 other votes on the same models."""
    return write_votes(tmp_path_factory.mktemp("votes") / "validation.jsonl", vote_rows(40, seed=1))


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory, votes_file: Path) -> Path:
    """A tiny qwen2 with a tokenizer trained on the votes."""
    from p2l.commands.model import init_main

    folder = tmp_path_factory.mktemp("backbone") / "tiny-qwen2"
    flags = "--model-type qwen2 --vocab-size 300 --hidden-size 16 --layers 1 --heads 2 --max-positions 128 --quiet"
    init_main([*flags.split(), "--votes", str(votes_file), "--output", str(folder)])
    return folder


Configure = Callable[..., Path]


def make_configure(folder: Path, votes: Path, validation: Path, backbone: Path) -> Configure:
    """A function that writes a training configuration, the tiny one with `changes`, and returns its path."""

    def write(name: str = "config.yaml", *, zero: dict[str, object] | None = None, **changes: object) -> Path:
        engine = {"zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"}} | (zero or {})
        (folder / "ds.json").write_text(json.dumps(engine), encoding="utf-8")
        settings: dict[str, object] = {
            "proj_name": "run",
            "output_dir": str(folder / "out"),
            "train_data_path": str(votes),
            "val_data_path": str(validation),
            "pretrain_model_name": str(backbone),
            "model_type": "qwen2",
            "head_type": "rk",
            "loss_type": "grk",
            "learning_rate": 3e-3,
            "adam_epsilon": 1e-8,
            "batch_size": 4,
            "gradient_accumulation_steps": 4,
            "max_length": 64,
            "deepspeed_config_path": "ds.json",
            "device": "cpu",
            # Mechanics are tested on all votes in their order; tests of the choice and the shuffle say so.
            "shuffle": False,
            "selection_share": 0.0,
        }
        settings = {key: value for key, value in (settings | changes).items() if value is not None}
        path = folder / name
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path

    return write


@pytest.fixture
def configure(tmp_path: Path, votes_file: Path, validation_file: Path, backbone: Path) -> Configure:
    """Write a training configuration into this test's folder."""
    return make_configure(tmp_path, votes_file, validation_file, backbone)
