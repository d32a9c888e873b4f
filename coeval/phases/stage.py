"""What every phase works with, and the outcome of a phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coeval.calling.calls import Asking, Call, Reply
from coeval.phases.question import Batching
from coeval.schema import Config, Mode, Model, Phase, Role
from coeval.storage.run import Run
from coeval.storage.store import Log, Store

if TYPE_CHECKING:
    from tqdm import tqdm


class Progress:
    """The progress bar of one phase; nothing is shown where stderr is no terminal."""

    def __init__(self, description: str = "", spent: Callable[[], float] | None = None) -> None:
        """`spent` returns the dollars so far; without a description there is no bar."""
        self._description = description
        self._spent = spent
        self._bar: tqdm[Any] | None = None
        self._failed = 0

    def expect(self, count: int) -> None:
        """Add to the total."""
        if not self._description or not count:
            return
        if self._bar is None:
            from p2l.common.cli import progress

            self._bar = progress(description=self._description, total=count, unit="rec")
        else:
            self._bar.total = (self._bar.total or 0) + count
            self._bar.refresh()

    def advance(self, *, failed: bool = False) -> None:
        """Count one as done."""
        self._failed += failed
        if self._bar is None:
            return
        notes = [f"${self._spent():.4f}"] if self._spent is not None else []
        notes += [f"{self._failed} failed"] if self._failed else []
        self._bar.set_postfix_str(", ".join(notes), refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


@dataclass
class Stage:
    """A run at work."""

    config: Config
    run: Run
    store: Store
    asking: Asking
    log: Log
    modes: Mapping[Phase, Mode]
    """Of every phase, at this start of the run."""
    only: frozenset[str] | None = None
    """The models that phases 3 to 5 are confined to."""
    batching: Batching | None = None
    progress: Progress = field(default_factory=Progress)
    halted: str | None = None
    """Why no model may be asked any more: the budget is used up."""
    limited: bool = False
    """A quota or the budget left something unasked in an earlier phase."""
    cached: int = 0
    """Replies from the cache so far."""

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

    expected: int = 0
    """Records that were missing."""
    stored: int = 0
    """Of those, now there."""
    failed: int = 0
    """Of those, without a usable answer."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Model -> the quota or budget that stopped it."""
    refused: dict[str, str] = field(default_factory=dict)
    """Model -> why its provider refuses it."""

    @property
    def complete(self) -> bool:
        """Return whether nothing is missing any more."""
        return self.stored >= self.expected and not self.failed and not self.stopped and not self.refused

    @property
    def is_failure(self) -> bool:
        """Return whether something went wrong, other than a limit that was set."""
        return bool(self.failed or self.refused)

    def add(self, other: Outcome) -> None:
        """Add the outcome of another part."""
        self.expected += other.expected
        self.stored += other.stored
        self.failed += other.failed
        self.stopped.update(other.stopped)
        self.refused.update(other.refused)
