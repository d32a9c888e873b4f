"""Models published to a folder that an endpoint watches: whole or absent, judged first, undone by one command.

DIR/checkpoint-N is what was published after N steps; the one with the newest weights is served (see
p2l.serving.watching). DIR/published.jsonl says of every candidate what was decided and why. DIR/rolled-back holds what
`p2l rollback` took out of service.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import counted as count_of
from p2l.common.errors import InputError
from p2l.common.files import disk_error, locked, parse_json, put_folder, sync_path
from p2l.likelihood import counted, vote_losses
from p2l.model.checkpoint import revision_of
from p2l.online_training.live_votes import StopRequestedError
from p2l.online_training.stream import StepFacts, published_order
from p2l.training.run_records import PUBLICATIONS_FILE, STATE_FILE
from p2l.training.train_config import TrainConfig
from p2l.votes import translate_labels
from p2l.votes.schema import hash_turns

# What needs torch is imported where models are made or compared: a rollback must not wait for it.
if TYPE_CHECKING:
    from p2l.inference import P2L
    from p2l.online_training.candidates import HeldOutVotes, HeldVotes
    from p2l.online_training.live_trust import LiveTrust
    from p2l.training.trainer import StepResult, Trainer


_ROLLED_BACK = "rolled-back"
_PUBLISHER_FILE = ".publisher"  # which the run that publishes has locked
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


class GateDecision(NamedTuple):
    """Whether a candidate is published, with the reason as a sentence and as numbers."""

    good: bool
    reason: str
    numbers: dict[str, float | int]


class Rollback(NamedTuple):
    """The models before and after a rollback."""

    taken_out: Path
    """Where the model that was served is now."""
    revision: str
    back_to: Path
    """The model that is served now."""
    back_revision: str


def published(folder: Path) -> list[Path]:
    """Return the models of a served folder by the time of their weights; the last one is served."""
    from p2l.serving.watching import written_at

    with suppress(FileNotFoundError):
        paths = [path for path in folder.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name) and written_at(path)]
        return sorted(paths, key=lambda path: (written_at(path), path.name))
    return []


def served(folder: Path) -> Path | None:
    """Return the model that an endpoint which watches the folder serves, or None."""
    return next(reversed(published(folder)), None)


def candidate_path(folder: Path, step: int) -> Path:
    """Return where a candidate is written before it is judged; hidden, so that no endpoint serves it."""
    return folder / f".checkpoint-{step}"


def publish(
    folder: Path,
    step: int,
    judge: Callable[[Path, Path | None], GateDecision],
    *,
    keep: int = 5,
    **facts: float | int,
) -> GateDecision:
    """Judge the candidate of a step against the served model, and publish it as `checkpoint-STEP` if it is good.

    The candidate is at `candidate_path` in the served `folder`; a refused one is removed. Of the published models the
    newest `keep` stay, the served one and the one before it always. `facts` are further numbers for the log.
    InputError if the folder cannot be written.
    """
    candidate = candidate_path(folder, step)
    while True:
        before = served(folder)
        try:
            verdict = judge(candidate, before)
        except (InputError, OSError):
            if served(folder) == before:
                raise
        else:
            # A model that was rolled back while the candidate was judged no longer counts.
            if served(folder) == before:
                break
    entry = {
        "event": "published" if verdict.good else "refused",
        "step": step,
        "revision": revision_of(candidate),
        "against": before.name if before else None,
        "reason": verdict.reason,
    }
    try:
        if verdict.good:
            _put(candidate, folder / f"checkpoint-{step}")
            for path in published(folder)[: -max(keep, 2)]:
                # Without its list it is not a model: nobody loads what is half removed.
                (path / "model_list.json").unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)
        for left in [*folder.glob(".checkpoint-*"), *folder.glob("..checkpoint-*")]:  # refused, or of a killed run
            shutil.rmtree(left, ignore_errors=True)
        log_event(folder, **entry, **verdict.numbers, **facts)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return verdict


def last_decision(folder: Path) -> dict[str, Any] | None:
    """Return the newest line of the log that decided on a candidate; None without one."""
    try:
        lines = (folder / PUBLICATIONS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError):
            entry: dict[str, Any] = parse_json(line)
            if entry["event"] in {"published", "refused"}:
                return entry
    return None


def roll_back(folder: Path) -> Rollback:
    """Serve the model before the served one, which moves to `rolled-back`; InputError with fewer than two models."""
    with _one_at_a_time(folder):
        _check_not_a_run(folder, "nothing was changed; name the folder that models are published to")
        models = published(folder)
        if len(models) < 2:
            content = f"only {models[0].name}, and none before it" if models else "no published model"
            raise InputError(f"{folder}: holds {content}; nothing was changed")
        before, now = models[-2:]
        revision, back_revision = revision_of(now), revision_of(before)
        try:
            removed = folder / _ROLLED_BACK
            removed.mkdir(exist_ok=True)
            # The same step may have been rolled back before, by a run that came to it again.
            number = sum(path.name == now.name or path.name.startswith(f"{now.name}.") for path in removed.iterdir())
            away = removed / (f"{now.name}.{number}" if number else now.name)
            _touch(before, now)  # from here on it is the one that is served
            now.rename(away)
            sync_path(folder)
            log_event(folder, event="rolled back", taken_out=now.name, revision=revision, back_to=before.name)
        except OSError as error:
            raise _unwritable(folder, error) from error
    return Rollback(taken_out=away, revision=revision, back_to=before, back_revision=back_revision)


def _put(unfinished: Path, target: Path) -> None:
    """Give a finished model its name; its weights are newer than those of every other model of the folder."""
    with _one_at_a_time(target.parent):
        _touch(unfinished, served(target.parent))
        # A folder of this name is of a run that was stopped, and has come to this step again.
        put_folder(unfinished, target, target.with_name(f"..{target.name}.replaced"))


def _touch(model: Path, after: Path | None) -> None:
    """Set the time of a model's weights to now, or just after those of `after` where the clock went back."""
    from p2l.serving.watching import written_at

    stamp = max(time.time_ns(), written_at(after) + 1 if after else 0)
    for file in model.glob("*.safetensors"):
        os.utime(file, ns=(stamp, stamp))


