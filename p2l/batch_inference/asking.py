"""Ask a model about many prompts, with fewer tokens at a time when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2l.errors import InputError
from p2l.inference import P2L, Prediction
from p2l.out_of_memory import free_memory, is_out_of_memory

__all__ = ["Asker"]


@dataclass
class Asker:
    """A model, and how much it is asked at a time."""

    model: P2L
    say: Callable[[str], None]
    """Takes a note for the user."""
    batch_size: int = 64
    """Most prompts in a forward pass."""
    tokens: int = 32_768
    """Most tokens in a forward pass; halved, for good, whenever memory runs out."""

    def ask(self, prompts: Sequence[Sequence[str]], *, hidden: bool) -> Prediction:
        """What the model says of the prompts.

        Raises:
            InputError: a prompt alone does not fit into memory.
        """
        while True:
            try:
                return self.model.predict(
                    prompts, batch_size=self.batch_size, max_batch_tokens=self.tokens, hidden=hidden
                )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.tokens == 1:
                    raise InputError(
                        "a single prompt does not fit into memory; give a smaller --max-length or another --device"
                    ) from error
            free_memory()  # here the error, and the tensors that it holds, are gone
            self.tokens //= 2
            self.say(f"out of memory: forward passes hold at most {self.tokens} tokens from now on")
