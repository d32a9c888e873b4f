"""An explanation (clusters of prompts, and how each model does in each) as objects, text and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.cli import counted
from p2l.common.plots import FALL, RISE, new_figure, plain
from p2l.common.text_table import formatted, text_table
from p2l.insight.drift import frame_intervals
from p2l.insight.strengths import Explanation, Strength

if TYPE_CHECKING:
    from matplotlib.figure import Figure
_LISTED = 20  # models in the table


def to_text(
    explanation: Explanation, *, models: Sequence[str] = (), every: bool = False, top: int = 3, most: int | None = None
) -> str:
    """Return the clusters, and what each model is better and worse at, as tables for a terminal.

    Without `models`, all are listed, in the order of the overall leaderboard; of each the `top` largest strengths and
    as many weaknesses, or `every` cell. Tables have at most `most` rows.
    """
    selected = [name for name in explanation.models if not models or name in models]
    head = [
        f"{explanation.prompts:,} prompts measured, in {len(explanation.clusters)} clusters found on "
        f"{explanation.chosen_from:,} others; likelihood {explanation.likelihood}",
        f"the clusters explain {max(explanation.explained, 0.0):.0%} of the variance of the coefficients"
        + (f"; words alone place {explanation.recovered:.0%} of prompts" if explanation.recovered is not None else ""),
        "",
    ]
    body = [*_clusters(explanation, most), "", *_models(explanation, selected, every, top, most)]
    return "\n".join([*head, *body, *_agreement(explanation), *(f"note: {note}" for note in explanation.notes)])


def _clusters(explanation: Explanation, most: int | None) -> list[str]:
    header = ["cluster", "prompts", "share", "typical words"]
    rows = [
        [_cut(one.name), f"{one.prompts:,}", f"{one.share:.1%}", _cut(", ".join(one.terms), 70)]
        for one in explanation.clusters
    ]
    return text_table(header, rows, left=(0, 3), most=most)


def _models(explanation: Explanation, selected: Sequence[str], every: bool, top: int, most: int | None) -> list[str]:
    interval = f"{explanation.level:.0%} interval"
    header = ["model", "expected", "cluster", "points", interval, "rank here", "overall", "beats the field"]
    header += ["points by the votes"] * any(cell.observed for cell in explanation.strengths)
    named = selected if every else selected[:_LISTED]
    rows = []
    for name in named:
        cells = explanation.of(name)
        better = [cell for cell in cells if cell.verdict == "better"][:top]
        worse = [cell for cell in cells if cell.verdict == "worse"][-top:]
        empty = [name, "", "(as overall everywhere)", *[""] * (len(header) - 3)]
        rows += [_row(cell, len(header)) for cell in (cells if every else better + worse)] or [empty]
    left = len(selected) - len(named)
    more = [f"{counted(left, 'more model')}: --models NAME, or --output FILE"] if left else []
    differing = len([cell for cell in explanation.found if cell.model in set(selected)])
    least = f", by more than {explanation.least_change:g} points" if explanation.least_change else ""
    what = "strength or weakness" if differing == 1 else "strengths and weaknesses"
    line = f"found: {differing} {what}{least}, at a false discovery rate of {explanation.fdr:.0%}"
    return [*text_table(header, rows, left=(0, 1, 2, 8), most=most), *more, line]


def _row(cell: Strength, columns: int) -> list[str]:
    observed = (
        "" if cell.observed is None else f"{formatted(cell.observed.change, '+.0f')} ({cell.observed.votes:,} votes)"
    )
    return [
        cell.model,
        cell.verdict,
        _cut(cell.cluster),
        formatted(cell.change, "+.0f"),
        f"{formatted(cell.lower, '+.0f')} to {formatted(cell.upper, '+.0f')}",
        f"{cell.rank} ({cell.rank_lower}-{cell.rank_upper})",
        f"{cell.overall_rank}",
        f"{cell.overall_win_rate:.0%} -> {cell.win_rate:.0%}",
        observed,
    ][:columns]


def _agreement(explanation: Explanation) -> list[str]:
    agreement = explanation.agreement
    if agreement is None:
        return []
    lines = [f"votes: {agreement.votes:,} placed in clusters; {agreement.cells} cells have enough of them"]
    if agreement.correlation is not None:
        lines[0] += f"; predicted and observed change correlate by {agreement.correlation:.2f}"
    if agreement.found:
        lines.append(
            f"votes move {agreement.same_sign} of {agreement.found} strengths and weaknesses in the same direction"
        )
    return lines


def _cut(text: str, most: int = 44) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# Strengths and weaknesses as a picture: a map of models and clusters, or one model's clusters with intervals.

MOST_MODELS = 60
_COLOURS = {"better": RISE, "worse": FALL, "": "#999999"}


def draw_map(explanation: Explanation, models: Sequence[str] = ()) -> Figure:
    """Draw a row for each model, a column for each cluster, coloured where a difference was found.

    Of more than 60 models those with the largest differences are drawn; they stand in the order of the leaderboard.
    """
    names = drawn_models(explanation, models)
    clusters = [
        one.name for one in explanation.clusters if any(cell.cluster == one.name for cell in explanation.strengths)
    ]
    cells = {(cell.model, cell.cluster): cell.change for cell in explanation.found}
    values = np.array([[cells.get((name, one), np.nan) for one in clusters] for name in names])
    # Of no models, or no clusters, NumPy makes one dimension too few.
    values = values.reshape(len(names), len(clusters))
    longest = max((len(plain(one, 42)) for one in clusters), default=0)
    figure = new_figure(3.4 + 0.42 * max(len(clusters), 4), max(3.4, 1.6 + 0.21 * len(names) + 0.055 * longest))
    axis = figure.subplots()
    _paint(figure, axis, values)
    labels: dict[str, Any] = {"rotation": 50, "ha": "left", "rotation_mode": "anchor", "fontsize": 8}
    axis.set_xticks(range(len(clusters)), [plain(one, 42) for one in clusters], **labels)
    axis.set_yticks(range(len(names)), [plain(name, 36) for name in names], fontsize=8)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axis.set_xticks(np.arange(len(clusters) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#dddddd", linewidth=0.6)
    axis.tick_params(which="minor", length=0, top=False, bottom=False, left=False)
    axis.spines[:].set_visible(False)
    return figure


def drawn_models(explanation: Explanation, models: Sequence[str] = ()) -> list[str]:
    """Return the models of a map, the best overall first: of more than 60 those with the largest differences."""
    names = [name for name in explanation.models if not models or name in models]
    if len(names) <= MOST_MODELS:
        return names
    most: dict[str, float] = {}
    for cell in explanation.found:
        most[cell.model] = max(most.get(cell.model, 0.0), abs(cell.change))
    drawn = set(sorted(names, key=lambda name: -most.get(name, 0.0))[:MOST_MODELS])
    return [name for name in names if name in drawn]


def _paint(figure: Figure, axis: Any, values: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    # Strength is opacity, so that the map looks well on dark paper too.
    ramp = [(FALL, 1.0), (FALL, 0.12), (RISE, 0.12), (RISE, 1.0)]
    colours = LinearSegmentedColormap.from_list("change", list(zip((0, 0.499, 0.501, 1), ramp, strict=True)))
    image = axis.pcolormesh(
        np.arange(values.shape[1] + 1) - 0.5,
        np.arange(values.shape[0] + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colours,
        norm=Normalize(-most, most),
    )
    axis.invert_yaxis()
    bar = figure.colorbar(
        image, ax=axis, shrink=min(1.0, 12 / max(len(values), 1)), aspect=14, pad=0.02, anchor=(0.0, 1.0)
    )
    bar.ax.tick_params(labelsize=8)
    bar.set_label("points against overall\n(blank: none found)", fontsize=8)
    bar.outline.set_visible(False)


def draw_model(explanation: Explanation, model: str) -> Figure:
    """Draw a row for each cluster, the best on top: the change and its interval, and a diamond for what votes show."""
    cells = explanation.of(model)
    figure = new_figure(8.2, 1.3 + 0.27 * max(len(cells), 1))
    axis = figure.subplots()
    for height, cell in enumerate(cells):
        _draw_cell(axis, height, cell)
    votes = ", diamonds: what votes say" if any(cell.observed for cell in cells) else ""
    xlabel = f"points against overall, with {explanation.level:.0%} interval (grey: none found{votes})"
    frame_intervals(axis, [plain(cell.cluster, 46) for cell in cells], title=plain(model), xlabel=xlabel)
    return figure


def _draw_cell(axis: Any, height: int, cell: Strength) -> None:
    colour = _COLOURS[cell.verdict]
    axis.hlines(height, cell.lower, cell.upper, color=colour, linewidth=2)
    axis.plot(cell.change, height, "o", color=colour, markersize=5)
    if cell.observed is not None:
        axis.hlines(height + 0.25, cell.observed.lower, cell.observed.upper, color="#777777", linewidth=0.8)
        axis.plot(cell.observed.change, height + 0.25, "D", color="#777777", markersize=3)
