"""Votes out of Hugging Face data sets: a hub id or a folder written by `save_to_disk`; memory-mapped by `datasets`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from p2l.errors import VoteError
from p2l.votes.stream import RawBatch, Source

__all__ = ["open_folder", "open_hub"]

_UNREACHABLE = {"ConnectionError", "Timeout", "TransportError", "TimeoutException", "OfflineModeIsEnabled"}


def open_hub(name: str, split: str) -> Source:
    """Open one split of a data set on the hub, downloading it into the cache of `datasets` when it is not there.

    Raises:
        VoteError: no network, no such data set or split; `datasets` is not installed.
    """
    datasets = _datasets()
    try:
        with _offline_when_unreachable(name):
            return _source(name, datasets.load_dataset(name, split=split))
    except Exception as error:  # the hub's client raises a dozen unrelated kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VoteError(
            f"{name}: no such local file, and split {split!r} of a hub data set of that name cannot be loaded: {reason}"
        ) from error


@contextlib.contextmanager
def _offline_when_unreachable(name: str) -> Iterator[None]:
    """Ask the hub once; when it cannot be reached, use the cache alone rather than retry for half a minute."""
    from huggingface_hub import HfApi, constants

    before = constants.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(name, timeout=10)
    except Exception as error:  # told apart by name, as the classes differ between versions of the client
        if not {kind.__name__ for kind in type(error).__mro__} & _UNREACHABLE:
            raise
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def open_folder(path: Path, split: str) -> Source:
    """Open a `save_to_disk` folder; of a folder with several splits, the one named.

    Raises:
        VoteError: it is no such folder or lacks the split.
    """
    datasets = _datasets()
    try:
        data = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise VoteError(f"{path}: is not a folder that save_to_disk wrote ({error})") from error
    if isinstance(data, dict):
        if split not in data:
            raise VoteError(f"{path}: no split {split!r}; splits: {', '.join(data)}")
        data = data[split]
    return _source(str(path), data)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise VoteError("hub data sets and save_to_disk folders need `pip install datasets`") from error
    return datasets


def _source(name: str, data: Any) -> Source:
    version = getattr(data, "_fingerprint", None)
    return Source(name, list(data.column_names), partial(_stream, data), rows=len(data), version=version)


def _stream(data: Any, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    row = 1
    data = data if columns is None else data.select_columns(list(columns))
    for table in data.with_format("arrow").iter(batch_size):
        for batch in table.combine_chunks().to_batches():
            yield RawBatch(batch, row)
            row += len(batch)
