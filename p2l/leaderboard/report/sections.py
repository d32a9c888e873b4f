"""The report of a leaderboard: who leads and how surely, then ranks, neighbours, win rates, categories and history."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from p2l import likelihood as likelihoods
from p2l.common.report.heat import Heat
from p2l.common.report.reports import (
    Figure,
    Forest,
    ForestRow,
    Prose,
    Report,
    Section,
    Verdict,
    percents,
    today,
)
from p2l.common.report.tables import number_text
from p2l.leaderboard.board import Named, several
from p2l.leaderboard.newton import shift_invariant
from p2l.leaderboard.report import tables
from p2l.leaderboard.report.categories import category_section, prompt_sections
from p2l.leaderboard.report.ranking import Leaderboards, Ranking
from p2l.leaderboard.report.timeline import HISTORY_LINES, history_figure, history_section

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
    subject = subject or f"Leaderboard of {len(main.board.models)} models"
    if not ranking.names:
        verdict = Verdict(f"No model has {leaderboards.min_votes:,} votes, so none is listed.", "bad")
        return Report(
            kind="Leaderboard", subject=subject, data=data, made=today(), verdict=verdict, picture=None, sections=[]
        )
    picture = None
    if main.by and len(groups) > 1:
        sections, verdict = prompt_sections(groups), _verdict_of_prompts(groups)
    else:
        verdict, picture = _verdict(main, ranking, leaderboards.unit), _scores(ranking, _DRAWN_MODELS)
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
        made=today(),
        verdict=verdict,
        picture=picture,
        sections=sections,
        facts=_facts(main, leaderboards.unit),
        notes=history.notes if history and not boards else main.board.notes,
    )


def _verdict(main: Named, ranking: Ranking, unit: str) -> Verdict:
    """Return who leads, and which other models may."""
    first, score, field = ranking.names[0], number_text(float(ranking.scores[1][0]), 0), percents(ranking.rates[1][0])
    name, where = tables.cut(first, 60), f"on “{tables.cut(main.group, 80)}” " if main.by else ""
    by = "" if unit == "votes" else "By the model's forecasts, "
    basis = f"{main.size:,} {unit}. " if not main.by else ""
    if not ranking.has_differences:
        sentence = f"{by}{name} comes first {where}with a score of {score}: it beats another model in {field} of votes."
        return Verdict(sentence, "", f"{basis}No intervals were computed, so how sure this is remains open.")
    lower, _, upper = (number_text(float(values[0]), 0) for values in ranking.scores)
    ends = f"{main.board.level:.0%} interval {lower} to {upper}"
    others = [tables.cut(leader, 60) for leader in ranking.leaders if leader != first]
    reason, step = f"{basis}It beats another model drawn at random in {field} of votes. ", ranking.steps[0]
    if not math.isnan(step.chance):
        below = tables.cut(step.below, 60)
        reason += f"The chance that it is truly better than the next, {below}, is {step.chance_text}."
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
    on = [f"{tables.cut(name, 60)} on {count}" for name, count in firsts]
    reason = "What a trained model forecasts for each prompt; how sure it is was not computed."
    return Verdict(f"Of {len(boards)} prompts, these models come first: {several(on, _NAMED_MODELS)}.", "", reason)


def leaderboard_figures(leaderboards: Leaderboards, top: int | None = None) -> tuple[list[Figure], str]:
    """Return the pictures of a history, or of the first leaderboards, with `top` models, and what is left out."""
    history, min_votes, boards = leaderboards.history, leaderboards.min_votes, leaderboards.boards
    if history is not None:
        leaders = Ranking.of(history.newest, min_votes).names[: top or HISTORY_LINES]
        return [history_figure(history, leaders)], f"the best {len(leaders)} of {len(history.models)} models"
    drawn = boards[:_PLOTTED_BOARDS]
    figures = [_scores(Ranking.of(named.board, min_votes), top, named.title) for named in drawn]
    return figures, f"the first {len(drawn)} of {len(boards)} leaderboards" if len(drawn) < len(boards) else ""


def _scores(ranking: Ranking, top: int | None = None, title: str = "") -> Figure:
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
    return Figure(forest, title or which, caption)


def _leaderboard(main: Named, ranking: Ranking) -> Section:
    invariant = shift_invariant(likelihoods.get(main.board.likelihood))
    level = "the mean model has 1,000" if invariant else "1,000 is the level at which an answer is just usable"
    lead = f"400 points more are odds of 10 to 1, and {level}. “Beats the field” is {tables.FIELD}."
    if ranking.has_intervals:
        lead += (
            f" Bars are {main.board.level:.0%} intervals of the scores; ranks are the best and the worst that a model "
            "may have, by the intervals of its differences to all others."
        )
    heading = [Prose(f"Prompt: {tables.cut(main.group, 400)}", "quiet")] if main.by else []
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
    names = [f"{rank} {tables.cut(name, 60)}" for rank, name in enumerate(ranking.names[:_MODELS_OF_IMAGE], 1)]
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
