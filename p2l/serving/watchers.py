"""What an engine tells whoever counts."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NO_WATCHER", "Watcher"]


class Watcher(Protocol):
    """Is told what happens in an engine, in its event loop."""

    def entered(self, prompts: int) -> None:
        """So many prompts were accepted."""

    def left(self, prompts: int) -> None:
        """So many prompts were answered or given up."""

    def looked_up(self, *, hits: int, prompts: int) -> None:
        """So many prompts were looked up, so many of them known."""

    def computed(self, prompts: int, tokens: int, seconds: float) -> None:
        """A batch went through the model."""

    def dropped(self) -> None:
        """A prompt left the queue because nobody wanted it any more."""

    def refused(self, prompts: int) -> None:
        """The queue was full."""


class _NoWatcher:
    def entered(self, prompts: int) -> None:
        pass

    def left(self, prompts: int) -> None:
        pass

    def looked_up(self, *, hits: int, prompts: int) -> None:
        pass

    def computed(self, prompts: int, tokens: int, seconds: float) -> None:
        pass

    def dropped(self) -> None:
        pass

    def refused(self, prompts: int) -> None:
        pass


NO_WATCHER: Watcher = _NoWatcher()
