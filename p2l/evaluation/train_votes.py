"""Marginal leaderboards of training votes, for each category, and of the first votes alone.

Shapes: n votes of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2l.errors import InputError
from p2l.evaluation.boards import board_of_table
from p2l.evaluation.categories import Category, EmptyCategoryError, UnknownCategoryError, readable_tags, select
from p2l.evaluation.outputs import category_table, labels_of, open_votes_source
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.counting import Tally
from p2l.votes.reader import read_votes
from p2l.votes.stream import Source

__all__ = ["TrainVotes", "read_train_votes"]

_WINNER = np.array([0, 2, 3])


@dataclass
class TrainVotes:
    """Votes counted by category and by how many of the first rows they are of.

    Attributes:
        name: of their source.
        categories: which there are.
        limits: numbers of first rows, after 0 for all of them.
    """

    name: str
    categories: list[Category]
    limits: list[int]
    names: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    problems: dict[str, str] = field(default_factory=dict)
    boards: dict[tuple[str, int, str], Leaderboard] = field(default_factory=dict)
    rows: int = 0

    def board(self, category: Category, likelihood: str, limit: int = 0) -> Leaderboard:
        """The marginal leaderboard of a category, of all votes or of the first `limit` rows.

        Raises:
            EmptyCategoryError: there is none.
        """
        key = (category.text, limit, likelihood)
        if key not in self.boards:
            table, names = self.tally.table(self._group(category, limit), list(self.names))
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
            for limit, rows in self._members(category, table, len(labels)):
                one = labels[rows].astype(np.int64)
                group = np.full(len(one), self._group(category, limit), dtype=np.int64)
                self.tally.add(group, one[:, 0], one[:, 1], _WINNER[one[:, 2]], np.ones(len(one)))
        self.rows += len(labels)

    def _members(self, category: Category, table: Any, number: int) -> Iterator[tuple[int, Any]]:
        try:
            chosen = np.ones(number, bool) if category.text == "all" else select(category, table, self.name)
        except UnknownCategoryError as error:
            self.problems[category.text] = str(error)
            return
        except EmptyCategoryError:
            return
        for limit in self.limits:
            among = chosen if not limit else chosen & (np.arange(number) + self.rows < limit)
            yield limit, np.flatnonzero(among)


def read_train_votes(
    path: str, model_list: Sequence[str], categories: Sequence[Category], limits: Sequence[int]
) -> TrainVotes:
    """Count the training votes of each category.

    Args:
        path: of any kind that votes are read from; of a data set with several splits, `train`.
        model_list: what labels refer to where rows have no names.
        categories: which.
        limits: count the first rows alone too, these numbers of them.

    Raises:
        VoteError: votes that cannot be read.
    """
    source: Source = open_votes_source(path)
    counted = TrainVotes(source.name, list(categories), [0, *limits])
    for batch in read_votes(source, need_prompt=False, label_list=model_list):
        counted.add(batch.batch)
    return counted
