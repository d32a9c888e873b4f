"""Leaderboards of students from preferences, overall, by task and by attribute, and a P2L's compared with them.

Shapes: M models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coeval.analysis.bias import FlipRow, flip_rows
from coeval.analysis.fit import fit_verdicts
from coeval.analysis.judge_tests import PanelWorth, panel_worth
from coeval.analysis.statistics import Codes, holm, influence_variance, t_limits, with_component
from coeval.analysis.students import (
    SIGNIFICANT,
    by_datapoint,
    fitted_pairs,
    student_pairs,
    student_rows,
)
from coeval.analysis.tables import Rank, Shown, StudentName, estimated
from coeval.analysis.units import LoadedRun, Report, Votes, coded
from coeval.analysis.variance import MissingRow, OwnItemsRow, missing_verdicts, verdict_own_items
from coeval.analysis.verdicts import Preference
from coeval.analysis.votes import leaderboard_of, run_votes
from coeval.errors import RunInputError
from coeval.pairs.preferences import PreferenceFilter, why_none
from p2l.common.errors import InputError
from p2l.leaderboard import Leaderboard, to_score
from p2l.leaderboard.newton import shift_invariant
from p2l.likelihood import get
from p2l.metrics import leaderboard_metrics
from p2l.metrics.leaderboards import Standing

_RATING = "as of chess ratings: 400 more is ten wins to one; the bar is a 95 % interval of its distance to the mean"


@dataclass(frozen=True)
class PairBoardRow:
    """A student on a leaderboard fitted from preferences between two answers."""

    task: str  # `overall`, or a task
    attribute: str  # `name=value`; empty: all items
    rank: Rank
    student: StudentName
    score: Annotated[float, estimated("score", _RATING, digits=0)]  # 1000 in the middle
    lower: float | None
    upper: float | None
    win_rate: Annotated[float, Shown("win rate", "expected against the others", 3)]
    votes: Annotated[int, Shown("preferences")]
    component: int  # group of students that comparisons join; between groups a rank says nothing


@dataclass(frozen=True)
class PairsReport(Report):
    """Report pairs: leaderboards from preferences, those of judges that are neither of the two."""

    likelihood: str
    native: int  # preferences that judges stated, having seen both answers
    derived: int  # preferences that follow from the scores of both
    self_judged: int  # left out
    flagged: Mapping[str, str]  # judge with a bias or fault whose preferences are left out -> why
    follows_fit: bool  # whether the overall leaderboard is that of the fit of scores
    panel: PanelWorth | None
    why_none: str  # empty where there are rows
    rows: tuple[PairBoardRow, ...]
    flips: tuple[FlipRow, ...]
    # (better, worse) of students told apart beyond chance; None where votes are of verdicts and of scores, which no
    # fit has in common.
    apart: tuple[tuple[str, str], ...] | None = None
    only_flagged: tuple[str, ...] = ()  # students on whom flagged judges alone voted, so that these preferences count
    own_items: tuple[OwnItemsRow, ...] = ()  # of verdicts
    missing: tuple[MissingRow, ...] = ()  # verdicts that judges were asked for


OVERALL = "overall"


class Slice(NamedTuple):
    """The preferences that a leaderboard is fitted to: of a task, or of all, and of an attribute's value, or of all."""

    task: str  # OVERALL, or a task
    attribute: str = ""  # `name=value`; empty: all items


@dataclass(frozen=True)
class BoardOptions:
    """How leaderboards are fitted."""

    # `bt` drops ties, `rk` has them, `grk` tells ties of good from ties of bad answers; None: by the outcomes there are
    likelihood: str | None = None
    intervals: str | None = "bootstrap"
    replicates: int = 200
    level: float = 0.95
    seed: int = 0


def boards(
    preferences: Sequence[Preference],
    options: BoardOptions,
    attributes: Mapping[str, Mapping[str, str]] | None = None,
    clusters: Mapping[str, int] | None = None,
) -> dict[Slice, Leaderboard]:
    """Fit the leaderboards of preferences, as `fitted` does; `attributes` and `clusters` of prompts are of items."""
    columns = ("task", "datapoint", "judge")
    names = [sorted({getattr(vote, column) for vote in preferences}) for column in columns]
    models = sorted({name for vote in preferences for name in (vote.model_a, vote.model_b)})
    items = [(attributes or {}).get(datapoint, {}) for datapoint in names[1]]
    votes = coded(preferences, *names, models)
    codes = None if clusters is None else np.array([clusters[datapoint] for datapoint in names[1]], dtype=np.int64)
    return fitted(votes, names[0], items, models, options, codes)


