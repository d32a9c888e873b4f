"""A run at work, the outcome of its phases, and its progress."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coeval.calling.calls import Asking, Call, Reply
from coeval.phases.question import Batching
from coeval.schema import Config, Mode, Model, Phase, Role
from coeval.storage.claims import Claims
from coeval.storage.run import Run
from coeval.storage.store import Log, Store

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 60.0
# Without share, speed and time of the phase, so that those of the run fit beside it into 80 columns.
_BAR = "{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}"
_MIN_SHARE_FOR_TIME_LEFT = 0.005  # of the run, below which the time left is not shown


class Progress:
    """The progress of a run, or of nothing: without a plan there is no bar and no line."""

    def __init__(
        self,
        planned: Mapping[Any, float] | None = None,
        spent: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`planned` has the phases in order with what is left of each; `spent` returns the dollars so far."""
        # In tokens of answers, for which models take their time. A phase with more or fewer records than planned still
        # counts for what was planned.
        self._planned = dict(planned or {})
        self._is_shown = planned is not None
        self._spent, self._clock, self._start = spent, clock, clock()
        self._before = 0.0  # of phases that are over
        self._phase = ""
        self._expected = self._done = self._failed = 0
        self._bar: tqdm[Any] | None = None

    def begin(self, phase: str) -> None:
        """Begin a phase; the one before is over."""
        self.close()
        self._phase, self._expected, self._done, self._failed = phase, 0, 0, 0

    def expect(self, count: int) -> None:
        """Add records to those that the phase has to make, or take away those that another process makes."""
        self._expected += count
        if not self._is_shown or not self._expected:
            return
        if self._bar is None:
            from p2l.common.cli import progress

            self._bar = progress(description=self._phase, total=self._expected, form=_BAR)
        else:
            self._bar.total = self._expected
            self._bar.refresh()

    def advance(self, *, failed: bool = False) -> None:
        """Count one record as done."""
        self._done += 1
        self._failed += failed
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._whole()), refresh=False)
            self._bar.update()

    def close(self) -> None:
        """End the phase."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._before += self._planned.get(self._phase, 0.0)
        self._phase = ""

    @property
    def share(self) -> float:
        """The share of the run that is done, in [0, 1]."""
        total = sum(self._planned.values())
        part = self._done / self._expected if self._expected else 0.0
        return min((self._before + part * self._planned.get(self._phase, 0.0)) / total, 1.0) if total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the speed so far; None before that can be told."""
        share = self.share
        return (self._clock() - self._start) * (1.0 - share) / share if share >= _MIN_SHARE_FOR_TIME_LEFT else None

    def line(self) -> str:
        """Return how far phase and run are."""
        return f"{self._phase}: {self._done:,} of {self._expected:,} records; {', '.join(self._whole())}"

    def _whole(self) -> list[str]:
        notes = [f"run {self.share:.0%}", f"${self._spent():.4f}"]
        left = self.seconds_left
        notes += [f"{time_text(left)} left"] if left is not None else []
        return notes + ([f"{self._failed} failed"] if self._failed else [])

    async def log_lines(self, log: Callable[[str], None]) -> None:
        """Log a line each minute, where no bar can be shown; until cancelled."""
        while not sys.stderr.isatty():
            await asyncio.sleep(_SECONDS_BETWEEN_LINES)
            if self._phase and self._expected:
                log(self.line())


def time_text(seconds: float) -> str:
    """Return a time to come, with the digits that an estimate deserves."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36 * 3600 else f"{seconds / 86400:.1f} days"


@dataclass
class Stage:
    """A run at work."""

    config: Config
    run: Run
    store: Store
    asking: Asking
    log: Log
    modes: Mapping[Phase, Mode]  # of every phase, at this start of the run
    only: frozenset[str] | None = None  # the models that phases 3 to 5 are confined to
    batching: Batching | None = None
    progress: Progress = field(default_factory=Progress)
    claims: Claims | None = None  # claims of this process on records of a run that others have joined
    halted: str | None = None  # why no model may be asked any more: the budget is used up
    item_limits: Mapping[str, int] | None = None  # task -> how many of its items are judged; None: all of every task
    limited: bool = False  # a quota or the budget left something unasked in an earlier phase
    cached: int = 0  # replies from the cache so far
    usable: set[str] = field(default_factory=set)  # models that have given a usable answer in the phase at work
    unusable: Counter[str] = field(default_factory=Counter)  # answers of the others, none of which was usable
    # Ids of questions that all attempts of this process left without a usable answer: the next one asks them again.
    failed: set[str] = field(default_factory=set)

    async def ask(self, call: Call) -> Reply:
        """Return the reply to a call. Raise CallError if there is none."""
        reply = await self.asking.ask(call)
        self.cached += reply.cached
        return reply

    def models(self, role: Role) -> tuple[Model, ...]:
        """Return the models at work in a role, in the order of the configuration."""
        return tuple(model for model in self.config.with_role(role) if self.only is None or model.name in self.only)

    def warn_bad_line(self, path: object, line: int, why: str) -> None:
        """Warn that a line was skipped."""
        self.log.warning(f"{path}, line {line}: skipped: {why}")


@dataclass
class Outcome:
    """The outcome of a phase, or of a part of it."""

    expected: int = 0  # records that were missing
    stored: int = 0  # of those, now there
    failed: int = 0  # of those, without a usable answer
    stopped: dict[str, str] = field(default_factory=dict)  # model -> the quota or budget that stopped it
    refused: dict[str, str] = field(default_factory=dict)  # model -> why its provider refuses it

    @property
    def complete(self) -> bool:
        """Return whether nothing is missing any more."""
        return self.stored >= self.expected and not self.failed and not self.stopped and not self.refused

    @property
    def is_failure(self) -> bool:
        """Return whether something went wrong, other than a limit that was set."""
        return bool(self.failed or self.refused)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of another part."""
        self.expected += outcome.expected
        self.stored += outcome.stored
        self.failed += outcome.failed
        self.stopped.update(outcome.stopped)
        self.refused.update(outcome.refused)
