"""Tell an error that fewer tokens at a time would have spared from any other."""

from __future__ import annotations

import torch

__all__ = ["free_memory", "is_out_of_memory"]

_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory, of a GPU or the machine, ran out; on a CPU torch says so in words alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def free_memory() -> None:
    """Give back what a failed pass has left in the GPU's cache."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
