"""The tables of the report; each column is declared together with its cells. Nothing is computed from votes here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from p2l import likelihood as likelihoods
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.evaluation.results import CategoryResult, OutputResult, SubsetScore
from p2l.insight import Explanation, Strength
from p2l.leaderboard import Leaderboard, to_score
from p2l.leaderboard.newton import shift_invariant
from p2l.metrics import Interval

_NAMED = 3  # clusters that the table of models names on either side
_RANKS = ("Spearman-lbs", "Kendall-lbs", "L1-Dist-Prob")


def _table(*columns: tuple[Column, Sequence[Value]], shown: int = 60) -> Table:
    """Return a table of columns and their cells."""
    rows = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
    return Table([column for column, _ in columns], rows, shown=shown)


def _interval(value: Interval | None) -> Cell | None:
    """Return an estimate with its ends in a note and as a bar."""
    if value is None or not math.isfinite(value.estimate):
        return None
    ends = (float(value.lower), float(value.estimate), float(value.upper))
    low, middle, high = (_text(end) for end in ends)
    return Cell(middle, ends[1], note=f"{low} to {high}", bar=ends)


def _text(value: float) -> str:
    return number_text(float(value), 4)


def _scale(cells: Iterable[Value], zero: float | None = None) -> Scale | None:
    """Return the scale of the bars of some cells."""
    bars = [end for cell in cells if isinstance(cell, Cell) and cell.bar for end in cell.bar]
    return Scale.around(bars, zero) if bars else None


def _measured(one: CategoryResult, name: str) -> Cell | float | None:
    """Return a simple metric, with its interval where it has one."""
    value = (one.simple or {}).get(name)
    cell = _interval((one.intervals or {}).get(name))
    return value if cell is None or value is None else replace(cell, text=_text(value), sort=value)


def summary(result: OutputResult) -> Table:
    """Return a row for each category: how well its votes were forecast, how close its leaderboard is."""
    rows = result.categories
    loss, skill = [_measured(one, "Loss") for one in rows], [_interval(one.skill) for one in rows]
    errors = [None if one.reliability is None else one.reliability.errors()["overall"] for one in rows]
    ranks = [name for name in _RANKS if any(name in (one.comparison or {}) for one in rows)]
    links = [
        Cell(one.name, number, note=one.problem or "", link=f"category-{number}") for number, one in enumerate(rows)
    ]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("category", number=False), links),
        (Column("votes"), [one.votes for one in rows]),
        (Column("prompts"), [one.prompts for one in rows]),
        (Column("loss", note="nats per vote; lower is better", scale=_scale(loss)), loss),
        (
            Column("accuracy", 4, note="share of votes forecast; higher is better"),
            [_measured(one, "Accuracy") for one in rows],
        ),
        (
            Column("skill", 4, note="1 - loss / loss of one leaderboard for all prompts", scale=_scale(skill, 0.0)),
            skill,
        ),
        (Column("calibration error", 4, note="expected calibration error over all outcomes; lower is better"), errors),
    ]
    for name in ranks:
        column = Column(name, 4, note="model's leaderboard against the ground truth")
        columns.append((column, [(one.comparison or {}).get(name) for one in rows]))
    filled = [place < 4 or any(cell is not None for cell in cells) for place, (_, cells) in enumerate(columns)]
    return _table(*(column for column, is_filled in zip(columns, filled, strict=True) if is_filled))


def across(results: Sequence[OutputResult], metric: str) -> Table | None:
    """Return a row for each output, a column for each category; None where no output has the metric."""
    names = list(dict.fromkeys(one.name for result in results for one in result.categories if one.simple))
    by_name = [{one.name: _measured(one, metric) for one in result.categories} for result in results]
    columns = [[cells.get(name) for cells in by_name] for name in names]
    if all(value is None for column in columns for value in column):
        return None
    outputs = (Column("output", number=False), [result.name for result in results])
    return _table(outputs, *((Column(name, 4), cells) for name, cells in zip(names, columns, strict=True)))


def board(one: CategoryResult, level: float) -> Table | None:
    """Return ground truth and model side by side, in the order of the truth; models that it lacks come last."""
    if one.model is None:
        return None
    truth, model = one.truth, one.model
    shift = 0.0 if truth is None else _shift(truth, model)
    sides = [_scores(truth), _scores(model, shift)]
    ranks = [_ranks(side) for side in sides]
    order = sorted(model.models, key=lambda name: (ranks[0].get(name, math.inf), ranks[1].get(name, math.inf)))
    scale = _scale(cell for side in sides for cell in side.values()) or Scale.around([])
    votes = {} if truth is None or truth.votes is None else dict(zip(truth.models, truth.votes.tolist(), strict=True))
    score = f"score with {level:.0%} interval; 400 points are odds of 10 to 1"
    moved = [_moved(ranks[0].get(name), ranks[1].get(name)) for name in order]
    return _table(
        (Column("", 0, note="place in the ground truth"), [ranks[0].get(name) for name in order]),
        (Column("model", number=False), order),
        (Column("ground truth", 0, score, scale), [sides[0].get(name) for name in order]),
        (
            Column("forecast", 0, "aggregate of the evaluated model on these prompts", scale),
            [sides[1].get(name) for name in order],
        ),
        (Column("place", 0, "in the evaluated model's leaderboard"), [ranks[1].get(name) for name in order]),
        (Column("off by", 0, "places between the two"), moved),
        (Column("votes", 0), [votes.get(name) for name in order]),
        shown=25,
    )


def _shift(truth: Leaderboard, model: Leaderboard) -> float:
    """Return what to add to the model's coefficients so that both have one mean, where only differences count."""
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


