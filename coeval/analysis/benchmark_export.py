"""The robust set as a benchmark that others can use: items, rubric and the level that each student reached.

A student's level on a factor is the one that most judges of J* gave; of levels given equally often, the lower. Numbers
of metrics are counted as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.results import RobustSettings
from coeval.analysis.robust import DEFAULTS, RobustSet, robust_set
from coeval.analysis.units import Floats, Loaded
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.records import is_failed, now
from p2l.command import atomic_path

__all__ = ["SCHEMA", "benchmark_records", "export_benchmark", "plurality"]

SCHEMA = "coeval-benchmark-v1"
_LEVELS = {0.0: "Low", 0.5: "Medium", 1.0: "High"}
_NESTED = ("sampled_target_attributes", "rubric", "student_scores", "judge_set")


def export_benchmark(loaded: Loaded, path: Path, *, form: str = "jsonl", settings: RobustSettings = DEFAULTS) -> int:
    """Write the robust set as `jsonl` or `parquet`; returns how many items it has, and writes nothing where none.

    Raises:
        InputError: the file cannot be written.
    """
    records = list(benchmark_records(loaded, settings))
    if records:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            (_write_parquet if form == "parquet" else _write_jsonl)(records, temporary)
    return len(records)


def benchmark_records(loaded: Loaded, settings: RobustSettings = DEFAULTS) -> Iterator[dict[str, Any]]:
    """The items of the robust set as records, by id."""
    found, exported_at = robust_set(loaded, settings), now()
    texts = _texts(loaded, {loaded.datapoints[point] for point in found.kept})
    scores = _student_scores(loaded, found)
    for point in found.kept:
        identity, task = loaded.datapoints[point], loaded.tasks[loaded.datapoint_task[point]]
        yield {
            "schema_version": SCHEMA,
            "experiment_id": loaded.about.experiment_id,
            "datapoint_id": identity,
            "task_id": task,
            "teacher_model_id": loaded.teachers[loaded.datapoint_teacher[point]],
            **texts[identity],
            "rubric": _rubric(loaded, task),
            "student_scores": scores.get(point, {}),
            "judge_set": list(found.chosen_judges),
            "agreement_metric": settings.agreement_metric,
            "agreement_threshold": settings.theta
            if settings.agreement_threshold is None
            else settings.agreement_threshold,
            "consistent_fraction": round(found.fractions[point], 4),
            "exported_at": exported_at,
        }


def _texts(loaded: Loaded, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """Prompt, reference and attributes of some items, read once more: the first two are not kept in memory, and of
    attributes only the text of their values is."""
    texts = {}
    for path in loaded.run.datapoint_files():
        for record in read_records(path):
            if record.get("id") in wanted and not is_failed(record) and "prompt" in record:
                attributes = record.get("sampled_target_attributes")
                texts[record["id"]] = {
                    "prompt": record["prompt"],
                    "reference_response": str(record.get("reference_response") or ""),
                    "sampled_target_attributes": attributes if isinstance(attributes, dict) else {},
                }
    return texts


def _rubric(loaded: Loaded, task: str) -> Mapping[str, Any]:
    path = loaded.run.find_rubric(task)
    stored = read_json(path) if path is not None else None
    return stored if isinstance(stored, dict) else dict(loaded.about.tasks[task].rubric or {})


def _student_scores(loaded: Loaded, found: RobustSet) -> dict[int, dict[str, dict[str, str]]]:
    """Datapoint -> student -> factor -> level."""
    kept: dict[int, dict[str, dict[str, str]]] = {point: {} for point in found.kept}
    pairs = found.pairs
    for row in np.flatnonzero(np.isin(pairs.datapoint, found.kept)).tolist():
        known = ~np.isnan(pairs.scores[row])
        given = pairs.scores[row][known]
        if len(given):
            student, factor = loaded.students[pairs.student[row]], loaded.factors[pairs.factor[row]]
            is_level = bool(pairs.is_level[row][known].all())
            kept[int(pairs.datapoint[row])].setdefault(student, {})[factor] = plurality(given, is_level=is_level)
    return kept


def plurality(scores: Floats, *, is_level: bool = True) -> str:
    """The level given most often, the lower of two given equally often; of numbers the mean, as text."""
    values, counts = np.unique(scores, return_counts=True)
    chosen = float(values[np.argmax(counts)])
    return _LEVELS[chosen] if is_level and chosen in _LEVELS else f"{scores.mean():.4f}"


def _write_jsonl(records: list[dict[str, Any]], path: Path) -> None:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes("".join(lines).encode("utf-8", "replace"))


def _write_parquet(records: list[dict[str, Any]], path: Path) -> None:
    """Nested values as JSON text; the schema's version stands in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [{key: _flat(key, value) for key, value in record.items()} for record in records]
    table = pa.Table.from_pylist(flat).replace_schema_metadata({"coeval_schema_version": SCHEMA})
    pq.write_table(table, path)


def _flat(key: str, value: Any) -> Any:
    nested = key in _NESTED or (key == "prompt" and not isinstance(value, str))
    return json.dumps(value, ensure_ascii=False) if nested else value
