"""The report of a leaderboard: who leads and how surely, then ranks, neighbours, win rates, categories and history."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import date

import numpy as np

from p2l import likelihood as likelihoods
from p2l.common.prompts import familiarity_note, unfamiliar_note
from p2l.common.report.charts import Axes, Series, percent
from p2l.common.report.heat import Heat
from p2l.common.report.reports import (
    Figure,
    Fold,
    Forest,
    ForestRow,
    Part,
    Prose,
    Report,
    Section,
    Verdict,
    percents,
    today,
)
from p2l.common.report.tables import Cell, Column, Table, Value, number_text
from p2l.common.text_table import cut
from p2l.leaderboard.board import Floats, Leaderboard, Named, several, to_score
from p2l.leaderboard.history import History
from p2l.leaderboard.newton import shift_invariant
from p2l.leaderboard.report import tables
from p2l.leaderboard.report.ranking import Leaderboards, Ranking
from p2l.leaderboard.report.tables import FIELD, board_table, history_table, model_table

_DRAWN_MODELS = 15
"""Models of the picture below the verdict, and pairs of neighbours."""
_PLOTTED_BOARDS = 12
_NAMED_MODELS = 3
_MODELS_AS_NUMBERS = 12
"""Models whose win rates are written out; those of more are an image."""
_MODELS_OF_IMAGE = 200
"""Models of the image."""


def leaderboard_report(leaderboards: Leaderboards, subject: str, data: str) -> Report:
    """Return the report of leaderboards, of their history, or of both.

    Args:
        leaderboards: what was computed.
        subject: what heads the page; empty for the number of models.
        data: name of the votes or prompts.
    """
    boards, history = leaderboards.boards, leaderboards.history
    if boards:
        # Prompts have no leaderboard of everything: the first stands for all.
        main, groups = boards[0], boards if boards[0].by else boards[1:]
    else:
        assert history is not None
        votes = sum(period.votes for period in history.periods)
        main, groups = Named("", history.periods[-1].label, votes, history.newest), []
    ranking = Ranking.of(main.board, leaderboards.min_votes)
    provenance = leaderboards.provenance
    made = today() if provenance is None else date.fromisoformat(provenance.made)
    subject = subject or f"Leaderboard of {len(main.board.models)} models"
    if not ranking.names:
        verdict = Verdict(f"No model has {leaderboards.min_votes:,} votes, so none is listed.", "bad")
        return Report(
            kind="Leaderboard", subject=subject, data=data, made=made, verdict=verdict, picture=None, sections=[]
        )
    picture = None
    if main.by and len(groups) > 1:
        sections, verdict = prompt_sections(groups), _verdict_of_prompts(groups)
    else:
        verdict, picture = _verdict(main, ranking, leaderboards.unit), _scores(ranking, _DRAWN_MODELS, note=_note(main))
        sections = [_leaderboard(main, ranking)]
        if groups and not main.by:
            sections.append(category_section(ranking, groups, leaderboards))
        if history is not None:
            sections.append(history_section(history, leaderboards.min_votes))
        if len(ranking.names) > 1:
            sections += [_order(ranking), _win_rates(ranking)]
    effects = main.board.effects
    if effects:
        lead = "What decides votes besides the models; scores and win rates leave it out. Effects are on the log-odds."
        sections.append(Section("What else decides votes", [tables.effect_table(effects, main.board.level)], lead))
    return Report(
        kind="Leaderboard of votes" if leaderboards.unit == "votes" else "Leaderboard by a model's forecasts",
        subject=subject,
        data=data,
        made=made,
        verdict=verdict,
        picture=picture,
        sections=sections,
        facts=[*_facts(main, leaderboards.unit), *([] if provenance is None else provenance.facts)],
        notes=history.notes if history and not boards else main.board.notes,
        provenance="" if provenance is None else provenance.text,
    )


def _verdict(main: Named, ranking: Ranking, unit: str) -> Verdict:
    """Return who leads, and which other models may."""
    first, score, field = ranking.names[0], number_text(float(ranking.scores[1][0]), 0), percents(ranking.rates[1][0])
    name, where = cut(first, 60), f"on “{cut(main.group, 80)}” " if main.by else ""
    by = "" if unit == "votes" else "By the model's forecasts, "
    basis = f"{main.size:,} {unit}. " if not main.by else ""
    if not ranking.has_differences:
        sentence = f"{by}{name} comes first {where}with a score of {score}: it beats another model in {field} of votes."
        return Verdict(sentence, "", f"{basis}No intervals were computed, so how sure this is remains open.")
    lower, _, upper = (number_text(float(values[0]), 0) for values in ranking.scores)
    ends = f"{main.board.level:.0%} interval {lower} to {upper}"
    others = [cut(leader, 60) for leader in ranking.leaders if leader != first]
    reason, step = f"{basis}It beats another model drawn at random in {field} of votes. ", ranking.steps[0]
    if not math.isnan(step.chance):
        below = cut(step.below, 60)
        reason += f"The chance that it is truly better than the next, {below}, is {step.chance_text}. "
    if main.board.certificate is not None:
        reason += main.board.certificate.sentence
    if len(set(main.board.components.tolist())) > 1:
        return Verdict(
            f"{by}{name} has the highest score, {score} ({ends}), but not all models were compared, directly or "
            "through others: scores of different parts cannot be ranked against each other.",
            "",
            reason,
        )
    if not others:
        best = f"{by}{name} is the best of {len(ranking.names)} models, with a score of {score} ({ends})."
        return Verdict(best, "good", reason)
    but = f"{several(others, _NAMED_MODELS)} {'may be as good or better' if len(others) > 1 else 'may be better'}"
    return Verdict(f"{by}{name} has the highest score, {score} ({ends}), but {but}.", "", reason)


def _verdict_of_prompts(boards: Sequence[Named]) -> Verdict:
    """Return how many of the prompts each model comes first on."""
    firsts = Counter(Ranking.of(named.board).names[0] for named in boards).most_common()
    on = [f"{cut(name, 60)} on {count}" for name, count in firsts]
    strange = unfamiliar_note(named.board.familiarity for named in boards if named.board.familiarity is not None)
    reason = f"What a trained model forecasts for each prompt; how sure it is was not computed. {strange}".rstrip()
    return Verdict(f"Of {len(boards)} prompts, these models come first: {several(on, _NAMED_MODELS)}.", "", reason)


def leaderboard_figures(leaderboards: Leaderboards, top: int | None = None) -> tuple[list[Figure], str]:
    """Return the pictures of a history, or of the first leaderboards, with `top` models, and what is left out."""
    history, min_votes, boards = leaderboards.history, leaderboards.min_votes, leaderboards.boards
    if history is not None:
        leaders = Ranking.of(history.newest, min_votes).names[: top or HISTORY_LINES]
        return [history_figure(history, leaders)], f"the best {len(leaders)} of {len(history.models)} models"
    drawn = boards[:_PLOTTED_BOARDS]
    figures = [_scores(Ranking.of(named.board, min_votes), top, named.title, _note(named)) for named in drawn]
    return figures, f"the first {len(drawn)} of {len(boards)} leaderboards" if len(drawn) < len(boards) else ""


def _note(named: Named) -> str:
    """Return how far the leaderboard of a prompt is the overall one."""
    return familiarity_note(named.board.familiarity) if named.by == "prompt" else ""


def _scores(ranking: Ranking, top: int | None = None, title: str = "", note: str = "") -> Figure:
    """Return the scores of the first models; those that may be the best are marked."""
    leaders = set(ranking.leaders) if ranking.has_differences else set()
    rows = [
        ForestRow(name, lower, score, upper, "good" if name in leaders else "")
        for name, lower, score, upper in zip(
            ranking.names, *(values.tolist() for values in ranking.scores), strict=True
        )
    ][:top]
    interval = f" with {ranking.board.level:.0%} interval" if ranking.has_intervals else ""
    forest = Forest(rows, "Model", f"Score{interval}", _points, zero=None)
    which = "The models" if len(rows) == len(ranking.names) else f"The first {len(rows)} models"
    blue = " Those in blue may be the best." if len(leaders) > 1 else ""
    caption = f"400 points more are odds of 10 to 1.{blue}"
    return Figure(forest, title or which, caption, note=note)


def _leaderboard(main: Named, ranking: Ranking) -> Section:
    invariant = shift_invariant(likelihoods.get(main.board.likelihood))
    level = "the mean model has 1,000" if invariant else "1,000 is the level at which an answer is just usable"
    lead = f"400 points more are odds of 10 to 1, and {level}. “Beats the field” is {tables.FIELD}."
    if ranking.has_intervals:
        lead += (
            f" Bars are {main.board.level:.0%} intervals of the scores; ranks are the best and the worst that a model "
            "may have, by the intervals of its differences to all others."
        )
    heading = [Prose(f"Prompt: {cut(main.group, 400)}", "quiet")] if main.by else []
    return Section("Leaderboard", [*heading, tables.board_table(ranking)], lead)


def _order(ranking: Ranking) -> Section:
    """Return how surely each model is above the next."""
    title = "How sure the order is"
    steps, level = ranking.steps, f"{ranking.board.level:.0%}"
    rows = [
        ForestRow(step.above, step.lower, step.points, step.upper, "good" if step.is_sure else "", step.chance_text)
        for step in steps
        if math.isfinite(step.lower)
    ]
    if not rows:
        return Section(title, [Prose("No intervals were computed, so nothing can be said of it.", "quiet")])
    sure = sum(step.is_sure for step in steps)
    forest = Forest(
        rows[:_DRAWN_MODELS],
        "Model, chance that it is above the next",
        f"Points above the next with {level} interval",
        _points,
    )
    which = "Each model" if len(rows) <= _DRAWN_MODELS else f"The first {_DRAWN_MODELS} models"
    caption = "Blue: the interval leaves out zero, so that the two are told apart."
    lead = (
        f"{sure} of {len(steps)} neighbours are told apart by the {level} interval of their difference. Where they are "
        "not, more votes may turn the two around."
    )
    numbers = [tables.step_table(steps, ranking.board.level)]
    return Section(title, [Figure(forest, f"{which} above the next", caption, numbers=numbers)], lead)


def _win_rates(ranking: Ranking) -> Section:
    """Return the chance of each model of beating each other: as numbers of a few, else as an image."""
    title, number = "Win rates", len(ranking.names)
    lead = (
        "The chance that the model of the row wins a vote against that of the column, by the scores; ties count half. "
        "Columns have the numbers of the rows."
    )
    if number <= _MODELS_AS_NUMBERS:
        return Section(title, [tables.rates_table(ranking, number)], f"{lead} Blue is above 50%, orange below.")
    order = ranking.order[:_MODELS_OF_IMAGE]
    names = [f"{rank} {cut(name, 60)}" for rank, name in enumerate(ranking.names[:_MODELS_OF_IMAGE], 1)]
    heat = Heat(names, ranking.board.pair_rates(order), "Chance of each model of beating each other, best models first")
    numbers = tables.rates_table(ranking, _MODELS_AS_NUMBERS)
    which = "all models" if len(order) == number else f"the first {len(order)} models"
    figure = Figure(heat, f"Who beats whom, {which}", "Blue: the row wins more often.", heat.legend(), [numbers])
    return Section(title, [figure], lead)


def _points(value: float) -> str:
    return number_text(value, 0)


def _facts(main: Named, unit: str) -> list[tuple[str, str]]:
    board = main.board
    facts = [
        ("likelihood", likelihoods.get(board.likelihood).title or board.likelihood),
        ("models", f"{len(board.models):,}"),
    ]
    facts += [] if main.by else [(unit, f"{main.size:,}")]
    facts += [("ties left out", f"{board.not_counted:,}")] if board.not_counted else []
    facts += [("loss", f"{board.loss:.4f}")] if math.isfinite(board.loss) else []
    facts += [] if board.eta is None else [("eta", number_text(board.eta, 3))]
    facts += [] if board.prior_sd is None else [("standard deviation of the prior", f"{board.prior_sd:.2g}")]
    return [*facts, ("intervals", f"{board.level:.0%}")]


_MAX_CELLS = 2400
"""Cells of the tables of categories together: what keeps the page of 130 models small."""
_MAX_GROUPS = 20
_MAX_FOLDED_ROWS = 400
"""Rows of the categories' own leaderboards together; where there were more, these are left to files."""


