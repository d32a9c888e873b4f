"""The configuration of online training: that of `p2l.train`, and how votes come."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from p2l.common.config import Number, Whole
from p2l.common.errors import ConfigError
from p2l.common.files import parse_json
from p2l.online_training.buffers import BufferSettings
from p2l.training.train_config import TrainConfig


class ExperienceReplay(BaseModel):
    """The older key `experience_replay`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    limit: Whole = Field(ge=1)
    """Most votes that stand ready to be replayed."""
    ratio: Number = Field(gt=0, le=1)
    """Share of new votes in each batch."""
    min_iter: Whole = Field(default=0, ge=0)
    """Batches of new votes alone before the first replay."""


class OnlineConfig(TrainConfig):
    """Everything that decides an online run, except the flags of the command."""

    shuffle: bool | Literal["by_prompt"] = False
    """Votes come in their order; another value is passed over with a note, so that offline configurations serve."""
    selection_share: Number = Field(default=0.0, ge=0, lt=1)
    """Of a stream no step is chosen: published models are gated instead."""
    buffer: BufferSettings = Field(default_factory=BufferSettings)
    """When each vote is trained on; by default at once."""
    experience_replay: ExperienceReplay | None = None
    model_capacity: Whole = Field(default=1024, ge=1)
    """Models that the head has room for at first; doubled, whenever they run out."""
    new_models: Literal["prior", "mean", "random"] = "prior"
    """The row of a new model: set from its first votes under a prior of the known models' rows (in a run that
    begins with eight or more; else as `mean`, and with a replay buffer moved in larger steps at first), or started at
    the mean coefficient of those before it, or at random as `init_type` says."""
    past_data_path: str | None = None
    """Votes that the model of `--checkpoint` was trained on, which a replay buffer draws from the first step on."""
    average_steps: Whole | None = Field(default=None, ge=1)
    """Checkpoints and published models hold the mean of the weights over this many recent steps; None: the newest."""
    vote_order: Literal["time", "sort", "given"] = "time"
    """time: votes stand in order of time, or the run is refused; sort: sort them; given: as they stand."""

    @model_validator(mode="after")
    def _check_online(self) -> OnlineConfig:
        if self.experience_replay is not None and "buffer" in self.model_fields_set:
            raise ValueError("experience_replay: is an older form of 'buffer'; remove one of the two")
        if self.selection_share or self.cross_fit:
            key = "cross_fit" if self.cross_fit else "selection_share"
            raise ValueError(
                f"{key}: chooses a step of offline training; remove it (online, --hold-out keeps votes back)"
            )
        if self.people is not None:
            raise ValueError("people: judges are fitted to all votes, which are yet to come; remove it")
        if self.shared_level:
            raise ValueError("shared_level: is for a list of models that does not grow; remove it")
        if self.num_train_epochs != 1:
            raise ValueError("num_train_epochs: a stream comes once; remove it (a replay buffer shows votes again)")
        if self.init_type == "marginal":
            raise ValueError("init_type: 'marginal' is fitted to all votes, which are yet to come; use another one")
        return self

    @property
    def buffer_settings(self) -> BufferSettings:
        """The buffer, whichever key asks for it."""
        old = self.experience_replay
        if old is None:
            return self.buffer
        return BufferSettings.of_experience_replay(old.limit, old.ratio, old.min_iter)


_RECORD_FILE = "training_config.json"
_RATE_KEYS = ("learning_rate", "head_learning_rate")
# A constant rate of two ninths: the mean of a rate that falls to zero is a half, and a finished model moves less than a
# new one.
_RATE_DIVISOR = 4.5
_WARMUP_STEPS = 10
# A fourth as many replayed votes as new ones; three with every seven where the votes of the first model are known.
_REPLAYED_SHARE = 0.19
_REPLAYED_SHARE_OF_PAST = 0.3
_AVERAGED_STEPS = 500
# A pass of offline training has some 250 steps of up to thousands of votes, which a live run would wait for.
_FEWEST_VOTES_PER_STEP = 16
_MOST_VOTES_PER_STEP = 64


