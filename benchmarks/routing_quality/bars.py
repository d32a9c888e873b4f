"""Which bars hold: the router beside the best single model, per-category best, nearest prompts and clusters."""

from __future__ import annotations

from collections.abc import Mapping

from p2l.metrics import Interval
from route.evaluation.measuring import POLICIES, Results, calibration_error

__all__ = ["RIVALS", "bars", "figures", "more"]

RIVALS = ("single", "category", "nearest", "clusters")
SHOWN = ("p2l", *RIVALS, "random")
AHEAD = 3
"""Sets on which the router is to be ahead of per-category best."""
BEHIND = 0.002
"""How far it may be behind per-category best on any."""


def more(results: Results, rival: str) -> Interval:
    """How much more area, or accuracy where there is one price, the router has than a rival."""
    return results.policies[rival].gains["accuracy" if results.one_price else "area"]


def figures(found: Mapping[str, Results]) -> str:
    """Markdown: area or accuracy of every policy, by set, and the calibration error of expected scores."""
    rows = [["set", "questions", "models", *(POLICIES[name] for name in SHOWN), "calibration error, all and chosen"]]
    rows[0].append("differences foreseen by the router, by any")
    rows.append(["---"] * len(rows[0]))
    for name, results in found.items():
        lines = [results.policies[policy] for policy in SHOWN]
        values = [line.area or line.accuracy for line in lines]
        errors = f"{calibration_error(results.pairs):.3f}, {calibration_error(results.chosen):.3f}"
        shown = [f"{value.estimate:.4f}" for value in values]
        rows.append([name, f"{results.questions:,}", str(len(results.models)), *shown, errors, _foreseen(results)])
    return _table(rows)


def _foreseen(results: Results) -> str:
    """Shares of the variance of models' deviations: what the router foresees, and the most that a policy does."""
    shares = {name: policy.explained.estimate for name, policy in results.policies.items() if policy.explained}
    best = max(shares, key=shares.__getitem__)
    return f"{shares['p2l']:.1%}, {shares[best]:.1%} ({POLICIES[best]})"


def bars(found: Mapping[str, Results]) -> str:
    """Markdown: the router less each rival, by set, and which bars hold."""
    rows = [["set", *(f"than {POLICIES[rival]}" for rival in RIVALS)]]
    rows.append(["---"] * len(rows[0]))
    gains = {name: {rival: more(results, rival) for rival in RIVALS} for name, results in found.items()}
    for name, by_rival in gains.items():
        shown = [f"{one.estimate:+.4f} [{one.lower:+.4f}, {one.upper:+.4f}]" for one in by_rival.values()]
        rows.append([name, *shown])
    category = {name: by_rival["category"].estimate for name, by_rival in gains.items()}
    far = [name for name, gain in category.items() if gain < -BEHIND]
    ahead = sum(gain > 0.0 for gain in category.values())
    lines = [
        f"At least per-category best less {BEHIND} on every set: {_held(far)}.",
        f"Ahead of per-category best on {ahead} of {len(found)} sets (bar: {AHEAD}): "
        f"{'holds' if ahead >= AHEAD else 'missed'}.",
        *(
            f"Not behind {POLICIES[rival]} by an interval: {_held(_behind(gains, rival))}."
            for rival in ("clusters", "single", "nearest")
        ),
    ]
    return "\n\n".join([_table(rows), "\n".join(lines)])


def _behind(gains: Mapping[str, Mapping[str, Interval]], rival: str) -> list[str]:
    return [name for name, by_rival in gains.items() if by_rival[rival].upper < 0.0]


def _held(missed: list[str]) -> str:
    return f"missed on {', '.join(missed)}" if missed else "holds"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
