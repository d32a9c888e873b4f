"""Results of an evaluation of routing: the terminal's text, the page, and the files of a folder.

| file | holds |
|---|---|
| results.json | all figures |
| results.md | all columns of the policies with four decimals, their settings, the calibration |
| curves.png, curves.svg | the curves beside the reliability of expected scores |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2l.common.cli import counted
from p2l.common.files import atomic_path, write_json
from p2l.common.report.charts import Axes, Series, Text, percent, short_number
from p2l.common.report.images import save_picture
from p2l.common.report.reports import (
    Figure,
    Forest,
    ForestRow,
    Measure,
    MetricTable,
    Prose,
    Report,
    Section,
    percents,
    span,
    today,
    with_interval,
)
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.common.report.text import notes_text, table_markdown, table_text
from p2l.common.text_table import formatted, markdown_text
from p2l.evaluation.output_report import reliability_figure
from p2l.metrics import Interval, Reliability
from route.evaluation.measuring import Results, calibration_error
from route.evaluation.verdict import decide, points, routing_verdict

_ORACLE_NOTE = (
    "The oracle knows every score beforehand, luck of single answers included: no policy reaches it, and what lies "
    "between is not all to be gained."
)
_INTERVAL_COLUMNS = (
    ("area", "Mean over budgets", "height of the curve, over the logarithm of cost"),
    ("at_equal_cost", "At the single model's cost", "mean score for what the best single model costs"),
    ("accuracy", "Largest budget", "mean score where money is no object"),
)
"""Measure of a policy, its head on the page, and what it means."""


def write_results(results: Results, folder: Path, *, has_figures: bool) -> None:
    """Write results.json, results.md and, with `has_figures`, curves.png and curves.svg into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    budget = "average" if results.on_average else "request"
    decision = decide(results)
    verdict = routing_verdict(results)

    def numbers(interval: Interval | None) -> dict[str, float] | None:
        return None if interval is None else interval._asdict()

    write_json(
        folder / "results.json",
        {
            "verdict": {
                "policy": decision.policy,
                "decided": decision.is_decided,
                "further_prompts": decision.further_prompts,
                "sentence": verdict.sentence,
                "reason": verdict.reason,
                "measure": results.measure,
                "constant": results.constant,
                "constants": [{"model": name, "cost": cost} for name, cost in results.constants],
            },
            "table": results.table,
            "models": {name: {"cost": cost, "score": score} for name, (cost, score) in results.model_points.items()},
            "questions": results.questions,
            "prompts": results.prompts,
            "trained_on": list(results.trained_on),
            "trainings": results.trainings,
            "notes": list(results.notes),
            "one_price": results.one_price,
            "budget": None if results.one_price else budget,
            "policies": {
                name: {
                    "about": policy.about,
                    "area": numbers(policy.area),
                    "accuracy": numbers(policy.accuracy),
                    "at_equal_cost": numbers(policy.at_equal_cost),
                    "cost_ratio": numbers(policy.cost_ratio),
                    "explained": numbers(policy.explained),
                    "p2l_has_more": {measure: numbers(gain) for measure, gain in policy.gains.items()},
                    "over_constant": {measure: numbers(gain) for measure, gain in policy.over_constant.items()},
                    "oracle_share": {measure: numbers(share) for measure, share in policy.oracle_share.items()},
                    "curve": [{"cost": cost, "score": score} for cost, score in policy.curve],
                    "settings": list(policy.settings),
                }
                for name, policy in results.policies.items()
            },
            "calibration": {"all": _calibration_json(results.pairs), "chosen": _calibration_json(results.chosen)},
        },
    )
    with atomic_path(folder / "results.md") as temporary:
        temporary.write_text(f"{routing_markdown(results)}\n", encoding="utf-8")
    if has_figures:
        paths = [folder / "curves.png", folder / "curves.svg"]
        save_picture(paths, score_figure(results), *calibration_figures(results), width=11.0)


def _calibration_json(bins: Reliability) -> dict[str, Any]:
    rows = {name: getattr(bins, name)[0].tolist() for name in ("predicted", "observed", "mass")}
    return {"edges": bins.edges.tolist(), **rows, "error": calibration_error(bins)}


# Text.


