"""A model trained anew in the background on all votes so far, where following them falls behind that.

A live run sees a vote once or twice, in the order of arrival, with a backbone that knows the words of the first votes;
how much that loses, only training anew can tell. So a child process repeats the command that trained the run's first
model (`p2l train --votes`), on its votes and those that have come, while the run follows what comes. Then the new model
R and the followed one F, both as of the vote at which the child began, forecast votes that neither was trained on:
those on held-out prompts, and those that have come since.

    gain = mean of loss_F - loss_R

R is taken over where gain > 2 standard errors (clustered by prompt): training goes on from its weights, with the votes
that R has not seen.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2l.common.errors import CheckpointError, ConfigError, P2LError
from p2l.common.files import write_json
from p2l.model.checkpoint import read_model_list, read_object
from p2l.model.model import P2LModel
from p2l.online_training.candidates import FEWEST_HELD_OUT_PROMPTS, ArrivedVotes, HeldOutVotes, recent, shrink
from p2l.online_training.live_trust import LiveTrust
from p2l.online_training.live_votes import LineVotes, LiveVotes, Waiting, is_held_out
from p2l.online_training.online_config import OnlineConfig
from p2l.online_training.publishing import Difference, compare, log_event
from p2l.online_training.stream import open_past
from p2l.training.recipe import CROSS_FIT_BELOW
from p2l.training.run_folder import newest_checkpoint, read_state, write_model
from p2l.training.run_records import CONFIG_FILE, RECORD_FILE, REQUEST_FILE, HeldOutComparison
from p2l.training.trainer import Trainer
from p2l.votes import translate_labels
from p2l.votes.schema import WINNERS

_STATE_FILE = "retraining.json"
_WORTHWHILE_GAIN = 0.01
"""Nats a vote that training anew is made for."""
_STANDARD_ERRORS = 2.0
"""Standard errors of the gain beyond which a model is taken over."""
_FIRST_ATTEMPT_SHARE = 0.2
"""Votes before the first attempt, as a share of those of the first model."""
_MIN_VOTES_BETWEEN_ATTEMPTS = 500
_MAX_NEW_VOTES_JUDGED = 2000
"""Newest votes of the stream since the child began that both models are compared on."""
_JOB_FILE = "job.json"
_MODEL_FOLDER = "model"
_FOLLOWED_FOLDER = "followed"
_LOG_FILE = "log.txt"
_CHILD = "import sys; from p2l.online_training.retraining import train_anew; train_anew(sys.argv[1])"
# The child is a run of one process, whatever started its parent.
_LAUNCHER_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_ROWS_TOGETHER = 1024
_POLL_SECONDS = 0.2


@dataclass
class RetrainingState:
    """The part of a checkpoint that retraining goes on from: the request to repeat, and the compute spent."""

    request: dict[str, Any]
    """Flags of the line that trained the first model."""
    epochs: int
    folds: int
    """Models that were trained besides, one for each fold, as it is done with fewer than CROSS_FIT_BELOW prompts."""
    before: int
    """Votes of the first model."""
    first: int
    """Vote passes of its training."""
    interval: int
    """Votes between two attempts."""
    followed: int = 0
    """Vote passes of the run, replayed votes included."""
    retrained: int = 0
    """Vote passes of all attempts."""
    fresh: int = 0
    """Votes that had come when the followed model was last one trained anew."""
    tried: int = 0
    """Votes that had come at the last attempt."""
    votes_per_prompt: float = 1.0

    @classmethod
    def of_model(cls, folder: Path, *, has_past: bool) -> RetrainingState:
        """Return the state of a run that begins with a model; ConfigError unless `p2l train --votes` trained it.

        `has_past` is whether the votes that the model was trained on are there beside the stream.
        """
        request = read_object(folder / REQUEST_FILE, missing={}).get("request")
        record = read_object(folder / RECORD_FILE, missing={})
        newest = newest_checkpoint(folder)
        if not isinstance(request, dict) or newest is None or not record:
            raise ConfigError(
                f"--retrain repeats the line that trained the first model, and {folder} holds none: name a folder of "
                "p2l train --votes as --checkpoint, or leave --retrain out"
            )
        # The side, which training takes by itself, is left out from here on.
        if request.get("control", ["none"]) != ["none"] or record.get("people"):
            raise ConfigError("--retrain goes neither with covariates nor with verdicts of judges; leave it out")
        votes, epochs = read_state(newest).num_votes, int(record.get("num_train_epochs") or 1)
        compared = HeldOutComparison.read(folder)
        folds = int(record.get("cross_fit") or 0)
        interval = max(_MIN_VOTES_BETWEEN_ATTEMPTS, round(_FIRST_ATTEMPT_SHARE * votes))
        # Without its votes beside the stream, nothing is gained before as many have come.
        start = 0 if has_past else votes
        return cls(
            request=request,
            epochs=epochs,
            folds=folds,
            before=votes,
            first=epochs * votes * (1 + folds),
            interval=interval,
            fresh=start,
            tried=start,
            votes_per_prompt=1.0 if compared is None else compared.votes / max(1, compared.prompts),
        )

    @classmethod
    def of_checkpoint(cls, checkpoint: Path) -> RetrainingState:
        """Return the state that a run goes on with; CheckpointError if the run was started without --retrain."""
        try:
            return cls(**read_object(checkpoint / _STATE_FILE))
        except (P2LError, TypeError) as error:
            raise CheckpointError(
                f"{checkpoint}: was saved by a run without --retrain; leave it out, or start a new run with it"
            ) from error

    def passes(self, votes: int) -> int:
        """Return the vote passes of training anew on `votes` votes."""
        return self.epochs * votes * (1 + (self.folds if votes < CROSS_FIT_BELOW * self.votes_per_prompt else 0))

    def compute(self, arrived: int, more: int = 0) -> float:
        """Return all vote passes, and `more`, over those of naive training."""
        # Naive: the first model's training, and one pass over what has come. Following with replay takes 1.2 to 2
        # passes a vote, and training anew several passes over all votes.
        return (self.first + self.followed + self.retrained + more) / max(1, self.first + arrived)

    def judged(self, began: int, gain: float, *, taken: bool) -> None:
        """Choose when to try again, after an attempt at `began` votes."""
        since = began - self.fresh
        self.tried = began
        if not taken:
            self.interval = max(since, 1)
            return
        self.fresh = began
        # A gap that grows evenly with votes reaches a worthwhile gain after this many.
        self.interval = round(min(max(since * _WORTHWHILE_GAIN / gain, since / 2), since * 2))


@dataclass
class _Attempt:
    """A child that trains."""

    process: subprocess.Popen[bytes]
    began: int
    """Votes that had come."""
    started: float


@dataclass
class Retraining:
    """Trains anew beside a run of one process; `after_step` and `finish` return a model to take over."""

    config: OnlineConfig
    folder: Path
    """Working folder of the child."""
    served: Path
    """Served folder, whose log records the decisions."""
    stream: LiveVotes
    past: str | None
    """The votes of the first model, unless they are in the stream."""
    state: RetrainingState
    times: float
    """Most compute, as a multiple of naive training's."""
    gate_votes: int
    trust: LiveTrust | None
    """What votes of each voter weigh; None: all alike."""
    began_with: int
    """Models that the run knew before its first vote."""
    tell: Callable[[str], None]
    _attempt: _Attempt | None = None
    _waits: bool = False
    """Whether the user was told that compute is spent."""
    _ended: bool = False
    """Whether the stream has ended."""

    def after_step(self, votes: int, step: int, arrived: int, trainer: Trainer) -> Path | None:
        """Count the votes of a step; begin or end an attempt where it is time."""
        self.state.followed += votes
        if self._attempt is not None:
            return self._end(step, arrived, trainer) if self._attempt.process.poll() is not None else None
        if self._ended or arrived - self.state.tried < self.state.interval:
            return None
        compute = self.state.compute(arrived, self.state.passes(self._votes_at(arrived)))
        if compute <= self.times:
            self._begin(arrived, trainer)
        elif not self._waits:
            self._waits = True
            self.tell(
                f"training anew waits: with it this run would take {compute:.1f} times the compute of training on each "
                f"vote once, and --retrain allows {self.times:g}"
            )
        return None

    def finish(self, step: int, arrived: int, trainer: Trainer) -> Path | None:
        """Wait for the child at the end of the stream; nothing is begun afterwards.

        Raise StopRequestedError if a signal said to stop.
        """
        self._ended = True
        if self._attempt is None:
            return None
        while self._attempt.process.poll() is None:
            self.stream.pause(_POLL_SECONDS)
        return self._end(step, arrived, trainer)

    def close(self) -> None:
        """End the child and drop its work."""
        if self._attempt is not None:
            self._attempt.process.kill()
            self._attempt.process.communicate()
            self._attempt = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self, folder: Path) -> None:
        """Write what a run needs to go on; an attempt under way is not in it."""
        write_json(folder / _STATE_FILE, asdict(self.state))

    def _votes_at(self, arrived: int) -> int:
        """Return how many votes there are to train anew on, about: some are held out."""
        return arrived + (0 if self.past is None else self.state.before)

    def _begin(self, arrived: int, trainer: Trainer) -> None:
        """Write the followed model as it is, and start a child that trains on the votes up to now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        names, followed = list(trainer.engine.model.model_list), self.folder / _FOLLOWED_FOLDER
        write_model(trainer, self.config, followed)
        # As it is published: the other one is shrunk by votes of its own.
        held = recent(self.stream.held, arrived, self.gate_votes, self.trust)
        arrived_votes = ArrivedVotes(trainer.votes, arrived, names, names, self.trust, self.config.weighted_loss)
        device, weighted = trainer.engine.device, self.config.weighted_loss or self.trust is not None
        shrink(followed, arrived_votes, held, device, weighted=weighted, is_new=False)
        job = {
            "stream": str(self.stream.path),
            "votes": arrived,
            "share": self.stream.held_share,
            "past": self.past,
            "models": names,
            "weighted": self.config.weighted_loss,
            "weigh_voters": self.trust is not None,
            "request": self.state.request,
        }
        write_json(self.folder / _JOB_FILE, job)
        words = [sys.executable, "-c", _CHILD, str(self.folder)]
        environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
        environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        with (self.folder / _LOG_FILE).open("wb") as log:
            # Ctrl-C goes to all processes of a session: the run decides what becomes of the child.
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._attempt = _Attempt(process, arrived, time.monotonic())

    def _end(self, step: int, arrived: int, trainer: Trainer) -> Path | None:
        """Judge the model of the child; return it if it is to be taken over."""
        attempt = self._attempt
        assert attempt is not None
        self._attempt = None
        attempt.process.communicate()
        model, numbers, gain, taken = self.folder / _MODEL_FOLDER, {}, 0.0, False
        self.state.retrained += self.state.passes(self._votes_at(attempt.began))
        reason = self._unfit(attempt, model, trainer)
        if not reason:
            difference = self._compare(model, attempt.began, arrived, trainer)
            if difference.prompts < FEWEST_HELD_OUT_PROMPTS:
                reason = f"{difference.prompts} prompts that neither was trained on are too few to judge by"
            elif not math.isfinite(difference.mean):
                reason = "its loss is not a number"
            else:
                gain, taken = -difference.mean, -difference.mean > _STANDARD_ERRORS * difference.error
                numbers = {"gain": gain, "error": difference.error, "judged_votes": difference.votes}
                reason = (
                    f"loss {difference.candidate_loss:.4f} against {difference.served_loss:.4f} of the followed one on "
                    f"{difference.votes:,} votes that neither was trained on: gains {gain:.4f} +- "
                    f"{difference.error:.4f}"
                )
        self.state.judged(attempt.began, gain, taken=taken)
        reason += f"; next {self.state.interval:,} votes after it"
        facts: Mapping[str, Any] = {
            "votes": arrived,
            "began": attempt.began,
            "interval": self.state.interval,
            "seconds": round(time.monotonic() - attempt.started, 1),
            "compute": round(self.state.compute(arrived), 3),
        }
        event = "taken over" if taken else "not taken over"
        log_event(self.served, event="retrained", step=step, taken_over=taken, reason=reason, **numbers, **facts)
        self.tell(f"a model trained anew on {self._votes_at(attempt.began):,} votes is {event}: {reason}")
        return model if taken else None

    def _unfit(self, attempt: _Attempt, model: Path, trainer: Trainer) -> str:
        """Return why the child's model cannot take the place of the followed one; empty if it can."""
        if attempt.process.returncode:
            log = (self.folder / _LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"it ended with exit code {attempt.process.returncode}: {log[-1] if log else 'its log is empty'}"
        record = read_object(model / RECORD_FILE)
        for key in ("model_type", "head_type", "loss_type"):
            if record.get(key) != getattr(self.config, key):
                return f"its {key} is {record.get(key)!r}, that of the run {getattr(self.config, key)!r}"
        names = trainer.engine.model.model_list[: self.began_with]
        missing = sorted(set(names) - set(read_model_list(model)))
        return f"it does not know {missing[0]}, which has no votes" if missing else ""

    def _compare(self, model: Path, began: int, arrived: int, trainer: Trainer) -> Difference:
        """Compare with the followed model on votes that neither was trained on."""
        held, stream = recent(self.stream.held, arrived, self.gate_votes, self.trust), self.stream
        since = np.arange(max(began, arrived - _MAX_NEW_VOTES_JUDGED), arrived)
        if self.trust is not None:
            since = since[self.trust.trusted(stream, since)]
        names = list(dict.fromkeys([*stream.model_list, *held.model_list]))
        labels = [
            translate_labels(held.labels, held.model_list, names),
            translate_labels(stream.labels(since), stream.model_list, names),
        ]
        prompts = [*held.prompts, *stream.prompts(since)]
        votes = HeldOutVotes(prompts, np.concatenate(labels), names)
        return compare(model, self.folder / _FOLLOWED_FOLDER, votes, str(trainer.engine.device))


def arrange(model: P2LModel, names: Sequence[str], rows: int) -> None:
    """Let a model that was trained anew have the rows of `names`, in this order, in a head of `rows` rows.

    A model that it does not know has the mean row.
    """
    place = {name: row for row, name in enumerate(model.model_list)}
    num_models = len(place)
    model.widen(max(rows, num_models))
    order = torch.tensor([place.get(name, -1) for name in names])
    with torch.no_grad():
        for name in model.row_names:
            weight = model.get_parameter(name)
            arranged = torch.where(
                (order < 0).view(-1, *[1] * (weight.ndim - 1)), weight[:num_models].mean(0), weight[order]
            )
            weight.zero_()
            weight[: len(names)] = arranged
    model.model_list = list(names)


# The child.


def train_anew(folder: str) -> None:
    """Train as the job in the folder says; ends when standard input does, since that is when the parent has ended."""

    def end_with_parent() -> None:
        # Not through sys.stdin: its lock, held by a thread that waits, aborts an interpreter that ends.
        while os.read(0, 1):
            pass
        os._exit(3)

    # Whatever ends the parent ends the child; what it left is removed by the next run.
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(10)  # the run that follows the votes goes first
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train
    from p2l.training.planning import Request, plan_run

    place = Path(folder)
    job = read_object(place / _JOB_FILE)
    votes, held = place / "votes.jsonl", place / "held.jsonl"
    prompts = _write_votes(job, votes, held)
    old = job["request"]
    request = Request(
        votes=str(votes),
        size=old.get("size"),
        val=str(held) if prompts >= FEWEST_HELD_OUT_PROMPTS else None,
        backbone=old.get("backbone"),
        encoder=old.get("encoder"),
        control=("none",),  # the run that goes on from the model has no covariates
        output=str(place / _MODEL_FOLDER),
    )
    planned = plan_run(request, quiet=True)
    options = RunOptions(eval_steps=planned.eval_steps, quiet=True, silent=True, folder=planned.folder)
    train(str(planned.folder / CONFIG_FILE), options)


def _write_votes(job: Mapping[str, Any], path: Path, held_path: Path) -> int:
    """Write votes to train on and votes to validate on, on other prompts; return the number of prompts of these."""
    stream = LiveVotes(Path(job["stream"]), held_share=job["share"], waiting=Waiting(0.0, 0.0))
    stream.wait_for(job["votes"])
    prompts = set()
    with path.open("w", encoding="utf-8") as train, held_path.open("w", encoding="utf-8") as held:
        for row in _rows(job, stream):
            is_held = is_held_out(row["prompt"], job["share"])
            (held if is_held else train).write(json.dumps(row) + "\n")
            if is_held:
                prompts.add(tuple(row["prompt"]))
    return len(prompts)


def _rows(job: Mapping[str, Any], stream: LiveVotes) -> Iterator[dict[str, Any]]:
    """Yield the votes of the past, of the stream, and those held out of it, as rows of a file."""
    sources: list[tuple[Any, int]] = [(stream, job["votes"]), (stream.held, stream.held.up_to(job["votes"]))]
    if job["past"] is not None:
        past = open_past(job["past"], job["models"])
        sources.insert(0, (past, len(past)))
    for votes, count in sources:
        for start in range(0, count, _ROWS_TOGETHER):
            ids = np.arange(start, min(start + _ROWS_TOGETHER, count))
            names, pairs = votes.model_list, votes.pairs(ids).tolist()
            voters = [None] * len(ids)
            if isinstance(votes, LineVotes):  # votes of the past are of the model's own training
                voter_names = [*votes.voters, None]
                voters = [voter_names[code] for code in votes.voter_codes(ids).tolist()]
            columns = (votes.prompts(ids), pairs, votes.labels(ids).tolist(), votes.weights(ids).tolist(), voters)
            for prompt, (a, b), (first, _, tie), weight, voter in zip(*columns, strict=True):
                winner = WINNERS[tie + 1 if tie else int(first == b)]
                row = {"prompt": prompt, "model_a": names[a], "model_b": names[b], "winner": winner}
                row |= {"voter": voter} if job["weigh_voters"] else {}
                yield row | ({"weight": weight} if job["weighted"] else {})