def category_section(ranking: Ranking, groups: Sequence[Named], leaderboards: Leaderboards) -> Section:
    """Return the ranks in each category side by side, a table for each column; flags share one."""
    tables = _by_column(groups)
    most = max(2, min(_MAX_GROUPS, _MAX_CELLS // len(ranking.names) // len(tables)))
    unit, parts = leaderboards.unit, list[Part]()
    listed = [named for members in tables.values() for _, named in members[:most]]
    has_room = sum(len(named.board.models) for named in listed) <= _MAX_FOLDED_ROWS
    for title, members in tables.items():
        number = len(members)
        left = f" The {most} with the most {unit} of {number}; files (--output) hold all." if number > most else ""
        parts += [Prose(title, "heading"), _category_table(ranking, members[:most], unit, left.strip())]
        for _, named in members[:most] if has_room else ():
            table = board_table(Ranking.of(named.board, leaderboards.min_votes), 10)
            parts.append(Fold(cut(named.title, 100), [table], f"{named.size:,} {unit}"))
    interval = "Coloured where the interval excludes the score over all: " if ranking.has_intervals else ""
    lead = (
        f"The rank in each category. {interval}blue is better there than over all {unit}, orange worse. Rest the "
        f"pointer on a rank for its score, on a head for its number of {unit}; a head sorts."
    )
    return Section("Categories", parts, lead)


def _by_column(groups: Sequence[Named]) -> dict[str, list[tuple[str, Named]]]:
    """Return the heads and groups of each table by its title; of a flag the rows where it is true, with all flags."""
    values: dict[str, list[str]] = {}
    for named in groups:
        values.setdefault(named.by, []).append(named.group.lower())
    flags = {column for column, names in values.items() if "true" in names and set(names) <= {"true", "false"}}
    tables: dict[str, list[tuple[str, Named]]] = {}
    for named in groups:
        if named.by not in flags:
            tables.setdefault(f"By {cut(named.by, 60)}", []).append((named.group, named))
        elif named.group.lower() == "true":
            tables.setdefault("By flag, where it is true", []).append((named.by, named))
    return tables


def _category_table(ranking: Ranking, groups: Sequence[tuple[str, Named]], unit: str, caption: str) -> Table:
    """Return each model's rank in each group, on the colour of how its score there differs from that of all votes.

    Only differences beyond the group's interval have a colour.
    """
    shown = set(ranking.names)
    sides = [_side(named.board, ranking, shown) for _, named in groups]
    farthest = max((abs(change) for side in sides for _, change, _ in side.values()), default=0.0) or 1.0
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("#", 0, f"rank over all {unit}"), range(1, len(ranking.names) + 1)),
        (Column("Model", number=False), ranking.names),
    ]
    for (head, named), side in zip(groups, sides, strict=True):
        cells: list[Value] = []
        for name in ranking.names:
            rank, change, score = side.get(name, (0, 0.0, ""))
            cells.append(Cell(str(rank), note=score, heat=change / farthest) if rank else None)
        columns.append((Column(cut(head), note=f"{head}: {named.size:,} {unit}", is_map=True), cells))
    return model_table(columns, 20, caption)