def metrics(one: CategoryResult) -> Table | None:
    """Return simple metrics with their intervals, without those that do not apply to the likelihood."""
    rows: list[tuple[str, float, Interval | None]] = [
        (name, value, (one.intervals or {}).get(name))
        for name, value in (one.simple or {}).items()
        if value is not None
    ]
    if one.skill is not None:
        over = f" over the leaderboard of {one.skill_over} votes" if one.skill_over else ""
        rows.append((f"Skill{over}", float(one.skill.estimate), one.skill))
    if not rows:
        return None
    ends = [None if value is None else f"{_text(value.lower)} to {_text(value.upper)}" for _, _, value in rows]
    return _table(
        (Column("metric", number=False), [name for name, _, _ in rows]),
        (Column("value", 4), [value for _, value, _ in rows]),
        (Column("interval", number=False), ends),
    )


def comparison(one: CategoryResult) -> Table | None:
    """Return leaderboard metrics, of the pair or of each side."""
    rows = [row for name, value in (one.comparison or {}).items() for row in _comparison_rows(name, value)]
    heads = ("of the pair", "ground truth", "evaluated model")
    columns = [Column("metric", number=False), *(Column(head, 4) for head in heads)]
    return Table(columns, rows, shown=100) if rows else None


def _comparison_rows(name: str, value: Any) -> list[list[Any]]:
    if isinstance(value, Mapping):
        if set(value) <= {"ground-truth", "model-aggr"}:
            sides = [_number(value.get(side)) for side in ("ground-truth", "model-aggr")]
            return [[name, None, *sides]] if any(side is not None for side in sides) else []
        return [[f"{name}, k = {k}", _number(part), None, None] for k, part in value.items()]
    return [] if _number(value) is None else [[name, _number(value), None, None]]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


def models(one: CategoryResult) -> Table | None:
    """Return how well the votes of each model were forecast."""
    if not one.by_model:
        return None
    loss = [_interval(row.loss) for row in one.by_model]
    accuracy = [_interval(row.accuracy) for row in one.by_model]
    return _table(
        (Column("model", number=False), [row.model for row in one.by_model]),
        (Column("votes"), [row.votes for row in one.by_model]),
        (Column("loss", 4, "nats per vote of this model; lower is better", _scale(loss)), loss),
        (Column("accuracy", 4, scale=_scale(accuracy)), accuracy),
        shown=25,
    )


def subsets(result: OutputResult, kind: str) -> list[tuple[str, Table]]:
    """Return the numbers behind the curves of each category: a row for each size."""
    tables = []
    for one in result.categories:
        scores: Sequence[SubsetScore] = getattr(one, kind)
        names = list(dict.fromkeys(name for score in scores for name in score.numbers))
        if names:
            table = _table(
                (Column("votes" if kind == "subsets" else "prompts"), [score.size for score in scores]),
                (Column("samples"), [score.samples for score in scores]),
                *(
                    (
                        Column(name, 4),
                        [_interval(score.intervals.get(name)) or score.numbers.get(name) for score in scores],
                    )
                    for name in names
                ),
            )
            tables.append((one.name, table))
    return tables


def clusters(explanation: Explanation) -> Table:
    """Return the kinds of prompts."""
    kinds = explanation.clusters
    examples = [one.examples[0] if one.examples else None for one in kinds]
    return _table(
        (Column("cluster", number=False), [one.name for one in kinds]),
        (Column("prompts"), [one.prompts for one in kinds]),
        (Column("share", 3), [one.share for one in kinds]),
        (Column("typical words", number=False, wide=True), [", ".join(one.terms) for one in kinds]),
        (Column("for example", number=False, wide=True), examples),
    )


def strengths_of_models(explanation: Explanation) -> Table:
    """Return a row for each model: the clusters it does best and worst in."""
    cells = [explanation.of(name) for name in explanation.models]
    return _table(
        (Column("", 0, note="place overall"), range(1, len(cells) + 1)),
        (Column("model", number=False), explanation.models),
        (Column("better at", number=False, wide=True), [_named(one, "better", "good") for one in cells]),
        (Column("worse at", number=False, wide=True), [_named(one[::-1], "worse", "bad") for one in cells]),
        shown=40,
    )


def _named(cells: Sequence[Strength], verdict: str, tone: str) -> Cell:
    named = [cell for cell in cells if cell.verdict == verdict][:_NAMED]
    if not named:
        return Cell("–", 0.0, "quiet")
    return Cell("; ".join(f"{cell.cluster} ({_points(cell.change)})" for cell in named), abs(named[0].change), tone)


def _points(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.0f}"


def found(explanation: Explanation) -> Table:
    """Return every strength and weakness, the largest first."""
    cells = explanation.found
    scale = Scale.around([end for cell in cells for end in (cell.lower, cell.upper)], 0.0)
    points = f"with {explanation.level:.0%} interval over prompts"
    ranks = [Cell(str(cell.rank), cell.rank, note=f"{cell.rank_lower} to {cell.rank_upper}") for cell in cells]
    chance = "chance of winning against another model drawn at random"
    return _table(
        (Column("model", number=False), [cell.model for cell in cells]),
        (Column("cluster", number=False, wide=True), [cell.cluster for cell in cells]),
        (Column("points against overall", 0, points, scale), [_change(cell) for cell in cells]),
        (Column("place here", 0), ranks),
        (Column("place overall", 0), [cell.overall_rank for cell in cells]),
        (Column("beats the field here", 3, chance), [cell.win_rate for cell in cells]),
        (Column("overall", 3), [cell.overall_win_rate for cell in cells]),
        shown=20,
    )


def _change(cell: Strength) -> Cell:
    note = f"{_points(cell.lower)} to {_points(cell.upper)}"
    bar = (cell.lower, cell.change, cell.upper)
    return Cell(_points(cell.change), cell.change, "good" if cell.change > 0 else "bad", note, bar)
