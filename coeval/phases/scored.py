"""What a judge has scored so far of the answers as they are now, and what that leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coeval.config.schema import Model
from coeval.grading.reading import is_score
from coeval.phases.factors import LABEL_PREFIX
from coeval.phases.stage import Stage
from coeval.storage.index import RecordIndex
from coeval.storage.jsonl import read_records
from coeval.storage.lineage import ItemMark, is_judgement_of
from coeval.storage.records import is_failed, is_marked

__all__ = ["Scored", "read_scored"]


@dataclass
class Scored:
    """What one judge has scored of a task."""

    judge: Model
    factors: tuple[str, ...]
    """What it has to score."""
    done: set[str] = field(default_factory=set)
    """Responses with a score for every factor that is required."""
    partly: dict[str, dict[str, str]] = field(default_factory=dict)
    """Response -> scores of some of them, and of others."""
    students: set[str] = field(default_factory=set)
    """Of whom it has scored anything."""
    marked: Counter[str] = field(default_factory=Counter)
    """How often evaluations of an id were marked as failed."""

    def factors_of(self, item: ItemMark | None) -> tuple[str, ...]:
        """What it has to score of answers to an item, which has only the labels that it was made with."""
        if self.judge.interface != "label" or item is None:
            return self.factors
        return tuple(factor for factor in self.factors if factor.removeprefix(LABEL_PREFIX) in item.attributes)

    def take(self, record: Mapping[str, Any], item: ItemMark | None) -> None:
        """Take in a record about an answer to an item."""
        response, scores = record["response_id"], record.get("scores")
        if not isinstance(scores, dict):
            return
        known = self.partly.pop(response, {})
        known.update({factor: score for factor, score in scores.items() if is_score(score)})
        if known:
            self.students.add(response.rpartition("__")[2])
        if all(factor in known for factor in self.factors_of(item)):
            self.done.add(response)
        elif known:
            self.partly[response] = known


def read_scored(
    stage: Stage, task: str, judge: Model, factors: tuple[str, ...], items: RecordIndex, responses: RecordIndex
) -> Scored:
    """Read the scores of a judge; those of texts that are no more there do not count."""
    found = Scored(judge, factors)
    for record in _records(stage, task, judge.name):
        answer, item = (
            responses.notes.get(str(record.get("response_id"))),
            items.notes.get(str(record.get("datapoint_id"))),
        )
        if is_marked(record):
            found.marked[str(record.get("id"))] += 1
        elif answer is None or is_failed(record):
            continue
        elif item is None or is_judgement_of(record, item, [answer]):
            found.take(record, item)
    return found


def _records(stage: Stage, task: str, judge: str) -> Iterator[dict[str, Any]]:
    for path in stage.run.evaluation_files(task):
        # A model's name may have dots, so the file's name only says who it may be; the record says who it is.
        if path.name.endswith(f".{judge}.evaluations.jsonl"):
            for record in read_records(path, stage.warn_bad_line):
                if record.get("judge_model_id") == judge and record.get("task_id") == task:
                    yield record