def _side(board: Leaderboard, ranking: Ranking, shown: set[str]) -> dict[str, tuple[int, float, str]]:
    """Return the rank, the change of the coefficient as far as it is sure, and the score in words, by model."""
    overall = dict(zip(ranking.board.models, ranking.board.coefs.tolist(), strict=True))
    places = [place for place in np.argsort(-board.coefs, kind="stable").tolist() if board.models[place] in shown]
    out = {}
    for rank, place in enumerate(places, 1):
        name, coef = board.models[place], float(board.coefs[place])
        lower, upper = float(board.lower[place]), float(board.upper[place])
        # Without an interval, where the ends are NaN, every change counts.
        change = 0.0 if lower <= overall[name] <= upper else coef - overall[name]
        ends = f" ({_rounded(lower)} to {_rounded(upper)})" if math.isfinite(lower) else ""
        out[name] = rank, change, f"{_rounded(coef)}{ends}"
    return out


def _rounded(coef: float) -> str:
    return number_text(float(to_score(coef)), 0)


def _prompts_table(boards: Sequence[Named]) -> Table:
    """Return each model's chance of beating the field on each prompt, in the order of the mean over them."""
    rates = np.stack([named.board.win_rates() for named in boards])
    order = np.argsort(-rates.mean(axis=0), kind="stable")
    farthest = float(np.abs(rates - 0.5).max()) or 1.0
    columns: list[tuple[Column, Sequence[Value]]] = [
        (Column("Model", number=False), [boards[0].board.models[place] for place in order])
    ]
    for number, row in enumerate(rates, 1):
        cells = [Cell(percent(rate, 1), heat=(rate - 0.5) / farthest) for rate in row[order].tolist()]
        columns.append((Column(f"{number}. {cut(boards[number - 1].group)}", note=FIELD, is_map=True), cells))
    return model_table(columns, 60)


