"""The HTML report of an evaluation: one page for one output; for several, one each and a page that compares them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from p2l.common.errors import P2LError
from p2l.common.report.charts import Axes, Chart, Series, percent
from p2l.common.report.reports import (
    Figure,
    Fold,
    Forest,
    ForestRow,
    Links,
    MetricTable,
    Notes,
    Part,
    Prose,
    Report,
    Section,
    Verdict,
    check_page,
    percents,
    save_report,
    span,
    today,
    with_interval,
)
from p2l.common.report.tables import number_text
from p2l.evaluation import output_tables as tables
from p2l.evaluation.results import CategoryResult, OutputResult, SubsetScore
from p2l.insight import explain, explain_report
from p2l.metrics import Interval, Reliability, about

_MAX_CATEGORY_LINES = 8  # more would share colours
_OUTCOME_NAMES = {"win": "a model wins", "tie": "tie", "bothbad": "both bad", "usable": "usable answer"}
_SIZE_UNITS = {"scale": "prompts", "subsets": "votes"}


def check_report(folder: str | Path) -> None:
    """Refuse, before any work, a report that cannot be written for want of a library or of permission."""
    check_page(Path(folder) / "index.html")


def write_report(results: Sequence[OutputResult], folder: str | Path) -> Path:
    """Write `index.html` into a folder, and a page for each output where there are several; return its path."""
    home = Path(folder) / "index.html"
    if len(results) == 1:
        return save_report(output_report(results[0]), home)
    file_names: list[str] = []
    for number, result in enumerate(results, 1):
        plain = re.sub(r"[^\w.-]+", "-", result.name).strip("-.")[:80] or "output"
        # Some file systems take names that differ in case alone for one file.
        used = {home.name, *(name.casefold() for name in file_names)}
        file_names.append(f"{plain}-{number}.html" if f"{plain}.html".casefold() in used else f"{plain}.html")
        save_report(output_report(result, (home.name, "All outputs")), home.with_name(file_names[-1]))
    return save_report(_comparison_report(results, file_names), home)


def output_report(result: OutputResult, home: tuple[str, str] | None = None) -> Report:
    """Return the report of one output."""
    measured = [category for category in result.categories if category.problem is None]
    main = measured[0] if measured else None
    sections = [
        leaderboard_section(result, main),
        *([] if main is None else [metrics_section(result, main), calibration_section(measured)]),
        *([_categories(result)] if len(result.categories) > 1 else []),
        _scale(result),
        _strengths(result),
    ]
    return Report(
        kind="Evaluation of forecasts",
        subject=result.model or result.name,
        data=result.data or f"the votes of {result.source}",
        made=today(),
        verdict=output_verdict(result, main),
        picture=None if main is None else _picture(result, main, measured),
        sections=sections,
        facts=[
            ("model type", result.model_type),
            ("likelihood", result.likelihood),
            ("ground truth", result.ground_truth),
            ("models", f"{len(result.models):,}"),
            ("votes", f"{result.votes:,}"),
            ("prompts", f"{result.prompts:,}"),
            ("intervals", f"{result.level:.0%}, over prompts"),
            ("read from", result.source),
        ],
        notes=result.notes,
        home=home,
    )


def output_verdict(result: OutputResult, main: CategoryResult | None) -> Verdict:
    """Return whether forecasts by prompt are worth more than one leaderboard; without a skill, how good they are."""
    if main is None:
        why = next((row.problem for row in result.categories if row.problem), "no category was measured")
        return Verdict(f"Nothing could be measured: {why}.", "bad")
    which = "" if main.name == "all" else f" of {main.name}"
    over = f"{main.votes:,} votes{which} on {main.prompts:,} prompts"
    skill = main.skill if result.model_type == "p2l" else None
    if skill is None or not math.isfinite(skill.lower):
        return Verdict(_plain_sentence(result, main, over), "", _basis(main, ""))
    reference = tables.reference_name(main.skill_over)
    change = f"its loss is {abs(skill.estimate):.1%} {'lower' if skill.estimate >= 0 else 'higher'}"
    ends = f"{result.level:.0%} interval of what it saves {span(skill, percents)}"
    basis = _basis(main, over)
    if skill.lower > 0:
        return Verdict(f"The model forecasts votes better than {reference}: {change} ({ends}).", "good", basis)
    if skill.upper < 0:
        return Verdict(f"The model forecasts votes worse than {reference}: {change} ({ends}).", "bad", basis)
    sentence = (
        f"These votes do not show that the model forecasts better than {reference}: {change}, and the {ends} holds "
        "zero."
    )
    return Verdict(sentence, "", f"{basis} More votes would tell.")


def _plain_sentence(result: OutputResult, main: CategoryResult, over: str) -> str:
    who = "The model" if result.model_type == "p2l" else "One leaderboard for all prompts"
    accuracy, loss = ((main.intervals or {}).get(name) for name in ("Accuracy", "Loss"))
    if accuracy is not None and loss is not None:
        ends = f"{result.level:.0%} interval {span(accuracy, percents)}"
        return (
            f"{who} forecasts {accuracy.estimate:.1%} of {over} ({ends}), with a loss of "
            f"{with_interval(loss, _nats)} nats."
        )
    value = (main.simple or {}).get("Loss")
    return f"{who} forecasts {over}" + (
        "." if value is None else f" with a loss of {value:.4f} nats (no interval was asked for)."
    )


def _basis(main: CategoryResult, over: str) -> str:
    """Return loss and accuracy in words."""
    values = [(name.lower(), (main.simple or {}).get(name), about(name).text) for name in ("Loss", "Accuracy")]
    words = [f"{name} {text(value)}" for name, value, text in values if value is not None]
    return f"{over[:1].upper()}{over[1:]}: {', '.join(words)}." if over and words else ""


def _nats(value: float) -> str:
    return number_text(value, 4)


def _picture(result: OutputResult, main: CategoryResult, measured: Sequence[CategoryResult]) -> Figure | None:
    """Return the skill by category, or with one category the models' scores by both sides."""
    rows = []
    for category in measured:
        skill = category.skill
        if skill is not None and math.isfinite(skill.lower):
            tone = "good" if skill.lower > 0 else "bad" if skill.upper < 0 else ""
            votes = f"{category.votes:,} votes"
            rows.append(ForestRow(category.name, skill.lower, skill.estimate, skill.upper, tone, votes))
    if len(rows) > 1:
        title = "How much less loss than one leaderboard, by category"
        forest = Forest(rows, "Category", f"Skill with {result.level:.0%} interval", percents)
        return Figure(
            forest, title, "To the right of the line the model forecasts better than one leaderboard for all."
        )
    truth, model = tables.sides_of(main)
    names = [name for name in truth if name in model]
    if len(names) < 2:
        return None
    points = [(float(model[name].sort or 0), *(truth[name].bar or (math.nan,) * 3)) for name in names]
    x, lower, y, upper = (list(column) for column in zip(*points, strict=True))
    series = Series("models", x, y, lower, upper, names, has_line=False, has_dots=True)
    axes = Axes("score by the forecast", f"score {tables.truth_name(result)}", has_diagonal=True)
    caption = "On the line both agree; whiskers are intervals. 400 points are odds of 10 to 1."
    return Figure.of([series], axes, f"Scores by the forecast and {tables.truth_name(result)}", caption)


