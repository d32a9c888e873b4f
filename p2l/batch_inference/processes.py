"""The processes of one launch of `p2l eval`: who does what, and waiting for each other.

`torchrun` and `deepspeed` start them alike; a process alone needs no launcher.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from p2l.errors import PeerError

__all__ = ["Processes", "join_processes"]

T = TypeVar("T")
_WAIT = timedelta(days=30)  # one process may have much more to do than another; a dead one is noticed at once


@dataclass(frozen=True)
class Processes:
    """This process among those of its launch."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether this process writes the output and speaks."""
        return self.rank == 0

    def on_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, for all.

        Raises:
            PeerError: the first process ended; it has said why.
        """
        if self.count == 1:
            return make()
        import torch

        from p2l.engine import peers

        box: list[Any] = [None, False]
        try:
            if self.is_first:
                box = [make(), True]
        finally:  # the others wait, whatever happened
            with peers():
                torch.distributed.broadcast_object_list(box, src=0)
        if not box[1]:
            raise PeerError("the first process of this run ended; its message says why")
        made: T = box[0]
        return made

    def wait(self) -> None:
        """Return when all processes have come here.

        Raises:
            PeerError: one of them ended; it has said why.
        """
        if self.count > 1:
            import torch

            from p2l.engine import peers

            with peers():
                torch.distributed.barrier()

    def device(self, asked: str | None) -> str | None:
        """The device of this process: its own card where cards are shared out."""
        if self.count == 1 or asked not in (None, "cuda"):
            return asked
        import torch

        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else asked


@contextlib.contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes of the launcher that started this one, if one did."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(0, 1)
        return
    import torch

    _share_cores()
    torch.distributed.init_process_group("gloo", timeout=_WAIT)
    try:
        yield Processes(torch.distributed.get_rank(), count)
    finally:
        torch.distributed.destroy_process_group()


def _share_cores() -> None:
    """Each process of this machine takes its share; together they would slow each other down."""
    import torch

    here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // int(here)))
