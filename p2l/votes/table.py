"""What `p2l votes check` prints."""

from __future__ import annotations

import statistics
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from p2l.votes.checking import Report
from p2l.votes.codes import WINNERS

__all__ = ["render"]


def render(report: Report) -> str:
    """The report as lines of two columns, then notes and problems."""
    rows = [("votes", f"{report.votes:,}"), *_models(report), *_winners(report), *_prompts(report), *_rest(report)]
    width = max(len(label) for label, _ in rows)
    lines = [report.source.name, *(f"  {label:<{width}}  {value}" for label, value in rows)]
    lines += [f"note: {note}" for note in report.notes]
    if report.is_fit:
        return "\n".join([*lines, "no problems"])
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.kinds.most_common())
    lines += [f"problems: {report.kinds.total():,} ({kinds})", *(f"  {problem}" for problem in report.problems)]
    more = report.kinds.total() - len(report.problems)
    return "\n".join([*lines, f"  ... and {more:,} more"] if more else lines)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _models(report: Report) -> list[tuple[str, str]]:
    counts = sorted(report.models.values())
    if not counts:
        return []
    spread = f"min {counts[0]:,}, median {statistics.median(counts):,.0f}, max {counts[-1]:,}"
    fewest = sorted(report.models, key=lambda name: (report.models[name], name))[:3]
    few = ", ".join(f"{name} {report.models[name]:,}" for name in fewest)
    return [("models", f"{len(counts):,}"), ("votes per model", spread), ("fewest votes", few)]


def _winners(report: Report) -> list[tuple[str, str]]:
    return [(f"winner {name}", _share(report.winners[name], report.votes)) for name in WINNERS if report.votes]


def _prompts(report: Report) -> list[tuple[str, str]]:
    if report.prompts is None:
        return []
    again = report.votes - report.prompts
    turns = _top(Counter({f"{count}": votes for count, votes in report.turns.items()}), report.votes)
    return [("distinct prompts", f"{report.prompts:,}; {again:,} votes repeat one"), ("turns", turns)]


def _rest(report: Report) -> list[tuple[str, str]]:
    rows = []
    if report.languages:
        rows.append(("languages", _top(report.languages, report.votes)))
    if report.times:
        first, last = (_date(seconds) for seconds in report.times)
        rows.append(("time", f"{first} to {last}, {'sorted' if report.time_sorted else 'not sorted'}"))
    if report.weights and report.votes:
        low, total, high = report.weights
        rows.append(("weights", f"min {low:g}, mean {total / report.votes:g}, max {high:g}"))
    if report.bad_rows:
        rows.append(("rows that are no votes", f"{report.bad_rows:,} (not counted above)"))
    return rows


def _top(counts: Counter[Any], total: int, limit: int = 5) -> str:
    shown = [f"{name} {_share(count, total)}" for name, count in counts.most_common(limit)]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f", {rest} more" if rest else "")


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"
