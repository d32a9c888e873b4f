"""The configuration of online training: that of `p2l.train`, and how votes come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from p2l.common.config import Number, Whole
from p2l.common.errors import ConfigError
from p2l.common.files import parse_json
from p2l.online_training.buffers import BufferSettings
from p2l.training.config import TrainConfig


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
    """Votes come in their order."""
    selection_share: Number = Field(default=0.0, ge=0, lt=1)
    """No step is chosen of a stream: what is published is gated instead."""
    buffer: BufferSettings = Field(default_factory=BufferSettings)
    """When each vote is trained on; by default at once."""
    experience_replay: ExperienceReplay | None = None
    model_capacity: Whole = Field(default=1024, ge=1)
    """Models that the head has room for at first; doubled, whenever they run out."""
    new_models: Literal["mean", "random"] = "mean"
    """Where a new model starts: at the mean coefficient of those before it, or at random as `init_type` says."""
    average_steps: Whole | None = Field(default=None, ge=1)
    """Checkpoints and published models hold the mean of the weights over so many recent steps; None: the newest."""
    vote_order: Literal["time", "sort", "given"] = "time"
    """time: votes stand in order of time, or the run is refused; sort: sort them; given: as they stand."""

    @model_validator(mode="after")
    def _check_online(self) -> OnlineConfig:
        if self.experience_replay is not None and "buffer" in self.model_fields_set:
            raise ValueError("experience_replay: is an older form of 'buffer'; remove one of the two")
        if self.shuffle:
            raise ValueError("shuffle: online training takes votes as they come; remove it, or use p2l.train")
        if self.selection_share or self.cross_fit:
            key = "cross_fit" if self.cross_fit else "selection_share"
            raise ValueError(f"{key}: chooses a step of offline training; remove it (online, --gate holds votes out)")
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


_RECORD = "training_config.json"
_RATES = ("learning_rate", "head_learning_rate")
_SLOWER = 3.0
_WARMUP = 20  # steps
_REPLAYED = 0.19
_AVERAGED = 500  # steps


def derived_configuration(checkpoint: str | None) -> tuple[Path, dict[str, object]]:
    """Return the file that a run without `--config` takes its keys from, and the keys that are replaced.

    A run that goes on keeps its own configuration. Of a model of offline training, keys about passes over a data set
    are replaced: votes come once, in their order, at a constant rate of a third (the mean of a rate that falls to zero
    is a half, and single votes come without a second pass), with as many as a fourth of them replayed, and what is
    published is the mean of the weights over recent steps.

    Raise ConfigError if the checkpoint is no folder of this trainer.
    """
    folder = None if checkpoint is None else Path(checkpoint).expanduser()
    record = None if folder is None else _record_in(folder)
    if folder is None or record is None:
        raise ConfigError(
            "--config is missing; name a configuration (docs/online.md), or with --checkpoint a folder that "
            f"p2l train or p2l online-train wrote, with its {_RECORD}"
        )
    try:
        recorded = parse_json(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{record}: cannot be read: {error}; give --config") from error
    if "buffer" not in recorded:
        return record, _changes(folder, recorded)
    if recorded.get("experience_replay"):
        raise ConfigError(f"{record}: has experience_replay, the older form of 'buffer'; add the run's --config")
    return record, {"buffer": _stated(recorded["buffer"])}


def _record_in(folder: Path) -> Path | None:
    """Return the record of a model folder, or of the newest checkpoint of a run without a finished model."""
    from p2l.training.run_folder import newest_checkpoint

    newest = newest_checkpoint(folder)
    places = [folder, *([newest] if newest else [])]
    return next((place / _RECORD for place in places if (place / _RECORD).is_file()), None)


def _stated(block: dict[str, Any]) -> dict[str, Any]:
    """Return a buffer's settings without defaults: a buffer refuses what it does not read."""
    usual = BufferSettings.model_fields
    stated = {key: value for key, value in block.items() if key == "type" or value != usual[key].default}
    return stated | ({"on": _stated(stated["on"])} if "on" in stated else {})


def _changes(folder: Path, recorded: dict[str, Any]) -> dict[str, object]:
    changes: dict[str, object] = {
        "proj_name": f"{folder.resolve().name}-online",
        "output_dir": str(folder.parent),
        "repo_id": None,
        "shuffle": False,
        "selection_share": 0.0,
        "cross_fit": None,
        "num_train_epochs": 1,
        "init_type": "reset_params",
        "buffer": {"type": "replay", "epsilon": _REPLAYED},
        "average_steps": _AVERAGED,
    }
    engine = folder / Path(str(recorded.get("deepspeed_config_path"))).name
    if engine.is_file():  # as p2l train --votes writes it; its path there is that of where the run was started
        changes["deepspeed_config_path"] = str(engine.resolve())
    changes |= {name: recorded[name] / _SLOWER for name in _RATES if recorded.get(name)}
    if not recorded.get("custom_scheduler"):
        changes |= {"lr_schedule": "constant", "lr_schedule_params": {}, "warmup_steps": _WARMUP}
    return changes
