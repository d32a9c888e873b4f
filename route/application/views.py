"""The content of the console, read from the service: plain values for its templates.

Numbers of requests, cost and latency count over all workers; requests and decisions are those of the worker that
answers the page.

Shapes: M routable models.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

import numpy as np

from p2l.common.pages import Dot, frontier_svg, interval_svg, line_svg
from p2l.common.prompts import familiarity_note
from route.application.service import Service
from route.keep.accounts import team_account
from route.keep.database import DatabaseError
from route.observability.recent import Point, RecentRequest
from route.routing.decision import Decision
from route.routing.optimizers import hull

SHOWN_POINTS = 300  # ten minutes
SHOWN_REQUESTS = 25
# All votes are read for the shares of wins: every 15 seconds, or less often where that takes over 1 % of the time.
_VOTED_SECONDS = 15.0
_VOTED_SHARE = 0.01
_SHOWN_MODELS = 12  # of a decision
_LEAST_GAIN = 5e-4
"""Of a score, which rounds to a tenth of a point."""
_SHOWN_KEYS = 100
_LIMITS = ("team", "requests_per_minute", "tokens_per_minute", "votes_per_day", "budget_usd")
_Z = 1.6449  # of 90 % intervals
_VOTED = """
SELECT model, sum(points), count(*) FROM (
  SELECT model_a AS model, CASE verdict WHEN 'first' THEN 1.0 WHEN 'second' THEN 0.0 ELSE 0.5 END AS points
  FROM votes WHERE model_b IS NOT NULL
  UNION ALL
  SELECT model_b, CASE verdict WHEN 'second' THEN 1.0 WHEN 'first' THEN 0.0 ELSE 0.5 END
  FROM votes WHERE model_b IS NOT NULL
) AS sides GROUP BY model
"""


@dataclass(frozen=True)
class ModelRow:
    """One model: its share of the answers, what was expected of it, and what votes say."""

    name: str
    answers: int
    share: float
    expected: float | None
    """Mean score on the prompts that it was chosen for."""
    voted: float | None
    """Share of its comparisons that it won, a tie counting half."""
    lower: float
    upper: float
    votes: int
    share_svg: str
    voted_svg: str


def tiles(service: Service) -> dict[str, Any]:
    """Return the numbers of the last minute."""
    recent = service.recent
    points = list(recent.points)[-30:]  # two seconds each
    last = points[-1] if points else {}

    def mean(name: str) -> float:
        return sum(point[name] or 0.0 for point in points) / len(points) if points else 0.0

    requests = mean("requests")
    p95 = [point["p95"] for point in points if point["p95"] is not None]
    return {
        "requests": requests,
        "running": int(last.get("running") or 0),
        "failed": mean("failed") / requests if requests else 0.0,
        "faults": mean("errors"),
        "fallbacks": mean("fallbacks") / requests if requests else 0.0,
        "p95": sum(p95) / len(p95) if p95 else None,
        "cost": 3600 * mean("cost"),
    }


def lines(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return the charts for readers without scripts."""
    names = (("requests", "Requests a second"), ("errors", "Faults a second"), ("p95", "Seconds, 95th percentile"))
    return [(title, line_svg([point[name] for point in points], title)) for name, title in names]


async def models(service: Service, *, fresh: bool = False) -> list[ModelRow]:
    """Return a row for each model of the configuration, the most asked first; `fresh` counts the votes anew."""
    recent, now = service.recent, time.time()
    if fresh or now >= recent.voted_until:
        recent.voted_until = now + _VOTED_SECONDS  # for others who ask while the votes are read
        with contextlib.suppress(DatabaseError):
            rows = await service.database.read(lambda connection: connection.execute(_VOTED).fetchall())
            recent.voted = {name: (float(points), int(number)) for name, points, number in rows}
        recent.voted_until = now + max(_VOTED_SECONDS, (time.time() - now) / _VOTED_SHARE)
    answers, voted = service.recent.counts.answers, recent.voted
    total = sum(answers.values())
    rows = []
    for name in service.config.model_configs:
        number, expected = service.recent.expected.get(name, (0, 0.0))
        won, votes = voted.get(name, (0.0, 0))
        lower, upper = _wilson(won, votes)
        rate = won / votes if votes else None
        share = answers.get(name, 0.0) / total if total else 0.0
        rows.append(
            ModelRow(
                name=name,
                answers=int(answers.get(name, 0)),
                share=share,
                expected=expected / number if number else None,
                voted=rate,
                lower=lower,
                upper=upper,
                votes=votes,
                share_svg=interval_svg(share, None, None),
                voted_svg="" if rate is None else interval_svg(rate, lower, upper),
            )
        )
    return sorted(rows, key=lambda row: (-row.answers, row.name))


