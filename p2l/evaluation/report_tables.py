"""The tables of the report: from what an evaluation found to columns and cells. Nothing is computed from votes here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def _interval(value: Interval | None, digits: int = 4) -> Cell | None:
    """An estimate with its ends in a note and as a bar."""
    if value is None or not math.isfinite(value.estimate):
        return None
    ends = (float(value.lower), float(value.estimate), float(value.upper))
    low, middle, high = (number_text(end, digits) for end in ends)
    return Cell(middle, ends[1], note=f"{low} to {high}", bar=ends)


def _scale(cells: Sequence[Cell | None], zero: float | None = None) -> Scale | None:
    bars = [end for cell in cells if cell is not None and cell.bar for end in cell.bar]
    return Scale.around(bars, zero) if bars else None


def _measured(one: CategoryResult, name: str) -> Cell | float | None:
    """A simple metric, with its interval where it has one."""
    value = (one.simple or {}).get(name)
    cell = _interval((one.intervals or {}).get(name))
    return value if cell is None or value is None else replace(cell, text=_text(value), sort=value)


def _cells(column: Sequence[Any]) -> list[Cell | None]:
    return [cell if isinstance(cell, Cell) else None for cell in column]


def summary(result: OutputResult) -> Table:
    """A row for each category: how well its votes were forecast, how close its leaderboard is."""
    rows = result.categories
    loss = [_measured(one, "Loss") for one in rows]
    accuracy = [_measured(one, "Accuracy") for one in rows]
    skill = [_interval(one.skill) for one in rows]
    ranks = [name for name in _RANKS if any(name in (one.comparison or {}) for one in rows)]
    columns = [
        Column("category", number=False),
        Column("votes"),
        Column("prompts"),
        Column("loss", note="nats per vote; lower is better", scale=_scale(_cells(loss))),
        Column("accuracy", 4, note="share of votes forecast; higher is better"),
        Column("skill", 4, note="1 - loss / loss of one leaderboard for all prompts", scale=_scale(skill, 0.0)),
        Column("calibration error", 4, note="expected calibration error over all outcomes; lower is better"),
        *(Column(name, 4, note="model's leaderboard against the ground truth") for name in ranks),
    ]
    cells = [
        [
            Cell(one.name, number, note=one.problem or "", link=f"category-{number}"),
            one.votes,
            one.prompts,
            loss[number],
            accuracy[number],
            skill[number],
            None if one.reliability is None else one.reliability.errors()["overall"],
            *((one.comparison or {}).get(name) for name in ranks),
        ]
        for number, one in enumerate(rows)
    ]
    used = [place for place in range(len(columns)) if place < 4 or any(row[place] is not None for row in cells)]
    return Table([columns[place] for place in used], [[row[place] for place in used] for row in cells])


def across(results: Sequence[OutputResult], metric: str) -> Table | None:
    """A row for each output, a column for each category; None where no output has the metric."""
    names = list(dict.fromkeys(one.name for result in results for one in result.categories if one.simple))
    rows = [
        [result.name, *(_of_category(result, name, metric) for name in names)]
        for result in results
    ]  # fmt: skip
    if all(value is None for row in rows for value in row[1:]):
        return None
    return Table([Column("output", number=False), *(Column(name, 4) for name in names)], rows)


def _of_category(result: OutputResult, name: str, metric: str) -> Cell | float | None:
    return next((_measured(one, metric) for one in result.categories if one.name == name), None)


def board(one: CategoryResult, level: float) -> Table | None:
    """Ground truth and model side by side, in the order of the truth; models that the truth lacks come last."""
    if one.model is None:
        return None
    truth, model = one.truth, one.model
    shift = 0.0 if truth is None else _shift(truth, model)
    sides = [_scores(truth), _scores(model, shift)]
    ranks = [_ranks(side) for side in sides]
    order = sorted(model.models, key=lambda name: (ranks[0].get(name, math.inf), ranks[1].get(name, math.inf)))
    scale = Scale.around([end for side in sides for cell in side.values() for end in cell.bar or ()])
    columns = [
        Column("", 0, note="place in the ground truth"),
        Column("model", number=False),
        Column("ground truth", 0, f"score with {level:.0%} interval; 400 points are odds of 10 to 1", scale),
        Column("forecast", 0, "aggregate of the evaluated model on these prompts", scale),
        Column("place", 0, "in the evaluated model's leaderboard"),
        Column("off by", 0, "places between the two"),
        Column("votes", 0),
    ]
    votes = {} if truth is None or truth.votes is None else dict(zip(truth.models, truth.votes.tolist(), strict=True))
    rows = [
        [
            ranks[0].get(name),
            name,
            sides[0].get(name),
            sides[1].get(name),
            ranks[1].get(name),
            _moved(ranks[0].get(name), ranks[1].get(name)),
            votes.get(name),
        ]
        for name in order
    ]
    return Table(columns, rows, shown=25)


def _shift(truth: Leaderboard, model: Leaderboard) -> float:
    """What to add to the model's coefficients where only differences count: both then have one mean over models."""
    if not any(shift_invariant(likelihoods.get(side.likelihood)) for side in (truth, model)):
        return 0.0
    coef_of = dict(zip(model.models, model.coefs.tolist(), strict=True))
    gaps = [
        finite - coef_of[name]
        for name, finite in zip(truth.models, truth.coefs.tolist(), strict=True)
        if name in coef_of
    ]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return float(np.mean(finite)) if finite else 0.0


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


def _moved(true: int | None, coef_of: int | None) -> Cell | None:
    if true is None or coef_of is None:
        return None
    gap = true - coef_of
    return Cell("" if not gap else f"{'+' if gap > 0 else '−'}{abs(gap)}", abs(gap), "quiet")


