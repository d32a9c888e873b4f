"""What outputs are compared with: leaderboards of training votes by category, and ratings of an arena.

Shapes: n votes of a batch.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from p2l.common.cli import nearest
from p2l.common.errors import InputError, VoteError
from p2l.common.spreadsheets import CellReader
from p2l.evaluation.boards import WINNERS_OF_TIES, board_of_table
from p2l.evaluation.categories import Category, EmptyCategoryError, UnknownCategoryError, readable_tags, select
from p2l.evaluation.outputs import category_table, labels_of, open_votes_source
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.leaderboard.pair_tables import VoteCounter, check_number_of_models
from p2l.leaderboard.sources import base_column
from p2l.likelihood import get
from p2l.votes.reading import read_votes


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
                self.boards[key] = board_of_table(table, names, likelihood)
            except InputError as error:
                raise EmptyCategoryError(f"{self.name}, category {category.text}: {error}") from error
        return self.boards[key]

    def _group(self, category: Category, limit: int) -> int:
        place = next(index for index, one in enumerate(self.categories) if one.text == category.text)
        return place * len(self.limits) + self.limits.index(limit)

    def add(self, batch: Any) -> None:
        """Count a batch."""
        labels = labels_of(batch, self.names)
        table = readable_tags(category_table(batch, self.categories))
        for category in self.categories:
            for limit, rows in self._members(category, table):
                one = labels[rows].astype(np.int64)
                group = np.full(len(one), self._group(category, limit), dtype=np.int64)
                self.counter.add(group, one[:, 0], one[:, 1], WINNERS_OF_TIES[one[:, 2]], np.ones(len(one)))
        self.rows += len(labels)

    def _members(self, category: Category, table: Any) -> Iterator[tuple[int, Any]]:
        try:
            chosen = select(category, table, self.name)
        except UnknownCategoryError as error:
            self.problems[category.text] = str(error)
            return
        except EmptyCategoryError:
            return
        for limit in self.limits:
            among = chosen if not limit else chosen & (np.arange(len(table)) + self.rows < limit)
            yield limit, np.flatnonzero(among)


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
        name = arena_name(category)
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
            [model for model, _ in rated],
            coefs,
            unknown,
            unknown,
            likelihood=likelihood,
            loss=float("nan"),
            votes=None,
            components=np.zeros(len(rated), dtype=np.int64),
            notes=(f"Ratings of {Path(self.source).name}, category {name}.",),
            # A rating has no scale of its own.
            eta=1.0 if "eta" in parameters else None,
            gamma=0.0 if "gamma" in parameters else None,
        )


def arena_name(category: Category) -> str:
    """Return what leaderboard files call a category."""
    if category.key == "language" and category.value:
        return category.value.lower()
    return _NAMES.get(category.text, category.text)


def read_arena(path: str) -> ArenaRatings:
    """Read a leaderboard file; VoteError, which names it, for a missing column or a row without a rating."""
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    try:
        # Spreadsheets put a byte-order mark before the first name.
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            rows = CellReader(file)
            for name in _COLUMNS:
                base_column(name, rows.names, path)
            for number, row in enumerate(rows, 2):  # the header is row 1
                if (row.get("style_control") or "false").strip().lower() in ("false", "0", ""):
                    _add(ratings, row, f"{path}: row {number}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error
    if not ratings:
        raise VoteError(f"{path}: holds no rating without style control")
    check_number_of_models(max(map(len, ratings.values())), path)
    return ArenaRatings(path, dict(ratings))


def _add(ratings: dict[str, dict[str, float]], row: Mapping[str, str | None], place: str) -> None:
    name, category = row["model_name"], row["category"]
    if name is None or category is None:
        raise VoteError(f"{place}: has fewer cells than the header; give every rating its model and category")
    if name in ratings[category]:
        raise VoteError(f"{place}: {name!r} has a rating in category {category!r} already")
    try:
        rating = float(row["rating"] or "")
    except (TypeError, ValueError):
        rating = math.nan
    if not math.isfinite(rating):
        raise VoteError(f"{place}: rating {row['rating']!r} is not a number; leave out models without one")
    ratings[category][name] = rating
