"""What policies are worth, from requests that were split between them, or whose other choice was seen by nobody.

The value of a policy is the mean outcome of requests, had it chosen for all of them. The doubly robust estimate has,
for each request,

    sum over models m of  chance(m) q(m)  +  weight (outcome - q(asked))

where q is the outcome that a linear model expects by model and score, and the weight is how much likelier the model
that was asked was under the policy than in the experiment as a whole. It is right if either is (Dudik, Langford and Li,
"Doubly robust policy evaluation and learning", 2011). Where two policies would have chosen alike the request says
nothing of their difference, and adds nothing to its noise.

Shapes: N requests, K policies, M models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from p2l.common.bootstrap import Interval, anytime_interval
from route.evaluation.trial_log import Floats, Places, Trials

_RIDGE = 1.0  # requests that each coefficient of q is pulled towards zero by


@dataclass(frozen=True)
class PolicyValues:
    """One measure of all policies."""

    measure: str
    values: tuple[Interval, ...]
    """(K,), with limits that hold whenever one looks."""
    differences: tuple[Interval, ...]
    """(K - 1,) of the further policies less the first."""
    requests: int
    units: int


def estimate(trials: Trials, measure: str, *, level: float = 0.95) -> PolicyValues:
    """Estimate the value of each policy, on the requests whose outcome is known."""
    known = np.isfinite(trials.outcomes[measure])
    outcome = trials.outcomes[measure][known]
    asked, chances, weights = trials.asked[known], trials.chances[:, known], trials.weights[:, known]
    expected = _expected(outcome, asked, trials.scores[known], len(trials.models))
    gaps = outcome - expected[np.arange(len(outcome)), asked]
    worths = (chances * expected).sum(axis=2) + weights * gaps
    units = np.unique(trials.units[known], return_inverse=True)[1]
    return PolicyValues(
        measure=measure,
        values=tuple(_mean(worth, units, level) for worth in worths),
        differences=tuple(_mean(worth - worths[0], units, level) for worth in worths[1:]),
        requests=len(outcome),
        units=int(units.max()) + 1,
    )


def _expected(outcome: Floats, asked: Places, scores: Floats, models: int) -> Floats:
    """Return the outcome (N, M) that ridge regression on the model and on P2L's score expects of each model."""
    has_scores = np.isfinite(scores)
    centre = scores[has_scores].mean() if has_scores.any() else 0.0
    scores = np.where(has_scores, scores - centre, 0.0)
    mean = outcome.mean()
    rows = np.eye(models)[asked]
    rows = np.column_stack([rows, scores[np.arange(len(asked)), asked]])
    precision = rows.T @ rows + _RIDGE * np.eye(models + 1)
    coefficients = np.linalg.solve(precision, rows.T @ (outcome - mean))
    return np.asarray(mean + coefficients[:-1] + coefficients[-1] * scores)


def _mean(values: Floats, units: Places, level: float) -> Interval:
    """Return the mean over requests; what was assigned together counts as one unit in its interval."""
    counts = np.bincount(units)
    mean = float(values.mean())
    # The mean over requests is a ratio of two sums over units: its error is that of the units' departures from it.
    departures = np.bincount(units, values) - mean * counts
    error = float(np.sqrt((departures**2).sum()) / len(values))
    return anytime_interval(mean, error, len(counts), level=level)


def net_wins(trials: Trials, verdicts: Mapping[str, float], *, level: float = 0.95) -> Interval | None:
    """Return how much better judges found the shadow policy's answers than those shown, in the mean over requests.

    `verdicts` has, by request, the shadow's score less that of the answer that was shown. Where both policies drew one
    model the difference is zero. Answers that were not judged count as those that were; None where none was judged.
    """
    asked = [trials.models[place] for place in trials.asked]
    both = [
        (request, unseen == model, unit)
        for request, unseen, model, unit in zip(trials.requests, trials.unseen, asked, trials.units, strict=True)
        if unseen is not None
    ]
    judged = sum(not is_same and request in verdicts for request, is_same, _ in both)
    if not judged:
        return None
    share = judged / sum(not is_same for _, is_same, _ in both)
    kept = [(request, is_same, unit) for request, is_same, unit in both if is_same or request in verdicts]
    values = np.array([0.0 if is_same else verdicts[request] for request, is_same, _ in kept])
    # Each judged pair stands for those that were not judged.
    copies = np.array([1.0 if is_same else 1.0 / share for _, is_same, _ in kept])
    mean = float((copies * values).sum() / copies.sum())
    units = np.unique(np.array([unit for _, _, unit in kept]), return_inverse=True)[1]
    departures = np.bincount(units, copies * (values - mean))
    error = float(np.sqrt((departures**2).sum()) / copies.sum())
    return anytime_interval(mean, error, len(departures), level=level)
