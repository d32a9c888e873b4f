"""Which bars hold: a larger area (or accuracy) than every rival on three sets, and nowhere less than the best model."""

from __future__ import annotations

from collections.abc import Mapping

from p2l.metrics import Interval
from route.evaluation.measuring import POLICIES, Results, calibration_error

__all__ = ["RIVALS", "bars", "figures", "more"]

RIVALS = ("single", "category", "nearest")
SHOWN = ("p2l", "single", "category", "nearest", "random", "oracle")
WANTED = 3


def more(results: Results, rival: str) -> Interval:
    """How much more area, or accuracy where there is one price, the router has than a rival."""
    return results.policies[rival].gains["accuracy" if results.one_price else "area"]


def figures(found: Mapping[str, Results]) -> str:
    """Markdown: area or accuracy of every policy, by set, and the calibration error of expected scores."""
    rows = [["set", "questions", "models", *(POLICIES[name] for name in SHOWN), "calibration error, all and chosen"]]
    rows.append(["---"] * len(rows[0]))
    for name, results in found.items():
        lines = [results.policies[policy] for policy in SHOWN]
        values = [line.area or line.accuracy for line in lines]
        errors = f"{calibration_error(results.pairs):.3f}, {calibration_error(results.chosen):.3f}"
        shown = [f"{value.estimate:.4f}" for value in values]
        rows.append([name, f"{results.questions:,}", str(len(results.models)), *shown, errors])
    return _table(rows)


def bars(found: Mapping[str, Results]) -> str:
    """Markdown: the router less each rival, by set, and whether the bars hold."""
    rows = [["set", *(f"than {POLICIES[rival]}" for rival in RIVALS), "better than all"]]
    rows.append(["---"] * len(rows[0]))
    wins, worse = 0, []
    for name, results in found.items():
        less = [more(results, rival) for rival in RIVALS]
        better = all(one.estimate > 0.0 for one in less)
        wins += better
        if less[0].upper < 0.0:
            worse.append(name)
        shown = [f"{one.estimate:+.4f} [{one.lower:+.4f}, {one.upper:+.4f}]" for one in less]
        rows.append([name, *shown, "yes" if better else "no"])
    held = "holds" if wins >= WANTED else "missed"
    return (
        f"{_table(rows)}\n\nBetter than all three on {wins} of {len(found)} sets (bar: {WANTED}): {held}. "
        f"Significantly worse than the best single model on: {', '.join(worse) or 'none'}."
    )


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
