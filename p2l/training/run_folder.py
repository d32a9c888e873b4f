"""The folder of a training run: its name, its checkpoints, its `metrics.jsonl`, the finished model.

A kill at any moment leaves the earlier checkpoints intact and the new one either complete or absent.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.common.files import atomic_path, disk_error, locked, parse_json, put_folder, sync_path, sync_tree, write_json
from p2l.likelihood import Likelihood
from p2l.metrics import simple_metrics
from p2l.model.model import write_folder
from p2l.training.covariates import Worth
from p2l.training.covariates import worth as worth_of
from p2l.training.engine import Engine, peers
from p2l.training.forecasts import Forecast, chunks
from p2l.training.run_records import STATE_FILE
from p2l.training.train_config import TrainConfig
from p2l.training.trainer import Trainer
from p2l.votes import VoteStore

_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
_ROWS_WRITTEN_TOGETHER = 1024


@dataclass(frozen=True)
class TrainerState:
    """The progress of a run, and what must stay the same for it to be resumed."""

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
    """Fingerprint of the votes; None in checkpoints of older versions."""
    update_rule: dict[str, Any] | None = None
    """Clipping, optimizer and scheduler as passed to DeepSpeed; None in checkpoints of older versions."""
    selection: dict[str, Any] | None = None
    """The best step so far and its loss; None where no votes are held out to choose it."""
    processes: int | None = None
    """Processes that the run began with, which its steps are counted by; None where their number may not change."""

    def check_continues(self, now: TrainerState, folder: Path) -> None:
        """Raise CheckpointError if a run with the settings `now` cannot resume from this state."""
        if None not in (self.votes, now.votes) and self.num_votes == now.num_votes and self.votes != now.votes:
            raise CheckpointError(
                f"{folder}: was trained on other votes; resume with the same ones, or start a new run"
            )
        before, after = asdict(self), asdict(now)
        # One by one, so that the message names the setting and not the whole rule.
        if self.update_rule is not None and now.update_rule is not None:
            before, after = before | self.update_rule, after | now.update_rule
        free = {"step", "votes", "update_rule", "selection"}
        if self.processes is not None and not self.zero_stage:  # every process has the whole state, and steps stay
            free.add("world_size")
        for key, value in before.items():
            if key not in free and value != after.get(key):
                raise CheckpointError(
                    f"{folder}: was trained with {key} = {value}, this run has {after.get(key)}; "
                    "resume with the same votes, configuration and number of processes"
                )


def new_run_folder(output_dir: Path, name: str) -> Path:
    """Make `output_dir/name`, or `name_1`, `name_2`, ... where that exists; InputError if it cannot be made."""
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
    """Yield `folder`, then the same name with `_1`, `_2`, ..."""
    yield folder
    for number in count(1):
        yield folder.with_name(f"{folder.name}_{number}")


def newest_checkpoint(folder: Path) -> Path | None:
    """Return `folder` itself if it is a checkpoint of the trainer, else its newest `checkpoint-N`, else None."""
    if (folder / STATE_FILE).is_file():
        return folder
    if not folder.is_dir():
        return None
    # A replacement that was killed halfway is undone.
    for path in folder.glob(".checkpoint-*.replaced"):
        target = folder / path.name[1:].removesuffix(".replaced")
        if not target.exists():
            with suppress(OSError):  # another process of the same launch has done it
                path.rename(target)
    whole = _whole_checkpoints(folder)
    return whole[-1] if whole else None


def keep_newest(folder: Path, number: int) -> None:
    """Remove all checkpoints of a run's folder except the newest `number`."""
    for path in _whole_checkpoints(folder)[:-number]:
        # The state goes first: a folder without it does not count as a checkpoint, should the removal be killed.
        (path / STATE_FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _whole_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := _CHECKPOINT_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered) if (path / STATE_FILE).is_file()]


def read_state(checkpoint: Path) -> TrainerState:
    """Read the state file of a checkpoint; CheckpointError if it is missing or malformed."""
    try:
        state = TrainerState(**parse_json((checkpoint / STATE_FILE).read_text(encoding="utf-8")))
        if not isinstance(state.step, int):
            raise TypeError(f"step is {state.step!r}")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint / STATE_FILE}: is not a state of this trainer: {error}; copy the checkpoint again"
        ) from error
    return state


