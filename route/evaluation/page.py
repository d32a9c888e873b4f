"""The page of an evaluation of routing: what choosing by prompt is worth, the curves, the policies, the models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from p2l.common.cli import counted
from p2l.common.report.charts import Axes, Series, percent, short_number
from p2l.common.report.reports import (
    Figure,
    Forest,
    ForestRow,
    Measure,
    MetricTable,
    Part,
    Prose,
    Report,
    Section,
    Verdict,
    percents,
    span,
    today,
)
from p2l.common.report.tables import Cell, Column, Scale, Table, Value
from p2l.common.text_table import formatted
from p2l.evaluation.output_report import reliability_figure
from p2l.metrics import Interval
from route.evaluation.measuring import Results, calibration_error

_OTHERS = ("category", "nearest", "clusters")
"""Policies that choose by prompt too, in a simpler way."""


def routing_report(results: Results, model: str, data: str) -> Report:
    """Return the report of an evaluation of a P2L, called `model`, on `data`."""
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    return Report(
        "Evaluation of routing",
        model,
        data,
        today(),
        routing_verdict(results),
        score_figure(results),
        [_policies(results), _measures(results), _calibration(results), _models(results)],
        [
            ("questions", f"{results.questions:,}"),
            ("prompts", f"{results.prompts:,}"),
            ("models", f"{len(results.models):,}"),
            ("trained on", f"{trained} questions"),
            ("intervals", "95%, over prompts"),
        ],
        [*results.notes, *_settings(results)],
    )


def routing_verdict(results: Results) -> Verdict:
    """Return how much more the router scores than the best single model, over all budgets, with its interval."""
    measure = "accuracy" if results.one_price else "area"
    single, router = results.policies["single"], results.policies["p2l"]
    gain = single.gains[measure]
    scores = [getattr(one, measure).estimate for one in (router, single)]
    change = f"{_points(abs(gain.estimate))} points {'more' if gain.estimate >= 0 else 'fewer'}"
    money = "" if results.one_price else ", on average over all budgets"
    ends = f"95% interval {_span(gain)}"
    basis = (
        f"Mean score {percents(scores[0])} against {percents(scores[1])} on {counted(results.questions, 'question')}."
    )
    basis = " ".join(filter(None, [basis, saving(results), simpler(results)]))
    than = f"the router scores {change} than the best single model{money}"
    if gain.lower > 0:
        return Verdict(f"Choosing by prompt pays: {than} ({ends}).", "good", basis)
    if gain.upper < 0:
        return Verdict(f"Choosing by prompt costs quality: {than} ({ends}).", "bad", basis)
    sentence = f"These answers do not show that choosing by prompt pays: {than}, and the {ends} holds zero."
    return Verdict(sentence, "", basis)


def saving(results: Results) -> str:
    """Return what the router scores at the cost of the best single model, and at which cost it has that score.

    The sentence is empty where all answers cost the same.
    """
    ratio, gain = results.policies["p2l"].cost_ratio, results.policies["single"].gains.get("at_equal_cost")
    if ratio is None or gain is None:
        return ""
    change = f"{_points(abs(gain.estimate))} points {'more' if gain.estimate >= 0 else 'fewer'} ({_span(gain)})"
    text = f"For what that model costs it scores {change}"
    if not math.isfinite(ratio.estimate):
        return f"{text}."
    high = percents(ratio.upper) if math.isfinite(ratio.upper) else "never"
    share = f"{percents(ratio.estimate)} of the cost ({percents(ratio.lower)} to {high})"
    return f"{text}, and it has that model's score at {share}."


def simpler(results: Results) -> str:
    """Return how the router compares with the best policy that chooses by prompt in a simpler way."""
    measure = "accuracy" if results.one_price else "area"
    there = {name: getattr(results.policies[name], measure) for name in _OTHERS if name in results.policies}
    if not there:
        return ""
    best = max(there, key=lambda name: float(there[name].estimate))
    gain = results.policies[best].gains[measure]
    what = "mean score" if results.one_price else "mean score over all budgets"
    more = "above" if gain.estimate >= 0 else "below"
    change = f"{_points(abs(gain.estimate))} points {more} that of {results.policies[best].about}"
    return f"Its {what} is {change} ({_span(gain)})."


def _points(value: float) -> str:
    """Return a difference of scores in hundredths: `2.3`."""
    return formatted(100 * value, ".1f").replace("-", "−")


def _span(gain: Interval) -> str:
    return span(gain, _points)


def score_figure(results: Results) -> Figure:
    """Return what policies score: over what they cost, or as bars where all answers cost the same."""
    return _bars(results) if results.one_price else _curves(results)


def _curves(results: Results) -> Figure:
    """Return the mean score of each policy over what it costs, with the models as points."""
    series = []
    for name, policy in results.policies.items():
        costs, scores = (list(column) for column in zip(*policy.curve, strict=True))
        is_point = name == "cheapest"
        series.append(Series(policy.about, costs, scores, has_line=not is_point, has_dots=is_point))
    names = list(results.model_points)
    costs, scores = ([results.model_points[name][side] for name in names] for side in (0, 1))
    series.append(Series("models", costs, scores, labels=names, has_line=False, has_dots=True, is_quiet=True))
    is_log = min(costs) > 0
    axes = Axes("mean cost of an answer, dollars", "mean score", x_text=short_number, y_text=percent, is_log=is_log)
    caption = "The higher at the same cost, the better. A point is a model that answers everything."
    return Figure.of(series, axes, "Score over cost of each policy", caption)


def _bars(results: Results) -> Figure:
    """Return the mean score of each policy, where all answers cost the same."""
    rows = [
        ForestRow(policy.about, policy.accuracy.lower, policy.accuracy.estimate, policy.accuracy.upper)
        for policy in sorted(results.policies.values(), key=lambda one: -float(one.accuracy.estimate))
    ]
    forest = Forest(rows, "Policy", "Mean score with 95% interval", percents, zero=None)
    return Figure(forest, "Mean score of each policy", "All answers cost the same: what counts is the right model.")


_COLUMNS = (
    ("area", "Mean over budgets", "height of the curve, over the logarithm of cost"),
    ("at_equal_cost", "At the single model's cost", "mean score for what the best single model costs"),
    ("accuracy", "Largest budget", "mean score where money is no object"),
)


def _policies(results: Results) -> Section:
    """Return a row for each policy: its scores with intervals, and how much the router has more."""
    shown = [column for column in _COLUMNS if getattr(results.policies["p2l"], column[0]) is not None]
    measure = "accuracy" if results.one_price else "area"
    policies = sorted(results.policies.values(), key=lambda one: -float(getattr(one, measure).estimate))
    heads = [Column("Policy", number=False)]
    columns: list[list[Value]] = [[policy.about for policy in policies]]
    for name, title, note in shown:
        cells = [_cell(getattr(policy, name)) for policy in policies]
        heads.append(Column("Mean score" if results.one_price else title, note=note, scale=_scale(cells)))
        columns.append([*cells])
    if not results.one_price:
        heads.append(Column("Cost at its score", note="of the best single model, as a share of that model's cost"))
        columns.append([_ratio(policy.cost_ratio) for policy in policies])
    unit = "points of the score" if results.one_price else "points of the mean over budgets"
    heads.append(Column("Router has more by", note=unit))
    columns.append([_gain(policy.gains.get(measure)) for policy in policies])
    rows = [list(row) for row in zip(*columns, strict=True)]
    whose = "as averages over all requests" if results.on_average else "on each request"
    spent = "" if results.one_price else f"Budgets are spent {whose}. "
    lead = f"{spent}Every policy spends by the same rule; only what it expects of a model on a prompt differs."
    return Section("Policies", [Table(heads, rows)], lead)


def _cell(value: Interval | None) -> Cell | None:
    if value is None:
        return None
    ends = (float(value.lower), float(value.estimate), float(value.upper))
    return Cell(percents(ends[1]), ends[1], note=f"{percents(ends[0])} to {percents(ends[2])}", bar=ends)


def _scale(cells: Sequence[Cell | None]) -> Scale:
    return Scale.around([end for cell in cells if cell is not None and cell.bar for end in cell.bar])


def _ratio(value: Interval | None) -> Cell | None:
    if value is None:
        return None
    text, ends = _cost(value)
    return Cell(text, value.estimate if math.isfinite(value.estimate) else 1e9, note=ends)


def _cost(value: Interval) -> tuple[str, str]:
    """Return the cost of a score as a share, and the ends of its interval; no ends where the score is never reached."""
    texts = [percents(number) if math.isfinite(number) else "never" for number in value[:3]]
    return texts[0], "" if set(texts) == {"never"} else f"{texts[1]} to {texts[2]}"


def _gain(value: Interval | None) -> Cell | None:
    if value is None:
        return None
    tone = "good" if value.lower > 0 else "bad" if value.upper < 0 else ""
    text = f"{'+' if value.estimate > 0 else ''}{_points(value.estimate)}"
    return Cell(text, float(value.estimate), tone, f"{_span(value)} points")


def _measures(results: Results) -> Section:
    """Return the figures of the router, each with what it means."""
    router = results.policies["p2l"]
    rows = [
        _measure("Score with the largest budget", router.accuracy, "Mean score where money is no object."),
        _measure(
            "Mean over budgets",
            router.area,
            "Height of the curve over the logarithm of cost, between the cheapest and the most expensive model: the "
            "score of a user whose budget may be any order of magnitude there.",
        ),
        _measure(
            "At the single model's cost", router.at_equal_cost, "Mean score for what the best single model costs."
        ),
    ]
    if router.cost_ratio is not None:
        meaning = "Cost at which the router has the score of the best single model, as a share of that model's cost."
        rows.append(Measure("Cost at its score", *_cost(router.cost_ratio), meaning))
    rows.append(
        _measure(
            "Differences foreseen",
            router.explained,
            "Share that the router foresees of how answers differ, once it is known how good each model and how hard "
            "each prompt is. Only this can tell it to choose another model for this prompt than for the next.",
        )
    )
    for name, bins in (("of all answers", results.pairs), ("of the chosen", results.chosen)):
        meaning = "Mean distance of expected from realised scores; 0% is perfect."
        if bins is results.chosen:
            meaning += " Choosing the highest expectation picks those that are too high as well."
        rows.append(Measure(f"Calibration error {name}", percents(calibration_error(bins)), "", meaning))
    return Section("Metrics", [MetricTable([row for row in rows if row is not None])])


def _measure(name: str, value: Interval | None, meaning: str) -> Measure | None:
    return None if value is None else Measure(name, percents(value.estimate), span(value, percents), meaning)


def calibration_figures(results: Results) -> list[Figure]:
    """Return how reliable expected scores are, of all answers and of those that were chosen."""
    pairs = (("all answers", results.pairs), ("chosen answers", results.chosen))
    figures = (reliability_figure(name, bins, of="answers") for name, bins in pairs)
    return [figure for figure in figures if figure is not None]


def _calibration(results: Results) -> Section:
    lead = "Of the answers that were expected to be usable with chance p, a share p should be."
    figures: list[Part] = [*calibration_figures(results)]
    return Section("Calibration", figures or [Prose("There is nothing to draw.", "quiet")], lead)


def _models(results: Results) -> Section:
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
    return Section("Models", [Table(heads, rows, shown=10)], lead)


def _settings(results: Results) -> list[str]:
    return [f"{one.about}: {'; '.join(one.settings)}" for one in results.policies.values() if one.settings]
