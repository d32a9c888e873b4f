"""Every ZeRO stage, with and without offload, in one process and in two: the steps, files and resumes of stage 0."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l import P2L
from tests.conftest import ROOT, Command, make_configure
from tests.e2e.test_train import largest_difference, lines, train
from tests.in_turn import run_in_turn

OFFLOAD: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
OFFLOAD_ALL: dict[str, Any] = {**OFFLOAD, "offload_param": {"device": "cpu"}}
ZERO: dict[str, dict[str, Any]] = {
    "stage1": {"stage": 1},
    "stage2": {"stage": 2},
    "stage3": {"stage": 3},
    "stage1-offload": {"stage": 1, **OFFLOAD},
    "stage2-offload": {"stage": 2, **OFFLOAD},
    "stage3-offload": {"stage": 3, **OFFLOAD},
    "stage3-offload-all": {"stage": 3, **OFFLOAD_ALL},
}
FEW = ["stage2-offload", "stage3"]
# Adam hides the scale of a gradient; clipping below the usual norm of about 3, and epsilon this large, show it.
SETTINGS: dict[str, Any] = {"max_grad_norm": 0.5, "adam_epsilon": 1e-3, "num_train_epochs": 1, "weight_decay": 0.1}


WITHOUT_COMPILER = """
import os, sys
from p2l.common.cli import run
from p2l.train import main
os.environ["PATH"] = sys.argv[1]
run(main, sys.argv[2:])
"""


class Runs:
    """Writes configurations, and runs several in one launch."""

    def __init__(self, folder: Path, command: Command, parts: Sequence[Path]) -> None:
        self.folder, self.command, self.parts = folder, command, parts

    def config(self, name: str, **changes: Any) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        zero = {"zero_optimization": ZERO.get(name.split("+")[0], {"stage": 0})}
        return make_configure(self.folder / name, *self.parts)(zero=zero, **(SETTINGS | changes))

    def run(self, flags: Sequence[Sequence[str | Path]], *, processes: int = 1) -> None:
        launcher = [] if processes == 1 else ["deepspeed", f"--num_gpus={processes}"]
        run_in_turn(self.command, self.folder / "plan", [["train", *row] for row in flags], *launcher)

    def run_all(self, names: Iterable[str], *, processes: int) -> dict[str, Path]:
        """A run of each of these kinds of ZeRO, saved in the middle."""
        flags = []
        for name in names:
            config = self.config(name, gradient_accumulation_steps=4 // processes)
            flags.append(["--config", config, "--no-eval", "--quiet", "--save-steps", "4"])
        self.run(flags, processes=processes)
        return {name: self.folder / name / "out" / "run" for name in names}

    def resume_all(self, names: Iterable[str], *, processes: int) -> dict[str, Path]:
        """What the runs from their middle on come to."""
        flags = []
        for name in names:
            resumed = self.folder / name / "resumed"
            shutil.copytree(self.folder / name / "out" / "run" / "checkpoint-4", resumed / "checkpoint-4")
            config = self.folder / name / "config.yaml"
            flags.append(["--config", config, "--no-eval", "--quiet", "--checkpoint", resumed])
        self.run(flags, processes=processes)
        return {name: self.folder / name / "resumed" for name in names}


@pytest.fixture(scope="module")
def parts(votes_file: Path, validation_file: Path, backbone: Path) -> list[Path]:
    return [votes_file, validation_file, backbone]


@pytest.fixture(scope="module")
def plain(command: Command, tmp_path_factory: pytest.TempPathFactory, parts: Sequence[Path]) -> Path:
    """The run without ZeRO."""
    runs = Runs(tmp_path_factory.mktemp("plain"), command, parts)
    return train(command, runs.config("plain"), "--no-eval", "--quiet", "--save-steps", "4")


def assert_same_run(found: Path, plain: Path) -> None:
    assert largest_difference(found, plain) < 1e-5
    for key in ("loss", "gradient_norm", "learning_rate"):
        mine, theirs = ([row[key] for row in lines(folder / "metrics.jsonl")] for folder in (found, plain))
        assert mine == pytest.approx(theirs, rel=1e-4), key
    # Both folders are models that can be served.
    for folder in (".", "checkpoint-4"):
        coefs = [P2L.from_pretrained(run / folder).predict([["what is 2 plus 2"]]).coefs for run in (found, plain)]
        np.testing.assert_allclose(*coefs, atol=1e-5)


@pytest.mark.parametrize("names", [FEW, pytest.param([*ZERO], marks=pytest.mark.slow)], ids=["few", "all"])
def test_one_process_takes_the_steps_of_stage_0_and_goes_on_bit_for_bit(
    command: Command, tmp_path: Path, parts: Sequence[Path], plain: Path, names: Sequence[str]
) -> None:
    runs = Runs(tmp_path, command, parts)
    whole = runs.run_all(names, processes=1)
    for folder in whole.values():
        assert_same_run(folder, plain)
    for name, folder in runs.resume_all(names, processes=1).items():
        assert (folder / "model.safetensors").read_bytes() == (whole[name] / "model.safetensors").read_bytes(), name


@pytest.mark.slow
@pytest.mark.launcher
def test_two_processes_take_the_steps_of_one_with_twice_the_accumulation(
    command: Command, tmp_path: Path, parts: Sequence[Path], plain: Path
) -> None:
    for folder in Runs(tmp_path, command, parts).run_all(FEW, processes=2).values():
        assert_same_run(folder, plain)


@pytest.mark.slow
@pytest.mark.launcher
def test_two_processes_under_every_stage_and_from_the_middle(
    command: Command, tmp_path: Path, parts: Sequence[Path], plain: Path
) -> None:
    runs = Runs(tmp_path, command, parts)
    for folder in runs.run_all(ZERO, processes=2).values():
        assert_same_run(folder, plain)
    for folder in runs.resume_all(ZERO, processes=2).values():
        assert largest_difference(folder, plain) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["stage2-offload", "stage3-offload-all"])
def test_the_compiled_optimizer_takes_the_same_steps(
    command: Command, tmp_path: Path, parts: Sequence[Path], plain: Path, name: str
) -> None:
    settings = {"zero_optimization": ZERO[name], "optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}
    config = make_configure(tmp_path, *parts)(zero=settings, **SETTINGS)
    assert_same_run(train(command, config, "--no-eval", "--quiet", "--save-steps", "4"), plain)


def test_a_compiled_optimizer_without_a_compiler_is_one_line(
    command: Command, tmp_path: Path, parts: Sequence[Path]
) -> None:
    settings = {"zero_optimization": ZERO["stage2-offload"], "optimizer": {"params": {"torch_adam": False}}}
    config = make_configure(tmp_path, *parts)(zero=settings, **SETTINGS)
    script = tmp_path / "train_without_compiler.py"
    script.write_text(WITHOUT_COMPILER, encoding="utf-8")
    done = command("python", script, tmp_path, "--config", config, "--no-eval", env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "g++" in done.stderr
    assert "torch_adam" in done.stderr
