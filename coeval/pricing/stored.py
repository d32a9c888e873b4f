"""What a run has already, counted: so that an estimate is of what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from coeval.config.schema import Config
from coeval.phases.modes import extended_tasks
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.layout import Run
from coeval.storage.lineage import AnswerMark, ItemMark, answer_mark, is_answer_to, is_judgement_of, item_mark
from coeval.storage.records import is_failed

__all__ = ["Stored", "read_stored", "stored_before"]

Made = TypeVar("Made")
_NAMES = ("task_id", "teacher_model_id", "student_model_id", "judge_model_id", "model_a", "model_b")
_SLIM = frozenset((*_NAMES, "id", "datapoint_id", "response_id", "scores"))


@dataclass
class Stored:
    """Counts of valid records, each id once."""

    attributes: set[tuple[str, str]] = field(default_factory=set)
    """(task, target or nuanced)."""
    rubrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(task, teacher)."""
    responses: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(task, teacher, student)."""
    scores: dict[tuple[str, str, str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """(task, teacher, student, judge) -> factor -> how many answers it is scored in."""
    pairs: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    """(task, teacher, judge, one model, the other), the two by name."""
    completed: tuple[str, ...] = ()
    """Phases that the run calls complete."""
    settled: tuple[str, ...] = ()
    """These, and those that were kept as they are."""

    def scored(self, task: str, teacher: str, student: str, judge: str) -> Mapping[str, int]:
        """Factor -> how many answers have a score for it."""
        return self.scores.get((task, teacher, student, judge), {})


def read_stored(run: Run) -> Stored:
    """Count what lies in a run's folder; lines that are no records do not count."""
    stored = Stored()
    for folder in ("phase1_attributes", "phase2_rubric"):
        for path in sorted((run.folder / folder).glob("[!.]*.json")):
            _read_map(path, stored)
    _count_records(run, stored)
    meta = read_json(run.meta)
    stored.completed = _phases(meta, "phases_completed")
    stored.settled = stored.completed + _phases(meta, "phases_kept")
    return stored


def _count_records(run: Run, stored: Stored) -> None:
    """Count the records that are about texts that are there: the others are asked for again."""
    items, answers = dict[str, ItemMark](), dict[str, AnswerMark]()
    for record, mark in _records(run.datapoint_files(), item_mark):
        stored.items[record["task_id"], record["teacher_model_id"]] += 1
        items[str(record.get("id"))] = mark

    def present_answer(record: Mapping[str, Any]) -> AnswerMark | None:
        item = items.get(str(record.get("datapoint_id")))
        return answer_mark(record) if item is None or is_answer_to(record, item) else None

    for record, answer in _records(run.response_files(), present_answer):
        if answer is not None:
            stored.responses[record["task_id"], record["teacher_model_id"], record["student_model_id"]] += 1
            answers[str(record.get("id"))] = answer

    def is_of_present(record: Mapping[str, Any], *keys: str) -> bool:
        item, found = items.get(str(record.get("datapoint_id"))), [answers.get(str(record.get(key))) for key in keys]
        there = [one for one in found if one is not None]
        return item is None or (len(there) == len(found) and is_judgement_of(record, item, there))

    for record, is_present in _records(run.evaluation_files(), lambda record: is_of_present(record, "response_id")):
        if not is_present:
            continue
        student = str(record["response_id"]).removeprefix(f"{record['datapoint_id']}__")
        whose = (record["task_id"], record["teacher_model_id"], student, record["judge_model_id"])
        stored.scores[whose].update(record["scores"].keys())
    both = ("response_a_id", "response_b_id")
    for record, is_present in _records(run.pair_files(), lambda record: is_of_present(record, *both)):
        if not is_present:
            continue
        first, second = sorted(str(record.get(side)) for side in ("model_a", "model_b"))
        stored.pairs[record["task_id"], record["teacher_model_id"], record["judge_model_id"], first, second] += 1


def stored_before(config: Config, run: Run | None) -> Stored:
    """What a start finds: that of `run`, which it builds on, else what `resume_from` brings."""
    source = config.experiment.resume_folder
    if run is not None or source is None:
        return read_stored(run) if run is not None else Stored()
    stored = read_stored(Run(source))
    for task in extended_tasks(config):
        stored.rubrics.pop(task, None)
    return stored


def _phases(meta: Any, key: str) -> tuple[str, ...]:
    found = meta.get(key) if isinstance(meta, dict) else None
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _read_map(path: Path, stored: Stored) -> None:
    value = read_json(path)
    if not isinstance(value, dict):
        return
    task = path.name.partition(".")[0]
    if path.name.endswith(".rubric.json"):
        stored.rubrics[task] = value
        return
    for kind in ("target", "nuanced"):
        for ending in (f"_{kind}_attrs.json", f".{kind}_attrs.json"):
            if path.name.endswith(ending):
                stored.attributes.add((path.name.removesuffix(ending), kind))


def _records(paths: Iterable[Path], look: Callable[[dict[str, Any]], Made]) -> Iterator[tuple[dict[str, Any], Made]]:
    """Valid records without their texts, each id once: the last, as whoever reads a run takes it; and what `look` says.

    So that no file's texts are in memory at once, `look` sees each record with its texts as it is read.
    """
    for path in paths:
        last: dict[str, tuple[dict[str, Any], Made] | None] = {}
        for record in read_records(path):
            is_valid = not is_failed(record) and _has_names(record)
            slim = {key: value for key, value in record.items() if key in _SLIM}
            last[str(record.get("id"))] = (slim, look(record)) if is_valid else None
        yield from (found for found in last.values() if found is not None)


def _has_names(record: dict[str, Any]) -> bool:
    """Whether a record says whose it is; one of an earlier form may not."""
    if not isinstance(record.get("scores", {}), dict):
        return False
    wanted = ["task_id", "teacher_model_id"]
    if "response_id" in record:
        wanted += ["judge_model_id", "datapoint_id"]
    elif "datapoint_id" in record and "winner" not in record:
        wanted += ["student_model_id"]
    return all(isinstance(record.get(key), str) for key in wanted)