def _wilson(won: float, number: int) -> tuple[float, float]:
    """Return Wilson's 90 % interval of a share."""
    if not number:
        return 0.0, 1.0
    rate, square = won / number, _Z**2 / number
    middle = (rate + square / 2) / (1 + square)
    reach = _Z / (1 + square) * math.sqrt(rate * (1 - rate) / number + square / (4 * number))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def frontier_of_the_hour(service: Service) -> dict[str, Any]:
    """Return the frontier of mean scores and costs, over a sample of the last hour's decisions."""
    sums = service.recent.hour()
    if not sums.decisions:
        return {"svg": "", "decisions": 0, "cost": None, "score": None}
    means = {
        name: (_mean(*sums.costs.get(name, (0, 0.0))), _mean(number, total))
        for name, (number, total) in sorted(sums.scores.items())
    }
    # A model without a score in the sample has no place in the chart.
    priced = {name: point for name, point in means.items() if not any(map(math.isnan, point))}
    cost, score = _mean(sums.decisions, sums.cost), _mean(sums.scored, sums.score)
    mark = None if math.isnan(score) else (cost, score)
    return {"svg": _frontier(priced, mark, "last hour"), "decisions": sums.decisions, "cost": cost, "score": score}


def frontier_of(decision: Decision) -> str:
    """Return the frontier of one prompt, with the mixture of this decision."""
    points = {
        name: (decision.costs[name], score)
        for name, score in decision.scores.items()
        if name in decision.costs and not math.isnan(score)
    }
    mark = None if decision.expected_score is None else (decision.expected_cost, decision.expected_score)
    return _frontier(points, mark, "this prompt")


def _frontier(points: Mapping[str, tuple[float, float]], mark: tuple[float, float] | None, what: str) -> str:
    names = sorted(points, key=lambda name: points[name][0])
    costs = np.array([points[name][0] for name in names])
    scores = np.array([points[name][1] for name in names])
    corners = set(hull(scores, costs)) if names else set()
    dots = [Dot(name, *points[name], place in corners) for place, name in enumerate(names)]
    return frontier_svg(dots, mark, x="cost of an answer, $", y="expected score", title=f"Cost and quality, {what}")


def _mean(number: int, total: float) -> float:
    return total / number if number else math.nan


def health(service: Service) -> dict[str, Any]:
    """Return how P2L, the breakers and the deployments are."""
    scorer = service.scorer
    deployments = [
        {
            "model": each.name,
            "label": each.label,
            "state": each.breaker.state,
            "failures": each.breaker.failures,
            "opens_in": round(each.breaker.opens_in),
            "in_flight": each.in_flight,
            "latency": max((seconds for seconds, _ in each.activity.seconds.values()), default=None),
            "is_full": each.is_full,
        }
        for each in service.fleet.deployments
    ]
    return {
        "has_p2l": service.router.kind.scored,
        "is_well": scorer.is_well,
        "trouble": scorer.trouble,
        "fallback": service.fallback,
        "models": len(service.routable),
        "deployments": sorted(deployments, key=lambda each: (each["state"] == "closed", each["model"])),
        "uptime": round((time.time() - service.started) / 3600, 1),
        "workers": service.settings.workers,
    }


def budgets(service: Service) -> dict[str, Any]:
    """Return keys and teams with what they spent today and may spend: of many keys those that spent most."""
    ledger = service.ledger
    records = nlargest(_SHOWN_KEYS, ledger.records, key=lambda record: (ledger.spent_of(record.name), record.name))
    keys = []
    for record in sorted(records, key=lambda record: (-ledger.spent_of(record.name), record.name)):
        limits = {name: most for name in _LIMITS if (most := getattr(record, name)) is not None}
        if record.models is not None:
            limits["models"] = ", ".join(sorted(record.models))
        spent = ledger.spent_of(record.name)
        shown = {"name": record.name, "revoked": False, "limits": limits, "spent_today": spent}
        keys.append({**shown, **_spent(spent, record.spend_per_day)})
    revoked = [
        {"name": name, "revoked": True, "limits": {}, "spent_today": spent, **_spent(spent, None)}
        for name in service.keys.revoked[: _SHOWN_KEYS - len(keys)]
        for spent in [ledger.spent_of(name)]
    ]
    teams = [
        {"name": name, "spent_today": spent, **_spent(spent, team.spend_per_day)}
        for name, team in service.config.teams.items()
        for spent in [ledger.spent_of(team_account(name))]
    ]
    others = len(ledger.names) + len(service.keys.revoked) - len(keys) - len(revoked)
    return {"keys": keys + revoked, "teams": teams, "others": others}


