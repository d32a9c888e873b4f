"""The HTML report of an evaluation: one page for one output; for several, one each and a page that compares them.

Style, tables that sort and figures (SVG) are parts of the pages, which work offline and print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.errors import InputError, P2LError
from p2l.common.files import check_can_write
from p2l.common.plots import COLOURS, new_figure
from p2l.common.report.tables import figure_svg, plain, render, write_page
from p2l.evaluation import report_tables as tables
from p2l.evaluation.results import CategoryResult, OutputResult, SubsetScore
from p2l.insight import explain
from p2l.insight.explain_report import MOST_MODELS, draw_map
from p2l.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The figures of the report, as SVG for its pages.

_LINES = 8  # beyond these, categories would share colours
_MARKERS = "osD^vPX*"
_NAMES = {"win": "this one wins", "tie": "tie", "bothbad": "both bad"}
_SIZES = {"scale": "prompts", "subsets": "votes"}


def reliability(one: CategoryResult) -> str | None:
    """Draw forecast against observed shares, a panel for each outcome; bars are how often a share was forecast."""
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
    has_votes = np.isfinite(predicted) & np.isfinite(observed) & (mass > 0)
    axis.plot(predicted[has_votes], observed[has_votes], color=COLOURS[0], linewidth=1.3, marker="o", markersize=4)
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
    """Draw a panel for each metric over the size of a subset, a line for each category; `kind`: `scale`, `subsets`."""
    curves = [(one.name, [score for score in getattr(one, kind) if score.numbers]) for one in result.categories]
    curves = [(name, scores) for name, scores in curves if scores][:_LINES]
    metrics = list(dict.fromkeys(name for _, scores in curves for score in scores for name in score.numbers))
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


def _curve(axis: Any, scores: Sequence[SubsetScore], metric: str, place: int) -> None:
    points = sorted((one for one in scores if metric in one.numbers), key=lambda one: one.size)
    sizes = [one.size for one in points]
    colour = COLOURS[place % len(COLOURS)]
    values = [one.numbers[metric] for one in points]
    axis.plot(sizes, values, color=colour, linewidth=1.4, marker=_MARKERS[place % len(_MARKERS)], markersize=3.5)
    # A single sample has no interval: the band is then as narrow as the line.
    ends = [one.intervals.get(metric, Interval(*[one.numbers[metric]] * 4)) for one in points]
    lower, upper = [end.lower for end in ends], [end.upper for end in ends]
    axis.fill_between(sizes, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _log_axis(axis: Any, sizes: Sequence[int]) -> None:
    """Set ticks at the sizes themselves, as many as have room."""
    axis.set_xscale("log")
    ticks = [size for place, size in enumerate(reversed(sizes)) if place % (1 + len(sizes) // 6) == 0]
    axis.set_xticks(ticks, [f"{size:,}" for size in ticks])
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
    """Draw a metric over the outputs in their order, a line for each category."""
    names = list(dict.fromkeys(one.name for result in results for one in result.categories if one.simple))[:_LINES]
    simple = [{one.name: one.simple or {} for one in result.categories} for result in results]
    # None, where a metric does not apply, becomes NaN, which leaves a gap in the line.
    values = np.array([[one.get(name, {}).get(metric) for one in simple] for name in names], dtype=np.float64)
    if len(results) < 3 or not np.isfinite(values).any():
        return None
    figure = new_figure(min(11.0, 4.5 + 0.35 * len(results)), 3.9)
    axis = figure.subplots()
    for place, row in enumerate(values):
        axis.plot(row, color=COLOURS[place], marker=_MARKERS[place], markersize=4, linewidth=1.4)
    step = 1 + len(results) // 25
    places = range(0, len(results), step)
    labels = [plain(results[place].name, 24) for place in places]
    axis.set_xticks(list(places), labels, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_ylabel(metric, fontsize=8)
    _tidy(axis)
    _legend(figure, [plain(name, 28) for name in names])
    return figure_svg(figure, f"{metric} of each output", key=metric)


def check_report(folder: str | Path) -> None:
    """Refuse, before any work, a report that cannot be written for want of a library or of permission."""
    for name, extra in (("jinja2", "data"), ("matplotlib", "plot")):
        if find_spec(name) is None:
            raise InputError(f"a report needs {name}, which is not installed; pip install 'p2l[{extra}]'")
    check_can_write(Path(folder) / "index.html")


def write_report(results: Sequence[OutputResult], folder: str | Path) -> Path:
    """Write `index.html` into a folder, and a page for each output where there are several; return its path."""
    home = Path(folder) / "index.html"
    if len(results) == 1:
        return write_page(_output_page(results[0], None), home)
    names = _file_names([one.name for one in results])
    for one, name in zip(results, names, strict=True):
        write_page(_output_page(one, home.name), home.with_name(name))
    page = render(
        "p2l.evaluation/outputs.html",
        title="Evaluation",
        outputs=list(zip(results, names, strict=True)),
        loss=tables.across(results, "Loss"),
        accuracy=tables.across(results, "Accuracy"),
        lines=across(results, "Loss"),
    )
    return write_page(page, home)


def _file_names(names: Sequence[str]) -> list[str]:
    """Return a file name for each output, all different and none `index.html`."""
    file_names: list[str] = []
    for number, name in enumerate(names, 1):
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "output"
        used = {"index.html", *(one.casefold() for one in file_names)}
        file_names.append(f"{plain}-{number}.html" if f"{plain}.html".casefold() in used else f"{plain}.html")
    return file_names


def _output_page(result: OutputResult, home: str | None) -> str:
    categories = [_category(one, number, result.level) for number, one in enumerate(result.categories)]
    return render(
        "p2l.evaluation/output.html",
        title=f"Evaluation of {result.name}",
        home=home,
        result=result,
        facts=_facts(result),
        summary=tables.summary(result),
        categories=categories,
        scale=subsets(result, "scale"),
        scale_tables=tables.subsets(result, "scale"),
        subsets=subsets(result, "subsets"),
        subset_tables=tables.subsets(result, "subsets"),
        strengths=_strengths(result),
    )


def _facts(result: OutputResult) -> list[tuple[str, str]]:
    return [
        ("model type", result.model_type),
        ("likelihood", result.likelihood),
        ("ground truth", result.ground_truth),
        ("models", f"{len(result.models):,}"),
        ("votes", f"{result.votes:,}"),
        ("prompts", f"{result.prompts:,}"),
        ("intervals", f"{result.level:.0%}, over prompts"),
        ("read from", result.source),
    ]


def _category(one: CategoryResult, number: int, level: float) -> dict[str, Any]:
    """Return a category as the page shows it; what it lacks is None."""
    return {
        "result": one,
        "id": f"category-{number}",
        "board": tables.board(one, level),
        "metrics": tables.metrics(one),
        "comparison": tables.comparison(one),
        "models": tables.models(one),
        "reliability": reliability(one),
    }


def _strengths(result: OutputResult) -> dict[str, Any]:
    """Return what models are good at; with `problem`, why nothing is known of it (one leaderboard for all prompts)."""
    if result.coefs is None or len(result.coefs) < 2 or result.texts is None:
        why = "prompts are not in the file" if result.texts is None else "it is one leaderboard for all prompts"
        return {"problem": f"Nothing can be said of strengths and weaknesses from this output: {why}."}
    sides: dict[str, Any] = {"eta": result.eta, "gamma": result.gamma, "texts": result.texts}
    try:
        explanation = explain(result.coefs, result.models, likelihood=result.likelihood, **sides)
    except P2LError as error:
        return {"problem": f"Nothing can be said of strengths and weaknesses: {error}."}
    most = f"The {MOST_MODELS} of {len(explanation.models)} models with the largest differences."
    title = "Strengths and weaknesses of models by cluster"
    return {
        "problem": None,
        "made": explanation,
        "map": figure_svg(draw_map(explanation), title) if explanation.found else None,
        "caption": most if len(explanation.models) > MOST_MODELS else "",
        "clusters": tables.clusters(explanation),
        "models": tables.strengths_of_models(explanation),
        "found": tables.found(explanation),
    }
