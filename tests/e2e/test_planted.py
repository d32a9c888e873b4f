"""Checkpoints in which somebody has planted code: resuming refuses them and runs nothing."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command
from tests.e2e.test_zero import Runs

STAGES = ("stage0", "stage1", "stage2-offload", "stage3")


class Planted:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def plant(file: Path, mark: Path, form: str) -> None:
    """Put code into a state that is otherwise whole, or in its place."""
    state: dict[str, Any] = torch.load(file, weights_only=False)
    if form == "inside":
        torch.save({**state, "lr_scheduler": Planted(mark)}, file)
    elif form == "old form":
        torch.save({**state, "optimizer": Planted(mark)}, file, _use_new_zipfile_serialization=False)
    else:
        file.write_bytes(pickle.dumps(Planted(mark)))


@pytest.fixture(scope="module")
def runs(
    command: Command, tmp_path_factory: pytest.TempPathFactory, votes_file: Path, validation_file: Path, backbone: Path
) -> Runs:
    """A run of every stage with a checkpoint in its middle."""
    made = Runs(tmp_path_factory.mktemp("runs"), command, [votes_file, validation_file, backbone])
    made.run_all(STAGES, processes=1)
    return made


def test_no_state_of_any_stage_runs_code(command: Command, runs: Runs, tmp_path: Path) -> None:
    flags: list[list[str]] = []
    marks: list[Path] = []
    names: list[str] = []
    for stage in STAGES:
        whole = runs.folder / stage / "out" / "run" / "checkpoint-4"
        for number, state in enumerate(sorted((whole / "deepspeed").glob("*.pt"))):
            form = ("inside", "old form", "bare")[(number + len(flags)) % 3]
            resumed = tmp_path / f"{stage}-{number}" / "checkpoint-4"
            shutil.copytree(whole, resumed)
            mark = tmp_path / f"mark-{stage}-{number}"
            plant(resumed / "deepspeed" / state.name, mark, form)
            config = runs.folder / stage / "config.yaml"
            flags.append(["--config", str(config), "--no-eval", "--quiet", "--checkpoint", str(resumed.parent)])
            marks.append(mark)
            names.append(str(resumed / "deepspeed" / state.name))
    plan = tmp_path / "plan"
    plan.write_text("\n".join("\t".join(row) for row in flags), encoding="utf-8")
    done = command("python", "-m", "tests.e2e.resume_in_turn", plan)
    refusals = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert not any(mark.exists() for mark in marks)
    assert len(refusals) == len(names), done.stdout + done.stderr[-2000:]
    for refusal, name in zip(refusals, names, strict=True):
        assert name in refusal
        assert "could run code" in refusal
    assert any("mkdir" in refusal for refusal in refusals)
    # The plants would have worked.
    for name, mark in zip(names, marks, strict=True):
        with suppress(RuntimeError):  # what follows the plant is not a state
            torch.load(name, weights_only=False)
        assert mark.is_dir()


@pytest.mark.slow
@pytest.mark.launcher
def test_code_in_the_part_of_another_process_ends_the_run_in_one_line(
    command: Command, tmp_path: Path, votes_file: Path, validation_file: Path, backbone: Path
) -> None:
    two = Runs(tmp_path, command, [votes_file, validation_file, backbone])
    whole = two.run_all(["stage2"], processes=2)["stage2"]
    mark = tmp_path / "mark"
    plant(whole / "checkpoint-4" / "deepspeed" / "zero_pp_rank_1_mp_rank_00_optim_states.pt", mark, "inside")
    config = tmp_path / "stage2" / "config.yaml"
    flags = ["--config", config, "--no-eval", "--quiet", "--checkpoint", whole / "checkpoint-4"]
    done = command("deepspeed", "--num_gpus=2", "train.py", *flags)
    assert not mark.exists()
    assert done.returncode == 2, done.stderr[-3000:]
    assert sum("could run code" in line for line in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_planted_checkpoint_is_one_line_and_exit_code_2(command: Command, runs: Runs, tmp_path: Path) -> None:
    resumed = tmp_path / "checkpoint-4"
    shutil.copytree(runs.folder / "stage0" / "out" / "run" / "checkpoint-4", resumed)
    plant(resumed / "deepspeed" / "mp_rank_00_model_states.pt", tmp_path / "mark", "inside")
    config = runs.folder / "stage0" / "config.yaml"
    # Whoever asked torch to trust every file has not asked this trainer.
    done = command(
        "p2l", "train", "--config", config, "--no-eval", "--quiet", "--checkpoint", tmp_path,
        env={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert not (tmp_path / "mark").exists()
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == done.stderr.splitlines()[-1:]
    assert "Traceback" not in done.stderr
