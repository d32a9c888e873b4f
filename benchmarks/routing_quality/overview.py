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


def overview(untold: Mapping[str, Results], told: Mapping[str, Results], *paths: Path) -> None:
    """Draw a panel for each set, where the router is not told the category, and one of differences to its rivals.

    `told` has the results where it is told, if they were measured.
    """
    rows = -(-(len(untold) + 1) // COLUMNS)
    figure = new_figure(14.0, 4.3 * rows)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (name, results) in zip(panels, untold.items(), strict=False):
        (bars if results.one_price else curves)(axes, results)
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
