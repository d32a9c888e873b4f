"""The files that `p2l eval` writes: the data set's rows with the model's predictions.

| column | JSON | Parquet |
|---|---|---|
| those of the data set | as they are | as they are |
| coefs | [[x, ...]] | list of float32 |
| eta, gamma | [[x]], or null for a head without it | float32, or absent |
| truncated | whether the prompt lost its oldest tokens | the same |
| familiarity | x, or absent for a model without posterior | float32, or absent |
| last_hidden_state, if asked for | [[x, ...]] | list of float32 |

JSON is an array of records indented by 4 spaces, written a record at a time; numbers are the shortest decimals that
read back as the same float32. `NAME.info.json` names the model of the coefficients, and exists only when they are
whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.batch_inference.prompts import PromptSet, Survey, as_turns
from p2l.common.errors import InputError, first_line
from p2l.common.files import atomic_path, no_nan, sync_path, try_lock, write_json
from p2l.model.checkpoint import MODEL_LIST_FILE, read_json, read_object
from p2l.votes.writing import as_text, open_writer

if TYPE_CHECKING:
    from p2l.inference import Prediction


# Predictions saved so far, on disk: a folder of parts, each of them whole or absent.
#
# A part is an Arrow file with one record batch for each of its chunks (see `p2l.batch_inference.prompts`), which its
# schema's metadata list. `job.json` says what the parts belong to. Any process may write any chunk: a later run, with
# more or fewer processes, keeps what exists and adds what is missing.
#
# Shapes: n prompts of a chunk, M models, D hidden.

_JOB_FILE = "job.json"
_CHUNKS = b"chunks"


@dataclass(frozen=True)
class InferenceJob:
    """Everything that the numbers depend on: two runs with the same job may share their parts."""

    model: str
    revision: str
    head_type: str
    dtype: str
    max_length: list[int]  # a list of one, as earlier versions wrote it: a run that was stopped goes on
    hidden: bool
    dataset: str
    fingerprint: str

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """Return the first difference from another job's record; names alone do not count."""
        for key, value in asdict(self).items():
            if key not in ("model", "dataset") and other.get(key) != value:
                return _DIFFERENCES[key].format(was=other.get(key), now=value, job=self, other=other)
        return None


_DIFFERENCES = {
    "revision": "the model was {other[model]} at revision {was}, now it is {job.model} at revision {now}",
    "head_type": "the head was {was}, now it is {now}",
    "dtype": "the numbers were {was}, now they are {now}",
    "max_length": "--max-length was {was}, now it is {now}",
    "hidden": "hidden states were kept: {was}, now: {now}",
    "fingerprint": "the data set was {other[dataset]}, now it is {job.dataset}, or its content has changed",
}


