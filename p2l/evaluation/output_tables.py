"""The tables and metrics of an evaluation, for its page and for the terminal; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def _measured(one: CategoryResult, name: str) -> Cell | None:
    """Return a simple metric, with its interval where it has one."""
    value = (one.simple or {}).get(name)
    cell = _interval((one.intervals or {}).get(name), name)
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
    lines = [
        f"{result.name}: {result.votes:,} votes on {result.prompts:,} prompts, {len(result.models)} models, "
        f"{result.model_type}, likelihood {result.likelihood}, {intervals}",
        "",
        *table_text(replace(table, rows=rows), top),
        *notes_text(_notes(result)),
    ]
    return "\n".join(lines)


def _notes(result: OutputResult) -> list[str]:
    notes = list(result.notes)
    for category in result.categories:
        if not category.problem:
            notes += [f"{category.name}: {note}" for note in category.notes]
        elif not (result.default_categories and category.votes == 0):
            # The default asks for all categories that an arena may have, so that nobody misses one.
            notes.append(f"{category.name} left out: {category.problem}")
    return notes


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
    names = list(dict.fromkeys(one.name for result in results for one in result.categories if one.simple))
    by_name = [{one.name: _measured(one, metric) for one in result.categories} for result in results]
    columns = [[cells.get(name) for cells in by_name] for name in names]
    if all(value is None for column in columns for value in column):
        return None
    outputs = (Column("Output", number=False), [result.name for result in results])
    return Table.of(outputs, *((Column(name), cells) for name, cells in zip(names, columns, strict=True)))


def board(one: CategoryResult, result: OutputResult) -> Table | None:
    """Return ground truth and model side by side, in the order of the truth; models that it lacks come last."""
    if one.model is None:
        return None
    truth, model = one.truth, one.model
    sides = sides_of(one)
    ranks = [_ranks(side) for side in sides]
    order = sorted(model.models, key=lambda name: (ranks[0].get(name, math.inf), ranks[1].get(name, math.inf)))
    scale = _scale(cell for side in sides for cell in side.values()) or Scale.around([])
    votes = {} if truth is None or truth.votes is None else dict(zip(truth.models, truth.votes.tolist(), strict=True))
    score = f"score with {result.level:.0%} interval; 400 points are odds of 10 to 1"
    moved = [_moved(ranks[0].get(name), ranks[1].get(name)) for name in order]
    return Table.of(
        (Column("#", 0, f"place {truth_name(result)}"), [ranks[0].get(name) for name in order]),
        (Column("Model", number=False), order),
        (Column(truth_name(result).capitalize(), 0, score, scale), [sides[0].get(name) for name in order]),
        (Column("By the forecast", 0, f"mean forecast; {score}", scale), [sides[1].get(name) for name in order]),
        (Column("Place by the forecast", 0), [ranks[1].get(name) for name in order]),
        (Column("Off by", 0, "places between the two"), moved),
        (Column("Votes", 0), [votes.get(name) for name in order]),
    )


def sides_of(one: CategoryResult) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """Return the scores by model of the ground truth and of the evaluated model, on one scale."""
    truth, model = one.truth, one.model
    shift = 0.0 if truth is None or model is None else _shift(truth, model)
    return _scores(truth), _scores(model, shift)


def _shift(truth: Leaderboard, model: Leaderboard) -> float:
    """Return what to add to the model's coefficients so that both have one mean, where only differences count."""
    # Of grounded coefficients the level means something, and stays.
    if not any(shift_invariant(likelihoods.get(side.likelihood)) for side in (truth, model)):
        return 0.0
    coef_of = dict(zip(model.models, model.coefs.tolist(), strict=True))
    gaps = [
        coef - coef_of[name]
        for name, coef in zip(truth.models, truth.coefs.tolist(), strict=True)
        if math.isfinite(coef - coef_of.get(name, math.nan))
    ]
    return float(np.mean(gaps)) if gaps else 0.0


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


def _moved(true: int | None, forecast: int | None) -> Cell | None:
    if true is None or forecast is None:
        return None
    gap = true - forecast
    return Cell("" if not gap else f"{'+' if gap > 0 else '−'}{abs(gap)}", abs(gap), "quiet")


def metrics(one: CategoryResult) -> list[Measure]:
    """Return the metrics of votes with their intervals, without those that do not apply to the likelihood."""
    measures = []
    if one.skill is not None:
        meaning = f"{about('Skill').sentence} Measured against {reference_name(one.skill_over)}."
        measures.append(_measure("Skill", float(one.skill.estimate), one.skill, meaning))
    intervals = one.intervals or {}
    rows = {name: value for name, value in (one.simple or {}).items() if value is not None}
    return measures + [_measure(name, value, intervals.get(name)) for name, value in rows.items()]


def comparison(one: CategoryResult) -> list[Measure]:
    """Return the metrics of the leaderboard: of the pair, or of each side."""
    return [row for name, value in (one.comparison or {}).items() for row in _comparison_rows(name, value)]


def _measure(name: str, value: float, interval: Interval | None = None, meaning: str = "") -> Measure:
    entry = about(name)
    ends = "" if interval is None or not math.isfinite(interval.lower) else span(interval, entry.text)
    return Measure(entry.title, entry.text(value), ends, meaning or entry.sentence)


def _comparison_rows(name: str, value: Any) -> Iterator[Measure]:
    entry = about(name)
    if isinstance(value, Mapping):
        if set(value) <= {"ground-truth", "model-aggr"}:
            sides = [_compared(value.get(side)) for side in ("ground-truth", "model-aggr")]
            texts = ["–" if side is None else entry.text(side) for side in sides]
            if texts != ["–", "–"]:
                yield Measure(entry.title, texts[1], f"ground truth {texts[0]}", entry.sentence)
            return
        for k, part in value.items():
            if (number := _compared(part)) is not None:
                yield replace(_measure(name, number), name=f"{entry.title}, k = {k}")
    elif (number := _compared(value)) is not None:
        yield _measure(name, number)


def _compared(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


def models(one: CategoryResult) -> Table | None:
    """Return how well the votes of each model were forecast."""
    if not one.by_model:
        return None
    loss = [_interval(row.loss, "Loss") for row in one.by_model]
    accuracy = [_interval(row.accuracy, "Accuracy") for row in one.by_model]
    return Table.of(
        (Column("Model", number=False), [row.model for row in one.by_model]),
        (Column("Votes"), [row.votes for row in one.by_model]),
        (Column("Loss", note="nats per vote of this model; lower is better", scale=_scale(loss)), loss),
        (Column("Accuracy", note="higher is better", scale=_scale(accuracy)), accuracy),
    )


def subsets(result: OutputResult, kind: str) -> list[Table]:
    """Return the numbers behind the curves of each category: a row for each size."""
    tables = []
    for one in result.categories:
        scores: Sequence[SubsetScore] = getattr(one, kind)
        names = list(dict.fromkeys(name for score in scores for name in score.numbers))
        if names:
            table = Table.of(
                (Column("Votes" if kind == "subsets" else "Prompts"), [score.size for score in scores]),
                (Column("Samples"), [score.samples for score in scores]),
                *((Column(about(name).title), [_of_subset(score, name) for score in scores]) for name in names),
            )
            tables.append(replace(table, caption=one.name))
    return tables


def _of_subset(score: SubsetScore, name: str) -> Cell | None:
    cell = _interval(score.intervals.get(name), name) or _number(score.numbers.get(name), name)
    return None if cell is None else replace(cell, bar=None)
