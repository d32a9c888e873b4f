"""Validation slices: files of votes with a number in their names, read once for all checkpoints.

Shapes: N votes of a slice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2l.batch_inference.prompts import file_digest
from p2l.common.errors import CheckpointError, InputError, hub_reason
from p2l.common.files import read_names
from p2l.model.checkpoint import MODEL_LIST_FILE, local_folder
from p2l.votes import VoteStore, open_votes
from p2l.votes.schema import IntArray
from p2l.votes.sources import FILE_ENDINGS, file_kind
from p2l.votes.splitting import hash_prompts


@dataclass(frozen=True)
class ValidationSlice:
    """One slice, its votes on disk."""

    number: int
    file: Path
    votes: VoteStore
    fingerprint: str  # 24 hexadecimal digits of the file's bytes and of the list that its labels refer to
    prompts: IntArray  # (N,) 64-bit hash of each vote's prompt


def find_slices(folder: str) -> dict[int, Path]:
    """Return a folder's files of votes by the last number in their names; InputError for none, or two of one number."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; --val-dir holds validation slices such as validation-512.csv")
    slices: dict[int, Path] = {}
    for file in sorted(root.iterdir()):
        if not file.name.endswith(FILE_ENDINGS) or file.name.startswith("."):
            continue
        numbers = re.findall(r"\d+", file.name.removesuffix(file_kind(file.name)))
        if not numbers:
            continue
        number = int(numbers[-1])
        if number in slices:
            raise InputError(f"{file}: has the number {number} of {slices[number].name}; each slice needs its own")
        slices[number] = file
    if not slices:
        raise InputError(f"{root}: holds no slices; their names end with {', '.join(FILE_ENDINGS)} after a number")
    return dict(sorted(slices.items()))


@contextlib.contextmanager
def open_slices(files: dict[int, Path], label_list: str | None = None) -> Iterator[dict[int, ValidationSlice]]:
    """Read and check slices from end to end; their disk space is freed at the end of the block.

    `label_list` is a JSON list of names that a `labels` column refers to, for slices without names. Raise InputError
    where a row is not a vote, or the list cannot be read.
    """
    names = None if label_list is None else read_names(label_list, "label list")
    list_bytes = json.dumps(names).encode() if names else b""
    slices = {}
    with contextlib.ExitStack() as stack:
        for number, file in files.items():
            votes = stack.enter_context(open_votes(file, label_list=names))
            hashes = np.asarray(hash_prompts(votes))
            slices[number] = ValidationSlice(number, file, votes, file_digest(file, list_bytes), hashes)
        yield slices


# The checkpoints of a run, by number: folders `checkpoint-N` in a local folder or in a repository on the hub.

# Files that may lie beside the checkpoints, for all that have none of their own.
_SHARED_FILES = (
    MODEL_LIST_FILE,
    "training_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, not yet opened."""

    number: int  # optimizer steps, which are batches, before it
    name: str
    place: str  # a folder, or `owner/name/folder` on the hub
    root: str  # the folder around it, which may hold a model list for all


def find_checkpoints(repo: str, prefix: str) -> list[Checkpoint]:
    """Return the checkpoints of a run's folder or hub repository, by number; InputError where there are none."""
    folder = Path(repo).expanduser()
    if folder.is_dir():
        names = {path.name for path in folder.iterdir() if path.is_dir()}
    elif _HUB_ID.fullmatch(repo):
        from huggingface_hub import HfApi

        try:
            files = HfApi().list_repo_files(repo)
        except Exception as error:  # network, authorisation, no such repository: every client error ends here
            problem = f"neither a local folder nor a hub id that can be reached ({hub_reason(error)})"
            raise InputError(f"{repo}: {problem}") from error
        names = {file.split("/")[0] for file in files if "/" in file}
    else:
        raise CheckpointError(f"{repo}: no such folder; --model is the folder, or hub id, with the checkpoints")
    root = str(folder) if folder.is_dir() else repo
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    numbered = [(int(match[1]), name) for name in names if (match := pattern.fullmatch(name))]
    if not numbered:
        raise CheckpointError(f"{repo}: holds no folder {prefix}N; --checkpoint-prefix names what stands before N")
    checkpoints = [Checkpoint(number, name, f"{root}/{name}", root) for number, name in sorted(numbered)]
    for before, after in itertools.pairwise(checkpoints):
        if before.number == after.number:
            raise CheckpointError(f"{repo}: {before.name} and {after.name} have one number; remove one of them")
    return checkpoints


@contextlib.contextmanager
def open_checkpoint(checkpoint: Checkpoint) -> Iterator[Path]:
    """Give the checkpoint as a complete model folder, downloaded if need be.

    A model list or tokenizer beside the checkpoints serves each that has none of its own. Raise InputError where the
    checkpoint cannot be reached, or there is no model list in either place.
    """
    folder = local_folder(checkpoint.place)
    if (folder / MODEL_LIST_FILE).is_file():
        yield folder
        return
    root = local_folder(checkpoint.root)
    if not (root / MODEL_LIST_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint.place}: is not a complete model: neither it nor {checkpoint.root} holds {MODEL_LIST_FILE}; "
            "copy it again, or remove it"
        )
    with tempfile.TemporaryDirectory(prefix="p2l-checkpoint-") as temporary:
        together = Path(temporary)
        shared = [root / name for name in _SHARED_FILES if (root / name).is_file() and not (folder / name).exists()]
        for file in [*(path for path in folder.iterdir() if path.is_file()), *shared]:
            (together / file.name).symlink_to(file.resolve())
        yield together
