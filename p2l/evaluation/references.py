"""Leaderboards that outputs are compared with: fits of votes, of all training votes or the first, and arena ratings.

Shapes: M models, N votes.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import ConvergenceError, InputError, VoteError
from p2l.common.spreadsheets import CellReader
from p2l.evaluation.categories import Category, EmptyCategoryError, UnknownCategoryError, readable_tags, select
from p2l.evaluation.outputs import category_table, labels_of, open_votes_source
from p2l.leaderboard import Leaderboard, PairTable, Prior, fit_table, vote_table
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.leaderboard.covariates import covariate_table
from p2l.leaderboard.groups import base_column
from p2l.leaderboard.intervals import units_at, units_of
from p2l.leaderboard.pair_tables import VoteCounter, check_number_of_models, components
from p2l.likelihood import counted, get
from p2l.metrics import Standing
from p2l.votes.reading import read_votes

Ints = npt.NDArray[np.integer[Any]]
WINNERS_OF_TIES = np.array([0, 2, 3])
"""Codes of `p2l.votes.schema.WINNERS` for the third entry of labels whose first model is model_a."""
_NOTE_ON_PRIOR = (
    "These votes have no finite best fit (some model never lost or never won, or an outcome never happened), so a weak "
    "prior holds it (normal, standard deviation 5)."
)


def board_of_labels(
    labels: Ints,
    models: Sequence[str],
    likelihood: str,
    *,
    clusters: Any = None,
    shift: Any = None,
    intervals: bool = True,
    level: float,
) -> Leaderboard:
    """Fit labels (N, 3), over the models that they hold; intervals are clustered by prompt.

    `shift` (N, 3) is what covariates are known to add to winner, loser and eta of each vote; the board leaves it out.
    Raise InputError where no vote counts, or fewer than two models do.
    """
    rows = np.flatnonzero(counted(get(likelihood), labels))
    votes = labels[rows]
    present = np.unique(votes[:, :2])
    if not len(present):
        raise InputError(f"no vote counts under likelihood {likelihood}")
    place = np.full(len(models), -1, dtype=np.int64)
    place[present] = np.arange(len(present))
    a, b, winner = place[votes[:, 0]], place[votes[:, 1]], WINNERS_OF_TIES[votes[:, 2]]
    of_votes = None if clusters is None else np.asarray(clusters)[rows]
    if shift is None:
        table = vote_table(a, b, winner, len(present))
        units = None if of_votes is None else units_of(table, a, b, winner, None, of_votes)
    else:
        table, row, column = covariate_table(a, b, winner, len(present), None, None, shift[rows])
        units = None if of_votes is None else units_at(row, column, None, of_votes)
    names = [models[code] for code in present]
    return _board_of_table(table, names, likelihood, units=units, intervals=intervals, level=level)


def _board_of_table(
    table: PairTable,
    models: Sequence[str],
    likelihood: str,
    *,
    units: Any = None,
    intervals: bool = False,
    level: float = 0.95,
) -> Leaderboard:
    """Fit counted votes: the best fit, or, where there is none, the one that a weak prior holds."""
    options: dict[str, Any] = {"models": models, "likelihood": likelihood, "units": units, "level": level}
    options["intervals"] = "sandwich" if intervals else None
    # Without a prior there is a best fit only where everyone has beaten (or tied with) everyone, if in a chain.
    up = table.weights[:, [0, 2, 3]].sum(axis=1) > 0
    down = table.weights[:, 1:].sum(axis=1) > 0
    beaten = np.concatenate([table.first[up], table.second[down]])
    beating = np.concatenate([table.second[up], table.first[down]])
    if not components(table.num_models, beaten, beating, directed=True).any():
        try:
            return fit_table(table, prior=Prior(sd=math.inf), **options)
        except ConvergenceError:
            pass
    board = fit_table(table, prior=Prior(), **options)
    return dataclasses.replace(board, notes=(_NOTE_ON_PRIOR, *board.notes))


def standing(board: Leaderboard, models: Sequence[str]) -> Standing:
    """Return a leaderboard as columns of `models`, NaN for those it does not know."""
    place = dict(zip(board.models, board.coefs.tolist(), strict=True))
    return Standing(np.array([place.get(name, math.nan) for name in models]), board.eta, board.gamma)


@dataclass
class TrainVotes:
    """Votes of a source counted by category and by limit: 0 for all of them, else a number of first rows."""

    name: str
    categories: list[Category]
    limits: list[int]
    names: dict[str, int] = field(default_factory=dict)
    counter: VoteCounter = field(default_factory=VoteCounter)
    problems: dict[str, str] = field(default_factory=dict)
    boards: dict[tuple[str, int, str], Leaderboard] = field(default_factory=dict)
    rows: int = 0

    def board(self, category: Category, likelihood: str, limit: int = 0) -> Leaderboard:
        """Return the marginal leaderboard of a category, of all votes or of the first `limit` rows.

        Raise EmptyCategoryError where there is none.
        """
        key = (category.text, limit, likelihood)
        if key not in self.boards:
            table, names = self.counter.table(self._group(category, limit), list(self.names))
            if not len(table.first):
                problem = self.problems.get(category.text, f"{self.name}: no training vote of category {category.text}")
                raise EmptyCategoryError(problem)
            try:
                self.boards[key] = _board_of_table(table, names, likelihood)
            except InputError as error:
                raise EmptyCategoryError(f"{self.name}, category {category.text}: {error}") from error
        return self.boards[key]

    def _group(self, category: Category, limit: int) -> int:
        texts = [known.text for known in self.categories]
        return texts.index(category.text) * len(self.limits) + self.limits.index(limit)

    def add(self, batch: Any) -> None:
        """Count a batch."""
        labels = labels_of(batch, self.names)
        table = readable_tags(category_table(batch, self.categories))
        for category in self.categories:
            try:
                chosen = select(category, table, self.name)
            except UnknownCategoryError as error:
                self.problems[category.text] = str(error)
                continue
            except EmptyCategoryError:  # another batch may hold votes of it
                continue
            for limit in self.limits:
                among = chosen if not limit else chosen & (np.arange(len(table)) + self.rows < limit)
                winner, loser, tie = labels[among].astype(np.int64).T
                group = np.full(len(winner), self._group(category, limit), dtype=np.int64)
                self.counter.add(group, winner, loser, WINNERS_OF_TIES[tie], np.ones(len(winner)))
        self.rows += len(labels)


def read_train_votes(
    path: str, model_list: Sequence[str], categories: Sequence[Category], limits: Sequence[int]
) -> TrainVotes:
    """Count the training votes of each category, and those of the first rows alone for each of `limits`.

    Labels refer to `model_list` where rows name no models; of a data set with several splits, `train` is read.
    """
    source = open_votes_source(path)
    counted = TrainVotes(source.name, list(categories), [0, *limits])
    for batch in read_votes(source, need_prompt=False, label_list=model_list):
        counted.add(batch.batch)
    return counted


# Ratings of an arena leaderboard file (CSV) as coefficients: (rating - 1000) ln(10) / 400. Columns: model_name,
# category, rating and, optionally, style_control, of which only the rows with false count.

# Leaderboard files call these categories by other names, and languages by the language alone.
_NAMES = {"all": "full", "is_code": "coding", "hard": "hard_6"}
_COLUMNS = ("model_name", "category", "rating")


@dataclass(frozen=True)
class ArenaRatings:
    """Ratings of models by category."""

    source: str
    ratings: dict[str, dict[str, float]]

    def board(self, category: Category, models: Sequence[str], likelihood: str) -> Leaderboard:
        """Return the leaderboard of those of `models` that the file rates in a category.

        Raise EmptyCategoryError where it has no such category, or rates fewer than two of the models in it.
        """
        name = _NAMES.get(category.text, category.text)
        if category.key == "language" and category.value:
            name = category.value.lower()
        if name not in self.ratings:
            hint = nearest(name, self.ratings) or f"; it has {', '.join(self.ratings)}"
            raise EmptyCategoryError(f"{self.source} has no category {name!r} for {category.text}{hint}")
        rated = [(model, self.ratings[name][model]) for model in models if model in self.ratings[name]]
        if len(rated) < 2:
            raise EmptyCategoryError(f"{self.source} rates {len(rated)} of the models in category {name!r}")
        coefs = (np.array([rating for _, rating in rated]) - 1000.0) / POINTS_PER_LOGIT
        unknown = np.full(len(rated), np.nan)
        parameters = get(likelihood).parameters
        return Leaderboard(
            models=[model for model, _ in rated],
            coefs=coefs,
            lower=unknown,
            upper=unknown,
            likelihood=likelihood,
            loss=float("nan"),
            votes=None,
            components=np.zeros(len(rated), dtype=np.int64),
            notes=(f"Ratings of {Path(self.source).name}, category {name}.",),
            # A rating has no scale of its own.
            eta=1.0 if "eta" in parameters else None,
            gamma=0.0 if "gamma" in parameters else None,
        )


def read_arena(path: str) -> ArenaRatings:
    """Read a leaderboard file; VoteError, which names it, for a missing column or a row without a rating."""
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    try:
        # Spreadsheets put a byte-order mark before the first name.
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            rows = CellReader(file)
            for column in _COLUMNS:
                base_column(column, rows.names, path)
            for number, row in enumerate(rows, 2):  # the header is row 1
                if (row.get("style_control") or "false").strip().lower() not in ("false", "0", ""):
                    continue
                place, name, category = f"{path}: row {number}", row["model_name"], row["category"]
                if name is None or category is None:
                    raise VoteError(
                        f"{place}: has fewer cells than the header; give every rating its model and category"
                    )
                if name in ratings[category]:
                    raise VoteError(f"{place}: {name!r} has a rating in category {category!r} already")
                try:
                    rating = float(row["rating"] or "")
                except (TypeError, ValueError):
                    rating = math.nan
                if not math.isfinite(rating):
                    raise VoteError(f"{place}: rating {row['rating']!r} is not a number; leave out models without one")
                ratings[category][name] = rating
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error
    if not ratings:
        raise VoteError(f"{path}: holds no rating without style control")
    check_number_of_models(max(map(len, ratings.values())), path)
    return ArenaRatings(path, dict(ratings))