def unfinished_name(target: Path) -> Path:
    """Return where a checkpoint is written before it is complete; the same on every rank."""
    return target.with_name(f".{target.name}.unfinished")


@contextmanager
def whole_or_absent(target: Path, *, clean: bool = True) -> Iterator[None]:
    """Translate errors of the disk (full, no permission) into InputError; `clean` removes the unfinished folder."""
    try:
        yield
    except Exception as error:  # torch, safetensors and tokenizers each report a full disk in their own way
        if clean:
            shutil.rmtree(unfinished_name(target), ignore_errors=True)
        if (problem := disk_error(error)) is None:
            raise
        newest = None
        with suppress(OSError):  # a folder without write permission may not be readable either
            newest = newest_checkpoint(target.parent)
        last = f"the last one, {newest}, is complete" if newest else "there is no earlier one"
        raise InputError(f"{target}: cannot be saved ({problem.reason}); {problem.advice}; {last}") from error


def finish_checkpoint(target: Path, state: TrainerState) -> None:
    """Write the state file into the unfinished folder, flush it to disk, and give the folder its name."""
    unfinished = unfinished_name(target)
    write_json(unfinished / STATE_FILE, asdict(state), indent=2)
    put_folder(unfinished, target, target.with_name(f".{target.name}.replaced"))


# Models in and around the folder.

_SHARING_SECONDS = 20.0  # more than network file systems take to show a folder that another node has made


def check_shared(engine: Engine, folder: Path) -> None:
    """Raise ConfigError unless every node sees rank 0's `folder`, or checkpoints would lack its shards (collective)."""
    end = time.monotonic() + _SHARING_SECONDS
    while not folder.is_dir() and time.monotonic() <= end:
        time.sleep(0.1)
    blind = None if folder.is_dir() else socket.gethostname()
    hosts = engine.broadcast([host for host in engine.gather(blind) or [] if host])
    if hosts:
        raise ConfigError(
            f"{folder}: is not there on node {hosts[0]}; key 'output_dir' must name a folder that all nodes share"
        )


@contextmanager
def alone_in(folder: Path, engine: Engine) -> Iterator[None]:
    """Keep other runs out of the folder until the block ends (every rank must call this)."""
    with locked(folder, wait=False) if engine.is_main else nullcontext(True) as is_alone:
        if not engine.broadcast(is_alone):
            raise InputError(f"{folder}: another process is training in it; stop that one first")
        yield