@dataclass
class PartFolder:
    """The folder of parts of one job; `lock` is the open folder, locked while the first process runs."""

    folder: Path
    lock: int | None = None
    _saved: dict[int, tuple[Path, int, int]] = field(default_factory=dict)
    _open: tuple[Path, Any] | None = None

    def refresh(self) -> dict[int, int]:
        """Look up which chunks are saved now; return their numbers and how many rows they hold."""
        self._saved = {}
        for path in sorted(self.folder.glob("part-*.arrow")):
            try:
                with pa.memory_map(str(path)) as file:
                    metadata = pa.ipc.open_file(file).schema.metadata or {}
                chunks = [(int(chunk), int(rows)) for chunk, rows in json.loads(metadata[_CHUNKS])]
            except (pa.ArrowException, OSError, KeyError, ValueError):
                continue  # the file is damaged: its chunks are computed again
            for place, (chunk, rows) in enumerate(chunks):
                if rows >= self._saved.get(chunk, (path, 0, 0))[2]:
                    self._saved[chunk] = (path, place, rows)
        return {chunk: rows for chunk, (_, _, rows) in self._saved.items()}

    def write(self, chunks: Mapping[int, Any]) -> None:
        """Save record batches by chunk number, as one part."""
        held = [[chunk, len(batch)] for chunk, batch in chunks.items()]
        rows = sum(count for _, count in held)
        schema = next(iter(chunks.values())).schema.with_metadata({_CHUNKS: json.dumps(held).encode()})
        path = self.folder / f"part-{held[0][0]:08d}-{rows}.arrow"
        with (
            atomic_path(path) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, schema) as out,
        ):
            for batch in chunks.values():
                out.write_batch(batch)

    def saved_rows(self) -> int:
        """Return the number of rows that all processes have saved, by the names of the parts."""
        return sum(int(path.stem.rpartition("-")[2]) for path in self.folder.glob("part-*.arrow"))

    def sweep(self, *, everything: bool) -> None:
        """Delete the unfinished files of a killed run, or everything that a run may leave."""
        for pattern in (".*.tmp", "output.*", *(["part-*.arrow", _JOB_FILE] if everything else [])):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def read(self, chunk: int) -> Any:
        """Return the record batch of a saved chunk, memory-mapped; call `refresh` first."""
        path, place, _ = self._saved[chunk]
        if self._open is None or self._open[0] != path:
            self._open = (path, pa.ipc.open_file(pa.memory_map(str(path))))
        return self._open[1].get_batch(place)

    def remove(self) -> None:
        """Delete the folder, once the output holds its content."""
        self._open = None
        self.sweep(everything=True)
        with contextlib.suppress(OSError):  # somebody else's file is in it
            self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Release the folder for other runs."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def lock_folder(folder: Path) -> int:
    """Create a folder and lock it against other runs; return its descriptor; InputError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    if not try_lock(lock):
        os.close(lock)
        raise InputError(f"{folder}: another run is writing there; wait for it, or choose another --output-dir")
    return lock


def open_parts(folder: Path, job: InferenceJob, *, restart: bool = False) -> PartFolder:
    """Return the folder of parts, created and locked; with `restart`, without parts of another job.

    Raise InputError where parts of another job are in it, another run is writing, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        parts = stack.enter_context(contextlib.closing(PartFolder(folder, lock_folder(folder))))
        before = {} if restart else read_object(folder / _JOB_FILE, missing={})
        different = job.difference(before) if before else None
        if different:
            raise InputError(
                f"{folder}: holds an unfinished run of something else: {different}; "
                "finish that one, choose another --output-dir, or give --restart to throw it away"
            )
        parts.sweep(everything=not before)
        write_json(folder / _JOB_FILE, asdict(job), indent=2)
        stack.pop_all()  # the caller closes it
    return parts


def discard_parts(folder: Path, job: InferenceJob) -> None:
    """Delete the parts of this job, whose output is whole: the run was killed before it did."""
    if folder.is_dir() and not job.difference(read_object(folder / _JOB_FILE, missing=asdict(job))):
        PartFolder(folder).remove()


def as_batch(predictions: Prediction) -> Any:
    """Return predictions as a record batch: coefs (n, M), hidden (n, D) as lists, and the numbers of each."""
    columns = {"coefs": _matrix(predictions.coefs)}
    for name in ("eta", "gamma", "truncated", "familiarity"):
        values = getattr(predictions, name)
        if values is not None:
            columns[name] = pa.array(values)
    if predictions.hidden is not None:
        columns["last_hidden_state"] = _matrix(predictions.hidden)
    return pa.RecordBatch.from_pydict(columns)


