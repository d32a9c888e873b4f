"""What every phase works with, and the outcome of a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coeval.calling.calls import Asking, Call, Reply
from coeval.phases.progress import Progress
from coeval.phases.question import Batching
from coeval.schema import Config, Mode, Model, Phase, Role
from coeval.storage.claims import Claims
from coeval.storage.run import Run
from coeval.storage.store import Log, Store


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
    claims: Claims | None = None
    """What this process makes of a run that others have joined."""
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
