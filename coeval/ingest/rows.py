"""Rows of a file or a data set: JSON lines, Parquet, a `save_to_disk` folder, the hub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.benchmarks import Benchmark
from p2l.common.cli import need
from p2l.common.files import MAX_LINE_BYTES, bounded_lines, json_reason, no_object, parse_json

Rows = Iterator[tuple[int, Mapping[str, Any]]]  # numbers from 1, of lines or rows, with what is there


def rows_of(path: Path, where: str = "") -> Rows:
    """Yield the JSON objects of a file with their line numbers. Raise RunInputError if it cannot be read."""
    try:
        with path.open("rb") as lines:
            for number, (line, _) in enumerate(bounded_lines(lines), start=1):
                if not line:
                    raise RunInputError(
                        f"{path}: line {number}: is longer than {MAX_LINE_BYTES >> 20} MiB; leave it out"
                    )
                if not line.strip():
                    continue
                try:
                    row = parse_json(line)
                except ValueError as error:
                    raise RunInputError(f"{path}: line {number}: is not JSON: {json_reason(error)}") from None
                if not isinstance(row, dict):
                    raise RunInputError(f"{path}: line {number}: {no_object(row)}; every line must be an object")
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
        from datasets import DatasetDict, load_from_disk

        try:
            loaded = load_from_disk(str(path))
        except (OSError, ValueError) as error:
            raise RunInputError(f"{path}: cannot be read: {error}") from None
        if isinstance(loaded, DatasetDict):
            if split not in loaded:
                raise RunInputError(f"{path}: has no split {split!r}; there are {', '.join(loaded)}, see --split")
            loaded = loaded[split]
        return enumerate(loaded, start=1)
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


_LONGEST_REASON = 300
# Branch on which the hub has data sets as CONFIGURATION/SPLIT/*.parquet, also those whose own branch has a script.
_CONVERTED = "refs/convert/parquet"


def hub_rows(benchmark: Benchmark) -> Rows:
    """Yield the rows of a benchmark as it is published, of all configurations with their names as `task` where its
    address ends in `:*`. Raise RunInputError where the hub does not give them."""
    if not benchmark.hub:
        raise RunInputError(f"--from-hub: {benchmark.name} is read from files alone, see --data-dir")
    need("datasets")
    name, _, configuration = benchmark.hub.partition(":")
    try:
        yield from enumerate(_published(name, configuration, benchmark.split), start=1)
    except Exception as error:
        why = " ".join(str(error).split())[:_LONGEST_REASON]
        raise RunInputError(f"{benchmark.hub}, split {benchmark.split}: cannot be loaded: {why}") from None


def _published(name: str, configuration: str, split: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a split; nothing but its files is read."""
    from datasets import get_dataset_config_names, load_dataset

    is_every = configuration == "*"
    try:
        parts = get_dataset_config_names(name) if is_every else [configuration]
        loaded = {part: load_dataset(name, part or None, split=split, streaming=True) for part in parts}
    except RuntimeError as error:
        if "script" not in str(error):  # which `datasets` no longer runs
            raise
        loaded = _converted(name, configuration or "default", split)
    for part, rows in loaded.items():
        for row in rows:
            yield {"task": part, **row} if is_every else row


def _converted(name: str, configuration: str, split: str) -> dict[str, Iterable[Any]]:
    """Return the rows of a split by configuration, as the hub has converted them."""
    from datasets import load_dataset
    from huggingface_hub import HfFileSystem

    parts = defaultdict[str, list[str]](list)
    for file in sorted(HfFileSystem().glob(f"datasets/{name}@{_CONVERTED}/{configuration}/{split}/*.parquet")):
        parts[file.split("/")[-3]].append(f"hf://{file}")
    if not parts:
        raise FileNotFoundError(f"the hub has no Parquet files of configuration {configuration!r} and this split")
    return {
        part: load_dataset("parquet", data_files=files, split="train", streaming=True) for part, files in parts.items()
    }