def _spent(spent: float, most: float | None) -> dict[str, Any]:
    share = None if most is None else min(1.0, spent / most if most else 1.0)
    return {"most": most, "spent_svg": "" if share is None else interval_svg(share, None, None), "spent_share": share}


def request(recent: RecentRequest) -> dict[str, Any]:
    """Return a request with why its model was taken and the others were left."""
    record, decision = recent.record, recent.decision
    answered = (record.model or "").split(",")
    return {
        "answered": " and ".join(answered),
        "failed": [name for name in record.tried if name not in answered],
        "time": time.strftime("%H:%M:%S", time.gmtime(recent.time)),
        "record": record,
        "prompt": None if recent.prompt is None else "\n\n".join(recent.prompt),
        "decision": decision,
        "why": "" if decision is None else _why(recent),
        "note": "" if decision is None else familiarity_note(decision.familiarity),
        "models": []
        if decision is None
        else reasons(decision, [name for name in record.tried if name not in answered], record.faults),
    }


def _why(recent: RecentRequest) -> str:
    """Return in a sentence why the first model was asked."""
    record, decision = recent.record, recent.decision
    assert decision is not None
    if decision.static:
        return "There were no scores, so the configured order decided."
    if decision.explored:
        return f"Explored: drawn from all models within the budget, with probability {decision.propensity:.3g}."
    if record.sticky:
        return "The conversation keeps its model."
    text = (
        "The average leaderboard of earlier prompts decided; there were no scores in time. " if decision.average else ""
    )
    share = decision.probabilities.get(decision.model, 0.0)
    budget = "no budget" if decision.budget is None else f"a budget of {decision.budget:.4g}"
    if not decision.scores:  # of a router without P2L
        return f"Drawn at random, with probability {share:.2f}, from what {budget} buys."
    if share >= 0.9995:
        return f"{text}The best that {budget} buys.{_guarded(decision)}"
    return f"{text}Drawn with probability {share:.2f} from the mixture that is best under {budget}.{_guarded(decision)}"


def _guarded(decision: Decision) -> str:
    """Return what leaving the constant is expected to gain; empty without a guard."""
    gain = decision.over_constant
    if gain is None:
        return ""
    stale = " The guard was measured with another version of P2L." if decision.guard_is_stale else ""
    if gain < _LEAST_GAIN:
        return f" It is the constant: nothing in the prompt is worth leaving it for.{stale}"
    return f" Leaving the constant is expected to gain {100 * gain:.1f} points.{stale}"


def reasons(decision: Decision, tried: Sequence[str] = (), faults: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return models with score, cost, share of the mixture, and why each was taken or left; those that matter first."""
    names = sorted(
        decision.costs, key=lambda name: (-decision.probabilities.get(name, 0.0), -decision.scores.get(name, -math.inf))
    )
    failed = dict(zip(tried, faults, strict=False))
    return [
        {
            "name": name,
            "score": decision.scores.get(name),
            "cost": decision.costs[name],
            "share": decision.probabilities.get(name, 0.0),
            "is_taken": name == decision.model,
            "reason": f"failed: {failed[name]}" if name in failed else _reason(name, decision),
        }
        for name in names[:_SHOWN_MODELS]
    ]


def _reason(name: str, decision: Decision) -> str:
    score, cost = decision.scores.get(name), decision.costs[name]
    share = decision.probabilities.get(name, 0.0)
    if name == decision.model:
        return "taken, to explore" if decision.explored else "taken"
    if share:
        return f"in the mixture with {share:.2f}, another was drawn"
    if score is None or math.isnan(score):
        return "no score" if decision.scores else "later in the order"
    better = [
        other
        for other, rival in decision.scores.items()
        if decision.costs.get(other, math.inf) <= cost and rival > score
    ]
    if better:
        return f"{max(better, key=lambda other: decision.scores[other])} scores more for no more"
    if decision.budget is not None and cost > decision.budget:
        return "beyond the budget"
    return "a mixture of others scores more for the same"