def log_event(folder: Path, **entry: Any) -> None:
    """Append a line to the log of a served folder."""
    line = json.dumps({"time": round(time.time(), 3), **entry}) + "\n"
    with (folder / PUBLICATIONS_FILE).open("a", encoding="utf-8") as file:
        file.write(line)


@contextmanager
def only_publisher(folder: Path) -> Iterator[None]:
    """Keep other runs from publishing into a folder as long as the block lasts; InputError where one does."""
    with ExitStack() as stack:
        try:
            is_alone = stack.enter_context(locked(folder / _PUBLISHER_FILE, wait=False))
        except OSError as error:
            raise _unwritable(folder, error) from error
        if not is_alone:
            raise InputError(f"{folder}: another run publishes into it; stop that one, or choose another --publish")
        yield


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep publications and rollbacks of a folder apart."""
    if not folder.is_dir() or not os.access(folder, os.R_OK):
        raise InputError(f"{folder}: cannot be opened as a folder; name the served folder")
    with locked(folder):
        yield


def _unwritable(folder: Path, error: OSError) -> InputError:
    reason = disk_error(error)
    return InputError(f"{folder}: cannot be written: {reason.reason if reason else error.strerror or error}")


# An equally good candidate lies above two standard errors once in 44 times, and the next one gets its chance.
_MAX_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Difference:
    """The mean paired difference of two models' losses, in nats per vote; above zero: the candidate is worse."""

    mean: float
    error: float
    """Its standard error, clustered by prompt."""
    votes: int
    prompts: int
    candidate_loss: float
    served_loss: float


def judge(candidate: Path, served: Path | None, votes: HeldOutVotes, device: str | None = None) -> GateDecision:
    """Refuse a candidate that forecasts new votes worse than the served model, beyond noise.

    A share of the prompts, chosen by their hash, is never trained on; `votes` are the newest votes on them. With d_i
    the candidate's loss of vote i less that of the served model, each with the effects of its own covariates, and the
    votes of one prompt taken together,

        mean d > 2 SE(mean d),    SE = sqrt( P/(P - 1) sum_p (sum_{i in p} (d_i - mean d))^2 ) / N

    refuses the candidate (N votes on P prompts). Votes on a model that either of the two does not know are left out:
    newcomers are no reason to refuse.

    Raise InputError if a folder cannot be loaded.
    """
    if served is None:
        return GateDecision(True, "the first one", {})
    from p2l.online_training.candidates import FEWEST_HELD_OUT_PROMPTS

    comparison = compare(candidate, served, votes, device)
    numbers: dict[str, float | int] = {"held_votes": comparison.votes, "held_prompts": comparison.prompts}
    if comparison.prompts < FEWEST_HELD_OUT_PROMPTS:
        return GateDecision(True, f"{comparison.prompts} held-out prompts are too few to judge by", numbers)
    if not math.isfinite(comparison.mean):
        return GateDecision(False, f"its loss on {comparison.votes:,} held-out votes is not a number", numbers)
    numbers |= {"loss": comparison.candidate_loss, "served_loss": comparison.served_loss}
    numbers |= {"difference": comparison.mean, "error": comparison.error}
    sentence = (
        f"loss {comparison.candidate_loss:.4f} against {comparison.served_loss:.4f} of {served.name} on "
        f"{comparison.votes:,} held-out votes: {comparison.mean:+.4f} +- {comparison.error:.4f}"
    )
    good = comparison.mean <= _MAX_STANDARD_ERRORS * comparison.error
    return GateDecision(good, sentence if good else f"{sentence}, worse beyond noise", numbers)


