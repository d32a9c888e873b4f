"""Take a benchmark into a run: its items as a virtual teacher's, its task and its judges in the configuration.

What is there already is left as it is, so the same command twice changes nothing; then phases 4 and 5 are open again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.benchmark import BadRowError, Benchmark, Entry
from coeval.ingest.patching import is_ours, patched, read_configuration, write_configuration
from coeval.storage.claims import main_process
from coeval.storage.jsonl import read_json, read_records, write_json
from coeval.storage.layout import Run
from coeval.storage.meta import Meta
from coeval.storage.records import now
from coeval.storage.store import Store

__all__ = ["Taken", "take"]

_REOPENED = ("response_collection", "evaluation")


@dataclass(frozen=True)
class Taken:
    """What came of it."""

    written: int
    """New items."""
    there: int
    """Items that the run has already."""
    skipped: int
    """Rows that are no items, such as those without a label."""


def take(run: Run, benchmark: Benchmark, path: Path, limit: int | None = None) -> Taken:
    """Read a file of rows and add what is new.

    Args:
        run: a folder that holds a run.
        benchmark: how rows are read; its task may be one that the run has.
        path: the file, a JSON object a line.
        limit: new items at most.

    Raises:
        RunInputError: the folder holds no run or another process is at work on it, the file or a row cannot be used,
            or a name is taken by something else.
    """
    meta = Meta(run)
    _check_names(benchmark)
    with main_process(run):
        configuration = read_configuration(run)
        entries, skipped = _entries(benchmark, path)
        known = _known_ids(run, benchmark)
        new = [(identity, entry) for identity, entry in _identified(benchmark, entries) if identity not in known]
        chosen = new if limit is None else new[:limit]
        taken = Taken(len(chosen), len(entries) - len(new), skipped)
        whole = _with_values(benchmark, entries)
        changed = patched(configuration, whole, run)
        _write_phase_files(run, whole, extend=is_ours(configuration, benchmark.task))
        _write_items(run, whole, chosen)
        write_configuration(run, changed)
        _note(meta, whole, taken)
    return taken


def _check_names(benchmark: Benchmark) -> None:
    for what, name, more in (("teacher", benchmark.name, "._-"), ("task", benchmark.task, "_-")):
        plain = "".join(character for character in name if character not in more)
        if not plain.isascii() or not plain.isalnum() or "__" in name:
            raise RunInputError(f"{what} {name!r}: use letters, digits and {' '.join(more)}, and no __")


def _entries(benchmark: Benchmark, path: Path) -> tuple[list[Entry], int]:
    entries, skipped = [], 0
    for number, (line, row) in enumerate(_rows(path, benchmark.split)):
        try:
            entry = benchmark.read(row, number)
        except BadRowError as error:
            raise RunInputError(f"{path}: line {line}: {error}") from None
        if entry is None:
            skipped += 1
        else:
            entries.append(entry)
    if not entries:
        raise RunInputError(f"{path}: holds no items")
    return entries, skipped


def _rows(path: Path, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _object(path, number, line)
    except OSError as error:
        where = "; rows are looked for in DATA_DIR/NAME/SPLIT.jsonl, see --data-dir and --split" if split else ""
        raise RunInputError(f"{path}: cannot be read: {error.strerror or error}{where}") from error


def _object(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RunInputError(f"{path}: line {number}: no JSON: {error}") from None
    if not isinstance(row, dict):
        raise RunInputError(f"{path}: line {number}: no JSON object")
    return row


def _identified(benchmark: Benchmark, entries: list[Entry]) -> Iterator[tuple[str, Entry]]:
    """Entries with the ids of their items; of several with one id the first."""
    seen = set()
    for entry in entries:
        native = entry.native_id
        while "__" in native:
            native = native.replace("__", "_")
        identity = f"{benchmark.task}__{benchmark.name}__{native}"
        if identity not in seen:
            seen.add(identity)
            yield identity, entry


def _known_ids(run: Run, benchmark: Benchmark) -> set[str]:
    files = run.datapoint_files(benchmark.task)
    return {str(record.get("id")) for path in files for record in read_records(path)}


def _with_values(benchmark: Benchmark, entries: list[Entry]) -> Benchmark:
    """With every value that an attribute has in the file."""
    values = {name: dict.fromkeys(known) for name, known in benchmark.attributes.items()}
    for entry in entries:
        for name, value in entry.attributes.items():
            if isinstance(value, str | int | float):
                values.setdefault(name, {})[value] = None
    for label in benchmark.label_attributes:
        if label not in values:
            there = ", ".join(values) or "none"
            raise RunInputError(f"label attribute {label!r}: no row has it; attributes: {there}")
    return replace(benchmark, attributes={name: list(found) for name, found in values.items()})


def _write_phase_files(run: Run, benchmark: Benchmark, *, extend: bool) -> None:
    """Attributes and rubric of the task: what is there stays, but for values that a task of ours lacks.

    Teachers draw from the attributes of a task that the user wrote, so those stay as they are.
    """
    path = run.find_attributes(benchmark.task, "target")
    stored = read_json(path) if path is not None else None
    target = dict(stored) if isinstance(stored, dict) else {}
    for name, values in benchmark.attributes.items() if extend or path is None else ():
        target[name] = list(dict.fromkeys([*target.get(name, ()), *values]))
    write_json(path or run.attributes(benchmark.task, "target"), target)
    if run.find_attributes(benchmark.task, "nuanced") is None:
        write_json(run.attributes(benchmark.task, "nuanced"), {})
    if run.find_rubric(benchmark.task) is None:
        write_json(run.rubric(benchmark.task), dict(benchmark.rubric))


def _write_items(run: Run, benchmark: Benchmark, chosen: list[tuple[str, Entry]]) -> None:
    with Store(run) as store:
        for identity, entry in chosen:
            record = {
                "id": identity,
                "task_id": benchmark.task,
                "teacher_model_id": benchmark.name,
                "sampled_target_attributes": dict(entry.attributes),
                "prompt": entry.prompt,
                "reference_response": entry.reference,
                "generated_at": now(),
                "benchmark_id": benchmark.name,
                "benchmark_split": benchmark.split,
                "benchmark_native_id": entry.native_id,
                "benchmark_native_score": entry.native_score,
            }
            store.append(run.datapoints(benchmark.task, benchmark.name), record)


def _note(meta: Meta, benchmark: Benchmark, taken: Taken) -> None:
    """Log what was taken; where that is something, phases 4 and 5 lack its answers."""
    entry = {
        "benchmark": benchmark.name,
        "teacher_id": benchmark.name,
        "task_name": benchmark.task,
        "n_written": taken.written,
        "n_skipped": taken.there + taken.skipped,
        "ingested_at": now(),
    }
    changes: dict[str, Any] = {"ingest_log": [*(meta.data.get("ingest_log") or []), entry]}
    if taken.written:
        changes["phases_completed"] = [phase for phase in meta.completed if phase not in _REOPENED]
        changes["status"] = "in_progress"
    meta.update(**changes)