def leaderboard_section(result: OutputResult, main: CategoryResult | None) -> Section:
    """Return the models by the ground truth and by the forecast."""
    board = None if main is None else tables.board(main, result)
    lead = (
        f"Models in the order {tables.truth_name(result)}, beside the mean forecast of these prompts. Bars are "
        f"{result.level:.0%} intervals, all on one scale of scores: 400 points are odds of 10 to 1."
    )
    if board is None:
        return Section("Leaderboard", [Prose("There is none: no category could be measured.", "quiet")])
    return Section("Leaderboard", [board], lead)


def metrics_section(result: OutputResult, main: CategoryResult) -> Section:
    """Return the metrics of a category, each explained."""
    lead = (
        f"Of {main.votes:,} votes, with {result.level:.0%} intervals over prompts where a metric is a mean over votes."
    )
    return Section("Metrics", [*_measures(main), Notes(main.metric_notes)], lead)


def _measures(category: CategoryResult) -> list[Part]:
    parts: list[Part] = []
    if rows := tables.metrics(category):
        parts += [Prose("Forecasts of votes", "heading"), MetricTable(rows)]
    if rows := tables.comparison(category):
        parts += [Prose("Leaderboard against the ground truth", "heading"), MetricTable(rows)]
    return parts


def calibration_section(measured: Sequence[CategoryResult]) -> Section:
    """Return the calibration of the first category, with those of the others folded."""
    figures = [(row.name, figure) for row in measured if (figure := reliability_figure(row.name, row.reliability))]
    if not figures:
        return Section("Calibration", [Prose("No category has forecasts to draw.", "quiet")])
    others = [Fold(name, [figure]) for name, figure in figures[1:]]
    lead = "Of the votes that were forecast to end in some way with chance p, a share p should end so."
    return Section("Calibration", [figures[0][1], *others], lead)


