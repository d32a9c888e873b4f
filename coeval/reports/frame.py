"""What every report shares: its head (id, status, counts), what was left out, and what names mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coeval.analysis.results import Header
from p2l.report import Column, Table, Value

__all__ = ["Place", "frame", "note_of", "notes_of"]

_CODES = {
    "PARSE_ERROR_P3": "an item that is no JSON record",
    "PARSE_ERROR_P4": "an answer that is no JSON record",
    "PARSE_ERROR_P5": "an evaluation that is no JSON record",
    "MISSING_RESPONSE": "an evaluation of an answer that is not there",
    "MISSING_DATAPOINT": "an answer to an item that is not there",
    "INCOMPLETE_SCORES": "an evaluation without all factors that its judge should score",
    "INVALID_SCORE_VALUE": "a score that is neither a level nor a number in [0, 1]",
    "FAILED_P3": "an item that could not be made",
    "FAILED_P4": "an answer that did not come",
    "FAILED_P5": "an evaluation that did not come",
    "DUPLICATE_P3": "an item stored twice",
    "DUPLICATE_P4": "an answer stored twice",
    "DUPLICATE_P5": "an evaluation stored twice",
    "STALE_P4": "an answer to another prompt than its item has now",
    "STALE_P5": "scores of another answer than is there now",
    "STALE_PAIR": "a verdict on other answers than are there now",
    "PARSE_ERROR_PAIR": "a verdict on a pair that is no JSON record, or lacks a key",
    "FAILED_PAIR": "a verdict on a pair that did not come",
    "INVALID_WINNER_PAIR": "a verdict that names none of the four winners",
    "MISMATCHED_PAIR": "a verdict on a model or an item other than of its answers, or on one model twice",
    "MISSING_RESPONSE_PAIR": "a verdict on an answer that is not there",
    "MISSING_DATAPOINT_PAIR": "a verdict on answers to an item that is not there",
    "DUPLICATE_PAIR": "a verdict stored twice",
}


@dataclass(frozen=True)
class Place:
    """A page among the others: links to them as (target, text, whether it is this one)."""

    links: Sequence[tuple[str, str, bool]] = ()


def frame(header: Header, title: str, about: str, place: Place) -> dict[str, Any]:
    """What `report.html` needs for the head of a page and its foot."""
    return {
        "title": f"{title}: {header.experiment_id}",
        "about": about,
        "links": place.links,
        "banner": _banner(header),
        "facts": _facts(header),
        "skipped": _skipped(header) if header.skipped else None,
        "skipped_count": sum(one.count for one in header.skipped),
        "words": _words(header),
        "own": len({*header.teachers, *header.students, *header.judges})
        < len(header.teachers) + len(header.students) + len(header.judges),
    }


def _banner(header: Header) -> str:
    if not header.partial:
        return ""
    return f"Partial results: the run's status is {header.status or 'unknown'}, so every number below may still change."


def _facts(header: Header) -> list[tuple[str, str]]:
    valid = f"{header.evaluations:,} ({header.valid_evaluations:,} valid)"
    return [
        ("run", header.experiment_id),
        ("status", header.status or "unknown"),
        ("created", header.created_at or "unknown"),
        *((kind, f"{len(getattr(header, kind)):,}") for kind in ("tasks", "teachers", "students", "judges", "factors")),
        ("items", f"{header.datapoints:,}"),
        ("answers", f"{header.responses:,}"),
        ("evaluations", valid),
        ("scores", f"{header.units:,}"),
        *([("verdicts on pairs", f"{header.verdicts:,}")] if header.verdicts else []),
        ("self-judging", _part(header.self_judging, header.units)),
        ("self-teaching", _part(header.self_teaching, header.units)),
    ]


def _part(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.0%})" if of else f"{count:,}"


def _skipped(header: Header) -> Table:
    columns = [
        Column("code", number=False),
        Column("records"),
        Column("meaning", number=False, wide=True),
        Column("for example", number=False, wide=True),
    ]
    rows: list[list[Value]] = [[one.code, one.count, _CODES.get(one.code, ""), one.example] for one in header.skipped]
    return Table(columns, rows)


def _words(header: Header) -> list[tuple[str, list[tuple[str, str]]]]:
    """Descriptions for readers who have no pointer to rest on a name."""
    attributes = [
        (f"{task}: {name}", ", ".join(values))
        for task, found in header.attribute_values.items()
        for name, values in found.items()
    ]
    kinds = [
        ("Tasks", list(header.task_descriptions.items())),
        ("How judges grade", list(header.grading.items())),
        ("Factors of the rubrics", _factors(header)),
        ("Attributes and their values", attributes),
    ]
    return [(kind, pairs) for kind, pairs in kinds if pairs]


def _factors(header: Header) -> list[tuple[str, str]]:
    """Each factor's description, with its weight where that is not 1."""
    found = []
    for key, text in header.factor_descriptions.items():
        task, _, factor = key.partition("/")
        weight = header.weights.get(task, {}).get(factor)
        found.append((key, text if weight is None else f"{text} (weight {weight:g})"))
    return found


def notes_of(header: Header) -> Callable[[str, str], str]:
    """`note_of` of this header."""
    return partial(note_of, header)


def note_of(header: Header, dimension: str, name: str) -> str:
    """What is known of a task, a factor, an attribute's value, or a model."""
    if dimension == "task":
        return header.task_descriptions.get(name, "")
    if dimension == "factor":
        found = {key.partition("/")[0]: text for key, text in header.factor_descriptions.items() if _is(key, name)}
        texts = dict.fromkeys(found.values())
        return next(iter(texts), "") if len(texts) < 2 else "\n".join(f"{task}: {text}" for task, text in found.items())
    if dimension == "attribute":
        attribute = name.partition("=")[0]
        values = dict.fromkeys(
            value for found in header.attribute_values.values() for value in found.get(attribute, ())
        )
        return f"one of {', '.join(values)}" if values else ""
    return _roles(header, name)


def _is(key: str, factor: str) -> bool:
    return key.partition("/")[2] == factor


def _roles(header: Header, name: str) -> str:
    roles = [role for role in ("teacher", "student", "judge") if name in getattr(header, f"{role}s")]
    return ", ".join(roles)
