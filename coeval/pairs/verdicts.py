"""The verdicts of judges on pairs of answers as they can be used, and why the others cannot.

Codes: PARSE_ERROR_PAIR (a line that is no record, or lacks a key), FAILED_PAIR, INVALID_WINNER_PAIR, MISMATCHED_PAIR (a
model or an item other than of its answers, or one model twice), STALE_PAIR (of other answers than are there now),
MISSING_RESPONSE_PAIR, MISSING_DATAPOINT_PAIR, DUPLICATE_PAIR (an earlier verdict on the same, which the last sound one
replaces).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.analysis.entities import Answer, Item
from coeval.pairs.preference import WINNERS, Preference, seconds
from coeval.storage.jsonl import read_records
from coeval.storage.layout import Run
from coeval.storage.lineage import is_judgement_of
from coeval.storage.records import is_failed

__all__ = ["read_verdicts"]

_NEEDED = ("id", "datapoint_id", "model_a", "model_b", "judge_model_id")
Note = Callable[[str, str], None]


def read_verdicts(
    run: Run,
    items: Mapping[str, Item],
    answers: Mapping[str, Answer],
    note: Note,
    counts: Counter[tuple[str, str, str, str, str, bool]],
) -> tuple[Preference, ...]:
    """One verdict for each item, pair of models and judge, in that order.

    Args:
        run: where they are stored.
        items, answers: those of the run that are sound, by id.
        note: told the code of what is left out, and an example.
        counts: (pairwise, task, teacher, "", judge, failed) -> records; added to.
    """
    found: dict[tuple[tuple[str, str, str], str], Preference] = {}
    for record in _records(run, note):
        counts[
            "pairwise",
            _text(record, "task_id"),
            _text(record, "teacher_model_id"),
            "",
            record["judge_model_id"],
            is_failed(record),
        ] += 1
        code = "FAILED_PAIR" if is_failed(record) else _fault(record, items, answers)
        if code:
            note(code, record["id"])
            continue
        one = _verdict(record, items[record["datapoint_id"]])
        if (one.key, one.judge) in found:
            note("DUPLICATE_PAIR", record["id"])
        found[one.key, one.judge] = one
    return tuple(found[key] for key in sorted(found))


def _records(run: Run, note: Note) -> Iterator[dict[str, Any]]:
    """The records that have every key that is needed."""

    def on_bad(path: Path, line: int, _why: str) -> None:
        note("PARSE_ERROR_PAIR", f"{path.parent.name}/{path.name}:{line}")

    for path in run.pair_files():
        for record in read_records(path, on_bad):
            if all(_text(record, key) for key in _NEEDED):
                yield record
            else:
                lacking = next(key for key in _NEEDED if not _text(record, key))
                note("PARSE_ERROR_PAIR", f"{path.parent.name}/{path.name}: {record.get('id')}: no {lacking}")


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def _answers_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Ids of the two answers; where they are not stated, as they are made."""
    made = (f"{record['datapoint_id']}__{record[f'model_{side}']}" for side in "ab")
    a, b = (_text(record, f"response_{side}_id") or identity for side, identity in zip("ab", made, strict=True))
    return a, b


def _fault(record: Mapping[str, Any], items: Mapping[str, Item], answers: Mapping[str, Answer]) -> str:
    """Why a verdict is left out; empty: it counts."""
    if record.get("winner") not in WINNERS:
        return "INVALID_WINNER_PAIR"
    found = [answers.get(identity) for identity in _answers_of(record)]
    for answer, model in zip(found, (record["model_a"], record["model_b"]), strict=True):
        if answer is None:
            return "MISSING_RESPONSE_PAIR"
        if (answer.student, answer.datapoint) != (model, record["datapoint_id"]):
            return "MISMATCHED_PAIR"
    if record["model_a"] == record["model_b"]:
        return "MISMATCHED_PAIR"
    item = items.get(record["datapoint_id"])
    if item is None:
        return "MISSING_DATAPOINT_PAIR"
    return "" if is_judgement_of(record, item.mark, [one.mark for one in found if one is not None]) else "STALE_PAIR"


def _verdict(record: Mapping[str, Any], item: Item) -> Preference:
    verdicts, consistent = record.get("verdicts"), record.get("order_consistent")
    said = verdicts if isinstance(verdicts, list) and all(one in WINNERS for one in verdicts) else ()
    return Preference(
        record["datapoint_id"],
        item.task,
        item.teacher,
        record["model_a"],
        record["model_b"],
        *_answers_of(record),
        winner=record["winner"],
        judge=record["judge_model_id"],
        source="native",
        margin=None,
        order_consistent=consistent if isinstance(consistent, bool) else None,
        at=seconds(_text(record, "created_at")),
        verdicts=tuple(said),
    )
