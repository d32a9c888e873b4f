"""What the settings of a run depend on, measured: votes, backbone, machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from p2l import backbones
from p2l.checkpoint import read_object, weight_shapes
from p2l.engine import world_size
from p2l.errors import CheckpointError, VoteError
from p2l.likelihood import counted, get
from p2l.scratch import sample_prompts
from p2l.sizes import BackboneFacts, Machine, VoteFacts
from p2l.tokenizer import PromptTokenizer
from p2l.votes import VoteStore
from p2l.votes.splitting import hash_prompts

__all__ = [
    "check_counted",
    "count_ties",
    "measure_backbone",
    "measure_machine",
    "measure_votes",
    "memory_limits",
    "one_prompt_only",
]

LENGTH_SAMPLE = 2_000
MOST_POSITIONS = 8192  # of a backbone that names no limit
_CHUNK = 1 << 16


def measure_machine() -> Machine:
    """Processes of this run, and the memory that each has."""
    processes = world_size()
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Machine(processes, memory, gpu=True, bfloat16=torch.cuda.is_bf16_supported())
    here = int(os.environ.get("LOCAL_SIZE", processes))
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(processes, min([installed, *memory_limits()]) // here, gpu=False)


def memory_limits(system: Path = Path("/")) -> list[int]:
    """Bytes that the container of this process, and those around it, may use; empty where nothing limits it."""
    groups = system / "sys/fs/cgroup"
    files = [groups / "memory/memory.limit_in_bytes"]
    try:
        own = next(line for line in (system / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        own = "0::/"
    path = Path(own.removeprefix("0::").lstrip("/"))
    files += [groups / part / "memory.max" for part in (path, *path.parents)]
    return [int(text) for text in map(_content, files) if text.isdecimal()]


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def measure_backbone(folder: Path, name: str, chat_template: str | None) -> BackboneFacts:
    """A backbone's family, size and reach; `name` is what the configuration calls it.

    Raises:
        InputError: the folder holds no backbone of a known family.
    """
    config = read_object(folder / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder / 'config.json'}: names no model_type; is this the folder of a text model?")
    backbones.get(model_type)
    parameters = sum(int(np.prod(shape)) for shape in weight_shapes(folder).values())
    positions = config.get("max_position_embeddings")
    return BackboneFacts(
        name, model_type, parameters, positions if isinstance(positions, int) else MOST_POSITIONS, chat_template
    )


def measure_votes(votes: VoteStore, tokenizer: PromptTokenizer, seed: int) -> VoteFacts:
    """Counts of votes, prompts and ties, and how long the prompts of some votes are; memory holds 8 bytes a vote."""
    ties, both_bad = count_ties(votes)
    sample = sample_prompts((batch for _, batch in votes.batches()), LENGTH_SAMPLE, seed=seed)
    lengths = [len(encoding.ids) for encoding in tokenizer.encode(sample)]
    prompts = len(np.unique(hash_prompts(votes)))
    return VoteFacts(len(votes), prompts, ties, both_bad, lengths, weighted=votes.has_weights)


def count_ties(votes: VoteStore) -> tuple[int, int]:
    """Votes that are ties, and votes that call both answers bad."""
    counts = sum(np.bincount(votes.labels(ids)[:, 2], minlength=3) for ids in _chunks(len(votes)))
    _, ties, both_bad = (int(count) for count in np.asarray(counts))
    return ties, both_bad


def check_counted(votes: VoteStore, loss_type: str, *, weighted: bool = False) -> None:
    """Refuse votes of which the loss takes none.

    Raises:
        VoteError: the likelihood leaves all of them out, or all weights are zero.
    """
    likelihood = get(loss_type)
    for ids in _chunks(len(votes)):
        takes = counted(likelihood, votes.labels(ids))
        if np.any(takes * votes.weights(ids) if weighted else takes):
            return
    why = f"holds ties alone, which loss_type {loss_type!r} leaves out"
    raise VoteError(f"{votes.name}: {why + ', or votes of weight zero' if weighted else why}")


def one_prompt_only(votes: VoteStore) -> bool:
    """Whether all votes are on the same prompt; reads no further than the first other one."""
    prompts = chain.from_iterable(votes.prompts(ids) for ids in _chunks(len(votes), 1024))
    first = next(prompts)
    return all(turns == first for turns in prompts)


def _chunks(count: int, size: int = _CHUNK) -> Iterator[np.ndarray]:
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))
