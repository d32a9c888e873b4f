"""The files that `p2l eval` writes: the data set's rows with what the model says of them.

| column | JSON | Parquet |
|---|---|---|
| those of the data set | as they are | as they are |
| coefs | [[x, ...]] | list of float32 |
| eta, gamma | [[x]], or null for a head without it | float32, or absent |
| truncated | whether the prompt lost its oldest tokens | the same |
| last_hidden_state, if asked for | [[x, ...]] | list of float32 |

JSON is an array of records indented by 4 spaces, written a record at a time; numbers are the shortest decimals that
read back as the same float32. `NAME.info.json` says whose coefficients these
are, and is there only when they are whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.batch_inference.parts import Parts
from p2l.batch_inference.prompts import PromptSet, Survey, as_turns
from p2l.checkpoint import MODEL_LIST_FILE, read_json, write_json
from p2l.command import atomic_path, sync_path
from p2l.errors import InputError
from p2l.votes.writer import as_text, no_nan, open_writer

__all__ = ["FORMATS", "Output", "check_parquet", "json_records", "publish_model_list", "write_output"]

FORMATS = ("json", "parquet")
_DEEP = " " * 4
Write = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Output:
    """The files of one model in an output folder."""

    folder: Path
    name: str
    formats: tuple[str, ...]

    @property
    def files(self) -> list[Path]:
        """Those with the rows."""
        return [self.folder / f"{self.name}.{kind}" for kind in self.formats]

    @property
    def info_file(self) -> Path:
        """Says what the rows are of."""
        return self.folder / f"{self.name}.info.json"

    @property
    def parts_folder(self) -> Path:
        """What is saved on the way."""
        return self.folder / f"{self.name}.parts"

    def is_complete(self, info: dict[str, Any]) -> bool:
        """Whether all files are there and of this very run, however model and data set are spelled."""
        return set(self.files) <= set(self.whole_files(info))

    def whole_files(self, info: dict[str, Any]) -> list[Path]:
        """Files with the rows of this very run that are there already, in whatever format."""
        before = read_json(self.info_file, missing={})
        known = {key: value for key, value in info.items() if key not in ("model", "dataset")}
        if not isinstance(before, dict) or any(before.get(key) != value for key, value in known.items()):
            return []
        files = [self.folder / f"{self.name}.{kind}" for kind in FORMATS]
        return [file for file in files if file.name in before.get("files", []) and file.is_file()]


def check_parquet(name: str, schema: Any) -> None:
    """Refuse columns that Parquet cannot hold (an object without keys, say), before hours of work.

    Raises:
        InputError: naming the data set.
    """
    import pyarrow.parquet as pq

    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: Parquet cannot hold its columns ({reason}); use --format json") from error


def write_output(
    output: Output, data: PromptSet, survey: Survey, parts: Parts, info: dict[str, Any], bar: Any
) -> dict[str, Any]:
    """Join the rows of the data set with the parts, in one pass, and put all files in their places.

    Args:
        output: which files.
        data: the data set.
        survey: what is known of it.
        parts: every chunk must be there.
        info: what the info file says; counts of prompts and the files that it speaks of are added.
        bar: told how many rows are written.

    Returns:
        What the info file holds.

    Raises:
        InputError: a file cannot be written.
    """
    made = [parts.folder / f"output.{kind}" for kind in output.formats]
    counts = {"truncated": 0, "not_finite": 0}
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(_WRITERS[file.suffix](file, survey.schema, info)) for file in made]
            for rows, said in _joined(data, parts):
                for write in writers:
                    write(rows, said)
                counts["truncated"] += pc.sum(said.column("truncated")).as_py()
                counts["not_finite"] += _rows_that_are_not_finite(said.column("coefs"))
                bar.update(len(rows))
        files = {file.name for file in [*output.files, *output.whole_files(info)]}
        whole = info | counts | {"files": sorted(files)}
        output.info_file.unlink(missing_ok=True)  # it is of the files that are replaced now
        for source, target in zip(made, output.files, strict=True):
            os.replace(source, target)
        sync_path(output.folder)
        with atomic_path(output.info_file) as temporary:
            write_json(temporary, whole)
    except OSError as error:
        raise InputError(f"{output.folder}: cannot be written: {error.strerror or error}") from error
    return whole


def _rows_that_are_not_finite(coefs: Any) -> int:
    values = coefs.flatten().to_numpy(zero_copy_only=False).reshape(len(coefs), -1)
    return int((~np.isfinite(values)).any(axis=1).sum())


def _joined(data: PromptSet, parts: Parts) -> Iterator[tuple[Any, Any]]:
    """Pieces of the data set, and what the model says of their rows."""
    before, start = -1, 0
    for chunk, rows in data.tables():
        start = start if chunk == before else 0
        yield rows, parts.read(chunk).slice(start, len(rows))
        before, start = chunk, start + len(rows)


@contextlib.contextmanager
def _parquet(path: Path, schema: Any, info: dict[str, Any]) -> Iterator[Write]:
    """Lists of prompts where one prompt of the data set is a list."""
    lists = not pa.types.is_string(schema.field("prompt").type)
    with contextlib.ExitStack() as stack:
        write: Any = None

        def add(rows: Any, said: Any) -> None:
            nonlocal write
            if write is None:
                whole = pa.schema([*schema, *said.schema], metadata={"p2l": json.dumps(info)})
                write = stack.enter_context(open_writer(path, whole))
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns["prompt"] = as_turns(columns["prompt"]) if lists else columns["prompt"]
            columns |= zip(said.schema.names, said.columns, strict=True)
            write(pa.RecordBatch.from_pydict(columns))

        yield add


@contextlib.contextmanager
def _json(path: Path, schema: Any, info: dict[str, Any]) -> Iterator[Write]:  # noqa: ARG001 (they are in the info file)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        between = "[\n"

        def add(rows: Any, said: Any) -> None:
            nonlocal between
            for record in json_records(rows.to_pylist(), said):
                file.write(between + record)
                between = ",\n"

        yield add
        file.write("\n]\n")


def json_records(rows: Iterable[dict[str, Any]], said: Any) -> Iterator[str]:
    """Rows with what the model says of them (see `parts.as_batch`), each as the text of a JSON object.

    It is what `json.dumps(..., indent=4)` writes of an object inside an array.
    """
    columns = [f'{_DEEP * 2}"{name}": ' for name in ("coefs", "eta", "gamma", "truncated", "last_hidden_state")]
    hidden = "last_hidden_state" in said.schema.names
    results = [_numbers(said, "coefs"), _numbers(said, "eta"), _numbers(said, "gamma")]
    results.append(["true" if cut else "false" for cut in said.column("truncated").to_pylist()])
    if hidden:
        results.append(_numbers(said, "last_hidden_state"))
    encode = json.JSONEncoder(ensure_ascii=False, indent=4, default=as_text).encode
    for number, row in enumerate(rows):
        text = encode(no_nan(row)).replace("\n", f"\n{_DEEP}").removesuffix(f"\n{_DEEP}}}")
        more = ",\n".join(name + values[number] for name, values in zip(columns, results, strict=False))
        yield f"{_DEEP}{text},\n{more}\n{_DEEP}}}"


def _numbers(said: Any, name: str) -> Sequence[str]:
    """The numbers of each row as the text of `[[x, ...]]`; null where the model has no such column."""
    if name not in said.schema.names:
        return ["null"] * len(said)
    column = said.column(name)
    width = 1
    if pa.types.is_fixed_size_list(column.type):
        width, column = column.type.list_size, column.flatten()
    texts = pc.if_else(pc.is_finite(column), column.cast(pa.string()), "null").to_pylist()
    inside, outside = f"\n{_DEEP * 4}", f"\n{_DEEP * 3}"
    rows = (f",{inside}".join(texts[start : start + width]) for start in range(0, len(texts), width))
    return [f"[{outside}[{inside}{row}{outside}]\n{_DEEP * 2}]" for row in rows]


def publish_model_list(folder: Path, names: list[str]) -> bool:
    """Write `model_list.json` beside the outputs; False if one of other models is there, which stays.

    A list that goes on with more names, as lists do in online training, replaces the shorter one: each coefficient
    keeps its name.
    """
    file = folder / MODEL_LIST_FILE
    before = read_json(file, missing=[]) if file.is_file() else []
    common = min(len(before), len(names))
    if not isinstance(before, list) or before[:common] != names[:common]:
        return False
    if len(names) > len(before):
        with atomic_path(file) as temporary:
            write_json(temporary, names)
    return True


_WRITERS: dict[str, Callable[[Path, Any, dict[str, Any]], contextlib.AbstractContextManager[Write]]] = {
    ".json": _json,
    ".parquet": _parquet,
}
