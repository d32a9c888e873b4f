"""Who pays for a request: its key, its team, its end user and its tags, each within what it may spend.

Sums are kept by day and account. Those of a month stand at the number of its last day, so that they are kept until it
is over as those of a day are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import NamedTuple

from route.keep.usage import DAY

MOST_TAGS = 20
LONGEST_LABEL = 100
"""Characters of an end user, of a tag's name and of its value."""
TEAM = "team:"
"""Prefix of teams' names in the tables of spend."""
BUDGET = "budget:"
"""Prefix of other accounts' names there."""
TAG = "tag:"
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass
class Labels:
    """Whose a request is and what it belongs to, beside its key."""

    user: str = ""
    """The end user, as the client names them."""
    tags: dict[str, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    """Names of hooks that failed and were passed over."""


@dataclass(frozen=True)
class Budget:
    """What each key, team, end user or value of a tag may spend."""

    by: str
    """`key`, `team`, `user` or `tag:NAME`."""
    of: str | None = None
    """The one that it holds for; None: for each of its own."""
    spend_per_day: float | None = None
    spend_per_month: float | None = None


class Payer(NamedTuple):
    """An account that pays for a request."""

    place: tuple[int, str]
    """The day that its sum stands at, and its name."""
    limit: float
    whose: str
    """In words."""
    period: str
    """`day` or `month`, of UTC."""
    seconds_left: float
    """Until the period ends."""


def places_of(day: int, key: str, team: str | None, budgets: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return the days and accounts on which a call is booked: of its key, of the key's team then, and of budgets."""
    accounts = [key] if team is None else [key, team_account(team)]
    return {*((day, account) for account in accounts), *budgets}


def team_account(team: str) -> str:
    """Return the name of a team in the tables of spend, where no key has it."""
    return f"{TEAM}{team}"


def last_day_of_month(day: int) -> int:
    """Return the last day of the month of a day, both as days since 1970."""
    at = date.fromordinal(_EPOCH + day)
    next_month = (at.replace(day=1) + timedelta(days=31)).replace(day=1)
    return next_month.toordinal() - 1 - _EPOCH


def payers_of(budgets: Sequence[Budget], key: str, team: str | None, labels: Labels | None, now: float) -> list[Payer]:
    """Return the accounts beside those of the key's and its team's day that pay for a request.

    An end user counts within the team or key that names them, a tag for all keys; requests that name none share one
    account. Of several budgets of one account the least holds.
    """
    today, labels = int(now // DAY), labels or Labels()
    values = {"key": key, "team": team, "user": labels.user}
    payers: dict[tuple[int, str], Payer] = {}
    for budget in budgets:
        is_tag = budget.by.startswith(TAG)
        value = labels.tags.get(budget.by.removeprefix(TAG), "") if is_tag else values[budget.by]
        if value is None or budget.of not in (None, value):
            continue
        scope = f"{team_account(team) if team else key}/" if budget.by == "user" else ""
        whose = f"{budget.by} {value!r}" if value else f"the requests without {budget.by}"
        limits = {"day": (budget.spend_per_day, today), "month": (budget.spend_per_month, last_day_of_month(today))}
        for period, (limit, day) in limits.items():
            place = day, f"{BUDGET}{period}:{budget.by}:{scope}{value}"
            if limit is not None and (place not in payers or limit < payers[place].limit):
                payers[place] = Payer(place, limit, whose, period, (day + 1) * DAY - now)
    return list(payers.values())
