"""The folder of a training run: its name, its checkpoints (whole or absent), its `metrics.jsonl`.

A checkpoint is written under a name that begins with a dot and renamed when every byte is on the disk, so a kill at
any moment leaves the checkpoints that were there before, and the new one wholly or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2l.command import atomic_path, sync_path, sync_tree
from p2l.disk_errors import disk_error
from p2l.errors import CheckpointError, InputError

__all__ = [
    "MetricsLog",
    "TrainerState",
    "candidates",
    "finish_checkpoint",
    "keep_newest",
    "new_run_folder",
    "newest_checkpoint",
    "read_state",
    "whole_or_absent",
]

STATE_FILE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class TrainerState:
    """How far a run is, and what must be the same for it to go on."""

    step: int
    """Optimizer steps done."""
    num_votes: int
    world_size: int
    global_batch: int
    zero_stage: int
    precision: str
    shuffle: bool | str
    seed: int
    votes: str | None = None
    """Fingerprint of the votes; None in checkpoints that are older than it."""
    update_rule: dict[str, Any] | None = None
    """Clipping, optimizer and scheduler as DeepSpeed got them; None in checkpoints that are older than it."""

    def check_continues(self, now: TrainerState, folder: Path) -> None:
        """Raise CheckpointError when a run with the settings `now` would not be this run going on."""
        if None not in (self.votes, now.votes) and self.num_votes == now.num_votes and self.votes != now.votes:
            raise CheckpointError(
                f"{folder}: was trained on other votes; resume with the same ones, or start a new run"
            )
        mine, other = asdict(self), asdict(now)
        if self.update_rule is not None and now.update_rule is not None:
            mine, other = {**mine, **self.update_rule}, {**other, **now.update_rule}
        for key, value in mine.items():
            if key not in {"step", "votes", "update_rule"} and value != other.get(key):
                raise CheckpointError(
                    f"{folder}: was trained with {key} = {value}, this run has {other.get(key)}; "
                    "resume with the same votes, configuration and number of processes"
                )


def new_run_folder(output_dir: Path, name: str) -> Path:
    """Make `output_dir/name`, or `name_1`, `name_2`, ... when that exists.

    Raises:
        InputError: the folder cannot be made.
    """
    for candidate in candidates(output_dir / name):
        try:
            candidate.mkdir(parents=True)
        except OSError as error:
            if candidate.exists():
                continue
            raise InputError(f"{candidate}: cannot be made: {error.strerror}; change 'output_dir'") from error
        return candidate
    raise AssertionError("candidates never end")


def candidates(folder: Path) -> Iterator[Path]:
    """`folder`, then the same name with `_1`, `_2`, ..."""
    yield folder
    number = 1
    while True:
        yield folder.with_name(f"{folder.name}_{number}")
        number += 1


def newest_checkpoint(folder: Path) -> Path | None:
    """`folder` itself if it is a checkpoint of the trainer, else its newest `checkpoint-N`, else None."""
    if (folder / STATE_FILE).is_file():
        return folder
    if not folder.is_dir():
        return None
    _put_back_replaced(folder)
    whole = _whole_checkpoints(folder)
    return whole[-1] if whole else None


def keep_newest(folder: Path, count: int) -> None:
    """Remove all checkpoints of a run's folder but the newest `count`."""
    for path in _whole_checkpoints(folder)[:-count]:
        # Without its state it is no checkpoint: a kill in the middle of the removal leaves none that is half there.
        (path / STATE_FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / STATE_FILE).is_file()]


def read_state(checkpoint: Path) -> TrainerState:
    """The state file of a checkpoint.

    Raises:
        CheckpointError: it is missing or not what the trainer writes.
    """
    try:
        state = TrainerState(**json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8")))
        if not isinstance(state.step, int):
            raise TypeError(f"step is {state.step!r}")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint / STATE_FILE}: is no state of this trainer: {error}; copy the checkpoint again"
        ) from error
    return state


def unfinished_name(target: Path) -> Path:
    """Where a checkpoint is written before it is whole; the same on every rank."""
    return target.with_name(f".{target.name}.unfinished")


@contextmanager
def whole_or_absent(target: Path, *, clean: bool = True) -> Iterator[None]:
    """Say in one line what the disk refused (full, no permission); with `clean` an error leaves nothing unfinished.

    Raises:
        InputError: `target` cannot be written. Errors of another kind pass as they are.
    """
    try:
        yield
    except Exception as error:  # torch, safetensors and tokenizers each report a full disk in their own way
        if clean:
            shutil.rmtree(unfinished_name(target), ignore_errors=True)
        if (found := disk_error(error)) is None:
            raise
        kept = None
        with suppress(OSError):  # a folder that may not be written may not be readable either
            kept = newest_checkpoint(target.parent)
        last = f"the last one, {kept}, is whole" if kept else "there is no earlier one"
        raise InputError(f"{target}: cannot be saved ({found.reason}); {found.advice}; {last}") from error


def finish_checkpoint(target: Path, state: TrainerState) -> None:
    """Write the state file into the unfinished folder, wait for the disk, and give the folder its name."""
    unfinished = unfinished_name(target)
    (unfinished / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    sync_tree(unfinished)
    replaced = _replaced_name(target)
    if target.exists():
        target.rename(replaced)
    unfinished.rename(target)
    sync_path(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def _put_back_replaced(folder: Path) -> None:
    """Undo a replacement that a kill cut in half."""
    for path in folder.glob(".checkpoint-*.replaced"):
        target = folder / path.name[1:].removesuffix(".replaced")
        if not target.exists():
            with suppress(OSError):  # another process of the launch was faster
                path.rename(target)


class MetricsLog:
    """`metrics.jsonl`: one line for each optimizer step or evaluation."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        self._path = path
        with self._one_line():
            if path.exists():
                self._keep_until(resume_step)

    def write(self, **values: float | int | str) -> None:
        """Append one line."""
        with self._one_line(), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror}; checkpoints are whole") from error

    def _keep_until(self, step: int) -> None:
        """Drop what a killed run wrote after the checkpoint that this one resumes from."""
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                break  # the kill came in the middle of this line
        with atomic_path(self._path) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
