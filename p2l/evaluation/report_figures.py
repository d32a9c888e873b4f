"""The figures of the report, as SVG for its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.evaluation.results import CategoryResult, OutputResult, SubsetScore
from p2l.explaining import Explanation
from p2l.figures import COLOURS, new_figure
from p2l.report import figure_svg, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["across", "reliability", "strengths", "subsets"]

_LINES = 8  # beyond these, categories would share colours
_MARKERS = "osD^vPX*"
_NAMES = {"win": "this one wins", "tie": "tie", "bothbad": "both bad"}
_SIZES = {"scale": "prompts", "subsets": "votes"}
_NUMBER = (int, float, np.integer, np.floating)


def reliability(one: CategoryResult) -> str | None:
    """What was said against what happened, a panel for each outcome; bars are how often it was said."""
    data = one.reliability
    if data is None or not len(data.outcomes):
        return None
    count = len(data.outcomes)
    figure = new_figure(3.1 * count + 0.4, 3.3)
    axes = figure.subplots(1, count, squeeze=False).ravel()
    middle, width = (data.edges[:-1] + data.edges[1:]) / 2, np.diff(data.edges)
    for place, (axis, name) in enumerate(zip(axes, data.outcomes, strict=True)):
        axis.bar(middle, data.mass[place], width * 0.9, color=COLOURS[4], alpha=0.4)
        _diagonal(axis, data.predicted[place], data.observed[place], data.mass[place])
        axis.set_title(_NAMES.get(name, plain(name)), fontsize=9, loc="left")
        axis.set_xlabel("probability that was said", fontsize=8)
        _tidy(axis)
    axes[0].set_ylabel("share that came true", fontsize=8)
    return figure_svg(figure, f"Reliability of forecasts, {one.name}", key=f"reliability {one.name}")


def _diagonal(axis: Any, predicted: Any, observed: Any, mass: Any) -> None:
    axis.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, linestyle=(0, (4, 3)))
    known = np.isfinite(predicted) & np.isfinite(observed) & (mass > 0)
    axis.plot(predicted[known], observed[known], color=COLOURS[0], linewidth=1.3, marker="o", markersize=4)
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.02)


def _tidy(axis: Any) -> None:
    axis.tick_params(labelsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def subsets(result: OutputResult, kind: str) -> str | None:
    """A panel for each metric over the size of a subset, a line for each category; `kind` is `scale` or `subsets`."""
    curves = [(one.name, _scores(one, kind)) for one in result.categories]
    curves = [(name, scores) for name, scores in curves if scores][:_LINES]
    metrics = list(dict.fromkeys(name for _, scores in curves for score in scores for name in _metrics(score)))
    if not metrics:
        return None
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure = new_figure(
        3.5 * columns + (0.8 if columns == 1 else 0.0), 2.7 * rows + 0.35 + 0.2 * (-(-len(curves) // 4))
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, metric in zip(axes, metrics, strict=False):
        for place, (_, scores) in enumerate(curves):
            _curve(axis, scores, metric, place)
        _log_axis(axis, sorted({score.size for _, scores in curves for score in scores}))
        axis.set_title(plain(metric), fontsize=9, loc="left")
        axis.set_xlabel(_SIZES[kind], fontsize=8)
        _tidy(axis)
    for axis in axes[len(metrics) :]:
        axis.set_visible(False)
    _legend(figure, [plain(name, 28) for name, _ in curves])
    return figure_svg(figure, f"Leaderboard metrics by number of {_SIZES[kind]}", key=f"{kind} {result.name}")


def _scores(one: CategoryResult, kind: str) -> list[SubsetScore]:
    return [score for score in getattr(one, kind) if _metrics(score)]


def _metrics(score: SubsetScore) -> list[str]:
    return [name for name, value in score.values.items() if isinstance(value, _NUMBER)]


def _curve(axis: Any, scores: Sequence[SubsetScore], metric: str, place: int) -> None:
    known = sorted((one for one in scores if metric in _metrics(one)), key=lambda one: one.size)
    sizes = [one.size for one in known]
    colour = COLOURS[place % len(COLOURS)]
    values = [one.values[metric] for one in known]
    axis.plot(sizes, values, color=colour, linewidth=1.4, marker=_MARKERS[place % len(_MARKERS)], markersize=3.5)
    ends = [one.intervals.get(metric) for one in known]
    lower = [value if end is None else end.lower for end, value in zip(ends, values, strict=True)]
    upper = [value if end is None else end.upper for end, value in zip(ends, values, strict=True)]
    axis.fill_between(sizes, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _log_axis(axis: Any, sizes: Sequence[int]) -> None:
    """Ticks at the sizes themselves, as many as have room."""
    axis.set_xscale("log")
    shown = [size for place, size in enumerate(reversed(sizes)) if place % (1 + len(sizes) // 6) == 0]
    axis.set_xticks(shown, [f"{size:,}" for size in shown])
    axis.minorticks_off()


def _legend(figure: Figure, names: Sequence[str]) -> None:
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[place % len(COLOURS)], marker=_MARKERS[place % len(_MARKERS)], markersize=4)
        for place in range(len(names))
    ]
    columns = max(1, min(4, len(names), 100 // (max(map(len, names)) + 6)))
    figure.legend(handles, names, loc="outside lower left", ncols=columns, frameon=False, fontsize=8)


def across(results: Sequence[OutputResult], metric: str) -> str | None:
    """A metric over the outputs, in the order given, a line for each category."""
    names = list(dict.fromkeys(one.name for result in results for one in result.categories if one.simple))[:_LINES]
    values = np.array([[_value(result, name, metric) for result in results] for name in names], dtype=np.float64)
    if len(results) < 3 or not np.isfinite(values).any():
        return None
    figure = new_figure(min(11.0, 4.5 + 0.35 * len(results)), 3.9)
    axis = figure.subplots()
    for place, row in enumerate(values):
        axis.plot(row, color=COLOURS[place], marker=_MARKERS[place], markersize=4, linewidth=1.4)
    step = 1 + len(results) // 25
    shown = range(0, len(results), step)
    labels = [plain(results[place].name, 24) for place in shown]
    axis.set_xticks(list(shown), labels, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_ylabel(metric, fontsize=8)
    _tidy(axis)
    _legend(figure, [plain(name, 28) for name in names])
    return figure_svg(figure, f"{metric} of each output", key=metric)


def _value(result: OutputResult, category: str, metric: str) -> float:
    for one in result.categories:
        value = (one.simple or {}).get(metric) if one.name == category else None
        if value is not None:
            return float(value)
    return float("nan")


def strengths(made: Explanation) -> str | None:
    """The map of models and clusters; None where nothing was found."""
    from p2l.explaining.plot import draw_map

    return figure_svg(draw_map(made), "Strengths and weaknesses of models by cluster") if made.found else None
