"""The table of losses, the laws that were fitted to them, what they say, and the figure.

Shapes: R points, C blocks of held-out votes, S shapes, V numbers of votes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.law import FORMS, LIMITS, Law, LawFit, Runs, fit_with_intervals, leave_one_out
from benchmarks.scaling.points import Point
from p2l.common.errors import InputError
from p2l.common.plots import COLOURS, new_figure, save_figure

__all__ = ["report"]

Floats = NDArray[np.float64]
_NAMES = {
    "floor": "E",
    "votes_scale": "A",
    "votes_exponent": "alpha",
    "parameters_scale": "B",
    "parameters_exponent": "beta",
}


def report(points: Sequence[Point], best: Sequence[float], *, replicates: int, figure: str | None) -> str:
    """Markdown of everything; draws the figure if a path is given.

    Raises:
        InputError: no points, or too few sizes to fit a law.
    """
    if not points:
        raise InputError("there are no points yet; run without --report-only")
    floor = float(np.mean(best))
    ceiling = _marginal(points, max(point.votes for point in points))
    runs = Runs(
        np.array([point.votes for point in points], dtype=float),
        np.array([point.parameters for point in points], dtype=float),
        np.array([point.losses for point in points]),
    )
    given = {"E fitted": {}, "E known": {"floor": floor}, "E and C known": {"floor": floor, "ceiling": ceiling}}
    errors = {(form, name): leave_one_out(runs, form=form, **given[name]) for form in FORMS for name in given}
    form, name = min(errors, key=errors.__getitem__)
    fit = fit_with_intervals(runs, form=form, replicates=replicates, **given[name])
    lines = [*_table(points, floor), "", *_comparison(errors, list(given)), "", *_law(fit, name)]
    lines += ["", *_said(fit, runs, ceiling, floor)]
    if figure:
        _draw(points, fit, floor, Path(figure))
    return "\n".join(lines)


def _table(points: Sequence[Point], floor: float) -> Iterator[str]:
    """Mean loss of the seeds and how they spread, for each number of votes and shape."""
    shapes = sorted({(point.parameters, point.shape) for point in points})
    sizes = sorted({point.votes for point in points})
    yield f"Held-out loss (mean of seeds ± standard deviation between them); the best possible is {floor:.4f}."
    yield ""
    yield "| votes | one leaderboard | " + " | ".join(f"{name} ({count:,})" for count, name in shapes) + " |"
    yield "|---:|" + "---:|" * (1 + len(shapes))
    for votes in sizes:
        cells = [[one.loss for one in points if (one.votes, one.shape) == (votes, name)] for _, name in shapes]
        shown = " | ".join(_cell(losses) for losses in cells)
        yield f"| {votes:,} | {_marginal(points, votes):.4f} | {shown} |"


def _cell(losses: Sequence[float]) -> str:
    if not losses:
        return "-"
    spread = f" ± {np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
    return f"{np.mean(losses):.4f}{spread}"


def _comparison(errors: Mapping[tuple[str, str], float], known: Sequence[str]) -> Iterator[str]:
    yield "Error of predicting each cell from all others (E: best possible loss, C: that of one leaderboard):"
    yield ""
    yield "| form | " + " | ".join(known) + " |"
    yield "|---|" + "---:|" * len(known)
    for form in FORMS:
        yield f"| {form} | " + " | ".join(f"{errors[form, name]:.4f}" for name in known) + " |"


def _law(fit: LawFit, known: str) -> Iterator[str]:
    yield (
        f"Least error: {fit.law.form}, {known}. 95 % intervals by the bootstrap over held-out prompts and runs; "
        f"residual {fit.residual:.4f}."
    )
    yield ""
    yield "| | fitted | interval |"
    yield "|---|---:|---|"
    for field, name in _NAMES.items():
        if getattr(fit.law, field):
            lower, upper = fit.intervals[field]
            at_end = " (the end of the range searched)" if getattr(fit.law, field) in LIMITS else ""
            yield f"| {name} | {getattr(fit.law, field):.4g}{at_end} | {lower:.4g} to {upper:.4g} |"


def _said(fit: LawFit, runs: Runs, marginal: float, floor: float) -> Iterator[str]:
    """What doubling either would give, from the largest of both on."""
    votes, parameters = float(runs.votes.max()), float(runs.parameters.max())
    here = _at(fit.law, votes, parameters)
    closed = (marginal - here) / (marginal - floor)
    yield (
        f"At {votes:,.0f} votes and {parameters:,.0f} parameters the law says {here:.4f}: {closed:.0%} of the way from "
        f"one leaderboard ({marginal:.4f}) to the best possible loss ({floor:.4f})."
    )
    for name, sizes in (("votes", (2 * votes, parameters)), ("parameters", (votes, 2 * parameters))):
        gains = [_at(law, votes, parameters) - _at(law, *sizes) for law in fit.replicates]
        lower, upper = np.quantile(gains, [0.025, 0.975])
        yield f"Twice the {name}: {here - _at(fit.law, *sizes):.4f} lower [{lower:.4f}, {upper:.4f}]."


def _at(law: Law, votes: float, parameters: float) -> float:
    return float(law.loss([votes], [parameters])[0])


def _marginal(points: Sequence[Point], votes: int) -> float:
    """Loss of one leaderboard for all prompts, of so many votes."""
    return float(np.mean([np.mean(point.marginal) for point in points if point.votes == votes]))


def _draw(points: Sequence[Point], fit: LawFit, floor: float, path: Path) -> None:
    """Loss over votes, a line for each shape, and its excess over the fitted floor on logarithmic axes."""
    figure = new_figure(10.5, 4.2)
    left, right = figure.subplots(1, 2)
    shapes = sorted({(point.parameters, point.shape) for point in points})
    sizes = np.array(sorted({point.votes for point in points}), dtype=float)
    fine = np.geomspace(sizes[0], 4 * sizes[-1], 60)
    for (count, name), colour in zip(shapes, COLOURS, strict=False):
        own = [point for point in points if point.shape == name]
        at, losses = [point.votes for point in own], np.array([point.loss for point in own])
        line = fit.law.loss(fine, np.full(len(fine), float(count)))
        band = np.array([law.loss(fine, np.full(len(fine), float(count))) for law in fit.replicates])
        for axis, lowest in ((left, 0.0), (right, floor)):
            axis.plot(at, losses - lowest, "o", color=colour, markersize=4, alpha=0.8)
            axis.plot(fine, line - lowest, color=colour, linewidth=1.4, label=f"{count:,} parameters")
            low, high = np.quantile(band, [0.025, 0.975], axis=0) - lowest
            axis.fill_between(fine, np.maximum(low, 1e-4), high, color=colour, alpha=0.12, linewidth=0)
    left.plot(
        sizes,
        [_marginal(points, int(votes)) for votes in sizes],
        "--",
        color="#666666",
        linewidth=1,
        label="one leaderboard",
    )
    left.axhline(floor, color="#222222", linewidth=1, linestyle=":", label="best possible")
    for axis, words in ((left, "held-out loss"), (right, "held-out loss above the best possible")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], fontsize=8, rotation=30)
        axis.set_xlabel("votes", fontsize=9)
        axis.set_ylabel(words, fontsize=9)
        axis.tick_params(axis="y", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#eeeeee")
    right.set_yscale("log")
    right.set_ylim(bottom=0.3 * min(point.loss - floor for point in points))
    left.legend(fontsize=7, frameon=False)
    save_figure(figure, path)
