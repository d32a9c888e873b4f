"""The checkpoints of a run, by number: folders `checkpoint-N` in a local folder or in a repository on the hub."""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2l.checkpoint import MODEL_LIST_FILE, local_folder
from p2l.errors import CheckpointError, InputError

__all__ = ["Checkpoint", "find_checkpoints", "open_checkpoint"]

_OF_ALL = (MODEL_LIST_FILE, "training_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, not yet opened."""

    number: int
    """Optimizer steps, which are batches, before it."""
    name: str
    place: str
    """A folder, or `owner/name/folder` on the hub."""
    root: str
    """What it lies in, which may hold a model list for all."""


def find_checkpoints(repo: str, prefix: str) -> list[Checkpoint]:
    """The checkpoints of a run's folder or hub repository, by number.

    Raises:
        InputError: there is no such folder or repository, or it holds no checkpoint.
    """
    folder = Path(repo).expanduser()
    if folder.is_dir():
        names: Iterable[str] = [path.name for path in folder.iterdir() if path.is_dir()]
    elif _HUB_ID.fullmatch(repo):
        names = _folders_on_hub(repo)
    else:
        raise CheckpointError(f"{repo}: no such folder; --model-repo is the folder, or hub id, with the checkpoints")
    root = str(folder) if folder.is_dir() else repo
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    found = [(int(match[1]), name) for name in names if (match := pattern.fullmatch(name))]
    if not found:
        raise CheckpointError(f"{repo}: holds no folder {prefix}N; --checkpoint-prefix names what stands before N")
    checkpoints = [Checkpoint(number, name, f"{root}/{name}", root) for number, name in sorted(found)]
    for one, other in itertools.pairwise(checkpoints):
        if one.number == other.number:
            raise CheckpointError(f"{repo}: {one.name} and {other.name} have one number; remove one of them")
    return checkpoints


def _folders_on_hub(repo: str) -> set[str]:
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(repo)
    except Exception as error:  # network, authorisation, no such repository: every client error ends here
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{repo}: neither a local folder nor a hub id that can be reached ({reason})") from error
    return {file.split("/")[0] for file in files if "/" in file}


@contextlib.contextmanager
def open_checkpoint(checkpoint: Checkpoint) -> Iterator[Path]:
    """The checkpoint as a complete model folder, downloaded if need be.

    A model list or tokenizer that is stated once, beside the checkpoints, counts for each that has none of its own.

    Raises:
        InputError: it cannot be reached, or there is no model list in either place.
    """
    folder = local_folder(checkpoint.place)
    if (folder / MODEL_LIST_FILE).is_file():
        yield folder
        return
    root = local_folder(checkpoint.root)
    if not (root / MODEL_LIST_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint.place}: is no complete model: neither it nor {checkpoint.root} holds {MODEL_LIST_FILE}; "
            "copy it again, or remove it"
        )
    with tempfile.TemporaryDirectory(prefix="p2l-checkpoint-") as made:
        together = Path(made)
        shared = [root / name for name in _OF_ALL if (root / name).is_file() and not (folder / name).exists()]
        for file in [*(path for path in folder.iterdir() if path.is_file()), *shared]:
            (together / file.name).symlink_to(file.resolve())
        yield together
