"""What is published is whole, judged, and can be taken back; an endpoint's rule says which model is served."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from p2l.commands.model import rollback_main
from p2l.common.errors import InputError
from p2l.model.checkpoint import seal
from p2l.online_training.publishing import (
    GateDecision,
    candidate_path,
    last_decision,
    make_folder,
    publish,
    roll_back,
    served,
)
from p2l.serving.watching import newest_model
from p2l.training.run_records import STATE_FILE
from tests.conftest import Command

GOOD, BAD = GateDecision(True, "good", {"loss": 1.0}), GateDecision(False, "bad", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


def write(folder: Path, step: int) -> Path:
    model = candidate_path(folder, step)
    model.mkdir()
    (model / "model.safetensors").write_text(f"weights {step}", encoding="utf-8")
    (model / "model_list.json").write_text("[]", encoding="utf-8")
    (model / "config.json").write_text("{}", encoding="utf-8")
    seal(model)
    return model


def offer(folder: Path, step: int, verdict: GateDecision = GOOD, **options: int) -> None:
    """What a run does: write a candidate, and have it judged."""
    model, before = write(folder, step), served(folder)

    def judge(candidate: Path, against: Path | None) -> GateDecision:
        assert (candidate, against) == (model, before)
        return verdict

    publish(folder, step, judge, **options)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_newest_good_one_is_served_and_old_ones_go(folder: Path) -> None:
    for step in (1, 2, 3, 4):
        offer(folder, step, keep=2)
    offer(folder, 5, BAD)
    assert newest_model(folder) == served(folder) == folder / "checkpoint-4"
    assert names(folder) == {"checkpoint-3", "checkpoint-4", "published.jsonl"}
    log = [json.loads(text) for text in (folder / "published.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(entry["step"], entry["event"], entry["against"]) for entry in log[-2:]] == [
        (4, "published", "checkpoint-3"),
        (5, "refused", "checkpoint-4"),
    ]
    decided = last_decision(folder)
    assert decided is not None
    assert (decided["step"], decided["reason"]) == (5, "bad")


def test_the_one_before_the_served_one_always_stays(folder: Path) -> None:
    for step in (1, 2, 3):
        offer(folder, step, keep=1)
    assert names(folder) == {"checkpoint-2", "checkpoint-3", "published.jsonl"}


def test_a_rollback_serves_the_one_before_and_the_next_one_comes_after_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        offer(folder, step)
    rollback_main([str(folder)])
    out = capsys.readouterr().out
    assert newest_model(folder) == folder / "checkpoint-2"
    assert "serving checkpoint-2, revision " in out
    assert str(folder / "rolled-back" / "checkpoint-3") in out
    offer(folder, 4)
    assert newest_model(folder) == folder / "checkpoint-4"
    # Back twice: past the one that was taken out.
    roll_back(folder)
    roll_back(folder)
    assert newest_model(folder) == folder / "checkpoint-1"
    assert names(folder / "rolled-back") == {"checkpoint-2", "checkpoint-3", "checkpoint-4"}


def test_a_step_may_be_rolled_back_twice(folder: Path) -> None:
    offer(folder, 1)
    for _ in range(2):
        offer(folder, 2)
        roll_back(folder)
    assert names(folder / "rolled-back") == {"checkpoint-2", "checkpoint-2.1"}


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_candidate_is_judged_against_what_a_rollback_serves_meanwhile(folder: Path, is_loaded: bool) -> None:
    for step in (1, 2):
        offer(folder, step)
    write(folder, 3)
    against: list[Path | None] = []

    def judge(_: Path, before: Path | None) -> GateDecision:
        against.append(before)
        if len(against) > 1:
            return GOOD
        roll_back(folder)
        if is_loaded:
            return BAD
        raise InputError(f"{before}: no such folder")

    publish(folder, 3, judge)
    assert against == [folder / "checkpoint-2", folder / "checkpoint-1"]
    decided = last_decision(folder)
    assert decided is not None
    assert (decided["event"], decided["against"]) == ("published", "checkpoint-1")
    assert newest_model(folder) == folder / "checkpoint-3"


def test_a_clock_that_went_back_changes_nothing(folder: Path) -> None:
    offer(folder, 1)
    ahead = (folder / "checkpoint-1" / "model.safetensors").stat().st_mtime_ns + 10**15
    os.utime(folder / "checkpoint-1" / "model.safetensors", ns=(ahead, ahead))
    offer(folder, 2)
    assert newest_model(folder) == folder / "checkpoint-2"
    roll_back(folder)
    assert newest_model(folder) == folder / "checkpoint-1"


def test_what_a_killed_run_left_is_neither_served_nor_kept(folder: Path) -> None:
    offer(folder, 1)
    shutil.copytree(folder / "checkpoint-1", candidate_path(folder, 2))
    (folder / "..checkpoint-2.unfinished").mkdir()
    assert newest_model(folder) == folder / "checkpoint-1"
    offer(folder, 3)
    assert names(folder) == {"checkpoint-1", "checkpoint-3", "published.jsonl"}


def test_the_same_step_may_be_published_again(folder: Path) -> None:
    offer(folder, 1)
    offer(folder, 2)
    offer(folder, 2)
    assert newest_model(folder) == folder / "checkpoint-2"
    assert names(folder) == {"checkpoint-1", "checkpoint-2", "published.jsonl"}


@pytest.mark.parametrize(("steps", "says"), [((), "no published model"), ((7,), "only checkpoint-7")])
def test_nothing_to_go_back_to_is_said(folder: Path, steps: tuple[int, ...], says: str) -> None:
    for step in steps:
        offer(folder, step)
    with pytest.raises(InputError, match=says):
        roll_back(folder)


@pytest.mark.parametrize("act", [roll_back, make_folder])
def test_checkpoints_of_a_training_run_are_left_alone(folder: Path, act: Callable[[Path], object]) -> None:
    for step in (1, 2):
        offer(folder, step)
        (folder / f"checkpoint-{step}" / STATE_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="holds checkpoints of a training run, such as checkpoint-1"):
        act(folder)
    assert {"checkpoint-1", "checkpoint-2"} <= names(folder)


def test_the_command_ends_with_one_line(command: Command, tmp_path: Path) -> None:
    done = command("python", "-m", "p2l.cli", "rollback", tmp_path / "none")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / 'none'}: cannot be opened")
    assert done.stderr.count("\n") == 1


def test_a_rollback_needs_no_torch(folder: Path, command: Command) -> None:
    offer(folder, 1)
    offer(folder, 2)
    code = "import sys; sys.modules['torch'] = None; from p2l.cli import main; main()"
    done = command("python", "-c", code, "rollback", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert served(folder) == folder / "checkpoint-1"
