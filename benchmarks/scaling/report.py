"""The table of losses, the laws that were fitted to them, what they say, and the figure.

Shapes: R points, C blocks of held-out votes, S shapes, V numbers of votes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.points import Point
from p2l.errors import InputError
from p2l.figures import COLOURS, new_figure, save_figure
from p2l.scaling import FORMS, LawFit, Runs, fit_with_intervals, leave_one_out

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
    runs = Runs(
        np.array([point.votes for point in points], dtype=float),
        np.array([point.parameters for point in points], dtype=float),
        np.array([point.losses for point in points]),
    )
    lines = [*_table(points, floor), "", *_comparison(runs, floor)]
    form = min(FORMS, key=lambda name: leave_one_out(runs, form=name))
    free = fit_with_intervals(runs, form=form, replicates=replicates)
    known = fit_with_intervals(runs, form=form, floor=floor, replicates=replicates)
    lines += ["", *_laws(free, known, form), "", *_said(free, runs, points, floor)]
    if figure:
        _draw(points, free, floor, Path(figure))
    return "\n".join(lines)


def _table(points: Sequence[Point], floor: float) -> Iterator[str]:
    """Mean loss of the seeds and half its range, for each number of votes and shape."""
    shapes = sorted({(point.parameters, point.shape) for point in points})
    sizes = sorted({point.votes for point in points})
    yield f"Held-out loss (mean of seeds ± standard deviation between them); the best possible is {floor:.4f}."
    yield ""
    yield "| votes | one leaderboard | " + " | ".join(f"{name} ({count:,})" for count, name in shapes) + " |"
    yield "|---:|" + "---:|" * (1 + len(shapes))
    for votes in sizes:
        marginal = np.mean([np.mean(point.marginal) for point in points if point.votes == votes])
        cells = [[one.loss for one in points if (one.votes, one.shape) == (votes, name)] for _, name in shapes]
        shown = " | ".join(_cell(losses) for losses in cells)
        yield f"| {votes:,} | {marginal:.4f} | {shown} |"


def _cell(losses: Sequence[float]) -> str:
    if not losses:
        return "-"
    spread = f" ± {np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
    return f"{np.mean(losses):.4f}{spread}"


def _comparison(runs: Runs, floor: float) -> Iterator[str]:
    yield "| form | error of leaving a cell out | with E at the best possible loss |"
    yield "|---|---:|---:|"
    for form in FORMS:
        yield f"| {form} | {leave_one_out(runs, form=form):.4f} | {leave_one_out(runs, form=form, floor=floor):.4f} |"


def _laws(free: LawFit, known: LawFit, form: str) -> Iterator[str]:
    yield f"Form {form} (the least error above), 95 % intervals by the bootstrap over held-out prompts and runs:"
    yield ""
    yield "| | fitted | interval | with E known | interval |"
    yield "|---|---:|---|---:|---|"
    for field, name in _NAMES.items():
        if not getattr(free.law, field) and not getattr(known.law, field):
            continue
        cells = []
        for fit in (free, known):
            lower, upper = fit.intervals[field]
            cells += [f"{getattr(fit.law, field):.4g}", f"{lower:.4g} to {upper:.4g}"]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield f"| residual | {free.residual:.4f} | | {known.residual:.4f} | |"


def _said(fit: LawFit, runs: Runs, points: Sequence[Point], floor: float) -> Iterator[str]:
    """What doubling either would give, from the largest of both on."""
    votes, parameters = float(runs.votes.max()), float(runs.parameters.max())
    here = fit.law.loss([votes], [parameters])[0]
    marginal = np.mean([np.mean(point.marginal) for point in points if point.votes == votes])
    closed = (marginal - here) / (marginal - floor)
    yield (
        f"At {votes:,.0f} votes and {parameters:,.0f} parameters the law says {here:.4f}: {closed:.0%} of the way from "
        f"one leaderboard ({marginal:.4f}) to the best possible loss."
    )
    for name, sizes in (("votes", (2 * votes, parameters)), ("parameters", (votes, 2 * parameters))):
        gains = [law.loss([votes], [parameters])[0] - law.loss(*sizes) for law in fit.replicates]
        lower, upper = np.quantile(gains, [0.025, 0.975])
        gain = here - float(fit.law.loss(*sizes))
        yield f"Twice the {name}: {gain:.4f} lower [{lower:.4f}, {upper:.4f}]."


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
    marginal = [np.mean([np.mean(one.marginal) for one in points if one.votes == votes]) for votes in sizes]
    left.plot(sizes, marginal, "--", color="#666666", linewidth=1, label="one leaderboard")
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
    left.legend(fontsize=7, frameon=False)
    save_figure(figure, path)
