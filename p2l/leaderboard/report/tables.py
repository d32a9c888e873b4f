"""The tables of the page of a leaderboard."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from p2l.common.report.charts import percent
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.leaderboard.board import Floats, to_score
from p2l.leaderboard.covariates import Effect
from p2l.leaderboard.history import History
from p2l.leaderboard.report.ranking import Ranking, Step

FIELD = "the chance of winning a vote against another model drawn at random; ties count half"
_EARLIER_PERIODS = 5
_INTERVALS_OF = {
    "votes": "of the score, as other votes would have it",
    "prompts": "of the score, as other prompts would have it",
    "prompts and model": "of the score, as other prompts would have it, and with what the votes leave open about these",
    "model": "of the score against the other models: what the votes leave open about this prompt",
}


def board_table(ranking: Ranking, shown: int = 60) -> Table:
    """Return the models, the best first: ranks, score with its interval, win rate, how surely above the next, votes."""
    board, number = ranking.board, len(ranking.names)
    lower, score, upper = ranking.scores
    # The scale holds the scores with room for an interval, so that one wide interval hides no other.
    widths = (upper - lower)[np.isfinite(upper - lower)]
    room = float(np.median(widths)) if len(widths) else 0.0
    scale = Scale.around([*(score - room).tolist(), *(score + room).tolist()])
    ends = zip(lower.tolist(), score.tolist(), upper.tolist(), strict=True)
    scores: list[Value] = [_score_cell(bar[1], bar) for bar in ends]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Rank", 0), range(1, number + 1)),
        (Column("Model", number=False), ranking.names),
        (Column("Score", 0, "400 points more are odds of 10 to 1", scale), scores),
    ]
    if ranking.has_intervals:
        spread = "the best and the worst rank that the model may have"
        columns.append(
            (Column(f"{board.level:.0%} interval", note=_INTERVALS_OF[board.intervals_of]), _intervals(ranking))
        )
        ranks: list[Value] = [
            Cell(f"{best}" if best == worst else f"{best}–{worst}", best + worst / 10_000)
            for best, worst in ranking.ranks
        ]
        columns.append((Column("Ranks", note=spread), ranks))
    if board.certificate is not None:
        removed, reversed_votes = board.certificate.rank_removed, board.certificate.rank_reversed
        fewest = "the fewest votes whose removal changes the model's rank"
        columns.append((Column("Rests on", 0, fewest), _numbers(removed[ranking.order])))
        fewest = "the fewest votes that change the model's rank when they are turned to the other model"
        columns.append((Column("Turned by", 0, fewest, page_only=True), _numbers(reversed_votes[ranking.order])))
    rates: list[Value] = []
    for low, rate, high in zip(*(values.tolist() for values in ranking.rates), strict=True):
        note = f"{percent(low, 1)} to {percent(high, 1)}" if math.isfinite(low) else ""
        rates.append(Cell(percent(rate, 1), round(rate, 5), note=note))
    columns.append((Column("Beats the field", note=FIELD), rates))
    if ranking.has_differences:
        chances: list[Value] = [_chance_cell(step) for step in ranking.steps]
        above = "the chance that the model is truly better than the next"
        columns.append((Column("Above the next", note=above, page_only=True), [*chances, None]))
    if board.votes is not None:
        columns.append((Column("Votes", 0, "that count for the model"), board.votes[ranking.order].tolist()))
    parts = board.components[ranking.order].tolist()
    if len(set(parts)) > 1:
        columns.append(
            (
                Column("Part (component)", 0, "models of different parts were never compared"),
                [1 + part for part in parts],
            )
        )
    return model_table(columns, shown)


def model_table(columns: Sequence[tuple[Column, Sequence[Value]]], shown: int, caption: str = "") -> Table:
    """Return a table of models, which can be filtered by name."""
    return Table.of(*columns, shown=shown, caption=caption, filter="models")


def _score_cell(score: float, bar: tuple[float, float, float] | None = None) -> Cell:
    # Scores go without commas, as on public leaderboards.
    return Cell(number_text(score, 0).replace(",", ""), round(score, 2), bar=bar)


def _intervals(ranking: Ranking) -> list[Value]:
    lower, _, upper = ranking.scores
    return [_interval(*ends) for ends in zip(lower.tolist(), upper.tolist(), strict=True)]


def _numbers(values: Floats) -> list[Value]:
    """Return whole numbers, without one where there is NaN."""
    return [None if math.isnan(value) else round(value) for value in values.tolist()]


def _interval(lower: float, upper: float, digits: int = 0) -> Cell:
    if not math.isfinite(lower):
        return Cell("none", "", "quiet")  # of a model that nothing joins to the others
    ends = f"{number_text(lower, digits)} to {number_text(upper, digits)}"
    return Cell(ends.replace(",", ""), round(lower, 5))


def _chance_cell(step: Step) -> Cell | None:
    """Return the chance that a model is above the next."""
    return None if math.isnan(step.chance) else Cell(step.chance_text, round(step.chance, 5))


def step_table(steps: Sequence[Step], level: float) -> Table:
    """Return how each model stands above the next: difference with its interval, chance, and share of their votes."""
    ends = [end for step in steps for end in (step.lower, step.points, step.upper)]
    cells = [
        None
        if math.isnan(step.points)
        else Cell(number_text(step.points, 0), round(step.points, 2), bar=(step.lower, step.points, step.upper))
        for step in steps
    ]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("#", 0), range(1, len(steps) + 1)),
        (Column("Model", number=False), [step.above for step in steps]),
        (Column("The next", number=False), [step.below for step in steps]),
        (Column("Points above", 0, scale=Scale.around(ends, 0.0)), cells),
        (Column(f"{level:.0%} interval"), [_interval(step.lower, step.upper) for step in steps]),
        (Column("Truly better", note="the chance of it"), [_chance_cell(step) for step in steps]),
        (
            Column("Beats it", note="the chance of winning a vote; ties count half"),
            [None if math.isnan(step.rate) else Cell(percent(step.rate, 1), round(step.rate, 5)) for step in steps],
        ),
    ]
    return model_table(columns, 10)


def rates_table(ranking: Ranking, most: int) -> Table:
    """Return the chance of the first models of beating each other, as numbers on their colours."""
    rates = ranking.board.pair_rates(ranking.order[:most])
    farthest = float(np.nanmax(np.abs(rates - 0.5), initial=0.0, where=~np.isnan(rates))) or 1.0
    rows: list[list[Value]] = []
    for number, name in enumerate(ranking.names[:most]):
        cells = [
            None if place == number or math.isnan(rate) else Cell(percent(rate, 0), heat=(rate - 0.5) / farthest)
            for place, rate in enumerate(rates[number].tolist())
        ]
        rows.append([number + 1, name, *cells])
    heads = [Column(str(place), note=name, is_map=True) for place, name in enumerate(ranking.names[:most], 1)]
    return Table([Column("#", 0), Column("Model", number=False), *heads], rows)


def history_table(history: History, ranking: Ranking) -> Table:
    """Return the ranks of the newest period, how they changed since the one before, and scores at a few periods."""
    newest = history.periods[-1]
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Rank", 0, f"in {newest.label}"), range(1, len(ranking.names) + 1))
    ]
    if len(history.periods) > 1:
        # Among the models of the newest period: others that left it would move all below them.
        board, shown = history.periods[-2].board, set(ranking.names)
        names = [board.models[place] for place in np.argsort(-board.coefs, kind="stable")]
        before = {name: rank for rank, name in enumerate((name for name in names if name in shown), 1)}
        moves = [_moved(before.get(name), rank) for rank, name in enumerate(ranking.names, 1)]
        columns.append((Column("Change", note=f"of the rank since {history.periods[-2].label}"), moves))
    columns.append((Column("Model", number=False), ranking.names))
    # A few earlier periods evenly apart, the first and the last among them.
    earlier = len(history.periods) - 1
    places = np.unique(np.linspace(0, earlier - 1, min(_EARLIER_PERIODS, earlier)).round().astype(int))
    for period in [*(history.periods[place] for place in places), newest]:
        scores = dict(zip(period.board.models, to_score(period.board.coefs).tolist(), strict=True))
        cells: list[Value] = [_score_cell(scores[name]) if name in scores else None for name in ranking.names]
        columns.append((Column(period.label, note=f"{period.votes:,} votes of this period"), cells))
    if ranking.has_intervals:
        columns.append((Column(f"{newest.board.level:.0%} interval", note="of the newest score"), _intervals(ranking)))
    if newest.board.votes is not None:
        columns.append((Column("Votes", 0, "that count for the model"), newest.board.votes[ranking.order].tolist()))
    return model_table(columns, 10)


def _moved(before: int | None, now: int) -> Cell:
    if before is None:
        return Cell("new", "", "quiet")
    rise = before - now
    if not rise:
        return Cell("=", 0.0, "quiet")
    return Cell(f"{'+' if rise > 0 else '−'}{abs(rise)}", rise, "good" if rise > 0 else "bad")


def effect_table(effects: Sequence[Effect], level: float) -> Table:
    """Return what covariates add to the log-odds, with their intervals."""
    ends = [end for effect in effects for end in (effect.lower, effect.coef, effect.upper)]
    cells = [
        Cell(number_text(effect.coef, 3), round(effect.coef, 5), bar=(effect.lower, effect.coef, effect.upper))
        for effect in effects
    ]
    odds = [
        # Beyond 700 the exponential is no number.
        number_text(math.exp(min(effect.coef, 700.0)), 2) if effect.role == "difference" else ""
        for effect in effects
    ]
    return Table.of(
        (Column("Covariate", number=False), [effect.name for effect in effects]),
        (Column("Of", number=False), [effect.role for effect in effects]),
        (Column("Effect", 3, "on the log-odds, for one unit more", Scale.around(ends, 0.0)), cells),
        (Column(f"{level:.0%} interval"), [_interval(effect.lower, effect.upper, 3) for effect in effects]),
        (Column("Odds", note="by which one unit more multiplies the odds"), odds),
    )
