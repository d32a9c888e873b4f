"""A watched folder: which model arrived in it, is at rest, and is to be loaded next.

A model arrives when its files are new or change, whatever time of writing they bear. It is looked at again until its
files rest: a copy takes its time. With a manifest (`p2l.model.checkpoint`) two looks suffice, because every missing,
short or old file shows; without one the files rest for longer. A model that cannot be loaded is tried again when its
files change, and after pauses that double, since the fault may have been the machine's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from p2l.common.errors import CheckpointError, InputError
from p2l.model.checkpoint import MANIFEST_FILE, Stamp, check_complete, revision_of, stamp_of

_log = logging.getLogger("p2l.serving")
_LOOKS = 1  # at which the files of a folder with a manifest are as they were: it shows what is missing or short
_LOOKS_WITHOUT_MANIFEST = 6
_LOOKS_UNTIL_TOLD = 60
_FIRST_PAUSE_SECONDS = 4.0  # before a model that failed is tried again
_MAX_PAUSE_SECONDS = 600.0


def models_in(folder: Path) -> list[Path]:
    """Return the folder and those in it that are not hidden; InputError if it cannot be read."""
    try:
        # What training is writing has a name that begins with a dot.
        return [folder, *(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))]
    except OSError as error:
        raise InputError(f"{folder}: cannot be watched: {error.strerror or error}") from error


def newest_model(folder: Path) -> Path | None:
    """Return the model folder, `folder` or one in it, with the newest weights, or None; InputError if unreadable."""
    newest = max(models_in(folder), key=written_at)
    return newest if written_at(newest) else None


def written_at(folder: Path) -> int:
    """Return when the newest weights of a complete model folder were written (ns); 0 for any other folder."""
    times = _times_of_weights(folder)
    try:
        if times:
            check_complete(folder)
            return max(times)
    except (CheckpointError, OSError):  # it is being copied, removed, or written by training
        pass
    return 0


def _times_of_weights(folder: Path) -> list[int]:
    try:
        return [
            file.stat().st_mtime_ns for file in [*folder.glob("*.safetensors"), *folder.glob("member-*/*.safetensors")]
        ]
    except OSError:
        return []


@dataclass(frozen=True)
class Settled:
    """Content of a folder when it was decided on."""

    stamp: Stamp
    revision: str | None = None
    """Revision of the model that was loaded from it."""


@dataclass
class _Arrival:
    stamp: Stamp
    looks: int = 0
    """Looks that found the folder as it is now."""
    next_try: float = 0.0
    pause: float = _FIRST_PAUSE_SECONDS


class Watch:
    """Looks at a folder again and again for the model to load next."""

    def __init__(
        self, folder: Path, settled: Mapping[str, Settled], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Go on from what was settled, by path, of the models in `folder`."""
        self.settled = dict(settled)
        self._folder, self._clock = folder, clock
        self._arrivals: dict[Path, _Arrival] = {}

    def look(self) -> Path | None:
        """Return the newest model that has arrived, rests and is due, or None; InputError if unreadable."""
        paths = models_in(self._folder)
        self._arrivals = {path: arrival for path, arrival in self._arrivals.items() if path in paths}
        self.settled = {path: entry for path, entry in self.settled.items() if Path(path) in paths}
        due = [path for path in paths if _times_of_weights(path) and self._is_due(path)]
        return max(due, key=written_at, default=None)

    def _is_due(self, path: Path) -> bool:
        stamp, entry, arrival = stamp_of(path), self.settled.get(str(path)), self._arrivals.get(path)
        if stamp is None or (entry is not None and entry.stamp == stamp):
            return False
        if arrival is None or arrival.stamp != stamp:
            self._arrivals[path] = _Arrival(stamp)
            return False
        arrival.looks += 1
        needed = _LOOKS if (path / MANIFEST_FILE).is_file() else _LOOKS_WITHOUT_MANIFEST
        if arrival.looks < needed or self._clock() < arrival.next_try:
            return False
        if entry is not None and entry.stamp.files == stamp.files and not _holds_another(path, entry):
            self.settle(path, stamp, entry.revision)  # another mode or owner, no other model
            return False
        return self._is_complete(path, arrival)

    def _is_complete(self, path: Path, arrival: _Arrival) -> bool:
        try:
            check_complete(path)
        except (CheckpointError, OSError) as error:
            # Most copies are complete some looks later; a folder that stays incomplete is logged once.
            if arrival.looks == _LOOKS_UNTIL_TOLD and (path / MANIFEST_FILE).is_file():
                _log.warning("not served: %s", error)
            return False
        return True

    def settle(self, path: Path, stamp: Stamp, revision: str | None) -> None:
        """Decide on a folder with this content: it is looked at again when it changes."""
        self.settled[str(path)] = Settled(stamp, revision)
        self._arrivals.pop(path, None)

    def loaded(self, path: Path, revision: str | None) -> None:
        """Settle a model that is served now, and what arrived before it."""
        arrival = self._arrivals.get(path)
        if arrival is None:
            return
        for older, its_arrival in list(self._arrivals.items()):
            if its_arrival.looks and older != path and 0 < written_at(older) <= written_at(path):
                self.settle(older, its_arrival.stamp, None)
        self.settle(path, arrival.stamp, revision)

    def failed(self, path: Path) -> None:
        """Try a model again after a pause that doubles, or when its files change."""
        if arrival := self._arrivals.get(path):
            arrival.next_try = self._clock() + arrival.pause
            arrival.pause = min(2 * arrival.pause, _MAX_PAUSE_SECONDS)


def _holds_another(path: Path, entry: Settled) -> bool:
    """Return whether files with the names, sizes and times of before have another content."""
    try:
        return entry.revision is not None and revision_of(path) != entry.revision
    except CheckpointError:
        return True