def routing_text(results: Results, folder: Path | None) -> str:
    """Return what the command prints: the verdict, then each policy at equal cost and beside the oracle.

    `folder` is that of the files; None where none are written.
    """
    measure = "accuracy" if results.one_price else "at_equal_cost"
    score = "score" if results.one_price else "score at equal cost"
    policies = list(results.policies.values())
    table = Table.of(
        (Column("Policy", number=False), [policy.about for policy in policies]),
        (Column(f"{score}, with 95% interval"), [_text_cell(getattr(each, measure), percents) for each in policies]),
        (
            Column(f"of the oracle's gain{'' if results.one_price else ', over budgets'}"),
            [_text_cell(each.oracle_share.get(results.measure), percents) for each in policies],
        ),
        (
            Column("router better by, points"),
            [_text_cell(each.gains.get(measure), lambda gain: formatted(100 * gain, "+.1f")) for each in policies],
        ),
    )
    verdict = routing_verdict(results)
    where = "--output DIR writes all columns" if folder is None else f"{folder / 'results.md'} has all columns"
    lines = [
        verdict.sentence,
        verdict.reason,
        "",
        _data_line(results),
        *notes_text(results.notes),
        "",
        *table_text(table),
        *([] if results.one_price else ["Equal cost: what the best single model costs on average."]),
        _ORACLE_NOTE,
        f"{where}, settings and calibration.",
    ]
    return "\n".join(lines).replace("−", "-")


def routing_markdown(results: Results) -> str:
    """Return the data, the policies with the router's gain on each, their settings and the calibration as Markdown."""
    # The most that any policy foresees bounds what routing can gain on these prompts.
    shares = {policy.about: policy.explained for policy in results.policies.values() if policy.explained is not None}
    best, share = max(shares.items(), key=lambda pair: pair[1].estimate)
    foreseen = (
        "Differences foreseen: the share that a policy foresees of how scores differ, once it is known how good each "
        "model is and how hard each prompt (share of the variance of scores less the means of model and prompt). Only "
        "this can tell it to choose another model for this prompt than for the next. The most is "
        f"{with_interval(share, percents)}, of {markdown_text(best)}; the rest is not in the prompts, or "
        "luck of a single answer."
    ).replace("−", "-")
    calibration = (
        f"Calibration error of the expected score: {calibration_error(results.pairs):.3f} over all answers, "
        f"{calibration_error(results.chosen):.3f} over the answers chosen with the largest budget."
    )
    verdict = routing_verdict(results)
    return "\n".join(
        [
            f"**{markdown_text(verdict.sentence)}** {markdown_text(verdict.reason)}".replace("−", "-"),
            "",
            _data_line(results),
            *(f"- {markdown_text(note)}" for note in results.notes),
            "",
            *table_markdown(_precise_table(results)),
            "",
            _ORACLE_NOTE,
            "",
            foreseen,
            "",
            *(f"- {markdown_text(settings)}" for settings in _settings(results)),
            "",
            calibration,
        ]
    )


def _data_line(results: Results) -> str:
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    return (
        f"{counted(results.questions, 'question')} ({counted(results.prompts, 'prompt')}) held out, "
        f"{len(results.models)} models; "
        f"trained on {trained}{'; budgets are averages over all requests' if results.on_average else ''}"
    )


def _precise_table(results: Results) -> Table:
    """Return a row for each policy with four decimals, in the order of `POLICIES`, as tables of results show them."""
    policies = list(results.policies.values())

    def column(title: str, values: Sequence[Interval | None], text: Text) -> tuple[Column, Sequence[Value]]:
        return Column(title), [_text_cell(value, text) for value in values]

    def score(value: float) -> str:
        return number_text(value, 4)

    accuracy = "Accuracy" if results.one_price else "Largest budget"
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Policy", number=False), [policy.about for policy in policies])
    ]
    if not results.one_price:
        columns += [
            column("Area", [policy.area for policy in policies], score),
            column("At the single model's cost", [policy.at_equal_cost for policy in policies], score),
            column("Cost at its score", [policy.cost_ratio for policy in policies], _share_or_never),
        ]
    columns += [
        column(accuracy, [policy.accuracy for policy in policies], score),
        column("Of the oracle's gain", [policy.oracle_share.get(results.measure) for policy in policies], percents),
        column(
            f"Router's {results.measure} less this",
            [policy.gains.get(results.measure) for policy in policies],
            lambda value: formatted(value, "+.4f"),
        ),
        column("Differences foreseen", [policy.explained for policy in policies], percents),
    ]
    return Table.of(*columns)


