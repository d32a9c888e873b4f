"""The folder of a training run: its name, its checkpoints (whole or absent), its `metrics.jsonl`.

A checkpoint is written under a name that begins with a dot and renamed when every byte is on the disk, so a kill at
any moment leaves the checkpoints that were there before, and the new one wholly or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.common.files import atomic_path, disk_error, sync_path, sync_tree
from p2l.training.config import TrainConfig
from p2l.training.engine import Engine, peers
from p2l.training.trainer import Trainer

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


# What a training run writes: checkpoints that training can go on from, and the finished model.

_PATIENCE = 20.0  # seconds, more than network file systems take to show what another node has made


def check_shared(engine: Engine, folder: Path) -> None:
    """See to it that every process can write below rank 0's `folder` (every rank must call this).

    Raises:
        ConfigError: on another node there is no such folder; checkpoints would lack that node's part.
    """
    blind = None if _appears(folder) else socket.gethostname()
    hosts = engine.broadcast([host for host in engine.gather(blind) or [] if host])
    if hosts:
        raise ConfigError(
            f"{folder}: is not there on node {hosts[0]}; key 'output_dir' must name a folder that all nodes share"
        )


def _appears(folder: Path) -> bool:
    end = time.monotonic() + _PATIENCE
    while not folder.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def save_checkpoint(
    trainer: Trainer,
    config: TrainConfig,
    target: Path,
    state: TrainerState,
    more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write `target`: the model as a Hugging Face folder, and the training state (every rank must call this).

    On the main process `more` writes further files into the folder that becomes it.

    Raises:
        InputError: it cannot be written, because the disk is full, say; earlier checkpoints are whole.
    """
    engine, unfinished = trainer.engine, unfinished_name(target)
    # Only one process removes what is unfinished, or the others would stumble over its absence and say so.
    with whole_or_absent(target, clean=engine.is_main), peers():
        if engine.is_main:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
        engine.barrier()
        engine.save(unfinished)
        weights = trainer.published_weights()
        if engine.is_main:
            _write_model(trainer, config, unfinished, weights)
            more(unfinished)
            finish_checkpoint(target, state)
        engine.barrier()


def save_final(trainer: Trainer, config: TrainConfig, folder: Path) -> None:
    """Write the trained model into the run's folder itself (every rank must call this).

    Raises:
        InputError: it cannot be written; checkpoints are whole.
    """
    weights = trainer.published_weights()
    if trainer.engine.is_main:
        target = folder / "model"
        with whole_or_absent(target):
            unfinished = unfinished_name(target)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _write_model(trainer, config, unfinished, weights)
            sync_tree(unfinished)
            # Without its config.json a folder is no model: a kill in between leaves none, rather than half of one.
            for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
                os.replace(file, folder / file.name)
            unfinished.rmdir()
            sync_path(folder)
    trainer.engine.barrier()


def write_model(trainer: Trainer, config: TrainConfig, target: Path) -> None:
    """Write the model as it is now into a new folder, whole or not at all (every rank must call this).

    Raises:
        InputError: it cannot be written.
    """
    weights = trainer.published_weights()
    if trainer.engine.is_main:
        with whole_or_absent(target):
            unfinished = unfinished_name(target)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _write_model(trainer, config, unfinished, weights)
            sync_tree(unfinished)
            unfinished.rename(target)
            sync_path(target.parent)
    trainer.engine.barrier()


def _write_model(trainer: Trainer, config: TrainConfig, folder: Path, weights: dict[str, Tensor]) -> None:
    trainer.engine.model.save_pretrained(folder, state_dict=weights)
    trainer.windows.tokenizer.save_pretrained(folder)
    (folder / "training_config.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")


# Whether a configuration is that of the run which goes on.

# Where things are may change, and what is done beside the steps. Names of model, head and loss are checked against the
# model's own record; votes, batch, seed, precision and ZeRO stage against the trainer's state.
_MAY_CHANGE = frozenset(
    [
        "proj_name",
        "output_dir",
        "repo_id",
        "wandb_entity",
        "device",
        "train_data_path",
        "val_data_path",
        "load_train_data_from_disk",
        "load_val_data_from_disk",
        "drop_unknown_models",
        "pretrain_model_name",
        "model_type",
        "head_type",
        "loss_type",
        "num_train_epochs",
        "batch_size",
        "gradient_accumulation_steps",
        "packing",
        "micro_batch_tokens",
        "seed",
        "shuffle",
        "deepspeed_config_path",
        "dtype",
        "gradient_checkpointing",
        "compile",
        # Of online runs: the room that a head has is in its state, and votes are checked for themselves.
        "model_capacity",
        "vote_order",
    ]
)


def check_same_configuration(config: TrainConfig, checkpoint: Path) -> None:
    """Refuse to go on with settings that the training state would silently override, such as another learning rate.

    Raises:
        CheckpointError: a key that decides the weights has another value now, or the record cannot be read.
    """
    file = checkpoint / "training_config.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        now = config.model_dump(mode="json")
        changed = [key for key, value in now.items() if before.get(key, value) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}; copy the checkpoint again") from error
    for key in changed:
        if key not in _MAY_CHANGE:
            name, old, new = _innermost(key, before[key], now[key])
            raise CheckpointError(
                f"{checkpoint}: was trained with {name} = {old!r}, this run has {new!r}; "
                "change it back, or start a new run"
            )


def _innermost(key: str, old: object, new: object) -> tuple[str, object, object]:
    """The first difference within two values of a key, and its dotted name."""
    if isinstance(old, dict) and isinstance(new, dict):
        for inner in [*old, *(name for name in new if name not in old)]:
            if old.get(inner) != new.get(inner):
                return _innermost(f"{key}.{inner}", old.get(inner), new.get(inner))
    return key, old, new
