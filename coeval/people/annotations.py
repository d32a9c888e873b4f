"""Scores that people gave: a file of rows, CSV or JSON lines, and which of them can be used.

A row names an answer (`response_id`, or `datapoint_id` and `student`), a `factor`, a `score` and perhaps an
`annotator`. A score is a level, a grade of the task's scale, or where the scale is that of levels a number from 0 to 1.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.records import LEVELS, Skips
from coeval.analysis.results import Skipped
from coeval.analysis.units import Codes, Floats, Loaded
from coeval.errors import RunInputError
from coeval.grading.scale import Scale, scale_in
from coeval.parsing import MalformedAnswerError
from coeval.storage.snapshot import entries_of, stored_config

__all__ = ["WHY", "Annotations", "read_annotations"]

WHY = {
    "NO_RECORD": "is no JSON object",
    "MISSING_FIELD": "lacks response_id (or datapoint_id and student), factor or score",
    "UNKNOWN_RESPONSE": "names an answer that the run does not have",
    "UNKNOWN_FACTOR": "names a factor that no judge scored in the task",
    "INVALID_SCORE": "has a score that is neither a level nor a number of the scale",
    "DUPLICATE": "is a second one of the same annotator, answer and factor: the last counts",
}
"""Code -> what is wrong with a row."""
_ANYBODY = "people"


@dataclass(frozen=True)
class Annotations:
    """Scores (A,)."""

    response: Codes
    factor: Codes
    annotator: Codes
    score: Floats
    """In [0, 1]."""
    annotators: tuple[str, ...]
    rows: int
    """Of the file."""
    bad: tuple[Skipped, ...]

    def __len__(self) -> int:
        return len(self.score)


def read_annotations(path: Path, loaded: Loaded) -> Annotations:
    """Read a file that ends in .csv, .jsonl or .ndjson.

    Raises:
        RunInputError: the file cannot be read, or no row of it can be used.
    """
    reader = _Reader(loaded)
    rows = 0
    for place, row in _rows(path):
        rows += 1
        reader.take(f"{path.name}:{place}", row)
    bad = reader.skips.rows()
    if not reader.found:
        first = f": {bad[0].count} {WHY[bad[0].code]}, such as {bad[0].example}" if bad else ""
        raise RunInputError(f"{path}: none of {rows} rows can be used{first}")
    keys = sorted(reader.found)
    annotators = tuple(sorted({annotator for _, _, annotator in keys}))
    codes = {annotator: code for code, annotator in enumerate(annotators)}
    return Annotations(
        np.array([response for response, _, _ in keys], dtype=np.int64),
        np.array([factor for _, factor, _ in keys], dtype=np.int64),
        np.array([codes[annotator] for _, _, annotator in keys], dtype=np.int64),
        np.array([reader.found[key] for key in keys]),
        annotators,
        rows,
        bad,
    )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Line and row; None where a line is no object."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl", ".ndjson"):
        raise RunInputError(f"--annotations {path}: must end in .csv or .jsonl")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if kind == ".csv":
                reader = csv.DictReader(file)
                _check_columns(path, reader.fieldnames or ())
                yield from ((reader.line_num, row) for row in reader)
                return
            yield from ((number, _object(line)) for number, line in enumerate(file, 1) if line.strip())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise RunInputError(f"--annotations {path}: cannot be read: {why}") from error


def _check_columns(path: Path, names: Any) -> None:
    missing = [name for name in ("factor", "score") if name not in names]
    if "response_id" not in names and not {"datapoint_id", "student"} <= set(names):
        missing = ["response_id (or datapoint_id and student)", *missing]
    if missing:
        raise RunInputError(f"--annotations {path}: has no column {', '.join(missing)}; its first line must name them")


def _object(line: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class _Reader:
    """Takes rows one by one."""

    def __init__(self, loaded: Loaded) -> None:
        self.found: dict[tuple[int, int, str], float] = {}
        self.skips = Skips()
        self._loaded = loaded
        self._responses = {name: code for code, name in enumerate(loaded.responses)}
        self._factors = {name: code for code, name in enumerate(loaded.factors)}
        self._scales = _scales(loaded)
        scored = np.unique(np.stack([loaded.units.task, loaded.units.factor]), axis=1)
        self._scored = set(zip(*scored.tolist(), strict=True))

    def take(self, place: str, row: Mapping[str, Any] | None) -> None:
        """Keep a row's score, or note what is wrong with it."""
        if row is None:
            return self.skips.note("NO_RECORD", place)
        answer, factor, score = _text(row, "response_id"), _text(row, "factor"), row.get("score")
        answer = answer or _joined(_text(row, "datapoint_id"), _text(row, "student") or _text(row, "student_model_id"))
        if not answer or not factor or score is None or str(score).strip() == "":
            return self.skips.note("MISSING_FIELD", place)
        response = self._responses.get(answer, -1)
        point = self._loaded.response_datapoint[response] if response >= 0 else -1
        if point < 0:
            return self.skips.note("UNKNOWN_RESPONSE", f"{place} ({answer})")
        task = int(self._loaded.datapoint_task[point])
        if (task, self._factors.get(factor, -1)) not in self._scored:
            return self.skips.note("UNKNOWN_FACTOR", f"{place} ({factor})")
        value = self._score(self._loaded.tasks[task], score)
        if value is None:
            return self.skips.note("INVALID_SCORE", f"{place} ({score})")
        key = (response, self._factors[factor], _text(row, "annotator") or _ANYBODY)
        if key in self.found:
            self.skips.note("DUPLICATE", place)
        self.found[key] = value
        return None

    def _score(self, task: str, said: Any) -> float | None:
        """In [0, 1]; None where it is none of the task's scale."""
        scale = self._scales.get(task)
        if scale is not None:
            try:
                return scale.value(scale.read(said))
            except MalformedAnswerError:
                return None
        level = LEVELS.get(str(said).strip().lower())
        return _number(said) if level is None else level


def _number(said: Any) -> float | None:
    try:
        value = float("nan" if isinstance(said, bool) else said)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if 0.0 <= value <= 1.0 else None


def _scales(loaded: Loaded) -> dict[str, Scale]:
    """Task -> its scale, of those that have one of their own."""
    tasks = entries_of(stored_config(loaded.run), "tasks")
    found = {str(task.get("name")): scale_in(task) for task in tasks}
    return {name: scale for name, scale in found.items() if not scale.is_default}


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value).strip()


def _joined(datapoint: str, student: str) -> str:
    return f"{datapoint}__{student}" if datapoint and student else ""
