"""The tables and metrics of an evaluation, for its page and for the terminal; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from p2l import likelihood as likelihoods
from p2l.common.report.reports import Measure, span
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.common.report.text import notes_text, table_text
from p2l.evaluation.results import CategoryResult, OutputResult, SubsetScore
from p2l.leaderboard import Leaderboard, to_score
from p2l.leaderboard.newton import shift_invariant
from p2l.metrics import Interval, about

_TRUTHS = {"arena": "by the arena", "marginal-gt": "by the votes"}
_BOARDS = {"arena": "the arena's leaderboard", "marginal-gt": "the votes' leaderboard"}
_OVER = {
    "train": "one leaderboard of the training votes",
    "train, all votes": "one leaderboard of all training votes",
    "validation": "one leaderboard fitted to these very votes",
}


def truth_name(result: OutputResult) -> str:
    """Return what heads the ground truth's column."""
    return _TRUTHS.get(result.ground_truth, result.ground_truth)


def reference_name(over: str | None) -> str:
    """Return which leaderboard the skill of a category is measured against."""
    return _OVER.get(over or "", "one leaderboard for all prompts")


def _interval(value: Interval | None, name: str) -> Cell | None:
    """Return an estimate of a metric with its ends in a note and as a bar."""
    if value is None or not math.isfinite(value.estimate):
        return None
    ends = (float(value.lower), float(value.estimate), float(value.upper))
    text = about(name).text
    return Cell(text(ends[1]), ends[1], note=f"{text(ends[0])} to {text(ends[2])}", bar=ends)


def _number(value: float | None, name: str) -> Cell | None:
    return None if value is None or not math.isfinite(value) else Cell(about(name).text(value), value)


def _scale(cells: Iterable[Value], zero: float | None = None) -> Scale | None:
    """Return the scale of the bars of some cells."""
    bars = [end for cell in cells if isinstance(cell, Cell) and cell.bar for end in cell.bar]
    return Scale.around(bars, zero) if bars else None


def _measured(category: CategoryResult, name: str) -> Cell | None:
    """Return a simple metric, with its interval where it has one."""
    value = (category.simple or {}).get(name)
    cell = _interval((category.intervals or {}).get(name), name)
    if cell is None or value is None:
        return _number(value, name)
    return replace(cell, text=about(name).text(value), sort=value)


def output_text(result: OutputResult, *, top: int | None = None) -> str:
    """Return a table of the measured categories, the first `top` of them, and the notes below it."""
    measured = [category for category in result.categories if category.problem is None]
    intervals = f"{result.level:.0%} intervals" if any(category.intervals for category in measured) else "no intervals"
    table = summary(replace(result, categories=tuple(measured)))
    # A terminal has no pointer to rest on a number.
    rows = [
        [
            replace(cell, text=f"{cell.text} ({cell.note})") if isinstance(cell, Cell) and cell.bar else cell
            for cell in row
        ]
        for row in table.rows
    ]
    notes = list(result.notes)
    for category in result.categories:
        if not category.problem:
            notes += [f"{category.name}: {note}" for note in category.notes]
        elif not (result.default_categories and category.votes == 0):
            # The default asks for all categories that an arena may have, so that nobody misses one.
            notes.append(f"{category.name} left out: {category.problem}")
    lines = [
        f"{result.name}: {result.votes:,} votes on {result.prompts:,} prompts, {len(result.models)} models, "
        f"{result.model_type}, likelihood {result.likelihood}, {intervals}",
        "",
        *table_text(replace(table, rows=rows), top),
        *notes_text(notes),
    ]
    return "\n".join(lines)