def _text_cell(value: Interval | None, text: Text) -> Cell:
    """Return an estimate with its interval in one text: a terminal has no pointer to rest on a number."""
    return Cell("") if value is None else Cell(with_interval(value, text), value.estimate)


def _share_or_never(ratio: float) -> str:
    """Return a share of the single model's cost, which is infinite where a curve does not reach that model's score."""
    return percents(ratio) if math.isfinite(ratio) else "never"


# The page.


def routing_report(results: Results, model: str, data: str) -> Report:
    """Return the report of an evaluation of a P2L, called `model`, on `data`."""
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    order = sorted(results.model_points.items(), key=lambda item: -item[1][1])
    scores = [score for _, (_, score) in order]
    scale = Scale.around(scores)
    heads = [Column("#", 0), Column("Model", number=False), Column("Mean score", scale=scale)]
    rows: list[list[Value]] = [
        [place, name, Cell(percents(score), score, bar=(math.nan, score, math.nan))]
        for place, (name, (_, score)) in enumerate(order, 1)
    ]
    if not results.one_price:
        heads.append(Column("Mean cost", note="dollars an answer"))
        for row, (_, (cost, _)) in zip(rows, order, strict=True):
            row.append(Cell(f"${cost:.2g}" if cost else "$0", cost))
    lead = "What each model does on its own, on the questions held out."
    return Report(
        "Evaluation of routing",
        model,
        data,
        today(),
        routing_verdict(results),
        score_figure(results),
        [
            _policies(results),
            _measures(results),
            Section(
                "Calibration",
                calibration_figures(results) or [Prose("There is nothing to draw.", "quiet")],
                "Of the answers that were expected to be usable with chance p, a share p should be.",
            ),
            Section("Models", [Table(heads, rows, shown=10)], lead),
        ],
        [
            ("questions", f"{results.questions:,}"),
            ("prompts", f"{results.prompts:,}"),
            ("models", f"{len(results.models):,}"),
            ("trained on", f"{trained} questions"),
            ("intervals", f"95%, over prompts{' and trainings' if results.trainings else ''}"),
        ],
        [*results.notes, *_settings(results)],
    )


def score_figure(results: Results) -> Figure:
    """Return the mean score of each policy: over what it costs, or as bars where all answers cost the same."""
    if results.one_price:
        policies = sorted(results.policies.values(), key=lambda policy: -float(policy.accuracy.estimate))
        rows = [
            ForestRow(policy.about, policy.accuracy.lower, policy.accuracy.estimate, policy.accuracy.upper)
            for policy in policies
        ]
        forest = Forest(rows, "Policy", "Mean score with 95% interval", percents, zero=None)
        caption = "All answers cost the same: what counts is the right model."
        return Figure(forest, "Mean score of each policy", caption)
    series = []
    for name, policy in results.policies.items():
        costs, scores = (list(column) for column in zip(*policy.curve, strict=True))
        # The cheapest model costs the same under any budget: its curve is a point.
        is_point = name == "cheapest"
        series.append(Series(policy.about, costs, scores, has_line=not is_point, has_dots=is_point))
    names = list(results.model_points)
    costs, scores = (list(column) for column in zip(*results.model_points.values(), strict=True))
    series.append(Series("models", costs, scores, labels=names, has_line=False, has_dots=True, is_quiet=True))
    # Some models are free, which no logarithm shows.
    is_log = min(costs) > 0
    axes = Axes("mean cost of an answer, dollars", "mean score", x_text=short_number, y_text=percent, is_log=is_log)
    caption = "The higher at the same cost, the better. A point is a model that answers everything."
    return Figure.of(series, axes, "Score over cost of each policy", caption)