def fitted(
    votes: Votes,
    tasks: Sequence[str],
    items: Sequence[Mapping[str, str]],
    models: Sequence[str],
    options: BoardOptions,
    clusters: Codes | None = None,
) -> dict[Slice, Leaderboard]:
    """Fit the overall leaderboard, then that of each task, then of each of its attributes' values.

    A slice in which no preference counts, such as one of ties under `bt`, has none. `items` are their attributes, by
    code; intervals draw whole `clusters` of them (D,), where these are given. Raise InputError if no preference counts
    at all, or there are fewer than two models.
    """
    leaderboards = {Slice(OVERALL): _board(votes, models, options, clusters)}
    options = replace(options, likelihood=leaderboards[Slice(OVERALL)].likelihood)
    parts: dict[Slice, list[npt.NDArray[Any]]] = {}
    order = np.argsort(votes.datapoint, kind="stable")
    points, starts = np.unique(votes.datapoint[order], return_index=True)
    # By item, of which there are few: a step for each vote and attribute would take seconds.
    for point, rows in zip(points.tolist(), np.split(order, starts[1:]), strict=True):
        for attribute in ("", *(f"{name}={value}" for name, value in items[point].items())):
            parts.setdefault(Slice(tasks[votes.task[rows[0]]], attribute), []).append(rows)
    for key, places in sorted(parts.items(), key=lambda part: part[0]):
        # There may be hundreds of attributes: the sandwich formula takes a hundredth of the bootstrap's time.
        fast = replace(options, intervals=options.intervals and "sandwich") if key.attribute else options
        with suppress(InputError):  # none of them counts
            leaderboards[key] = _board(votes.where(np.concatenate(places)), models, fast, clusters)
    return leaderboards


def _board(votes: Votes, models: Sequence[str], options: BoardOptions, clusters: Codes | None) -> Leaderboard:
    """Fit one leaderboard of the models that were compared in a slice."""
    return leaderboard_of(
        votes,
        models,
        likelihood=options.likelihood,
        # All preferences on one item, or on near duplicates, are drawn together, since they are not independent.
        clusters=votes.datapoint if clusters is None else clusters[votes.datapoint],
        intervals=options.intervals,
        seed=options.seed,
        level=options.level,
        replicates=options.replicates,
    )


def rows_of(part: Slice, leaderboard: Leaderboard) -> list[dict[str, Any]]:
    """Return a leaderboard as rows, best first: task, attribute, rank, model, score, interval, win rate, votes.

    Models without a vote that counts have no row; `component` tells groups of models that no comparison joins.
    """
    lower, upper, scores = map(to_score, (leaderboard.lower, leaderboard.upper, leaderboard.coefs))
    rates = leaderboard.win_rates()
    order = np.argsort(-leaderboard.coefs, kind="stable")
    votes = np.array(_votes(leaderboard))
    return [
        {
            "task": part.task,
            "attribute": part.attribute,
            "rank": rank,
            "model": leaderboard.models[place],
            "score": round(float(scores[place]), 1),
            "lower": _rounded(lower[place]),
            "upper": _rounded(upper[place]),
            "win_rate": round(float(rates[place]), 4),
            "votes": int(votes[place]),
            "component": int(leaderboard.components[place]),
        }
        for rank, place in enumerate(order[votes[order] > 0].tolist(), start=1)
    ]


def _rounded(value: float) -> float | None:
    return round(float(value), 1) if np.isfinite(value) else None


def compared(truth: Leaderboard, coefs: Mapping[str, float], eta: float | None = None) -> dict[str, Any]:
    """Compute the metrics of a model's aggregate leaderboard, coefficients and tie parameter, against a fitted one.

    Raise RunInputError if fewer than two models are in both.
    """
    is_shared = [name in coefs and votes > 0 for name, votes in zip(truth.models, _votes(truth), strict=True)]
    if sum(is_shared) < 2:
        raise RunInputError(f"the leaderboards share fewer than two models; one has {', '.join(truth.models)}")
    mine = Standing(truth.coefs, truth.eta, truth.gamma)
    theirs = [coefs[name] if shared else np.nan for name, shared in zip(truth.models, is_shared, strict=True)]
    return leaderboard_metrics(mine, Standing(np.array(theirs), eta), truth.models, likelihood=truth.likelihood)


def _votes(leaderboard: Leaderboard) -> list[int]:
    return [0] * len(leaderboard.models) if leaderboard.votes is None else [int(count) for count in leaderboard.votes]


# The report on pairs. The overall intervals are over items and judges, by the fit of scores or of verdicts; all others
# come from the sandwich formula, clustered by item: close to those of the bootstrap of `pairs-leaderboard`, in a
# hundredth of its time. They are of a student's distance to the mean of all: where both answers may be bad a
# leaderboard has a level as well, which says nothing of who is better.

