"""What every phase works with, and what comes of a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coeval.calling.call import Asking, Call, Reply
from coeval.config.schema import Config, Mode, Model, Phase, Role
from coeval.phases.progress import Progress
from coeval.phases.question import Batching
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.store import Store

__all__ = ["Outcome", "Stage"]


@dataclass
class Stage:
    """A run at work."""

    config: Config
    run: Run
    store: Store
    asking: Asking
    log: Log
    modes: Mapping[Phase, Mode]
    """Of every phase, as this start of the run has them."""
    only: frozenset[str] | None = None
    """The models that phases 3 to 5 are confined to."""
    batching: Batching | None = None
    progress: Progress = field(default_factory=Progress)
    halted: str | None = None
    """Why nothing may be asked any more: the dollars are used up."""
    limited: bool = False
    """Whether a quota or the dollars left something unasked in an earlier phase."""
    cached: int = 0
    """Answers so far that were kept of earlier calls."""

    async def ask(self, call: Call) -> Reply:
        """The answer to a question.

        Raises:
            CallError: there is none.
        """
        reply = await self.asking.ask(call)
        self.cached += reply.cached
        return reply

    def models(self, role: Role) -> tuple[Model, ...]:
        """The models at work in a role, in the order of the configuration."""
        found = self.config.with_role(role)
        return found if self.only is None else tuple(model for model in found if model.name in self.only)

    def warn_bad_line(self, path: object, line: int, why: str) -> None:
        """Say that a line was skipped."""
        self.log.warning(f"{path}, line {line}: skipped: {why}")


@dataclass
class Outcome:
    """What came of a phase, or of a part of it."""

    expected: int = 0
    """Records that were missing."""
    stored: int = 0
    """Of those, now there."""
    failed: int = 0
    """Of those, asked for in vain."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Model -> why it was asked no more: quota or budget."""
    refused: dict[str, str] = field(default_factory=dict)
    """Model -> why its provider refuses it."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing any more."""
        return self.stored >= self.expected and not self.failed and not self.stopped and not self.refused

    @property
    def is_failure(self) -> bool:
        """Whether something went wrong, other than a limit that was set."""
        return bool(self.failed or self.refused)

    def add(self, other: Outcome) -> None:
        """Take in what came of another part."""
        self.expected += other.expected
        self.stored += other.stored
        self.failed += other.failed
        self.stopped.update(other.stopped)
        self.refused.update(other.refused)
