"""The processes of one launch of `p2l eval`, by `torchrun` or `deepspeed`, and the model that each of them runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from p2l.common.errors import InputError
from p2l.inference import P2L, Prediction, free_memory, is_out_of_memory


@dataclass
class Predictor:
    """A model that predicts within the available memory; `print_note` tells the user of smaller forward passes."""

    model: P2L
    print_note: Callable[[str], None]
    batch_size: int | None = None
    max_batch_tokens: int = 32_768  # halved, for good, whenever memory runs out

    def predict(self, prompts: Sequence[Sequence[str]], *, hidden: bool) -> Prediction:
        """Predict for prompts; InputError where one alone does not fit into memory."""
        while True:
            try:
                return self.model.predict(
                    prompts, batch_size=self.batch_size or 64, max_batch_tokens=self.max_batch_tokens, hidden=hidden
                )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.max_batch_tokens == 1:
                    raise InputError(
                        "a single prompt does not fit into memory; give a smaller --max-length or another --device"
                    ) from error
            free_memory()  # here the error, and the tensors that it holds, are gone
            self.max_batch_tokens //= 2
            self.print_note(f"out of memory: forward passes hold at most {self.max_batch_tokens} tokens from now on")


T = TypeVar("T")
_MAX_WAIT = timedelta(days=30)  # a process may have much more work than another; a dead one is noticed at once


@dataclass(frozen=True)
class Processes:
    """This process among those of its launch."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether this process writes the output and prints."""
        return self.rank == 0

    def on_first(self, make: Callable[[], T]) -> T:
        """Call `make` in the first process and return its result in all; PeerError if that process ended."""
        if self.count == 1:
            return make()
        from p2l.training.engine import on_first

        return on_first(make)

    def wait(self) -> None:
        """Return when all processes have come here; PeerError if one of them ended."""
        if self.count > 1:
            import torch

            from p2l.training.engine import peers

            with peers():
                torch.distributed.barrier()

    def device(self, device: str | None) -> str | None:
        """Return the device of this process: a GPU of its own where there are GPUs."""
        if self.count == 1 or device not in (None, "cuda"):
            return device
        import torch

        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else device


@contextlib.contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes of the launcher; a process alone needs none."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(0, 1)
        return
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        # Each process of this machine has its share of the cores, or they slow each other down.
        processes_here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
        torch.set_num_threads(max(1, torch.get_num_threads() // int(processes_here)))
    torch.distributed.init_process_group("gloo", timeout=_MAX_WAIT)
    try:
        yield Processes(torch.distributed.get_rank(), count)
    finally:
        torch.distributed.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The flags of `p2l.common.cli` for a model; None leaves the choice to checkpoint, engine or machine."""

    model_type: str | None = None
    head_type: str | None = None
    loss_type: str | None = None
    batch_size: int | None = None
    max_length: int | None = None
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ModelOptions):
    """The flags of batch inference."""

    dataset: str
    model: str | None = None
    training_output_dir: str | None = None
    split: str = "train"
    output_dir: str = "outputs"
    output_hf_path: str | None = None
    formats: tuple[str, ...] = ("json",)
    limit: int | None = None
    hidden: bool = False
    restart: bool = False
    quiet: bool = False
    ray: bool = False
    workers: int | None = None  # of Ray; None: one for each GPU, else for each core


def load_model(path: str | Path, options: ModelOptions, processes: Processes) -> P2L:
    """Load the model on the device of this process."""
    return P2L.from_pretrained(
        path,
        device=processes.device(options.device),
        dtype=options.dtype,
        model_type=options.model_type,
        head_type=options.head_type,
        loss_type=options.loss_type,
        max_length=options.max_length,
    )