def summary(result: OutputResult) -> Table:
    """Return a row for each category: how well its votes were forecast, how close its leaderboard is."""
    rows = result.categories
    links = [
        Cell(row.name, number, note=row.problem or "", link=f"category-{number}") for number, row in enumerate(rows)
    ]
    loss = [_measured(row, "Loss") for row in rows]
    skill = [_interval(row.skill, "Skill") for row in rows]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Category", number=False), links),
        (Column("Votes"), [row.votes for row in rows]),
        (Column("Prompts", page_only=True), [row.prompts for row in rows]),
        (Column("Loss", note=about("Loss").sentence, scale=_scale(loss)), loss),
        (Column("Accuracy", note=about("Accuracy").sentence), [_measured(row, "Accuracy") for row in rows]),
        (Column("Skill over marginal", note=about("Skill").sentence, scale=_scale(skill, 0.0)), skill),
        (
            Column(about("ECE").title, note=about("ECE").sentence, page_only=True),
            [_measured(row, "ECE") for row in rows],
        ),
    ]
    # A fit of the votes themselves is no truth, so it is named.
    distance = f"L1 to {_BOARDS.get(result.ground_truth, result.ground_truth)}"
    for name, title in (("L1-Dist-Prob", distance), ("Spearman-lbs", "Spearman")):
        cells = [_number(_compared((row.comparison or {}).get(name)), name) for row in rows]
        columns.append((Column(title, note=about(name).sentence), cells))
    filled = [place < 4 or any(cell is not None for cell in cells) for place, (_, cells) in enumerate(columns)]
    return Table.of(*(column for column, is_filled in zip(columns, filled, strict=True) if is_filled), shown=10)


def across(results: Sequence[OutputResult], metric: str) -> Table | None:
    """Return a row for each output, a column for each category; None where no output has the metric."""
    names = list(dict.fromkeys(row.name for result in results for row in result.categories if row.simple))
    by_name = [{row.name: _measured(row, metric) for row in result.categories} for result in results]
    columns = [[cells.get(name) for cells in by_name] for name in names]
    if all(value is None for column in columns for value in column):
        return None
    outputs = (Column("Output", number=False), [result.name for result in results])
    return Table.of(outputs, *((Column(name), cells) for name, cells in zip(names, columns, strict=True)))


def board(category: CategoryResult, result: OutputResult) -> Table | None:
    """Return ground truth and model side by side, in the order of the truth; models that it lacks come last."""
    truth, model = category.truth, category.model
    if model is None:
        return None
    true_scores, scores = sides_of(category)
    true_ranks, ranks = _ranks(true_scores), _ranks(scores)
    order = sorted(model.models, key=lambda name: (true_ranks.get(name, math.inf), ranks.get(name, math.inf)))
    scale = _scale([*true_scores.values(), *scores.values()]) or Scale.around([])
    votes = {} if truth is None or truth.votes is None else dict(zip(truth.models, truth.votes.tolist(), strict=True))
    score = f"score with {result.level:.0%} interval; 400 points are odds of 10 to 1"
    moves: list[Value] = []
    for name in order:
        gap = true_ranks[name] - ranks[name] if name in true_ranks and name in ranks else None
        sign = "+" if gap and gap > 0 else "−"
        moves.append(None if gap is None else Cell(f"{sign}{abs(gap)}" if gap else "", abs(gap), "quiet"))
    return Table.of(
        (Column("#", 0, f"place {truth_name(result)}"), [true_ranks.get(name) for name in order]),
        (Column("Model", number=False), order),
        (Column(truth_name(result).capitalize(), 0, score, scale), [true_scores.get(name) for name in order]),
        (Column("By the forecast", 0, f"mean forecast; {score}", scale), [scores.get(name) for name in order]),
        (Column("Place by the forecast", 0), [ranks.get(name) for name in order]),
        (Column("Off by", 0, "places between the two"), moves),
        (Column("Votes", 0), [votes.get(name) for name in order]),
    )


def sides_of(category: CategoryResult) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """Return the scores by model of the ground truth and of the evaluated model, on one scale."""
    truth, model = category.truth, category.model
    shift = 0.0
    # Where only differences count both sides get one mean; of grounded coefficients the level means something, and
    # stays.
    if truth and model and any(shift_invariant(likelihoods.get(side.likelihood)) for side in (truth, model)):
        coef_of = dict(zip(model.models, model.coefs.tolist(), strict=True))
        gaps = [
            coef - coef_of[name]
            for name, coef in zip(truth.models, truth.coefs.tolist(), strict=True)
            if math.isfinite(coef - coef_of.get(name, math.nan))
        ]
        shift = float(np.mean(gaps)) if gaps else 0.0
    return _scores(truth), _scores(model, shift)


