"""The configuration of online training: that of `p2l.train`, and how votes come."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from p2l.config import Number, TrainConfig, Whole
from p2l.online_training.buffers import BufferSettings

__all__ = ["ExperienceReplay", "OnlineConfig"]


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
