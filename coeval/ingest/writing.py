"""Add a benchmark to a run: its items under a virtual teacher, its task and its judges in the configuration.

Existing items, tasks and rubrics are left alone, so repeating the command changes nothing. Phases 4 and 5 are reopened.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from coeval.errors import RunInputError
from coeval.ingest.adapters import BadRowError, Benchmark, BenchmarkItem
from coeval.storage.jsonl import read_json, read_records, write_json
from coeval.storage.meta import Meta, main_process
from coeval.storage.records import now
from coeval.storage.run import Run
from coeval.storage.store import Store
from p2l.common.config import parse_yaml, read_limited
from p2l.common.files import LONGEST_LINE, atomic_path, bounded_lines, parse_json


def read_configuration(run: Run) -> dict[str, Any]:
    """Read the `config.yaml` of a run. Raise RunInputError if it cannot be read."""
    try:
        configuration, _ = parse_yaml(read_limited(run.config).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "no YAML"
        raise RunInputError(f"{run.config}: cannot be read: {why}") from error
    if not isinstance(configuration, dict):
        raise RunInputError(f"{run.config}: is no configuration")
    return configuration


def patched(configuration: Mapping[str, Any], benchmark: Benchmark, run: Run) -> dict[str, Any]:
    """Add a benchmark's teacher, task and judge to a configuration; existing entries stay as they are.

    Raise RunInputError if another model has the teacher's name, or an existing task lacks labels or the metric.
    """
    changed = copy.deepcopy(dict(configuration))
    models, tasks = changed.setdefault("models", []), changed.setdefault("tasks", [])
    _add_model(models, benchmark.name, "benchmark", "teacher", {}, run)
    if benchmark.metric is not None:
        parameters = {"metric": benchmark.metric}
        _add_model(models, f"metric-{benchmark.metric}", "metric", "judge", parameters, run)
    existing = next((task for task in tasks if task.get("name") == benchmark.task), None)
    if existing is None:
        tasks.append(_task(benchmark))
    else:
        _check_fits(existing, benchmark, run)
        if existing.get("category") == "benchmark" and isinstance(existing.get("target_attributes"), dict):
            _merge_values(existing["target_attributes"], benchmark)
    return changed


def is_benchmark_task(configuration: Mapping[str, Any], name: str) -> bool:
    """Whether a task was, or will be, added by ingest."""
    task = next((task for task in configuration.get("tasks") or () if task.get("name") == name), None)
    return task is None or task.get("category") == "benchmark"


def _check_fits(task: Mapping[str, Any], benchmark: Benchmark, run: Run) -> None:
    """Raise unless an existing task has the benchmark's labels, metric and requested description."""
    name, rubric = benchmark.task, task.get("rubric")
    metrics = (
        [one.get("metric") for one in rubric.values() if isinstance(one, dict)] if isinstance(rubric, dict) else []
    )
    labels = task.get("label_attributes") or ()
    lacks = [f"label attribute {label!r}" for label in benchmark.label_attributes if label not in labels]
    lacks += [f"factor with metric {benchmark.metric!r}"] * (benchmark.metric not in (None, *metrics))
    lacks += ["such description"] * (benchmark.described and task.get("description") != benchmark.description)
    if lacks:
        raise RunInputError(
            f"{run.config}: task {name!r} is there already and has no {' and no '.join(lacks)}; "
            f"add what it lacks there, or take another task"
        )


def _add_model(
    models: list[dict[str, Any]], name: str, interface: str, role: str, parameters: Mapping[str, Any], run: Run
) -> None:
    existing = next((model for model in models if model.get("name") == name), None)
    if existing is None:
        models.append({"name": name, "interface": interface, "roles": [role], "parameters": dict(parameters)})
    elif existing.get("interface") != interface:
        raise RunInputError(
            f"{run.config}: {name!r} is a model of interface {existing.get('interface')!r}; use another --teacher-id"
        )


def _task(benchmark: Benchmark) -> dict[str, Any]:
    drawn = 1 if benchmark.attributes else 0
    return {
        "name": benchmark.task,
        "description": benchmark.description,
        "output_description": benchmark.output_description,
        "target_attributes": {name: list(values) for name, values in benchmark.attributes.items()},
        "nuanced_attributes": {},
        "sampling": {"target": [drawn, drawn], "nuance": [0, 0], "total": 0},
        "rubric": {name: value if isinstance(value, str) else dict(value) for name, value in benchmark.rubric.items()},
        "label_attributes": list(benchmark.label_attributes),
        "category": "benchmark",
    }


def _merge_values(target: dict[str, Any], benchmark: Benchmark) -> None:
    """Add the benchmark's attribute values that a task lacks."""
    for name, values in benchmark.attributes.items():
        target[name] = list(dict.fromkeys([*target.get(name, ()), *values]))


_REOPENED = ("response_collection", "evaluation")


@dataclass(frozen=True)
class IngestCounts:
    """The rows of a file, counted."""

    written: int
    """New items."""
    there: int
    """Items that the run had already."""
    skipped: int
    """Rows without an item, such as those without a label."""


