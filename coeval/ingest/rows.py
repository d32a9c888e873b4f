"""Rows of a file or a data set: JSON lines, Parquet, a `save_to_disk` folder, the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.adapters import Benchmark
from p2l.common.files import LONGEST_LINE, bounded_lines, parse_json

Rows = Iterator[tuple[int, Mapping[str, Any]]]
"""Numbers from 1, of lines or rows, with what is there."""


def rows_of(path: Path, where: str = "") -> Rows:
    """Yield the JSON objects of a file with their line numbers. Raise RunInputError if it cannot be read."""
    try:
        with path.open("rb") as lines:
            for number, (line, _) in enumerate(bounded_lines(lines), start=1):
                if not line:
                    raise RunInputError(f"{path}: line {number}: is longer than {LONGEST_LINE >> 20} MiB; leave it out")
                if not line.strip():
                    continue
                try:
                    row = parse_json(line)
                except ValueError as error:
                    raise RunInputError(f"{path}: line {number}: no JSON: {error}") from None
                if not isinstance(row, dict):
                    raise RunInputError(f"{path}: line {number}: no JSON object")
                yield number, row
    except OSError as error:
        raise RunInputError(f"{path}: cannot be read: {error.strerror or error}{where}") from error


def find_rows(benchmark: Benchmark, folder: Path) -> Path:
    """Return where the rows of a benchmark are in a folder: NAME/SPLIT.jsonl, NAME/SPLIT.parquet, or a folder NAME."""
    written = folder / benchmark.name / f"{benchmark.split}.jsonl"
    saved = folder / benchmark.name
    others = [written.with_suffix(".parquet"), *([saved] if (saved / "dataset_info.json").exists() else [])]
    others += [saved] if (saved / "dataset_dict.json").exists() else []
    return next((path for path in (written, *others) if path.exists()), written)


def rows_at(path: Path, split: str) -> Rows:
    """Yield the rows of a file or a saved data set. Raise RunInputError if it cannot be read."""
    where = "; rows are looked for in DATA_DIR/NAME/SPLIT.jsonl, see --data-dir and --split" if split else ""
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.is_dir():
        return _saved(path, split)
    return rows_of(path, where)


def _parquet(path: Path) -> Rows:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            yield from enumerate(rows, start=1)
    except (OSError, pa.ArrowException) as error:
        raise RunInputError(f"{path}: cannot be read: {error}") from None


def _saved(path: Path, split: str) -> Rows:
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise RunInputError(f"{path}: cannot be read: {error}") from None
    if isinstance(loaded, DatasetDict):
        if split not in loaded:
            raise RunInputError(f"{path}: has no split {split!r}; there are {', '.join(loaded)}, see --split")
        loaded = loaded[split]
    return _numbered(loaded)


def hub_rows(benchmark: Benchmark) -> Rows:
    """Yield the rows of a benchmark as it is published, of all configurations with their names as `task` where its
    address ends in `:*`. Raise RunInputError where the hub does not give them."""
    if not benchmark.hub:
        raise RunInputError(f"--from-hub: {benchmark.name} is read from files alone, see --data-dir")
    from datasets import get_dataset_config_names, load_dataset

    name, _, configuration = benchmark.hub.partition(":")
    try:
        if configuration != "*":
            return _numbered(load_dataset(name, configuration or None, split=benchmark.split))
        parts = {task: load_dataset(name, task, split=benchmark.split) for task in get_dataset_config_names(name)}
        return _numbered({"task": task, **row} for task, rows in parts.items() for row in rows)
    except Exception as error:
        raise RunInputError(f"{benchmark.hub}, split {benchmark.split}: cannot be loaded: {error}") from None


def _numbered(rows: Iterable[Any]) -> Rows:
    return enumerate(rows, start=1)
