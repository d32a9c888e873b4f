"""The verdicts of judges on pairs of answers as they can be used, and why the others cannot.

`coeval.reports.pieces` explains the codes; of a DUPLICATE_PAIR the last sound verdict counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from coeval.storage.records import Answer, Item, is_failed, is_judgement_of, read_records
from coeval.storage.run import Run

# Preferences of one judge, or of all together, between two answers to one prompt.

WINNERS = ("model_a", "model_b", "tie", "tie (bothbad)")
MAJORITY = "majority"  # the judge of a preference that sums up those of several judges
_OTHER = {"model_a": "model_b", "model_b": "model_a"}


@dataclass(frozen=True, slots=True)  # a run may have a million
class Preference:
    """A judge's preference between two answers to one item."""

    datapoint: str
    task: str
    teacher: str
    model_a: str
    model_b: str
    response_a: str
    response_b: str
    winner: str  # one of WINNERS
    judge: str
    source: str  # `native` (the judge saw both answers) or `derived` (it scored each)
    margin: float | None  # score of model_a less that of model_b; None for native ones
    order_consistent: bool | None
    at: float  # seconds since 1970
    weight: float = 1.0  # what it counts for beside those of other judges
    verdicts: tuple[str, ...] = ()  # of a native one the winner in each order: model_a's answer first, then model_b's

    @property
    def is_self_judged(self) -> bool:
        """Return whether the judge is one of the two."""
        return self.judge in (self.model_a, self.model_b)

    @property
    def key(self) -> tuple[str, str, str]:
        """The compared pair, whichever side is which."""
        first, second = sorted((self.model_a, self.model_b))
        return self.datapoint, first, second


def seconds(timestamp: str) -> float:
    """Return a record's time in seconds since 1970, UTC where it names no zone; 0 where it cannot be read."""
    try:
        at = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))  # Python 3.10 reads no Z
    except ValueError:
        return 0.0
    return (at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)).timestamp()


def majority(preferences: Iterable[Preference]) -> list[Preference]:
    """Return one preference for each compared pair: the outcome with most weight, a tie where none leads."""
    groups: dict[tuple[str, str, str], list[Preference]] = {}
    for preference in preferences:
        groups.setdefault(preference.key, []).append(preference)
    rows = []
    for group in groups.values():
        first = group[0]
        weights: dict[str, float] = {}
        margins = []
        for vote in group:
            # Judges may have seen the two on other sides than the first one did.
            is_turned = vote.model_a != first.model_a
            winner = _OTHER.get(vote.winner, vote.winner) if is_turned else vote.winner
            weights[winner] = weights.get(winner, 0.0) + vote.weight
            if vote.margin is not None:
                margins.append(-vote.margin if is_turned else vote.margin)
        (winner, weight), *others = sorted(weights.items(), key=lambda entry: -entry[1])
        rows.append(
            replace(
                first,
                winner=winner if not others or weight > others[0][1] + 1e-9 else "tie",
                weight=1.0,
                judge=MAJORITY,
                margin=round(sum(margins) / len(margins), 4) if margins else None,
                order_consistent=None,
                at=max(vote.at for vote in group),
            )
        )
    return rows


class Comparison(NamedTuple):
    """What a judge was asked to compare: the answers of two models, in the order of their names, to an item."""

    datapoint: str
    model_a: str
    model_b: str
    judge: str


_NEEDED = ("id", "datapoint_id", "model_a", "model_b", "judge_model_id")
_Note = Callable[[str, str], None]


