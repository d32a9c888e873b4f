"""A preference: one judge's, or all judges' together, between two answers to one prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

__all__ = ["MAJORITY", "WINNERS", "Preference", "majority", "seconds"]

WINNERS = ("model_a", "model_b", "tie", "tie (bothbad)")
MAJORITY = "majority"
"""The judge of a preference that several have made together."""
_OTHER = {"model_a": "model_b", "model_b": "model_a"}


@dataclass(frozen=True)
class Preference:
    """Who won."""

    datapoint: str
    task: str
    teacher: str
    model_a: str
    model_b: str
    response_a: str
    response_b: str
    winner: str
    """One of WINNERS."""
    judge: str
    source: str
    """`native` (the judge saw both answers) or `derived` (it scored each)."""
    margin: float | None
    """Score of model_a less that of model_b; None for native ones."""
    order_consistent: bool | None
    at: float
    """Seconds since 1970."""
    verdicts: tuple[str, ...] = ()
    """Of a native one the winner in each order: with model_a's answer first, then with model_b's."""

    @property
    def is_self_judged(self) -> bool:
        """Whether the judge is one of the two."""
        return self.judge in (self.model_a, self.model_b)

    @property
    def key(self) -> tuple[str, str, str]:
        """What is compared, whichever side is which."""
        first, second = sorted((self.model_a, self.model_b))
        return self.datapoint, first, second


def seconds(timestamp: str) -> float:
    """Seconds since 1970 of a record's time, UTC where it names no zone; 0 where it cannot be read."""
    try:
        at = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)).timestamp()


def majority(preferences: Iterable[Preference]) -> list[Preference]:
    """One preference for each compared pair: what most of its judges say, a tie where no outcome leads."""
    groups: dict[tuple[str, str, str], list[Preference]] = {}
    for one in preferences:
        groups.setdefault(one.key, []).append(one)
    return [_together(group) for group in groups.values()]


def _together(group: list[Preference]) -> Preference:
    first = group[0]
    said = [one.winner if one.model_a == first.model_a else _OTHER.get(one.winner, one.winner) for one in group]
    (winner, most), *others = Counter(said).most_common()
    leads = not others or most > others[0][1]
    margins = [_margin(one, first) for one in group]
    known = [margin for margin in margins if margin is not None]
    return replace(
        first,
        winner=winner if leads else "tie",
        judge=MAJORITY,
        margin=round(sum(known) / len(known), 4) if known else None,
        order_consistent=None,
        at=max(one.at for one in group),
    )


def _margin(one: Preference, first: Preference) -> float | None:
    if one.margin is None:
        return None
    return one.margin if one.model_a == first.model_a else -one.margin