def _scores(side: Leaderboard | None, shift: float = 0.0) -> dict[str, Cell]:
    if side is None:
        return {}
    ends = [to_score(values + shift).tolist() for values in (side.lower, side.coefs, side.upper)]
    return {
        name: Cell(
            number_text(score, 0),
            score,
            note=f"{number_text(lower, 0)} to {number_text(upper, 0)}" if math.isfinite(lower) else "",
            bar=(lower, score, upper),
        )
        for name, lower, score, upper in zip(side.models, *ends, strict=True)
        if math.isfinite(score)
    }


def _ranks(side: Mapping[str, Cell]) -> dict[str, int]:
    order = sorted(side, key=lambda name: -float(side[name].sort or 0.0))
    return {name: place for place, name in enumerate(order, 1)}


def metrics(category: CategoryResult) -> list[Measure]:
    """Return the metrics of votes with their intervals, without those that do not apply to the likelihood."""
    measures = []
    if category.skill is not None:
        meaning = f"{about('Skill').sentence} Measured against {reference_name(category.skill_over)}."
        measures.append(_measure("Skill", float(category.skill.estimate), category.skill, meaning))
    intervals = category.intervals or {}
    rows = {name: value for name, value in (category.simple or {}).items() if value is not None}
    return measures + [_measure(name, value, intervals.get(name)) for name, value in rows.items()]


def comparison(category: CategoryResult) -> list[Measure]:
    """Return the metrics of the leaderboard: of the pair, of each side, or for each k."""
    measures = []
    for name, value in (category.comparison or {}).items():
        entry = about(name)
        if isinstance(value, Mapping) and set(value) <= {"ground-truth", "model-aggr"}:
            sides = [_compared(value.get(side)) for side in ("ground-truth", "model-aggr")]
            texts = ["–" if side is None else entry.text(side) for side in sides]
            if texts != ["–", "–"]:
                measures.append(Measure(entry.title, texts[1], f"ground truth {texts[0]}", entry.sentence))
        elif isinstance(value, Mapping):
            for k, number_at_k in value.items():
                if (number := _compared(number_at_k)) is not None:
                    measures.append(replace(_measure(name, number), name=f"{entry.title}, k = {k}"))
        elif (number := _compared(value)) is not None:
            measures.append(_measure(name, number))
    return measures


def _measure(name: str, value: float, interval: Interval | None = None, meaning: str = "") -> Measure:
    entry = about(name)
    ends = "" if interval is None or not math.isfinite(interval.lower) else span(interval, entry.text)
    return Measure(entry.title, entry.text(value), ends, meaning or entry.sentence)


def _compared(value: Any) -> float | None:
    """Return a metric of leaderboards that is a number, and not a list of names."""
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


def models(category: CategoryResult) -> Table | None:
    """Return how well the votes of each model were forecast."""
    rows = category.by_model
    if not rows:
        return None
    loss = [_interval(row.loss, "Loss") for row in rows]
    accuracy = [_interval(row.accuracy, "Accuracy") for row in rows]
    return Table.of(
        (Column("Model", number=False), [row.model for row in rows]),
        (Column("Votes"), [row.votes for row in rows]),
        (Column("Loss", note="nats per vote of this model; lower is better", scale=_scale(loss)), loss),
        (Column("Accuracy", note="higher is better", scale=_scale(accuracy)), accuracy),
    )


def subsets(result: OutputResult, kind: str) -> list[Table]:
    """Return the numbers behind the curves of each category: a row for each size."""
    tables = []
    for category in result.categories:
        scores: Sequence[SubsetScore] = getattr(category, kind)
        columns: list[tuple[Column, Sequence[Value]]] = [
            (Column("Votes" if kind == "subsets" else "Prompts"), [score.size for score in scores]),
            (Column("Samples"), [score.samples for score in scores]),
        ]
        names = list(dict.fromkeys(name for score in scores for name in score.numbers))
        for name in names:
            cells = [
                _interval(score.intervals.get(name), name) or _number(score.numbers.get(name), name) for score in scores
            ]
            # The curves above show the intervals: bars would say them twice.
            columns.append((Column(about(name).title), [cell and replace(cell, bar=None) for cell in cells]))
        if names:
            tables.append(replace(Table.of(*columns), caption=category.name))
    return tables
