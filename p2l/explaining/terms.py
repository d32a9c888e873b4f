"""Which words are in which prompts, what words a kind of prompt is known by, and what kind the words of a prompt name.

A term is a word of letters, or a pair of neighbouring characters in scripts without spaces; each counts once per
prompt. Words that are everywhere need no list of stop words, in no language: a term is typical of a cluster by

    p ln(p / q) ln(1 / r),    p, q, r: its share of prompts within the cluster, of all others, and of all together
                              (smoothed by half a prompt),

its part in the divergence of the one from the other, times the weight of rare words. To place a prompt by its words
alone, naive Bayes counts the terms that it holds.

Shapes: N prompts, V terms, K clusters.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from p2l.words import SPACELESS, split_words

__all__ = ["Places", "Terms", "count_terms", "learn_places", "terms_of", "typical_terms"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_RUN = re.compile(f"(?:{SPACELESS.pattern}){{2,}}")
_CHARACTERS = 3000  # of a prompt that are read: its kind shows soon, and a pasted document would outvote it
_TERMS = 30_000
_LEAST = 3  # prompts that a term must be in
_SMOOTHING = 0.5


@dataclass(frozen=True)
class Terms:
    """Terms and where they occur.

    Attributes:
        words: the V terms.
        table: sparse (N, V), 1 where a prompt holds a term.
        ids: position of each term.
    """

    words: list[str]
    table: Any
    ids: dict[str, int]

    def of(self, rows: Ints) -> Terms:
        """Some of the prompts."""
        return Terms(self.words, self.table[rows], self.ids)

    def locate(self, texts: Sequence[Sequence[str]]) -> Any:
        """(n, V) table of other prompts."""
        return _table([[self.ids[term] for term in terms_of(turns) if term in self.ids] for turns in texts], self.words)


def terms_of(turns: Sequence[str]) -> set[str]:
    """The terms of one prompt."""
    found: set[str] = set()
    for turn in turns:
        text = turn[:_CHARACTERS]
        found.update(split_words(text))
        if not text.isascii():
            found.update(one + two for run in _RUN.findall(text) for one, two in pairwise(run))
    return {word.strip("'’_") for word in found if len(word) > 1}


def count_terms(texts: Sequence[Sequence[str]]) -> Terms:
    """The terms that are in at least three of these N prompts, the most frequent 30,000."""
    ids: dict[str, int] = {}
    found, ends = array("i"), array("q", [0])
    for turns in texts:
        found.extend([ids.setdefault(term, len(ids)) for term in terms_of(turns)])
        ends.append(len(found))
    place, ends_at = np.frombuffer(found, dtype=np.int32), np.frombuffer(ends, dtype=np.int64)
    whole = csr_array((np.ones(len(place), np.float32), place, ends_at), shape=(len(texts), len(ids)))
    number = np.bincount(place, minlength=len(ids))
    words = np.array(list(ids), dtype=object)
    order = np.lexsort((words, -number)) if len(words) else np.empty(0, np.int64)
    kept = [int(term) for term in order[:_TERMS] if number[term] >= _LEAST and words[term]]
    chosen = [str(words[term]) for term in kept]
    return Terms(chosen, whole[:, kept], {term: place for place, term in enumerate(chosen)})


def _table(rows: Sequence[Sequence[int]], words: Sequence[str]) -> Any:
    ends = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    place = np.array([term for row in rows for term in row], dtype=np.int64)
    return csr_array((np.ones(len(place), np.float32), place, ends), shape=(len(rows), len(words)))


def _counts(table: Any, cluster: Ints, clusters: int) -> tuple[Floats, Floats]:
    """Prompts of each cluster that hold each term (K, V), and prompts of each cluster (K,)."""
    member = csr_array((np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(clusters, len(cluster)))
    sizes = np.bincount(cluster, minlength=clusters).astype(np.float64)
    return np.asarray((member @ table).toarray(), dtype=np.float64), sizes


def typical_terms(terms: Terms, cluster: Ints, clusters: int, *, most: int = 8) -> list[list[str]]:
    """The terms that tell each cluster from the others, the most typical first; none may be typical at all.

    A term counts once among those that only differ in their ending (proof, proofs).
    """
    inside, sizes = _counts(terms.table, cluster, clusters)
    outside, others = inside.sum(axis=0) - inside, sizes.sum() - sizes
    p = (inside + _SMOOTHING) / (sizes + 1)[:, None]
    q = (outside + _SMOOTHING) / (others + 1)[:, None]
    r = (inside.sum(axis=0) + _SMOOTHING) / (sizes.sum() + 1)
    score = np.where(
        (p > q) & (inside >= np.maximum(_LEAST, 0.02 * sizes)[:, None]), p * np.log(p / q) * np.log(1 / r), 0.0
    )
    return [_distinct(terms.words, row, most) for row in score]


def _distinct(words: Sequence[str], score: Floats, most: int) -> list[str]:
    found: list[str] = []
    for place in np.argsort(-score, kind="stable")[: 10 * most]:
        if score[place] <= 0 or len(found) == most:
            break
        if not any(_kin(words[place], other) for other in found):
            found.append(words[place])
    return found


def _kin(one: str, other: str) -> bool:
    """Whether two words only differ in their ending, or two pairs of characters overlap."""
    if SPACELESS.match(one) and SPACELESS.match(other):
        return one[-1] == other[0] or one[0] == other[-1]
    short, long = sorted((one, other), key=len)
    return len(short) > 3 and long.startswith(short[:-1]) and len(long) - len(short) < 4


@dataclass(frozen=True)
class Places:
    """Naive Bayes: the cluster that the terms of a prompt speak for most.

    Attributes:
        terms: as they were counted.
        weights: (V, K) log share of the prompts of a cluster that hold a term.
        start: (K,) log share of the cluster.
    """

    terms: Terms
    weights: Floats
    start: Floats

    def place(self, table: Any) -> Ints:
        """Clusters (n,) of the prompts of a table (n, V)."""
        return np.asarray((table @ self.weights + self.start).argmax(axis=1), dtype=np.int64)

    def place_texts(self, texts: Sequence[Sequence[str]]) -> Ints:
        """Clusters (n,) of prompts."""
        return self.place(self.terms.locate(texts))


def learn_places(terms: Terms, cluster: Ints, clusters: int) -> Places:
    """Learn from prompts whose clusters (N,) are known what the words of each are."""
    inside, sizes = _counts(terms.table, cluster, clusters)
    share = np.log((inside + _SMOOTHING) / (inside + _SMOOTHING).sum(axis=1, keepdims=True))
    start = np.log((sizes + _SMOOTHING) / (sizes + _SMOOTHING).sum())
    return Places(Terms(terms.words, None, terms.ids), share.T.copy(), start)