def read_verdicts(
    run: Run,
    items: Mapping[str, Item],
    answers: Mapping[str, Answer],
    note: _Note,
    counts: Counter[tuple[str, str, str, str, str, bool]],
) -> tuple[tuple[Preference, ...], tuple[Comparison, ...]]:
    """Read one verdict for each item, pair of models and judge, in that order, and those that failed alone.

    `note` is called with the code of what is left out and an example; `counts` of records are added to.
    """
    latest: dict[Comparison, Preference] = {}
    failures: set[Comparison] = set()
    for record in _records(run, note):
        judge, failed = intern(record["judge_model_id"]), is_failed(record)
        counts["pairwise", text_of(record, "task_id"), text_of(record, "teacher_model_id"), "", judge, failed] += 1
        if failed:
            first, second = sorted((record["model_a"], record["model_b"]))
            failures.add(Comparison(record["datapoint_id"], first, second, judge))
        verdict = "FAILED_PAIR" if failed else _verdict(record, judge, items, answers)
        if isinstance(verdict, str):
            note(verdict, record["id"])
            continue
        place = Comparison(*verdict.key, judge)  # whose names are shared by all records
        if place in latest:
            note("DUPLICATE_PAIR", record["id"])
        latest[place] = verdict
    return tuple(latest[place] for place in sorted(latest)), tuple(sorted(failures - latest.keys()))


def _records(run: Run, note: _Note) -> Iterator[dict[str, Any]]:
    """Yield the records that have every required key."""

    def on_bad(path: Path, line: int, _why: str) -> None:
        note("PARSE_ERROR_PAIR", f"{path.parent.name}/{path.name}:{line}")

    for path in run.record_files("pairwise"):
        for record in read_records(path, on_bad):
            for key in _NEEDED:
                value = record.get(key)
                if not isinstance(value, str) or not value:
                    note("PARSE_ERROR_PAIR", f"{path.parent.name}/{path.name}: {record.get('id')}: no {key}")
                    break
            else:
                yield record


def text_of(record: Mapping[str, Any], key: str) -> str:
    """Return a text of a record; empty where it has none."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def evaluation_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the ids of an evaluation's answer and judge, from its own id where it does not state them."""
    answer, _, judge = text_of(record, "id").rpartition("__")
    return text_of(record, "response_id") or answer, text_of(record, "judge_model_id") or judge


_SAME = {winner: winner for winner in WINNERS}  # one text for all records
_Orders = tuple[str, ...]
_SAME_ORDERS: dict[_Orders, _Orders] = {}


def _verdict(
    record: Mapping[str, Any], judge: str, items: Mapping[str, Item], answers: Mapping[str, Answer]
) -> Preference | str:
    """Return the verdict of a record, or the code why it is left out."""
    winner = text_of(record, "winner")
    if winner not in _SAME:
        return "INVALID_WINNER_PAIR"
    datapoint, model_a, model_b = (intern(record[key]) for key in ("datapoint_id", "model_a", "model_b"))
    # The ids of the two answers are composed from item and model where they are not stated.
    response_a = intern(text_of(record, "response_a_id") or f"{datapoint}__{model_a}")
    response_b = intern(text_of(record, "response_b_id") or f"{datapoint}__{model_b}")
    a, b = answers.get(response_a), answers.get(response_b)
    if a is None or b is None:
        return "MISSING_RESPONSE_PAIR"
    is_of_them = (a.student, b.student) == (model_a, model_b) and a.datapoint == b.datapoint == datapoint
    if not is_of_them or model_a == model_b:
        return "MISMATCHED_PAIR"
    item = items.get(datapoint)
    if item is None:
        return "MISSING_DATAPOINT_PAIR"
    if not is_judgement_of(record, item.mark, (a.mark, b.mark)):
        return "STALE_PAIR"
    verdicts, consistent = record.get("verdicts"), record.get("order_consistent")
    orders: _Orders = ()
    if isinstance(verdicts, list) and all(isinstance(each, str) and each in _SAME for each in verdicts):
        orders = tuple(_SAME[each] for each in verdicts)
    return Preference(
        datapoint=datapoint,
        task=item.task,
        teacher=item.teacher,
        model_a=model_a,
        model_b=model_b,
        response_a=response_a,
        response_b=response_b,
        winner=_SAME[winner],
        judge=judge,
        source="native",
        margin=None,
        order_consistent=consistent if isinstance(consistent, bool) else None,
        at=seconds(text_of(record, "created_at")),
        verdicts=_SAME_ORDERS.setdefault(orders, orders),
    )
