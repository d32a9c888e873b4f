"""How far a run is, as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coeval.config.schema import PHASES
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.layout import Run
from coeval.storage.meta import Meta
from coeval.storage.records import is_failed

__all__ = ["Counts", "count_records", "status_text"]

_LAST_ERRORS = 10
_KINDS = (
    ("data_generation", "items"),
    ("response_collection", "responses"),
    ("evaluation", "evaluations"),
    ("pairwise", "pairs"),
)


@dataclass(frozen=True)
class Counts:
    """What the files of one phase hold."""

    files: int
    records: int
    """Different ids with a valid record."""
    failed: int
    """Different ids that only failed."""
    skipped: int
    """Lines that are no record."""


def count_records(run: Run, kind: str) -> Counts:
    """Count the records of one kind; see `coeval.storage.layout.RECORD_FOLDERS`."""
    valid: set[str] = set()
    failed: set[str] = set()
    skipped = 0

    def count_bad(_path: Path, _line: int, _why: str) -> None:
        nonlocal skipped
        skipped += 1

    files = run.record_files(kind)
    for path in files:
        for record in read_records(path, count_bad):
            (failed if is_failed(record) else valid).add(str(record.get("id")))
    return Counts(len(files), len(valid), len(failed - valid), skipped)


def status_text(run: Run) -> str:
    """Everything that `coeval status` says.

    Raises:
        RunInputError: the folder holds no run.
    """
    meta = Meta(run)
    parts = [_about(meta), _phases(run, meta), _batches(run), _errors(run)]
    return "\n\n".join(part for part in parts if part)


def _about(meta: Meta) -> str:
    data = meta.data
    lines = [f"{data.get('experiment_id')}: {data.get('status')}"]
    lines.append(f"  created {data.get('created_at')}, updated {data.get('updated_at')}")
    if data.get("resume_from"):
        lines.append(f"  started from {data['resume_from']}")
    used = ", ".join(f"{model} {count}" for model, count in sorted(meta.quota_used.items()))
    if used:
        lines.append(f"  calls: {used}; ${meta.spent_usd:.4f}")
    return "\n".join(lines)


def _phases(run: Run, meta: Meta) -> str:
    lines = []
    for phase in PHASES:
        kinds = [(kind, word) for kind, word in _KINDS if kind == phase or (kind, phase) == ("pairwise", "evaluation")]
        counted = [line for line in (_counted(run, kind, word) for kind, word in kinds) if line]
        maps = _maps(run, phase)
        state = _state(meta, phase, has_files=bool(counted or maps))
        lines += [f"  {phase:<20} {state}" + ("" if maps is None else f", {maps} files"), *counted]
    return "\n".join(["phases", *lines])


def _state(meta: Meta, phase: str, *, has_files: bool) -> str:
    if phase in meta.completed:
        return "completed"
    if phase in meta.settled:
        return "kept as it is"
    if phase in (meta.data.get("phases_in_progress") or []):
        return "in progress"
    return "not completed" if has_files else "not begun"


def _maps(run: Run, phase: str) -> int | None:
    """How many maps of attributes, or rubrics, there are."""
    folder = {"attribute_mapping": "phase1_attributes", "rubric_mapping": "phase2_rubric"}.get(phase)
    return None if folder is None else len(list((run.folder / folder).glob("[!.]*.json")))


def _counted(run: Run, kind: str, word: str) -> str:
    counts = count_records(run, kind)
    if not counts.files:
        return ""
    line = f"    {counts.records} {word} in {counts.files} files"
    line += f", {counts.failed} failed" if counts.failed else ""
    return line + (f", {counts.skipped} lines that are no record" if counts.skipped else "")


def _batches(run: Run) -> str:
    jobs = read_json(run.pending)
    if not isinstance(jobs, dict) or not jobs:
        return ""
    return "\n".join(["pending batch jobs", *(_job(name, job) for name, job in jobs.items())])


def _job(name: str, job: Mapping[str, Any]) -> str:
    what = f"{job.get('interface')}, {job.get('phase')}, {job.get('n_requests')} requests"
    return f"  {name}: {job.get('status')}, {what}, submitted {job.get('submitted_at')}"


def _errors(run: Run) -> str:
    last = deque(read_records(run.errors), maxlen=_LAST_ERRORS)
    if not last:
        return ""
    lines = [f"  {error.get('timestamp')} {_where(error)}: {error.get('error')}" for error in last]
    return "\n".join(["last errors", *lines])


def _where(error: Mapping[str, Any]) -> str:
    return " ".join(str(error[key]) for key in ("phase", "task", "model", "id") if error.get(key))