def metrics(one: CategoryResult) -> Table | None:
    """Simple metrics with their intervals; those that do not apply to the likelihood are left out."""
    rows: list[list[Any]] = []
    for name, value in (one.simple or {}).items():
        if value is None:
            continue
        interval = (one.intervals or {}).get(name)
        rows.append([name, value, None if interval is None else f"{_text(interval.lower)} to {_text(interval.upper)}"])
    if one.skill is not None:
        over = f" over the leaderboard of {one.skill_over} votes" if one.skill_over else ""
        ends = f"{_text(one.skill.lower)} to {_text(one.skill.upper)}"
        rows.append([f"Skill{over}", float(one.skill.estimate), ends])
    columns = [Column("metric", number=False), Column("value", 4), Column("interval", number=False)]
    return Table(columns, rows) if rows else None


def _text(value: float) -> str:
    return number_text(float(value), 4)


def comparison(one: CategoryResult) -> Table | None:
    """Leaderboard metrics: of the pair, or of each side."""
    rows: list[list[Any]] = []
    for name, value in (one.comparison or {}).items():
        rows += _comparison_rows(name, value)
    if not rows:
        return None
    columns = [
        Column("metric", number=False),
        Column("of the pair", 4),
        Column("ground truth", 4),
        Column("evaluated model", 4),
    ]
    return Table(columns, rows, shown=100)


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
    """How well the votes of each model were forecast."""
    if not one.by_model:
        return None
    loss = [_interval(row.loss) for row in one.by_model]
    accuracy = [_interval(row.accuracy) for row in one.by_model]
    columns = [
        Column("model", number=False),
        Column("votes"),
        Column("loss", 4, "nats per vote of this model; lower is better", _scale(loss)),
        Column("accuracy", 4, scale=_scale(accuracy)),
    ]
    rows = [[row.model, row.votes, loss[place], accuracy[place]] for place, row in enumerate(one.by_model)]
    return Table(columns, rows, shown=25)


def subsets(result: OutputResult, kind: str) -> list[tuple[str, Table]]:
    """For each category, the numbers behind the curves: a row for each size."""
    tables = []
    for one in result.categories:
        scores: Sequence[SubsetScore] = getattr(one, kind)
        names = list(dict.fromkeys(name for score in scores for name in score.values))
        names = [name for name in names if any(_number(score.values.get(name)) is not None for score in scores)]
        if not names:
            continue
        rows = [
            [score.size, score.samples, *(_subset_cell(score, name) for name in names)]
            for score in scores
        ]  # fmt: skip
        columns = [
            Column("votes" if kind == "subsets" else "prompts"),
            Column("samples"),
            *(Column(name, 4) for name in names),
        ]
        tables.append((one.name, Table(columns, rows)))
    return tables


def _subset_cell(score: SubsetScore, name: str) -> Cell | float | None:
    cell = _interval(score.intervals.get(name))
    value = _number(score.values.get(name))
    return value if cell is None or value is None else cell


def clusters(explanation: Explanation) -> Table:
    """The kinds of prompts."""
    columns = [
        Column("cluster", number=False),
        Column("prompts"),
        Column("share", 3),
        Column("typical words", number=False, wide=True),
        Column("for example", number=False, wide=True),
    ]
    rows: list[list[Value]] = [
        [one.name, one.prompts, one.share, ", ".join(one.terms), one.examples[0] if one.examples else None]
        for one in explanation.clusters
    ]
    return Table(columns, rows)


def strengths_of_models(explanation: Explanation) -> Table:
    """A row for each model: the clusters it does best and worst in."""
    columns = [
        Column("", 0, note="place overall"),
        Column("model", number=False),
        Column("better at", number=False, wide=True),
        Column("worse at", number=False, wide=True),
    ]
    rows: list[list[Value]] = []
    for place, name in enumerate(explanation.models, 1):
        cells = explanation.of(name)
        better = [cell for cell in cells if cell.verdict == "better"][:_NAMED]
        worse = [cell for cell in reversed(cells) if cell.verdict == "worse"][:_NAMED]
        rows.append([place, name, _named(better, "good"), _named(worse, "bad")])
    return Table(columns, rows, shown=40)


def _named(cells: Sequence[Strength], tone: str) -> Cell:
    if not cells:
        return Cell("–", 0.0, "quiet")
    text = "; ".join(f"{cell.cluster} ({_points(cell.change)})" for cell in cells)
    return Cell(text, abs(cells[0].change), tone)


def _points(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.0f}"


def found(explanation: Explanation) -> Table:
    """Every strength and weakness that was found, the largest first."""
    cells = explanation.found
    scale = Scale.around([end for cell in cells for end in (cell.lower, cell.upper)], 0.0)
    columns = [
        Column("model", number=False),
        Column("cluster", number=False, wide=True),
        Column("points against overall", 0, f"with {explanation.level:.0%} interval over prompts", scale),
        Column("place here", 0),
        Column("place overall", 0),
        Column("beats the field here", 3, "chance of winning against another model drawn at random"),
        Column("overall", 3),
    ]
    rows: list[list[Value]] = [
        [
            cell.model,
            cell.cluster,
            _change(cell),
            Cell(str(cell.rank), cell.rank, note=f"{cell.rank_lower} to {cell.rank_upper}"),
            cell.overall_rank,
            cell.win_rate,
            cell.overall_win_rate,
        ]
        for cell in cells
    ]
    return Table(columns, rows, shown=20)


def _change(cell: Strength) -> Cell:
    note = f"{_points(cell.lower)} to {_points(cell.upper)}"
    bar = (cell.lower, cell.change, cell.upper)
    return Cell(_points(cell.change), cell.change, "good" if cell.change > 0 else "bad", note, bar)