def prompt_sections(boards: Sequence[Named]) -> list[Section]:
    """Return prompts side by side, then the leaderboard of each."""
    shown = boards[:_MAX_GROUPS]
    lead = (
        f"{FIELD[0].upper()}{FIELD[1:]}. Blue is above 50%, orange below; models are in the order of the "
        "mean over the prompts."
    )
    folds = [
        Fold(
            f"{number}. {cut(named.group, 200)}",
            [*(Prose(note) for note in named.board.notes), board_table(Ranking.of(named.board), 10)],
        )
        for number, named in enumerate(shown, 1)
    ]
    return [
        Section("Prompts side by side", [_prompts_table(shown)], lead),
        Section("Leaderboard of each prompt", folds),
    ]


HISTORY_LINES = 8
"""Lines that the style tells apart."""
_LINES_WITH_BANDS = 3
"""Lines with intervals; those of more would cover each other."""
_MAX_POINTS = 150
_MARGIN_SHARE = 0.06


def history_section(history: History, min_votes: int) -> Section:
    """Return the scores of the models that lead the newest period, over the periods, and a table of all models."""
    ranking = Ranking.of(history.newest, min_votes)
    table = history_table(history, ranking)
    what = (
        "each leaderboard is of all votes up to the end of its period"
        if history.mode == "cumulative"
        else "each leaderboard is of the votes of its period alone"
    )
    newest = history.periods[-1].label
    lead = (
        f"By {history.over.text}, {history.periods[0].label} to {newest}: {what}. The table is of {newest}, with "
        "scores at earlier periods."
    )
    if len(history.periods) < 2:
        return Section("History", [table], lead)
    return Section("History", [history_figure(history, ranking.names[:HISTORY_LINES]), table], lead)


