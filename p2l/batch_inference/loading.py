"""The model that batch inference asks, loaded as the flags of `p2l.model_flags` say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2l.batch_inference.asking import Asker
from p2l.batch_inference.processes import Processes
from p2l.inference import P2L

__all__ = ["ModelOptions", "load_model", "make_asker"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and asked; None leaves it to the checkpoint, the engine or the machine."""

    model_type: str | None = None
    head_type: str | None = None
    loss_type: str | None = None
    batch_size: int | None = None
    max_length: int | None = None
    device: str | None = None
    dtype: str | None = None


def load_model(path: str | Path, options: ModelOptions, processes: Processes) -> P2L:
    """The model, on the device of this process.

    Raises:
        InputError: the model cannot be used with these options.
    """
    return P2L.from_pretrained(
        path,
        device=processes.device(options.device),
        dtype=options.dtype,
        model_type=options.model_type,
        head_type=options.head_type,
        loss_type=options.loss_type,
        max_length=options.max_length,
    )


def make_asker(model: P2L, options: ModelOptions, say: Callable[[str], None]) -> Asker:
    """Ask it by batches of the size that was asked for."""
    asker = Asker(model, say)
    if options.batch_size is not None:
        asker.batch_size = options.batch_size
    return asker