def reliability_figure(name: str, data: Reliability | None, *, of: str = "votes") -> Figure | None:
    """Return forecast against observed shares with their intervals, a series for each outcome.

    `of` names what forecasts are about.
    """
    if data is None or not any(data.points):
        return None
    series = []
    for outcome, points in zip(data.outcomes, data.points, strict=True):
        if points:
            x, y, lower, upper, _ = (list(column) for column in zip(*points, strict=True))
            series.append(
                Series(_OUTCOME_NAMES.get(outcome, outcome), x, y, lower, upper, has_line=False, has_dots=True)
            )
    ends = (0.0, 1.0)
    axes = Axes(
        "chance that was forecast",
        "share that came true",
        percent,
        percent,
        x_range=ends,
        y_range=ends,
        has_diagonal=True,
    )
    caption = (
        "The closer to the dashed line, the better. Whiskers are intervals; neighbouring points with fewer than 30 "
        f"{of} are joined."
    )
    return Figure.of(series, axes, f"Calibration of forecasts, {name}", caption, is_narrow=True)


def _categories(result: OutputResult) -> Section:
    # The default asks for all categories that an arena may have; a page of those that are empty hides the others.
    is_absent = [result.default_categories and not category.votes for category in result.categories]
    absent = [category.name for category, gone in zip(result.categories, is_absent, strict=True) if gone]
    there = (category for category, gone in zip(result.categories, is_absent, strict=True) if not gone)
    result = replace(result, categories=tuple(there))
    folds = []
    for number, category in enumerate(result.categories):
        by_model = tables.models(category)
        parts = [
            Prose(category.problem, "problem") if category.problem else None,
            tables.board(category, result),
            *_measures(category),
            by_model and Prose("Votes of each model", "heading"),
            by_model,
            Notes(category.metric_notes),
        ]
        size = f"{category.votes:,} votes, {category.prompts:,} prompts"
        folds.append(Fold(category.name, parts, size, f"category-{number}"))
    lead = (
        "How well the votes of each category were forecast, and how close the leaderboard of its prompts comes to "
        "the ground truth. Rest the pointer on a number for its interval; a head sorts."
    )
    lead += f" Without a vote: {', '.join(absent)}." if absent else ""
    return Section("Categories", [tables.summary(result), *folds], lead)


def _scale(result: OutputResult) -> Section:
    lead = (
        "How fast the leaderboard aggregated from a few prompts, drawn with replacement, comes to the ground truth "
        "of its whole category."
    )
    title = "Leaderboards of few prompts against the ground truth"
    scale = _curves(result, "scale", title)
    subsets = _curves(result, "subsets", "Leaderboards of random subsets against a fit of the same votes")
    parts: list[Part] = [scale, subsets] if scale or subsets else [Prose("Not measured.", "quiet")]
    return Section("Aggregation scale", parts, lead if scale else "")


def _curves(result: OutputResult, kind: str, title: str) -> Figure | None:
    """Return a panel for each metric over the size of a subset, a line a category; `kind`: `scale`, `subsets`."""
    curves: list[tuple[str, list[SubsetScore]]] = []
    for category in result.categories:
        scores = sorted((score for score in getattr(category, kind) if score.numbers), key=lambda score: score.size)
        if scores and len(curves) < _MAX_CATEGORY_LINES:
            curves.append((category.name, scores))
    metrics = list(dict.fromkeys(name for _, scores in curves for score in scores for name in score.numbers))
    if not metrics:
        return None
    panels = []
    for metric in metrics:
        entry, series = about(metric), []
        for name, scores in curves:
            points = [score for score in scores if metric in score.numbers]
            values = [score.numbers[metric] for score in points]
            # A single sample has no interval: the band is then as narrow as the line.
            ends = [score.intervals.get(metric) for score in points]
            lower = [value if end is None else end.lower for value, end in zip(values, ends, strict=True)]
            upper = [value if end is None else end.upper for value, end in zip(values, ends, strict=True)]
            series.append(Series(name, [score.size for score in points], values, lower, upper))
        text = percent if entry.unit == "share" else None
        axes = Axes(_SIZE_UNITS[kind], entry.better and f"{entry.better} is better", y_text=text, is_log=True)
        panels.append((entry.title, Chart(series, axes)))
    caption = "Lines are means over draws, bands their intervals; at most eight categories are drawn."
    return Figure("", title, caption, numbers=tables.subsets(result, kind), panels=panels)


