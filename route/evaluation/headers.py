"""The category of a prompt as text in front of it, for routers on a platform that knows it.

    [category: computer science]
    Which of these sorts is stable? ...

A P2L reads nothing but text, so it has to be told there, in training and when it is asked. All backbones read this
line; besides, the reader `category` reads nothing else: a vocabulary of whole lines (`CategoryReader`), so that one
line is one feature, whatever words its name has in common with others.

Shapes: Q prompts, C categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.words import split_words
from route.evaluation.features import Encoder, Words
from route.evaluation.table import ScoreTable

if TYPE_CHECKING:
    from p2l.tfidf import TfidfTokenizer

__all__ = ["CategoryReader", "Reader", "headed", "told"]

Floats: TypeAlias = npt.NDArray[np.float64]


def headed(prompt: str, category: str) -> str:
    """The prompt with its category in front."""
    return f"{_header(category)}\n{prompt}"


def told(table: ScoreTable) -> ScoreTable:
    """The table with the category in front of every prompt."""
    prompts = tuple(headed(prompt, name) for prompt, name in zip(table.prompts, table.categories, strict=True))
    return replace(table, prompts=prompts)


@dataclass(frozen=True)
class CategoryReader:
    """Reads the line that `headed` writes: one feature for each category of the training prompts."""

    tokenizer: TfidfTokenizer

    @staticmethod
    def of(categories: Sequence[str]) -> CategoryReader:
        """A reader of these categories."""
        from p2l.tfidf import TfidfTokenizer

        lines = sorted({tuple(split_words(_header(name))) for name in categories})
        sizes = [len(line) for line in lines]
        terms = [" ".join(line) for line in lines]
        return CategoryReader(TfidfTokenizer(terms, [1.0] * len(terms), ngrams=(min(sizes), max(sizes))))

    @property
    def directions(self) -> Floats:
        """(C, C): each category is a direction of its own."""
        return np.eye(self.tokenizer.vocab_size)

    def states(self, prompts: Sequence[str]) -> Floats:
        """(Q, C) a one where the prompt begins with the category's line; zeros for a category never seen."""
        rows = self.tokenizer.encode([[prompt] for prompt in prompts])
        found = np.zeros((len(rows), self.tokenizer.vocab_size))
        for number, row in enumerate(rows):
            if row.values is not None:
                found[number, row.ids] = row.values
        return found


Reader: TypeAlias = Encoder | Words | CategoryReader
"""What a backbone of the P2L reads."""


def _header(category: str) -> str:
    return f"[category: {' '.join(category.split())}]"