def save_checkpoint(
    trainer: Trainer,
    config: TrainConfig,
    target: Path,
    state: TrainerState,
    more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write model and training state into `target`, and with `more` further files (every rank must call this).

    InputError if the disk refuses; earlier checkpoints stay complete.
    """
    engine, unfinished = trainer.engine, unfinished_name(target)
    # One process alone removes the unfinished folder; the others would fail because it is gone.
    with whole_or_absent(target, clean=engine.is_main), peers():
        if engine.is_main:
            _empty_folder(unfinished)
        engine.barrier()
        engine.save(unfinished)
        weights = trainer.published_weights()
        if engine.is_main:
            _write_model(trainer, config, unfinished, weights)
            more(unfinished)
            finish_checkpoint(target, state)
        engine.barrier()


def write_model(
    trainer: Trainer,
    config: TrainConfig,
    target: Path,
    *,
    unpack: bool = False,
    more: Callable[[Path], None] = lambda _: None,
    model_list: Sequence[str] | None = None,
) -> None:
    """Write the current model into a new folder, or with `unpack` beside it; complete or not at all (collective).

    On the main process `more` writes further files. InputError if the disk refuses.
    """
    weights = trainer.published_weights()
    if trainer.engine.is_main:
        with whole_or_absent(target):
            unfinished = _empty_folder(unfinished_name(target))
            _write_model(trainer, config, unfinished, weights, more, model_list)
            sync_tree(unfinished)
            if unpack:
                # A folder without config.json is not a model, so it comes last: a kill leaves no incomplete model.
                for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
                    os.replace(file, target.parent / file.name)
                unfinished.rmdir()
            else:
                unfinished.rename(target)
            sync_path(target.parent)
    trainer.engine.barrier()


def _empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _write_model(
    trainer: Trainer,
    config: TrainConfig,
    folder: Path,
    weights: dict[str, Tensor],
    more: Callable[[Path], None] = lambda _: None,
    model_list: Sequence[str] | None = None,
) -> None:
    (folder / "training_config.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    model, tokenizer = trainer.engine.model, trainer.windows.tokenizer
    write_folder(folder, model, tokenizer, state_dict=weights, model_list=model_list, add_files=more)


# Keys that may change between a run and its resumption: places, and what does not touch a step. Model, head and loss
# are checked against the model's own record; votes, batch, seed, precision and ZeRO stage against the trainer's state,
# and so is the room that the head of an online run has (model_capacity).
_KEYS_THAT_MAY_CHANGE = {
    "proj_name", "output_dir", "repo_id", "wandb_entity", "device", "train_data_path", "val_data_path",
    "load_train_data_from_disk", "load_val_data_from_disk", "drop_unknown_models", "pretrain_model_name", "model_type",
    "head_type", "loss_type", "num_train_epochs", "batch_size", "gradient_accumulation_steps", "packing",
    "micro_batch_tokens", "seed", "shuffle", "deepspeed_config_path", "dtype", "gradient_checkpointing", "compile",
    "model_capacity", "vote_order", "past_data_path",
}  # fmt: skip


def check_same_configuration(config: TrainConfig, checkpoint: Path) -> None:
    """Raise CheckpointError if a key that affects the weights has changed: the state would silently override it."""
    file = checkpoint / "training_config.json"
    try:
        before = parse_json(file.read_text(encoding="utf-8"))
        now = config.model_dump(mode="json")
        changed = [key for key, value in now.items() if before.get(key, value) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}; copy the checkpoint again") from error
    for key in changed:
        if key not in _KEYS_THAT_MAY_CHANGE:
            name, old, new = _innermost(key, before[key], now[key])
            raise CheckpointError(
                f"{checkpoint}: was trained with {name} = {old!r}, this run has {new!r}; "
                "change it back, or start a new run"
            )


def _innermost(key: str, old: object, new: object) -> tuple[str, object, object]:
    """Return the dotted name of the first difference between two values of a key, and both values there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for inner in [*old, *(name for name in new if name not in old)]:
            if old.get(inner) != new.get(inner):
                return _innermost(f"{key}.{inner}", old.get(inner), new.get(inner))
    return key, old, new


# Results on validation votes.


def summarise(predictions: Forecast, votes: VoteStore, likelihood: Likelihood) -> dict[str, float]:
    """Return the simple metrics of the predictions that are defined under this likelihood, covariates counted in."""
    metrics = simple_metrics(
        predictions.coefs,
        votes.labels(np.arange(len(votes))),
        predictions.eta,
        predictions.gamma,
        likelihood=likelihood,
        shift=predictions.shift,
    )
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def write_results(
    folder: Path,
    predictions: Forecast,
    votes: VoteStore,
    likelihood: Likelihood,
    one_leaderboard: Forecast | None = None,
) -> Worth | None:
    """Write `eval_results.json` (metrics) and `eval_output.jsonl` (validation rows with `betas`, `eta`, `gamma`).

    Where the predictions have the shift of covariates a row has the `shift` of its vote, and the worth of covariates is
    returned, beside that in the forecast of one leaderboard.
    """
    shift = predictions.shift
    worth = None if shift is None else worth_of(predictions, votes, likelihood, one_leaderboard)
    more = {} if worth is None else {"covariates": worth.to_dict()}
    metrics = summarise(predictions, votes, likelihood)
    write_json(folder / "eval_results.json", {"votes": len(votes), **metrics, **more}, indent=2)
    with atomic_path(folder / "eval_output.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
        for ids in chunks(len(votes), _ROWS_WRITTEN_TOGETHER):
            for number, label, row in zip(ids, votes.labels(ids), votes.rows(ids), strict=True):
                row |= {"labels": label.tolist(), "betas": predictions.coefs[number].tolist()}
                for name, column in (("eta", predictions.eta), ("gamma", predictions.gamma)):
                    if column is not None:
                        row[name] = float(column[number])
                if shift is not None:
                    row["shift"] = shift[number].tolist()
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return worth