_OPTIONS = BoardOptions(intervals="sandwich")


def pairs_report(loaded: LoadedRun) -> PairsReport:
    """Fit leaderboards to verdicts on pairs, and to scores in tasks without them; empty with the reason if none."""
    counted = run_votes(loaded)
    tables: dict[Slice, Leaderboard] = {}
    why = "" if len(counted.votes) else why_none(PreferenceFilter(), counted.total, loaded.skipped)
    try:
        if len(counted.votes):
            tables = fitted(counted.votes, loaded.tasks, loaded.attributes, loaded.students, _OPTIONS, loaded.clusters)
    except InputError as error:
        why = str(error)
    rows = [row for part, table in tables.items() for row in rows_of(part, _about_mean(table))]
    ends: dict[str, tuple[float | None, float | None]] = {}
    apart: set[tuple[str, str]] | None = None
    if counted.follows_fit:
        ends = {row.student: (row.rating_lower, row.rating_upper) for row in student_rows(loaded)}
        pairs = student_pairs(loaded, by_datapoint(loaded))
        apart = {(pair.better, pair.worse) for pair in pairs if pair.significant}
    elif tables and not counted.derived:
        ends, apart = _by_verdicts(loaded, tables[Slice(OVERALL)])
    for row in rows:
        if row["task"] == OVERALL and row["model"] in ends:
            row["lower"], row["upper"] = ends[row["model"]]
    return PairsReport(
        header=loaded.header,
        likelihood=tables[Slice(OVERALL)].likelihood if tables else "",
        native=counted.native,
        derived=counted.derived,
        self_judged=counted.self_judged,
        flagged=counted.left_out,
        follows_fit=counted.follows_fit,
        panel=panel_worth(loaded),
        why_none=why,
        rows=tuple(PairBoardRow(student=row.pop("model"), **row) for row in rows),
        flips=flip_rows(loaded.verdicts),
        apart=None if apart is None else tuple(sorted(apart)),
        only_flagged=counted.only_flagged,
        own_items=verdict_own_items(loaded),
        missing=missing_verdicts(loaded),
    )


def _about_mean(board: Leaderboard) -> Leaderboard:
    """Return a leaderboard with the intervals of each coefficient less the mean of its component."""
    if board.covariance is None or shift_invariant(get(board.likelihood)):  # whose intervals are that already
        return board
    same = board.components[:, None] == board.components
    centre = np.eye(len(board.models)) - same / same.sum(axis=1, keepdims=True)
    size = len(board.models)
    variance = np.einsum("ij,jk,ik->i", centre, board.covariance[:size, :size], centre)
    reach = NormalDist().inv_cdf(0.5 + board.level / 2) * np.sqrt(np.maximum(variance, 0.0))
    reach = np.where(same.sum(axis=1) > 1, reach, np.nan)
    return replace(board, lower=board.coefs - reach, upper=board.coefs + reach)


def _by_verdicts(
    loaded: LoadedRun, board: Leaderboard
) -> tuple[dict[str, tuple[float | None, float | None]], set[tuple[str, str]] | None]:
    """Return the ends of students' scores over items and judges by the fit of verdicts, and who are told apart.

    A leaderboard's coefficients rise with the fitted scores; their slope takes the one's intervals to the other.
    """
    fit = fit_verdicts(loaded)
    if fit is None:
        return {}, None
    tests = dict(fitted_pairs(fit))
    corrected = holm([test.p_value for test, _ in tests.values()])
    apart = set()
    for ((a, b), (test, _)), chance in zip(tests.items(), corrected.tolist(), strict=True):
        if chance < SIGNIFICANT:
            better, worse = (a, b) if test.difference > 0 else (b, a)
            apart.add((loaded.students[better], loaded.students[worse]))
    met = np.array([loaded.students.index(name) for name in board.models])
    scores = fit.score[met] - fit.score[met].mean()
    slope = float(scores @ board.coefs) / max(float(scores @ scores), 1e-12)
    if not slope > 0:  # the votes contradict the fit
        return {}, apart
    over_items = influence_variance(fit.score, fit.influence, fit.shares)
    whole = with_component(over_items, fit.exposure, fit.judges.taste)
    lower, upper = t_limits(fit.score, whole.variance, whole.freedom)
    ends = {}
    for name, place, coef in zip(board.models, met.tolist(), board.coefs.tolist(), strict=True):
        reach = (slope * (end[place] - fit.score[place]) for end in (lower, upper))
        low, high = (_rounded(float(to_score(coef + part))) for part in reach)
        ends[name] = (low, high)
    return ends, apart
