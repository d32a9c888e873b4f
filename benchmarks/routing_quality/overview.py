"""All sets in one figure: cost-quality curves, and how much more the router has than each rival."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.routing_quality.bars import RIVALS, more
from p2l.common.plots import COLOURS, new_figure, save_figure
from route.evaluation.measuring import POLICIES, Results
from route.evaluation.report import bars, curves

__all__ = ["overview"]

COLUMNS = 3


def overview(told: Mapping[str, Results], untold: Mapping[str, Results], *paths: Path) -> None:
    """Draw a panel for each set, where the router is told the category, and one of differences, told and not."""
    rows = -(-(len(told) + 1) // COLUMNS)
    figure = new_figure(14.0, 4.3 * rows)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (name, results) in zip(panels, told.items(), strict=False):
        (bars if results.one_price else curves)(axes, results)
        axes.set_title(name, fontsize=10)
    _differences(panels[len(told)], told, untold)
    for axes in panels[len(told) + 1 :]:
        axes.set_axis_off()
    save_figure(figure, *paths)


def _differences(axes: Any, told: Mapping[str, Results], untold: Mapping[str, Results]) -> None:
    """A point with its interval for each set and rival; filled where the router is told the category."""
    for row, name in enumerate(told):
        for number, rival in enumerate(RIVALS):
            for found, fill, shift in ((told, COLOURS[number], -0.06), (untold, "white", 0.06)):
                one = more(found[name], rival)
                spans = [[one.estimate - one.lower], [one.upper - one.estimate]]
                label = f"than {POLICIES[rival]}" if row == 0 and found is told else None
                height = row + 0.26 * (number - 1) + shift
                style = {"color": COLOURS[number], "markerfacecolor": fill, "markersize": 5, "linewidth": 1.2}
                axes.errorbar([one.estimate], [height], xerr=spans, fmt="o", label=label, **style)
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(told)), list(told))
    axes.invert_yaxis()
    axes.set(xlabel="the router has more by (filled: told the category)")
    axes.legend(frameon=False, fontsize=8)
