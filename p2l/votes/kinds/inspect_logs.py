"""Logs of Inspect: `.eval` files, which are zips of JSON, and JSON logs, one or a folder of them.

Where `inspect_ai` is installed its own reader reads them, else what follows here: the samples of an `.eval` file one at
a time. Versions since 2026 pack them with Zstandard, which the zip library of Python before 3.14 does not know; such an
entry is read where its header says that it lies.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.common.errors import VoteError, first_line
from p2l.common.files import parse_json
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import one_text
from p2l.votes.kinds.texts import RowError
from p2l.votes.kinds.values import NoVerdictError, grade, identifier

_ZSTANDARD = 93  # method of compression in a zip
_MAX_ENTRY_BYTES = 1 << 30
_READ_FIELDS = {"id", "input", "scores", "error"}
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")


def is_eval_file(path: Path) -> bool:
    """Return whether a file is a zip that Inspect wrote."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    return "header.json" in names or "_journal/start.json" in names


def _entry(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """Return the JSON of an entry."""
    if info.file_size > _MAX_ENTRY_BYTES:
        raise VoteError(f"{path}: {info.filename} is {info.file_size / 1e9:,.1f} GB, more than a sample has")
    if info.compress_type != _ZSTANDARD:
        return parse_json(archive.read(info))
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(header[9] + header[10], 1)  # the lengths of its name and of its extra fields
        packed = file.read(info.compress_size)
    return parse_json(pa.Codec("zstd").decompress(packed, decompressed_size=info.file_size).to_pybytes())


def _eval_file(path: Path, name: str) -> Iterator[Record]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            start = entries.get("header.json") or entries.get("_journal/start.json")
            if start is None:
                raise VoteError(f"{name}: holds neither header.json nor _journal/start.json, as logs of Inspect do")
            about = _about(_entry(path, archive, start), name)
            for entry, info in entries.items():
                if entry.startswith("samples/") and entry.endswith(".json"):
                    yield Record(f"{name}: {entry}", {"log": about, "sample": _entry(path, archive, info)})
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, pa.ArrowException, struct.error) as error:
        raise VoteError(f"{name}: cannot be read as a log of Inspect: {first_line(error)}") from error


def _about(header: Any, name: str) -> Row:
    evaluation = header.get("eval") if isinstance(header, dict) else None
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("model"), str):
        raise VoteError(f"{name}: names no model (eval.model), as logs of Inspect do")
    return {"model": evaluation["model"], "task": str(evaluation.get("task") or "task")}


def _inspect_log(path: Path) -> Any | None:
    """Return a log, of an `.eval` file its head, by Inspect's own reader; None where it is not there or refuses it.

    What it refuses, such as a log that another program wrote, the reader of this module reads, or tells what it lacks.
    """
    if find_spec("inspect_ai") is None:
        return None
    from inspect_ai.log import read_eval_log

    try:
        if is_eval_file(path):
            return read_eval_log(str(path), header_only=True, format="eval")
        return read_eval_log(str(path), format="json")
    except (OSError, ValueError, LookupError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None


def _by_inspect(log: Any, path: Path, name: str) -> Iterator[Record]:
    """Yield the samples of a log by Inspect's own reader, which knows the formats of all its versions."""
    from inspect_ai.log import read_eval_log_samples

    about = {"model": log.eval.model, "task": log.eval.task}
    try:
        samples = log.samples or []
        if is_eval_file(path):
            samples = read_eval_log_samples(str(path), all_samples_required=False, format="eval")
        for sample in samples:
            content = sample.model_dump(mode="json", include=_READ_FIELDS)
            yield Record(f"{name}: sample {sample.id}, epoch {sample.epoch}", {"log": about, "sample": content})
    except (OSError, ValueError, LookupError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise VoteError(f"{name}: Inspect cannot read this log: {first_line(error)}") from error


def _records(sample: Sample) -> Iterator[Record]:
    files = [(sample.path / name, f"{sample.name}/{name}") for name in _log_names(sample)]
    for path, name in files or [(sample.path, sample.name)]:
        known = _inspect_log(path)
        if known is not None:
            yield from _by_inspect(known, path, name)
            continue
        if is_eval_file(path):
            yield from _eval_file(path, name)
            continue
        if path.suffix == ".eval":
            raise VoteError(f"{name}: is not a log of Inspect (a zip with header.json); was it cut short?")
        log = read_document(path, name)
        about = _about(log, name)
        for number, content in enumerate(log.get("samples") or [], 1):
            yield Record(f"{name}: sample {number}", {"log": about, "sample": content})


def _log_names(sample: Sample) -> list[str]:
    """Return the logs of a folder: `.eval` files, and JSON files that begin like one of Inspect's."""
    names = [name for name in sample.files if name.endswith(".eval")]
    for name in sample.files:
        if name.endswith(".json") and not name.rpartition("/")[2].startswith(("logs", "listing", "eval-set")):
            with (sample.path / name).open("rb") as file:
                head = file.read(4096)
            if b'"eval"' in head and b'"status"' in head:
                names.append(name)
    return sorted(names)


def _score(sample: Mapping[str, Any]) -> float:
    """Return the grade of a sample by its first scorer that gives a number, or C, P, I or N."""
    scores = sample.get("scores")
    if not scores and isinstance(sample.get("score"), dict):  # logs of 2024
        scores = {"score": sample["score"]}
    if not isinstance(scores, dict) or not scores:
        raise NoVerdictError("error" if sample.get("error") else "no score")
    reason: Exception = NoVerdictError("no score")
    for scorer, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else score
        values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
        try:
            numbers = [grade(part, f"value of scorer {scorer}") for part in values]
        except (RowError, NoVerdictError) as error:
            reason = error
            continue
        if numbers:
            return sum(numbers) / len(numbers)
    raise reason


def _convert(row: Row) -> Iterator[Row]:
    sample, log = row["sample"], row["log"]
    if not isinstance(sample, dict):
        raise RowError("is not an object")
    yield {
        "question_id": f"{log['task']} {identifier(sample.get('id'))}",
        "category": log["task"],
        "prompt": one_text(sample.get("input"), "input"),
        "model": log["model"],
        "score": _score(sample),
    }


def _recognise(sample: Sample) -> bool:
    if sample.files:
        return bool(_log_names(sample))
    return sample.has("eval", "status", "version") or is_eval_file(sample.path)


KINDS = (
    Kind(
        name="inspect",
        about="Inspect logs",
        gives="scores",
        recognise=_recognise,
        marks=("eval", "samples"),
        needs=("status", "version"),
        reads="eval.model -> model, eval.task -> category, input -> prompt, the first scorer with grades -> score",
        convert=_convert,
        records=_records,
        sample='a .eval file, or {"version": 2, "status": "success", "eval": {"task": "sums", "model": "ant"}, '
        '"samples":\n'
        '[{"id": 1, "epoch": 1, "input": "2 + 2?", "target": "4", "scores": {"match": {"value": "C"}}}]}',
    ),
)
