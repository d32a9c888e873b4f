"""Cost-quality curves as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from p2l.figures import COLOURS, new_figure, save_figure
from route.evaluation.measuring import Results, calibration_error

__all__ = ["bars", "curves", "draw"]


def draw(results: Results, *paths: Path) -> None:
    """The cost-quality curves beside the reliability of expected scores."""
    figure = new_figure(11.0, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    if results.one_price:
        bars(left, results)
    else:
        curves(left, results)
    for name, found, colour in (("all answers", results.pairs, COLOURS[0]), ("chosen", results.chosen, COLOURS[5])):
        right.plot(
            found.predicted[0],
            found.observed[0],
            "o-",
            color=colour,
            label=f"{name}, error {calibration_error(found):.3f}",
        )
    right.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    right.set(xlabel="expected score", ylabel="realised score", xlim=(0, 1), ylim=(0, 1))
    right.legend(frameon=False)
    save_figure(figure, *paths)


def curves(axes: Any, results: Results) -> None:
    """A cost-quality curve for each policy, and the models as points."""
    for (name, line), colour in zip(results.lines.items(), COLOURS, strict=False):
        costs, scores = zip(*line.curve, strict=True)
        style = {"marker": "D", "linestyle": ""} if name == "cheapest" else {"linewidth": 2.2 if name == "p2l" else 1.3}
        axes.plot(costs, scores, color=colour, label=line.about, **style)
    points = list(results.model_points.values())
    axes.plot([cost for cost, _ in points], [score for _, score in points], ".", color="0.5", label="models")
    axes.set(xlabel="mean cost of an answer, dollars", ylabel="mean score")
    if min(cost for cost, _ in points) > 0.0:
        axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)


def bars(axes: Any, results: Results) -> None:
    """The mean score of each policy, where there is one price."""
    lines = list(results.lines.values())
    lengths = [line.accuracy.estimate for line in lines]
    spans = [[one.estimate - one.lower, one.upper - one.estimate] for one in (line.accuracy for line in lines)]
    axes.barh([line.about for line in lines], lengths, xerr=np.array(spans).T, color=COLOURS[: len(lines)])
    axes.invert_yaxis()
    axes.set(xlabel="mean score")
