"""All sets in one figure: cost-quality curves, and how much more the router has than each rival."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.routing_quality.bars import RIVALS, more
from p2l.common.plots import COLOURS, new_figure, save_figure
from route.evaluation.measuring import POLICIES, Results

__all__ = ["overview"]

COLUMNS = 3
WIDE_COSTS = 60.0  # least cost to greatest, beyond which powers of ten are labels enough


def overview(untold: Mapping[str, Results], told: Mapping[str, Results], *paths: Path) -> None:
    """Draw a panel for each set, where the router is not told the category, and one of differences to its rivals.

    `told` has the results where it is told, if they were measured.
    """
    rows = -(-(len(untold) + 1) // COLUMNS)
    figure = new_figure(14.0, 4.3 * rows)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (name, results) in zip(panels, untold.items(), strict=False):
        (_bars if results.one_price else _curves)(axes, results)
        axes.set_title(name, fontsize=10)
    _differences(panels[len(untold)], untold, told)
    for axes in panels[len(untold) + 1 :]:
        axes.set_axis_off()
    save_figure(figure, *paths)


def _differences(axes: Any, untold: Mapping[str, Results], told: Mapping[str, Results]) -> None:
    """A point with its interval for each set and rival; hollow where the router is told the category."""
    for row, name in enumerate(untold):
        for number, rival in enumerate(RIVALS):
            for found, fill, shift in ((untold, COLOURS[number], -0.04), (told, "white", 0.04)):
                if name not in found:
                    continue
                one = more(found[name], rival)
                spans = [[one.estimate - one.lower], [one.upper - one.estimate]]
                label = f"than {POLICIES[rival]}" if row == 0 and found is untold else None
                height = row + 0.2 * (number - 1.5) + shift
                style = {"color": COLOURS[number], "markerfacecolor": fill, "markersize": 5, "linewidth": 1.2}
                axes.errorbar([one.estimate], [height], xerr=spans, fmt="o", label=label, **style)
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(untold)), list(untold))
    axes.invert_yaxis()
    hollow = " (hollow: told the category)" if told else ""
    axes.set(xlabel=f"the router has more by{hollow}")
    axes.legend(frameon=False, fontsize=8, loc="center right")


def _curves(axes: Any, results: Results) -> None:
    """Draw a cost-quality curve for each policy, and the models as points."""
    for (name, policy), colour in zip(results.policies.items(), COLOURS, strict=False):
        costs, scores = zip(*policy.curve, strict=True)
        style = {"marker": "D", "linestyle": ""} if name == "cheapest" else {"linewidth": 2.2 if name == "p2l" else 1.3}
        axes.plot(costs, scores, color=colour, label=policy.about, **style)
    points = list(results.model_points.values())
    axes.plot([cost for cost, _ in points], [score for _, score in points], ".", color="0.5", label="models")
    axes.set(xlabel="mean cost of an answer, dollars", ylabel="mean score")
    if min(cost for cost, _ in points) > 0.0:
        _label_dollars(axes)
    axes.legend(frameon=False, fontsize=8)


def _label_dollars(axes: Any) -> None:
    """Make the axis of costs logarithmic, with labels that do not run into each other however few decades it has."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > WIDE_COSTS else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bars(axes: Any, results: Results) -> None:
    """Draw the mean score of each policy under one price."""
    names, means = zip(*((policy.about, policy.accuracy) for policy in results.policies.values()), strict=True)
    lengths = [mean.estimate for mean in means]
    spans = [[mean.estimate - mean.lower, mean.upper - mean.estimate] for mean in means]
    axes.barh(names, lengths, xerr=np.array(spans).T, color=COLOURS[: len(means)])
    axes.invert_yaxis()
    axes.set(xlabel="mean score")
