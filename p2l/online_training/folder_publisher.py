"""Publishes the model of a run into a folder while the run goes on: every so many votes, every so many minutes.

Whether it is time, and whether to stop, the first process decides for all. While nothing is served yet, the model that
the run begins with is published at once, or the one of its first step, so that an endpoint can start.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from p2l.config import TrainConfig
from p2l.errors import InputError
from p2l.online_training.gate import HeldVotes, judge, recent
from p2l.online_training.publishing import Verdict, candidate_path, last_decision, publish, served
from p2l.online_training.stream import StepFacts, StopRequestedError
from p2l.saving import write_model
from p2l.trainer import StepResult, Trainer

__all__ = ["FolderPublisher", "Timing"]


@dataclass(frozen=True)
class Timing:
    """When a model is published."""

    votes: int | None = None
    """Every so many votes that arrived."""
    seconds: float | None = None
    """And every so many seconds."""
    keep: int = 5
    """Models that stay in the folder."""


@dataclass
class FolderPublisher:
    """A `Publisher` (see p2l.online_training.stream)."""

    config: TrainConfig
    folder: Path | None
    """Where models are published; None: nowhere."""
    timing: Timing
    held: HeldVotes | None = None
    """Votes to judge candidates by; None: all are published."""
    gate_votes: int = 1000
    """Newest so many of them."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by a signal."""
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
    clock: Callable[[], float] = time.time
    _last: tuple[int, float] | None = None
    """Votes that had arrived, and the time, when it was decided last."""
    _newest: tuple[int, int] | None = None
    """Step and votes of the newest step that nothing was decided on."""

    def begin(self, step: int, arrived: int, trainer: Trainer) -> None:
        """Publish the model that the run begins with, if nothing is served yet and it knows any models."""
        engine = trainer.engine
        due = engine.is_main and self.folder is not None and served(self.folder) is None
        if engine.world_size > 1:
            due = engine.broadcast(due)
        if due and engine.model.model_list:
            self._newest = (step, arrived)
            self._publish(trainer)

    def after_step(self, result: StepResult, facts: StepFacts, trainer: Trainer) -> None:
        """Publish when it is time.

        Raises:
            StopRequestedError: a signal said to stop.
            InputError: the folder cannot be written.
        """
        engine = trainer.engine
        self._newest = (result.step, facts.arrived)
        stop, due = self.stop.is_set(), engine.is_main and self._is_due(facts.arrived)
        if engine.world_size > 1:
            stop, due = engine.broadcast((stop, due))
        if due:
            self._publish(trainer)
        if stop:
            raise StopRequestedError

    def finish(self, trainer: Trainer) -> None:
        """Publish what came after the last time."""
        if self.folder is not None and self._newest is not None:
            self._publish(trainer)

    def _is_due(self, arrived: int) -> bool:
        if self.folder is None:
            return False
        if self._last is None:
            self._last = _before(self.folder, arrived, self.clock())
        votes, when = self._last
        if served(self.folder) is None:
            return True
        enough = self.timing.votes is not None and arrived - votes >= self.timing.votes
        return enough or (self.timing.seconds is not None and self.clock() - when >= self.timing.seconds)

    def _publish(self, trainer: Trainer) -> None:
        assert self.folder is not None
        assert self._newest is not None
        step, arrived = self._newest
        self._newest = None
        if trainer.engine.is_main:
            make_folder(self.folder)
        trainer.engine.barrier()
        write_model(trainer, self.config, candidate_path(self.folder, step))
        if trainer.engine.is_main:
            verdict = publish(
                self.folder,
                step,
                lambda candidate, before: self._judge(candidate, before, arrived, str(trainer.engine.device)),
                keep=self.timing.keep,
                votes=arrived,
            )
            done = f"published {self.folder}/checkpoint-{step}" if verdict.good else f"step {step} is not published"
            self.tell(f"{done} after {arrived:,} votes: {verdict.reason}")
            self._last = (arrived, self.clock())
        trainer.engine.barrier()

    def _judge(self, candidate: Path, before: Path | None, arrived: int, device: str) -> Verdict:
        if self.held is None or before is None:
            return Verdict(True, "the first one" if before is None else "not judged (no --gate)", {})
        return judge(candidate, before, recent(self.held, arrived, self.gate_votes), device)


def make_folder(folder: Path) -> None:
    """Make the served folder.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror or error}; change --publish") from error


def _before(folder: Path, arrived: int, now: float) -> tuple[int, float]:
    """Where this run, or the part of it that was stopped, published last."""
    last = last_decision(folder) or {}
    votes, when = last.get("votes"), last.get("time")
    # More votes than have arrived are those of another run.
    known = isinstance(votes, int) and votes <= arrived and isinstance(when, float)
    return (votes, when) if known else (arrived, now)  # type: ignore[return-value]