def _strengths(result: OutputResult) -> Section:
    """Return what models are good at, or why nothing is known of it (one leaderboard for all prompts)."""
    title = "Strengths and weaknesses"
    if result.coefs is None or len(result.coefs) < 2 or result.texts is None:
        why = "prompts are not in the file" if result.texts is None else "it is one leaderboard for all prompts"
        return Section(
            title, [Prose(f"Nothing can be said of strengths and weaknesses from this output: {why}.", "quiet")]
        )
    try:
        explanation = explain(
            result.coefs,
            result.models,
            likelihood=result.likelihood,
            eta=result.eta,
            gamma=result.gamma,
            texts=result.texts,
        )
    except P2LError as error:
        return Section(title, [Prose(f"Nothing can be said of strengths and weaknesses: {error}.", "quiet")])
    lead = (
        "Kinds of prompts that nobody named, found by what the model says of each prompt on one half of them and "
        "measured on the other half, into which prompts come by their words alone. Points are against the model's "
        f"own score over all prompts. Differences of more than {explanation.least_change:g} points count, at a "
        f"false discovery rate of {explanation.fdr:.0%}. They are what the model says, not what votes have shown."
    )
    parts: list[Part] = [explain_report.clusters_table(explanation)]
    if explanation.found:
        names = explain_report.map_models(explanation, explanation.models)
        colours = "Blue is better than overall, orange worse, blank where nothing was found."
        if len(names) < len(explanation.models):
            colours += f" The {len(names)} of {len(explanation.models)} models with the largest differences."
        parts += [
            Prose("Points against the model's own score, by cluster", "heading"),
            Prose(colours, "quiet"),
            explain_report.map_table(explanation, names),
            Prose("Largest differences", "heading"),
            explain_report.differences_table(explanation.found, explanation.level),
        ]
    parts += [Prose("By model", "heading"), explain_report.models_table(explanation), Notes(explanation.notes)]
    return Section(title, parts, lead)


def _comparison_report(results: Sequence[OutputResult], names: Sequence[str]) -> Report:
    """Return the page above those of several outputs."""
    ranked = []
    for result in results:
        main = next((category for category in result.categories if category.problem is None), None)
        loss = None if main is None else (main.intervals or {}).get("Loss")
        if loss is not None:
            ranked.append((result.name, loss))
    ranked.sort(key=lambda row: row[1].estimate)
    rows = [ForestRow(name, loss.lower, loss.estimate, loss.upper) for name, loss in ranked]
    forest = Forest(rows, "Output", "Loss in nats a vote, with interval", zero=None, text=_nats)
    picture = Figure(forest, "Loss of each output in its first category", "To the left is better.") if rows else None
    pages = [
        (file, result.name, f"{result.model_type}, {result.likelihood}, {result.votes:,} votes")
        for result, file in zip(results, names, strict=True)
    ]
    sections = [Section("Outputs", [Links(pages)], "Each output has a page of its own.")]
    for metric in ("Loss", "Accuracy"):
        if (table := tables.across(results, metric)) is not None:
            sections.append(Section(f"{about(metric).title} by category", [table], about(metric).sentence))
    return Report(
        kind="Evaluation of forecasts",
        subject=f"{len(results)} outputs",
        data=results[0].data or "their votes",
        made=today(),
        verdict=_best(ranked),
        picture=picture,
        sections=sections,
    )


def _best(ranked: Sequence[tuple[str, Interval]]) -> Verdict:
    """Return which output has the lowest loss, and whether the next is told apart from it."""
    if not ranked:
        return Verdict("No loss was measured with an interval, so the outputs are not ranked.")
    (name, loss), *rest = ranked
    sentence = f"{name} has the lowest loss: {with_interval(loss, _nats)} nats a vote"
    if not rest:
        return Verdict(f"{sentence}.")
    second, second_loss = rest[0]
    overlaps = second_loss.lower < loss.upper
    then = f"; {second} follows with {with_interval(second_loss, _nats)}"
    reason = "The intervals of the first two overlap; they were measured on votes of their own." if overlaps else ""
    return Verdict(f"{sentence}{then}.", "" if overlaps else "good", reason)