def derived_configuration(checkpoint: str | None, followed: Path | None = None) -> tuple[Path, dict[str, object]]:
    """Return the file that a run without `--config` takes its keys from, and the keys that are replaced.

    A run that goes on keeps its own configuration. Of a model of offline training, keys about passes over a data set
    are replaced: votes come once, in their order, in small steps, at a constant rate over the root of how many times
    smaller the steps are. The mean of the weights over recent steps is published.

    Raise ConfigError if the checkpoint is not a folder of this trainer.
    """
    from p2l.training.run_folder import newest_checkpoint

    record = None
    folder = Path(checkpoint or "").expanduser()
    if checkpoint is not None:
        # A run without a finished model has its record in the newest checkpoint.
        places = [folder, newest_checkpoint(folder)]
        records = [place / _RECORD_FILE for place in places if place is not None]
        record = next((path for path in records if path.is_file()), None)
    if record is None:
        raise ConfigError(
            "--config is missing; name a configuration (docs/train/online.md), or with --checkpoint a folder that "
            f"p2l train or p2l online-train wrote, with its {_RECORD_FILE}"
        )
    try:
        recorded = parse_json(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{record}: cannot be read: {error}; give --config") from error
    if "buffer" not in recorded:
        return record, _changes(folder, recorded, followed)
    if recorded.get("experience_replay"):
        raise ConfigError(f"{record}: has experience_replay, the older form of 'buffer'; add the run's --config")
    return record, {"buffer": _stated(recorded["buffer"])}


def _stated(block: dict[str, Any]) -> dict[str, Any]:
    """Return a buffer's settings without defaults: a buffer refuses what it does not read."""
    usual = BufferSettings.model_fields
    stated = {key: value for key, value in block.items() if key == "type" or value != usual[key].default}
    return stated | ({"on": _stated(stated["on"])} if "on" in stated else {})


def _recorded_past(recorded: dict[str, Any], followed: Path | None) -> str | None:
    """Return the votes that offline training recorded, if they are there and are not those that the run follows."""
    path = Path(str(recorded.get("train_data_path") or "")).expanduser()
    is_there = path.is_file() and not recorded.get("load_train_data_from_disk")
    is_followed = followed is not None and is_there and followed.expanduser().resolve() == path.resolve()
    return str(path) if is_there and not is_followed else None


def replay_of_past() -> dict[str, object]:
    """Return the buffer of a run that knows the votes its model was trained on: three with seven new ones."""
    return {"type": "replay", "epsilon": _REPLAYED_SHARE_OF_PAST, "min_batches": 0}


def _changes(folder: Path, recorded: dict[str, Any], followed: Path | None) -> dict[str, object]:
    # Verdicts of judges, which a live run would take for votes of people, are not replayed.
    past = None if recorded.get("people") else _recorded_past(recorded, followed)
    offline_step = int(recorded.get("batch_size", 1)) * int(recorded.get("gradient_accumulation_steps", 1))
    step = max(_FEWEST_VOTES_PER_STEP, min(_MOST_VOTES_PER_STEP, offline_step))
    changes: dict[str, object] = {
        "proj_name": f"{folder.resolve().name}-online",
        "output_dir": str(folder.parent),
        "repo_id": None,
        "shuffle": False,
        "selection_share": 0.0,
        "cross_fit": None,
        "people": None,
        "weigh_voters": followed is not None,
        "batch_size": step,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": 1,
        "init_type": "reset_params",
        "shared_level": False,
        "past_data_path": past,
        "buffer": {"type": "replay", "epsilon": _REPLAYED_SHARE} if past is None else replay_of_past(),
        "average_steps": _AVERAGED_STEPS,
    }
    engine = folder / Path(str(recorded.get("deepspeed_config_path"))).name
    if engine.is_file():  # as p2l train --votes writes it; its path there is that of where the run was started
        changes["deepspeed_config_path"] = str(engine.resolve())
    slower = _RATE_DIVISOR * math.sqrt(offline_step / step)
    changes |= {name: recorded[name] / slower for name in _RATE_KEYS if recorded.get(name)}
    if not recorded.get("custom_scheduler"):
        changes |= {"lr_schedule": "constant", "lr_schedule_params": {}, "warmup_steps": _WARMUP_STEPS}
    return changes