def ingest(run: Run, benchmark: Benchmark, path: Path, limit: int | None = None) -> IngestCounts:
    """Read a file of rows, one JSON object per line, and add the new items to a run, at most `limit`.

    Raise RunInputError if the folder holds no run or another process works on it, the file or a row cannot be used, or
    a name is in use.
    """
    meta = Meta(run)
    _check_names(benchmark)
    with main_process(run):
        configuration = read_configuration(run)
        entries, skipped = _entries(benchmark, path)
        files = run.record_files("data_generation", benchmark.task)
        stored_ids = {str(record.get("id")) for file in files for record in read_records(file)}
        new = [(identity, entry) for identity, entry in _identified(benchmark, entries) if identity not in stored_ids]
        chosen = new if limit is None else new[:limit]
        counts = IngestCounts(len(chosen), len(entries) - len(new), skipped)
        whole = _with_values(benchmark, entries)
        changed = patched(configuration, whole, run)
        _write_phase_files(run, whole, extend=is_benchmark_task(configuration, benchmark.task))
        _write_items(run, whole, chosen)
        with atomic_path(run.config) as temporary:
            text = yaml.safe_dump(changed, sort_keys=True, allow_unicode=True, width=120)
            temporary.write_text(text, encoding="utf-8")
        _note(meta, whole, counts)
    return counts


def _check_names(benchmark: Benchmark) -> None:
    for what, name, more in (("teacher", benchmark.name, "._-"), ("task", benchmark.task, "_-")):
        plain = "".join(character for character in name if character not in more)
        if not plain.isascii() or not plain.isalnum() or "__" in name:
            raise RunInputError(f"{what} {name!r}: use letters, digits and {' '.join(more)}, and no __")


def _entries(benchmark: Benchmark, path: Path) -> tuple[list[BenchmarkItem], int]:
    entries = []
    for number, (line, row) in enumerate(_rows(path, benchmark.split)):
        try:
            entries.append(benchmark.read(row, number))
        except BadRowError as error:
            raise RunInputError(f"{path}: line {line}: {error}") from None
    whole = [entry for entry in entries if entry is not None]
    if not whole:
        raise RunInputError(f"{path}: holds no items")
    return whole, len(entries) - len(whole)


def _rows(path: Path, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
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
        where = "; rows are looked for in DATA_DIR/NAME/SPLIT.jsonl, see --data-dir and --split" if split else ""
        raise RunInputError(f"{path}: cannot be read: {error.strerror or error}{where}") from error


def _identified(benchmark: Benchmark, entries: list[BenchmarkItem]) -> Iterator[tuple[str, BenchmarkItem]]:
    """Yield entries with the ids of their items; of duplicates the first."""
    seen = set()
    for entry in entries:
        native = entry.native_id
        while "__" in native:  # which parts the ids of records
            native = native.replace("__", "_")
        identity = f"{benchmark.task}__{benchmark.name}__{native}"
        if identity not in seen:
            seen.add(identity)
            yield identity, entry


def _with_values(benchmark: Benchmark, entries: list[BenchmarkItem]) -> Benchmark:
    """Return the benchmark with all attribute values in the file."""
    values = {name: dict.fromkeys(declared) for name, declared in benchmark.attributes.items()}
    for entry in entries:
        for name, value in entry.attributes.items():
            if isinstance(value, str | int | float):
                values.setdefault(name, {})[value] = None
    for label in benchmark.label_attributes:
        if label not in values:
            there = ", ".join(values) or "none"
            raise RunInputError(f"label attribute {label!r}: no row has it; attributes: {there}")
    return replace(benchmark, attributes={name: list(distinct) for name, distinct in values.items()})


def _write_phase_files(run: Run, benchmark: Benchmark, *, extend: bool) -> None:
    """Write the attributes and rubric of the task where they are missing; `extend` adds attribute values.

    A task of the user's own is not extended, since teachers draw from its attributes.
    """
    path = run.find_attributes(benchmark.task, "target")
    stored = read_json(path) if path is not None else None
    target = dict(stored) if isinstance(stored, dict) else {}
    if extend or path is None:
        _merge_values(target, benchmark)
    write_json(path or run.attributes(benchmark.task, "target"), target)
    if run.find_attributes(benchmark.task, "nuanced") is None:
        write_json(run.attributes(benchmark.task, "nuanced"), {})
    if not run.rubric(benchmark.task).is_file():
        write_json(run.rubric(benchmark.task), dict(benchmark.rubric))


def _write_items(run: Run, benchmark: Benchmark, chosen: list[tuple[str, BenchmarkItem]]) -> None:
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
            store.append(run.records("data_generation", benchmark.task, benchmark.name), record)


def _note(meta: Meta, benchmark: Benchmark, counts: IngestCounts) -> None:
    """Log the counts in `meta.json`, and reopen phases 4 and 5 if there are new items."""
    entry = {
        "benchmark": benchmark.name,
        "teacher_id": benchmark.name,
        "task_name": benchmark.task,
        "n_written": counts.written,
        "n_skipped": counts.there + counts.skipped,
        "ingested_at": now(),
    }
    changes: dict[str, Any] = {"ingest_log": [*(meta.data.get("ingest_log") or []), entry]}
    if counts.written:
        changes["phases_completed"] = [phase for phase in meta.completed if phase not in _REOPENED]
        changes["status"] = "in_progress"
    meta.update(**changes)