def _policies(results: Results) -> Section:
    """Return a row for each policy: its scores with intervals, and how much the router has more."""
    policies = sorted(results.policies.values(), key=lambda policy: -float(getattr(policy, results.measure).estimate))
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Policy", number=False), [policy.about for policy in policies])
    ]
    for name, title, note in _INTERVAL_COLUMNS:
        intervals = [getattr(policy, name) for policy in policies]
        if intervals[0] is not None:
            scale = Scale.around([end for interval in intervals for end in interval[:3]])
            cells = [
                Cell(percents(mean), float(mean), note=span(interval, percents), bar=(low, mean, high))
                for interval in intervals
                for mean, low, high in [map(float, interval[:3])]
            ]
            columns.append((Column("Mean score" if results.one_price else title, note=note, scale=scale), cells))
    if not results.one_price:
        note = "of the best single model, as a share of that model's cost"
        # A score that is never reached sorts behind every cost.
        cells = [
            Cell(_share_or_never(ratio.estimate), min(ratio.estimate, 1e9), note=_ends(ratio, _share_or_never))
            for policy in policies
            if (ratio := policy.cost_ratio) is not None
        ]
        columns.append((Column("Cost at its score", note=note), cells))
    unit = "points of the score" if results.one_price else "points of the mean over budgets"
    gains: list[Value] = []
    for gain in (policy.gains.get(results.measure) for policy in policies):
        if gain is None:  # of the router itself
            gains.append(None)
            continue
        text = f"{'+' if gain.estimate > 0 else ''}{points(gain.estimate)}"
        tone = "good" if gain.lower > 0 else "bad" if gain.upper < 0 else ""
        gains.append(Cell(text, float(gain.estimate), tone, f"{span(gain, points)} points"))
    columns.append((Column("Router has more by", note=unit), gains))
    shares: list[Value] = [
        None if share is None else Cell(percents(share.estimate), float(share.estimate), note=span(share, percents))
        for share in (policy.oracle_share.get(results.measure) for policy in policies)
    ]
    note = "what it gains over the best single model, as a share of what knowing every score would"
    columns.append((Column("Of the oracle's gain", note=note), shares))
    limit = "as averages over all requests" if results.on_average else "on each request"
    spending = "" if results.one_price else f"Budgets are spent {limit}. "
    rule = "Every policy spends by the same rule; only what it expects of a model on a prompt differs."
    lead = f"{spending}{rule} {_ORACLE_NOTE}"
    return Section("Policies", [Table.of(*columns)], lead)


def _measures(results: Results) -> Section:
    """Return the figures of the router, each with what it means."""
    router = results.policies["p2l"]
    intervals: list[tuple[str, Interval | None, Text, str]] = [
        ("Score with the largest budget", router.accuracy, percents, "Mean score where money is no object."),
        (
            "Mean over budgets",
            router.area,
            percents,
            "Height of the curve over the logarithm of cost, between the cheapest and the most expensive model: the "
            "score of a user whose budget may be any order of magnitude there.",
        ),
        (
            "At the single model's cost",
            router.at_equal_cost,
            percents,
            "Mean score for what the best single model costs.",
        ),
        (
            "Cost at its score",
            router.cost_ratio,
            _share_or_never,
            "Cost at which the router has the score of the best single model, as a share of that model's cost.",
        ),
        (
            "Differences foreseen",
            router.explained,
            percents,
            "Share that the router foresees of how answers differ, once it is known how good each model and how hard "
            "each prompt is. Only this can tell it to choose another model for this prompt than for the next.",
        ),
    ]
    rows = [
        Measure(name, text(value.estimate), _ends(value, text), meaning)
        for name, value, text, meaning in intervals
        if value is not None
    ]
    distance = "Mean distance of expected from realised scores; 0% is perfect."
    bias = "Choosing the highest expectation picks those that are too high as well."
    rows += [
        Measure("Calibration error of all answers", percents(calibration_error(results.pairs)), "", distance),
        Measure(
            "Calibration error of the chosen", percents(calibration_error(results.chosen)), "", f"{distance} {bias}"
        ),
    ]
    return Section("Metrics", [MetricTable(rows)])


def _ends(value: Interval, text: Text) -> str:
    """Return the ends of an interval; nothing for a cost that is infinite in all samples."""
    return span(value, text) if math.isfinite(value.lower) else ""


def calibration_figures(results: Results) -> list[Figure]:
    """Return how reliable expected scores are, of all answers and of those that were chosen."""
    pairs = (("all answers", results.pairs), ("chosen answers", results.chosen))
    figures = (reliability_figure(name, bins, of="answers") for name, bins in pairs)
    return [figure for figure in figures if figure is not None]


def _settings(results: Results) -> list[str]:
    policies = results.policies.values()
    return [f"{policy.about}: {'; '.join(policy.settings)}" for policy in policies if policy.settings]