def compare(candidate: Path, served: Path, votes: HeldOutVotes, device: str | None = None) -> Difference:
    """Return the paired difference of two model folders on the votes between models that both know."""
    from p2l.inference import P2L

    new = P2L.from_pretrained(candidate, device=device)
    old = P2L.from_pretrained(served, device=device)
    new_labels, old_labels = (
        translate_labels(votes.labels, votes.model_list, model.model_list) for model in (new, old)
    )
    decisive = counted(new.likelihood, votes.labels) > 0
    shared = np.flatnonzero(decisive & (new_labels[:, :2] >= 0).all(axis=1) & (old_labels[:, :2] >= 0).all(axis=1))
    prompts = [votes.prompts[row] for row in shared]
    return paired_difference(
        _losses(new, prompts, new_labels[shared], votes.shift(new.model.covariates, shared)),
        _losses(old, prompts, old_labels[shared], votes.shift(old.model.covariates, shared)),
        np.array([hash_turns(prompt) for prompt in prompts], dtype=np.uint64),
    )


def _losses(
    model: P2L, prompts: list[list[str]], labels: NDArray[np.int32], shift: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the loss (n,) of each vote in nats, its covariates counted in."""
    if not prompts:
        return np.zeros(0)
    from p2l.online_training.candidates import forecast_of

    forecast = forecast_of(model, prompts)
    losses = vote_losses(model.likelihood, forecast.coefs, labels, forecast.eta, forecast.gamma, shift)
    return np.asarray(losses, dtype=np.float64)


def paired_difference(
    candidate: NDArray[np.float64], served: NDArray[np.float64], prompt: NDArray[np.uint64]
) -> Difference:
    """Return the mean of candidate - served over n votes, and its standard error clustered by `prompt`."""
    if not len(candidate):
        return Difference(mean=0.0, error=math.inf, votes=0, prompts=0, candidate_loss=math.nan, served_loss=math.nan)
    difference = candidate - served
    mean = float(difference.mean())
    _, cluster = np.unique(prompt, return_inverse=True)
    sums = np.bincount(cluster, weights=difference - mean)
    prompts, votes = len(sums), len(candidate)
    spread = prompts / (prompts - 1) * float((sums**2).sum()) if prompts > 1 else math.inf
    return Difference(
        mean=mean,
        error=math.sqrt(spread) / votes,
        votes=votes,
        prompts=prompts,
        candidate_loss=float(candidate.mean()),
        served_loss=float(served.mean()),
    )


@dataclass
class FolderPublisher:
    """Publishes into a folder, after a number of votes or seconds; every process calls each method.

    The first process decides for all whether it is time, and whether to stop. While nothing is served yet, the model
    that the run begins with is published at once, or the one of its first step, so that an endpoint can start.
    """

    config: TrainConfig
    folder: Path | None
    """Where models are published; None: nowhere."""
    every_votes: int | None
    """Publish whenever this many votes have arrived."""
    every_seconds: float | None
    """And whenever this many seconds have passed."""
    keep: int
    """Models that stay in the folder."""
    held: HeldVotes | None
    """Votes to shrink and judge candidates by; None: nothing is shrunk."""
    gate: bool
    """Whether candidates are judged; otherwise all are published."""
    gate_votes: int
    """Newest held-out votes by which a candidate is shrunk and judged."""
    trust: LiveTrust | None
    """What votes of each voter weigh; held-out ones of voters who were not trusted before judge nothing."""
    stop: threading.Event
    """Set by a signal."""
    tell: Callable[[str], None]
    _last: tuple[int, float] | None = None
    """Votes that had arrived, and the time, at the last decision."""
    _newest: tuple[int, int] | None = None
    """Step and votes of the newest step that nothing was decided on."""
    _began_with: int = 0
    """Models that the run knew before its first vote; with none the model learned from this stream alone."""

    def begin(self, step: int, arrived: int, trainer: Trainer, *, began_with: int = 0) -> None:
        """Publish the model that the run begins with, if nothing is served yet and it knows any models."""
        engine = trainer.engine
        self._began_with = began_with
        due = engine.is_main and self.folder is not None and served(self.folder) is None
        if engine.world_size > 1:
            due = engine.broadcast(due)
        if due and engine.model.model_list:
            self._newest = (step, arrived)
            self._publish(trainer)

    def after_step(self, result: StepResult, facts: StepFacts, trainer: Trainer) -> None:
        """Publish when it is time; StopRequestedError on a signal, InputError if the folder cannot be written."""
        engine = trainer.engine
        self._newest = (result.step, facts.arrived)
        stop, due = self.stop.is_set(), engine.is_main and self._is_due(facts.arrived)
        if engine.world_size > 1:
            stop, due = engine.broadcast((stop, due))
        if due:
            self._publish(trainer)
        if stop:
            raise StopRequestedError

    def publish(self, step: int, arrived: int, trainer: Trainer) -> None:
        """Publish the model of a step now, if anything is published."""
        self._newest = (step, arrived)
        if self.folder is not None:
            self._publish(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Publish the newest step, if nothing was decided on it."""
        if self.folder is not None and self._newest is not None:
            self._publish(trainer)

    def _is_due(self, arrived: int) -> bool:
        if self.folder is None:
            return False
        if self._last is None:
            # A run that was stopped goes on counting from its last decision.
            entry = last_decision(self.folder) or {}
            votes, when = entry.get("votes"), entry.get("time")
            # More votes than have arrived are those of another run.
            if not (isinstance(votes, int) and votes <= arrived and isinstance(when, float)):
                votes, when = arrived, time.time()
            self._last = (votes, when)
        votes, when = self._last
        if served(self.folder) is None:
            return True
        enough = self.every_votes is not None and arrived - votes >= self.every_votes
        return enough or (self.every_seconds is not None and time.time() - when >= self.every_seconds)

    def _publish(self, trainer: Trainer) -> None:
        from p2l.online_training.candidates import ArrivedVotes, complete, recent
        from p2l.training.run_folder import write_model

        assert self.folder is not None
        assert self._newest is not None
        step, arrived = self._newest
        self._newest = None
        engine = trainer.engine
        if engine.is_main:
            make_folder(self.folder)
        engine.barrier()
        names = published_order(engine.model.model_list, self._began_with)
        trust, is_weighted = self.trust, self.config.weighted_loss
        if trust is not None:
            trust.update(arrived)
        votes = ArrivedVotes(trainer.votes, arrived, list(engine.model.model_list), names, trust, is_weighted)
        held = None
        if self.held is not None and engine.is_main:
            is_controlled = engine.model.covariates is not None
            held = recent(self.held, arrived, self.gate_votes, trust, with_rows=is_controlled)
        facts: dict[str, float | int] = {"votes": arrived}

        def finish(folder: Path) -> None:
            is_new = not self._began_with
            facts.update(
                complete(folder, votes, held, engine.device, weighted=is_weighted or trust is not None, is_new=is_new)
            )

        def judge_candidate(candidate: Path, before: Path | None) -> GateDecision:
            if before is None or held is None or not self.gate:
                return GateDecision(True, "the first one" if before is None else "not judged (no --gate)", {})
            return judge(candidate, before, held, str(engine.device))

        write_model(trainer, self.config, candidate_path(self.folder, step), more=finish, model_list=names)
        if engine.is_main:
            verdict = publish(self.folder, step, judge_candidate, keep=self.keep, **facts)
            event = f"published {self.folder}/checkpoint-{step}" if verdict.good else f"step {step} is not published"
            self.tell(f"{event} after {count_of(arrived, 'vote')}: {verdict.reason}")
            self._last = (arrived, time.time())
        engine.barrier()


def make_folder(folder: Path) -> None:
    """Create the served folder; InputError if it cannot be created, or holds checkpoints of a run."""
    _check_not_a_run(folder, "publishing would remove them; choose another --publish")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created: {error.strerror or error}; change --publish") from error


def _check_not_a_run(folder: Path, hint: str) -> None:
    """Raise InputError where a folder holds checkpoints that a training run goes on from."""
    checkpoint = next((path for path in published(folder) if (path / STATE_FILE).is_file()), None)
    if checkpoint is not None:
        raise InputError(f"{folder}: holds checkpoints of a training run, such as {checkpoint.name}; {hint}")
