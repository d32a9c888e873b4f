"""Models published to a folder that an endpoint watches: whole or absent, judged first, undone by one command.

DIR/checkpoint-N is what was published after N steps; the one whose weights were written last is served (see
p2l.serving.loading). DIR/published.jsonl says of every candidate what was decided and why. DIR/rolled-back holds what
`p2l rollback` took out of service.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from p2l.command import sync_path, sync_tree
from p2l.disk_errors import disk_error
from p2l.errors import InputError
from p2l.revision import revision_of

__all__ = [
    "LOG_FILE",
    "ROLLED_BACK",
    "Rollback",
    "Verdict",
    "candidate_path",
    "last_decision",
    "publish",
    "published",
    "roll_back",
    "served",
]

LOG_FILE = "published.jsonl"
ROLLED_BACK = "rolled-back"
_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("*.safetensors", "member-*/*.safetensors")


class Verdict(NamedTuple):
    """Whether a candidate is published, and why, in words and numbers."""

    good: bool
    reason: str
    numbers: dict[str, float | int]


class Rollback(NamedTuple):
    """What a rollback did."""

    taken_out: Path
    """Where the model is now that was served."""
    revision: str
    back_to: Path
    """The model that is served now."""
    back_revision: str


def published(folder: Path) -> list[Path]:
    """The models of a served folder, the one that is served last; by the time of their weights."""
    from p2l.serving.loading import written_at

    with suppress(FileNotFoundError):
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and written_at(path)]
        return sorted(found, key=lambda path: (written_at(path), path.name))
    return []


def served(folder: Path) -> Path | None:
    """The model that an endpoint which watches the folder serves, or None."""
    return next(reversed(published(folder)), None)


def candidate_path(folder: Path, step: int) -> Path:
    """Where a candidate is written before it is judged; hidden, so that nobody serves it."""
    return folder / f".checkpoint-{step}"


def publish(
    folder: Path,
    step: int,
    judge: Callable[[Path, Path | None], Verdict],
    *,
    keep: int = 5,
    **facts: float | int,
) -> Verdict:
    """Judge the candidate of a step against the served model, and publish it as `checkpoint-STEP` if it is good.

    Args:
        folder: the served folder, with the candidate at `candidate_path`; a refused one is removed.
        step: optimizer steps done.
        judge: (candidate, served model or None) -> verdict.
        keep: models that stay in the folder, the served one and the one before it among them.
        facts: further numbers for the log.

    Raises:
        InputError: the folder cannot be written.
    """
    candidate, before = candidate_path(folder, step), served(folder)
    verdict = judge(candidate, before)
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
            _prune(folder, keep)
        for left in [*folder.glob(".checkpoint-*"), *folder.glob("..checkpoint-*")]:  # refused, or of a killed run
            shutil.rmtree(left, ignore_errors=True)
        _log(folder, **entry, **verdict.numbers, **facts)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return verdict


def last_decision(folder: Path) -> dict[str, Any] | None:
    """The newest line of the log that decided on a candidate; None without one."""
    try:
        lines = (folder / LOG_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError):
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] in {"published", "refused"}:
                return entry
    return None


def roll_back(folder: Path) -> Rollback:
    """Serve the model before the one that is served, and put that one away.

    Raises:
        InputError: the folder holds no two published models, or cannot be written.
    """
    with _one_at_a_time(folder):
        models = published(folder)
        if len(models) < 2:
            what = f"only {models[0].name}, and none before it" if models else "no published model"
            raise InputError(f"{folder}: holds {what}; nothing was changed")
        before, now = models[-2:]
        revision, back_revision = revision_of(now), revision_of(before)
        try:
            away = _place_away(folder, now.name)
            _touch(before, now)  # from here on it is the one that is served
            now.rename(away)
            sync_path(folder)
            _log(folder, event="rolled back", taken_out=now.name, revision=revision, back_to=before.name)
        except OSError as error:
            raise _unwritable(folder, error) from error
    return Rollback(away, revision, before, back_revision)


def _put(unfinished: Path, target: Path) -> None:
    """Give a finished model its name; its weights are newer than those of every other model of the folder."""
    with _one_at_a_time(target.parent):
        newest = served(target.parent)
        _touch(unfinished, newest)
        sync_tree(unfinished)
        replaced = target.with_name(f"..{target.name}.replaced")
        if target.exists():  # of a run that was stopped, and has come to this step again
            target.rename(replaced)
        unfinished.rename(target)
        sync_path(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _touch(model: Path, after: Path | None) -> None:
    """Let the weights of a model be written now, and after those of another, whatever the clock says."""
    from p2l.serving.loading import written_at

    stamp = max(time.time_ns(), written_at(after) + 1 if after else 0)
    for pattern in _WEIGHTS:
        for file in model.glob(pattern):
            os.utime(file, ns=(stamp, stamp))


def _prune(folder: Path, keep: int) -> None:
    """Remove the oldest models; the served one and the one before it always stay."""
    for path in published(folder)[: -max(keep, 2)]:
        # Without its list it is no model: nobody loads what is half removed.
        (path / "model_list.json").unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _place_away(folder: Path, name: str) -> Path:
    away = folder / ROLLED_BACK
    away.mkdir(exist_ok=True)
    number = sum(1 for path in away.iterdir() if path.name == name or path.name.startswith(f"{name}."))
    return away / (f"{name}.{number}" if number else name)


def _log(folder: Path, **entry: Any) -> None:
    line = json.dumps({"time": round(time.time(), 3), **entry}) + "\n"
    with (folder / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write(line)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """A publication and a rollback do not meet."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be opened: {error.strerror or error}; name the served folder") from error
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unwritable(folder: Path, error: OSError) -> InputError:
    found = disk_error(error)
    return InputError(f"{folder}: cannot be written: {found.reason if found else error.strerror or error}")