def history_figure(history: History, leaders: Sequence[str]) -> Figure:
    """Return the scores of some models over the periods, as lines with bands."""
    rows = _rows(history)
    names, coefs = history.table()
    places = [names.index(name) for name in leaders]
    scores, lower, upper = (
        to_score(values[:, places]) for values in (coefs, history.table("lower")[1], history.table("upper")[1])
    )
    lower[:, _LINES_WITH_BANDS:] = upper[:, _LINES_WITH_BANDS:] = np.nan
    # Intervals of a model's first votes are as wide as the prior, and must not flatten all lines.
    ends = np.concatenate([values[np.isfinite(values)] for values in (scores, lower, upper)])
    low, high = np.quantile(ends, [0.05, 0.95])
    low, high = min(low, float(np.nanmin(scores))), max(high, float(np.nanmax(scores)))
    room = _MARGIN_SHARE * max(high - low, 10.0)
    low, high = float(low - room), float(high + room)
    first = history.periods[0].index
    x = [math.nan if row is None else float(history.periods[row].index - first) for row in rows]
    series = [
        Series(
            cut(name, 60),
            x,
            _picked(scores[:, number], rows),
            _picked(np.clip(lower[:, number], low, high), rows),
            _picked(np.clip(upper[:, number], low, high), rows),
            has_dots=len(rows) == 1 or any(row is None for row in rows),
        )
        for number, name in enumerate(leaders)
    ]
    axes = Axes(
        x="period",
        y="score",
        # Ticks between two periods have no name.
        x_text=lambda tick: history.over.label(first + round(tick)) if float(tick).is_integer() else "",
        y_text=lambda score: number_text(score, 0),
        y_range=(low, high),
    )
    number = f" (of {len(history.models)})" if len(leaders) < len(history.models) else ""
    bands = ""
    if np.isfinite(lower).any():
        which = f" of the first {_LINES_WITH_BANDS}" if len(leaders) > _LINES_WITH_BANDS else ""
        bands = f" Bands are {history.newest.level:.0%} intervals{which}."
    caption = f"The {len(leaders)} models{number} that lead in {history.periods[-1].label}.{bands}"
    return Figure.of(series, axes, f"Scores by {history.over.text}", caption)


def _rows(history: History) -> list[int | None]:
    """Return which periods are drawn, evenly spread where there are many; None where a gap breaks the lines."""
    number = len(history.periods)
    if number > _MAX_POINTS:
        return list(dict.fromkeys(np.linspace(0, number - 1, _MAX_POINTS).round().astype(int).tolist()))
    rows: list[int | None] = [0]
    for row in range(1, number):
        if history.periods[row].index - history.periods[row - 1].index > 1:
            rows.append(None)
        rows.append(row)
    return rows


def _picked(values: Floats, rows: Sequence[int | None]) -> list[float]:
    return [math.nan if row is None else float(values[row]) for row in rows]