def _matrix(values: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


FORMATS = ("json", "parquet")
_INDENT = " " * 4
Write = Callable[[Any, Any], None]


@dataclass(frozen=True)
class OutputFiles:
    """The files of one model in an output folder."""

    folder: Path
    name: str
    formats: tuple[str, ...]

    @property
    def files(self) -> list[Path]:
        """The files with the rows."""
        return [self.folder / f"{self.name}.{kind}" for kind in self.formats]

    @property
    def info_file(self) -> Path:
        """The description of the rows."""
        return self.folder / f"{self.name}.info.json"

    @property
    def parts_folder(self) -> Path:
        """The folder of parts saved on the way."""
        return self.folder / f"{self.name}.parts"

    def whole_files(self, info: dict[str, Any]) -> list[Path]:
        """Return the files, in any format, that already hold the rows of this very run."""
        before = read_json(self.info_file, missing={})
        # Model and data set may be spelled in several ways.
        settings = {key: value for key, value in info.items() if key not in ("model", "dataset")}
        if not isinstance(before, dict) or any(before.get(key) != value for key, value in settings.items()):
            return []
        files = [self.folder / f"{self.name}.{kind}" for kind in FORMATS]
        return [file for file in files if file.name in before.get("files", []) and file.is_file()]


def check_parquet(name: str, schema: Any) -> None:
    """Refuse, before hours of work, columns that Parquet cannot hold (an object without keys, say)."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except pa.ArrowException as error:
        reason = first_line(error)
        raise InputError(f"{name}: Parquet cannot hold its columns ({reason}); use --format json") from error


def write_output(
    output: OutputFiles, data: PromptSet, survey: Survey, parts: PartFolder, info: dict[str, Any], bar: Any
) -> dict[str, Any]:
    """Join the rows of the data set with the parts, in one pass, put all files in their places and return their info.

    Every chunk must be saved. The info is `info` with counts of prompts and the names of the files; `bar` counts rows.
    """
    paths = [parts.folder / f"output.{kind}" for kind in output.formats]
    counts = {"truncated": 0, "not_finite": 0}
    try:
        with contextlib.ExitStack() as stack:
            writers: list[Write] = []
            for file in paths:
                if file.suffix == ".json":
                    writers.append(partial(_write_records, stack.enter_context(json_array(file))))
                else:
                    writers.append(stack.enter_context(_parquet(file, survey.schema, info)))
            before, start = -1, 0
            for chunk, rows in data.tables():
                start = start if chunk == before else 0  # a chunk may come in several pieces
                predictions = parts.read(chunk).slice(start, len(rows))
                before, start = chunk, start + len(rows)
                for write in writers:
                    write(rows, predictions)
                counts["truncated"] += pc.sum(predictions.column("truncated")).as_py()
                coefs = predictions.column("coefs").flatten().to_numpy(zero_copy_only=False).reshape(len(rows), -1)
                counts["not_finite"] += int((~np.isfinite(coefs)).any(axis=1).sum())
                bar.update(len(rows))
        files = {file.name for file in [*output.files, *output.whole_files(info)]}
        whole = info | counts | {"files": sorted(files)}
        output.info_file.unlink(missing_ok=True)  # it is of the files that are replaced now
        for source, target in zip(paths, output.files, strict=True):
            os.replace(source, target)
        sync_path(output.folder)
        write_json(output.info_file, whole, indent=2)
    except OSError as error:
        raise InputError(f"{output.folder}: cannot be written: {error.strerror or error}") from error
    return whole


@contextlib.contextmanager
def _parquet(path: Path, schema: Any, info: dict[str, Any]) -> Iterator[Write]:
    """Write Parquet, with lists of prompts where one prompt of the data set is a list."""
    lists = not pa.types.is_string(schema.field("prompt").type)
    with contextlib.ExitStack() as stack:
        write: Any = None

        def add(rows: Any, predictions: Any) -> None:
            nonlocal write
            if write is None:
                whole = pa.schema([*schema, *predictions.schema], metadata={"p2l": json.dumps(info)})
                write = stack.enter_context(open_writer(path, whole))
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns["prompt"] = as_turns(columns["prompt"]) if lists else columns["prompt"]
            columns |= zip(predictions.schema.names, predictions.columns, strict=True)
            write(pa.RecordBatch.from_pydict(columns))

        yield add


def _write_records(write: Callable[[str], None], rows: Any, predictions: Any) -> None:
    for record in json_records(rows.to_pylist(), predictions):
        write(record)


@contextlib.contextmanager
def json_array(path: Path) -> Iterator[Callable[[str], None]]:
    """Give a function that writes the text of the next element of a JSON array; the file is whole or absent."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        between = "[\n"

        def write(record: str) -> None:
            nonlocal between
            file.write(between + record)
            between = ",\n"

        yield write
        file.write("[]\n" if between == "[\n" else "\n]\n")


def json_records(rows: Iterable[dict[str, Any]], predictions: Any) -> Iterator[str]:
    """Yield rows with their predictions (see `as_batch`), as `json.dumps(..., indent=4)` writes objects in an array."""
    results = {name: _numbers(predictions, name) for name in ("coefs", "eta", "gamma")}
    results["truncated"] = ["true" if cut else "false" for cut in predictions.column("truncated").to_pylist()]
    if "familiarity" in predictions.schema.names:
        results["familiarity"] = _texts(predictions.column("familiarity"))
    if "last_hidden_state" in predictions.schema.names:
        results["last_hidden_state"] = _numbers(predictions, "last_hidden_state")
    columns = [(f'{_INDENT * 2}"{name}": ', texts) for name, texts in results.items()]
    encode = json.JSONEncoder(ensure_ascii=False, indent=4, default=as_text).encode
    for number, row in enumerate(rows):
        text = encode(no_nan(row)).replace("\n", f"\n{_INDENT}").removesuffix(f"\n{_INDENT}}}")
        more = ",\n".join(name + texts[number] for name, texts in columns)
        yield f"{_INDENT}{text},\n{more}\n{_INDENT}}}"


def _numbers(predictions: Any, name: str) -> Sequence[str]:
    """Return the numbers of each row as the text of `[[x, ...]]`; null where the model has no such column."""
    if name not in predictions.schema.names:
        return ["null"] * len(predictions)
    column = predictions.column(name)
    width = 1
    if pa.types.is_fixed_size_list(column.type):
        width, column = column.type.list_size, column.flatten()
    texts = _texts(column)
    inside, outside = f"\n{_INDENT * 4}", f"\n{_INDENT * 3}"
    rows = (f",{inside}".join(texts[start : start + width]) for start in range(0, len(texts), width))
    return [f"[{outside}[{inside}{row}{outside}]\n{_INDENT * 2}]" for row in rows]


def _texts(column: Any) -> list[str]:
    """Return numbers as JSON has them."""
    texts: list[str] = pc.if_else(pc.is_finite(column), column.cast(pa.string()), "null").to_pylist()
    return texts


def publish_model_list(folder: Path, names: list[str]) -> bool:
    """Write `model_list.json` beside the outputs; False if one of other models exists, which stays.

    A list with more names at its end, as in online training, replaces the shorter one: each coefficient keeps its name.
    """
    file = folder / MODEL_LIST_FILE
    before = read_json(file, missing=[]) if file.is_file() else []
    common = min(len(before), len(names))
    if not isinstance(before, list) or before[:common] != names[:common]:
        return False
    if len(names) > len(before):
        write_json(file, names, indent=2)
    return True


# Push the files of `p2l eval` to a private data set on the Hugging Face hub.


def check_can_push(repo_id: str) -> None:
    """Check, before hours of work, whether the output can be pushed at their end.

    Raise InputError where the hub does not know the user, or the data set is public: rows hold what users wrote.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
        there = HfApi().repo_exists(repo_id, repo_type="dataset")
        public = there and not HfApi().dataset_info(repo_id).private
    except Exception as error:  # the hub's client raises its HTTP library's errors too
        raise InputError(
            f"--output-hf-path {repo_id}: the hub does not answer for you ({type(error).__name__}); log in first"
        ) from error
    if public:
        raise InputError(f"--output-hf-path {repo_id}: is a public data set; make it private or choose another name")


def push(files: Sequence[Path], repo_id: str) -> None:
    """Upload files to a data set, which is created private where there is none; InputError where that fails."""
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repo_id, repo_type="dataset", private=True, exist_ok=True)
        for file in files:
            HfApi().upload_file(path_or_fileobj=str(file), path_in_repo=file.name, repo_id=repo_id, repo_type="dataset")
    except Exception as error:
        raise InputError(
            f"pushing {files[0]} to {repo_id} failed: {type(error).__name__}; the files are on disk, run it again"
        ) from error
