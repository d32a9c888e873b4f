"""Ratings of an arena leaderboard file (CSV) as coefficients: (rating - 1000) ln(10) / 400.

Columns: model_name, category, rating and, optionally, style_control, of which the false rows count.

Shapes: M models.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2l.command import nearest
from p2l.errors import VoteError
from p2l.evaluation.boards import one_scale
from p2l.evaluation.categories import Category, EmptyCategoryError
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.board import POINTS_PER_LOGIT

__all__ = ["Arena", "arena_name", "read_arena"]

_NAMES = {"all": "full", "is_code": "coding", "hard": "hard_6"}
_COLUMNS = ("model_name", "category", "rating")


class Arena:
    """Ratings by category."""

    def __init__(self, source: str, ratings: dict[str, dict[str, float]]) -> None:
        self.source, self.ratings = source, ratings

    def board(self, category: Category, models: Sequence[str], likelihood: str) -> Leaderboard:
        """The leaderboard of those of `models` that the file rates in a category.

        Raises:
            EmptyCategoryError: the file does not have the category, or rates fewer than two of the models in it.
        """
        name = arena_name(category)
        if name not in self.ratings:
            hint = nearest(name, self.ratings) or f"; it has {', '.join(self.ratings)}"
            raise EmptyCategoryError(f"{self.source} has no category {name!r} for {category.text}{hint}")
        found = [(model, self.ratings[name][model]) for model in models if model in self.ratings[name]]
        if len(found) < 2:
            raise EmptyCategoryError(f"{self.source} rates {len(found)} of the models in category {name!r}")
        coefs = (np.array([rating for _, rating in found]) - 1000.0) / POINTS_PER_LOGIT
        unknown = np.full(len(found), np.nan)
        return Leaderboard(
            [model for model, _ in found],
            coefs,
            unknown,
            unknown,
            likelihood=likelihood,
            loss=float("nan"),
            votes=None,
            components=np.zeros(len(found), dtype=np.int64),
            notes=(f"Ratings of {Path(self.source).name}, category {name}.",),
            **one_scale(likelihood),
        )


def arena_name(category: Category) -> str:
    """What leaderboard files call a category."""
    if category.key == "language" and category.value:
        return category.value.lower()
    return _NAMES.get(category.text, category.text)


def read_arena(path: str) -> Arena:
    """Read a leaderboard file.

    Raises:
        VoteError: it cannot be read, lacks a column, or a row has no rating; the message names it.
    """
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    try:
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            _check(path, rows.fieldnames or [])
            for number, row in enumerate(rows, 2):
                if (row.get("style_control") or "false").strip().lower() in ("false", "0", ""):
                    _add(ratings[row["category"]], row, f"{path}: row {number}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error
    if not ratings:
        raise VoteError(f"{path}: holds no rating without style control")
    return Arena(path, dict(ratings))


def _check(path: str, columns: Sequence[str]) -> None:
    for name in _COLUMNS:
        if name not in columns:
            there = ", ".join(columns) or "none"
            raise VoteError(f"{path}: no column {name!r}{nearest(name, columns)}; columns: {there}")


def _add(ratings: dict[str, float], row: dict[str, str], place: str) -> None:
    name = row["model_name"]
    if name in ratings:
        raise VoteError(f"{place}: {name!r} has a rating in category {row['category']!r} already")
    try:
        rating = float(row["rating"])
    except (TypeError, ValueError):
        rating = math.nan
    if not math.isfinite(rating):
        raise VoteError(f"{place}: rating {row['rating']!r} is no number; leave out models without one")
    ratings[name] = rating
