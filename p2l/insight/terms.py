"""Clusters of prompts: by their points, with the words that are typical of each, and by their words alone.

A term is a word of letters, or a pair of neighbouring characters in scripts without spaces; each counts once per
prompt. A term is typical of a cluster by

    p ln(p / q) ln(1 / r),    p, q, r: its share of prompts within the cluster, of all others, and of all together
                              (smoothed by half a prompt),

its part in the divergence of the one from the other, times the weight of rare words. That ranks function words low in
any language; those of English name no cluster at all. To place a prompt by its words alone, naive Bayes counts all the
terms that it holds, function words included.

Shapes: N prompts, V terms, K clusters.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.cluster import hierarchy, vq
from scipy.sparse import csr_array

from p2l.common.prompts import SPACELESS, split_words

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_RUN = re.compile(f"(?:{SPACELESS.pattern}){{2,}}")
_CHARACTERS_READ = 3000  # of a prompt: its kind shows soon, and a pasted document would outvote it
_MAX_TERMS = 30_000
_LEAST_PROMPTS = 3  # that a term must be in
_SMOOTHING = 0.5
# Words that do not tell what a prompt is about. Prompts of another style hold some of them more often than others do
# ("about, was, as" of poems), so that frequencies alone do not leave them out.
_ENGLISH = """
a an the this that these those such same other another each every either neither both all any some no none few many
much more most less least several enough only just even also too very quite rather so than then there here now still
yet again ever never always often once already else almost perhaps well back away up down out off on over under above
below in into onto at by for from of to with within without about against among around across along after before behind
beside besides between beyond during except inside near outside per since through throughout toward towards until upon
via as like unlike and or but nor if unless because although though while whereas whether i me my mine myself we us our
ours ourselves you your yours yourself he him his himself she her hers herself it its itself they them their theirs
themselves one ones who whom whose which what when where why how whatever whichever someone something anyone anything
everyone everything nothing somebody anybody nobody be am is are was were been being do does did done doing have has
had having can could may might must shall should will would ought cannot not let lets get gets got getting give gives
given gave go goes going gone went come comes came make makes made making take takes took taken put use uses used using
say says said saying tell tells told know knows known knew think see want wants wanted need needs needed help please
thanks thank yes ok okay hi hello hey first last next new two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty hundred thousand don't doesn't didn't isn't aren't
wasn't weren't won't wouldn't can't couldn't shouldn't haven't hasn't hadn't i'm i'd i've i'll you're you've you'd
you'll it's he's she's we're we've we'll they're they've that's there's here's what's who's where's how's let's
"""
_FUNCTION_WORDS = frozenset(_ENGLISH.split())


@dataclass(frozen=True)
class Terms:
    """V terms, a sparse table (N, V) with 1 where a prompt holds a term, and the position of each term."""

    words: list[str]
    table: Any
    ids: dict[str, int]

    def of(self, rows: Ints) -> Terms:
        """Return the terms of some of the prompts."""
        return Terms(self.words, self.table[rows], self.ids)

    def locate(self, texts: Sequence[Sequence[str]]) -> Any:
        """Return a table (n, V) of other prompts."""
        rows = [[self.ids[term] for term in terms_of(turns) if term in self.ids] for turns in texts]
        ends = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        place = np.array([term for row in rows for term in row], dtype=np.int64)
        return csr_array((np.ones(len(place), np.float32), place, ends), shape=(len(rows), len(self.words)))


def terms_of(turns: Sequence[str]) -> set[str]:
    """Return the terms of one prompt."""
    terms: set[str] = set()
    for turn in turns:
        text = turn[:_CHARACTERS_READ]
        terms.update(split_words(text))
        if not text.isascii():
            terms.update(left + right for run in _RUN.findall(text) for left, right in pairwise(run))
    return {word.strip("'’_") for word in terms if len(word) > 1}


def count_terms(texts: Sequence[Sequence[str]]) -> Terms:
    """Return the terms that are in at least three of these N prompts, the most frequent 30,000."""
    ids: dict[str, int] = {}
    terms, ends = array("i"), array("q", [0])
    for turns in texts:
        terms.extend([ids.setdefault(term, len(ids)) for term in terms_of(turns)])
        ends.append(len(terms))
    place, ends_at = np.frombuffer(terms, dtype=np.int32), np.frombuffer(ends, dtype=np.int64)
    whole = csr_array((np.ones(len(place), np.float32), place, ends_at), shape=(len(texts), len(ids)))
    number = np.bincount(place, minlength=len(ids))
    words = np.array(list(ids), dtype=object)
    order = np.lexsort((words, -number)) if len(words) else np.empty(0, np.int64)
    frequent = [int(term) for term in order[:_MAX_TERMS] if number[term] >= _LEAST_PROMPTS and words[term]]
    chosen = [str(words[term]) for term in frequent]
    return Terms(chosen, whole[:, frequent], {term: place for place, term in enumerate(chosen)})


def _counts(table: Any, cluster: Ints, clusters: int) -> tuple[Floats, Floats]:
    """Return the prompts of each cluster that hold each term (K, V), and the prompts of each cluster (K,)."""
    sizes = np.bincount(cluster, minlength=clusters).astype(np.float64)
    return np.asarray((members(cluster, clusters) @ table).toarray(), dtype=np.float64), sizes


def members(cluster: Ints, clusters: int) -> csr_array:
    """Return a sparse table (K, N), 1 where a prompt is in a cluster."""
    return csr_array((np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(clusters, len(cluster)))


def typical_terms(terms: Terms, cluster: Ints, clusters: int, *, most: int = 8) -> list[list[str]]:
    """Return the most typical terms of each cluster, perhaps none.

    Of terms that only differ in their ending one is listed, and no function word of English is.
    """
    inside, sizes = _counts(terms.table, cluster, clusters)
    outside, others = inside.sum(axis=0) - inside, sizes.sum() - sizes
    p = (inside + _SMOOTHING) / (sizes + 1)[:, None]
    q = (outside + _SMOOTHING) / (others + 1)[:, None]
    r = (inside.sum(axis=0) + _SMOOTHING) / (sizes.sum() + 1)
    # What few prompts of a large cluster hold would misname it, however rare it is elsewhere.
    is_name = (p > q) & (inside >= np.maximum(_LEAST_PROMPTS, 0.02 * sizes)[:, None])
    is_name &= np.array([word not in _FUNCTION_WORDS for word in terms.words], dtype=bool)
    score = np.where(is_name, p * np.log(p / q) * np.log(1 / r), 0.0)
    return [_distinct(terms.words, row, most) for row in score]


def _distinct(words: Sequence[str], score: Floats, most: int) -> list[str]:
    names: list[str] = []
    # Kin of better terms are passed over; this number leaves enough, and comparing all would take long.
    for place in np.argsort(-score, kind="stable")[: 10 * most]:
        if score[place] <= 0 or len(names) == most:
            break
        if not any(_is_kin(words[place], name) for name in names):
            names.append(words[place])
    return names


def _is_kin(word: str, name: str) -> bool:
    """Whether two words only differ in their ending, or two pairs of characters overlap."""
    if SPACELESS.match(word) and SPACELESS.match(name):
        return word[-1] == name[0] or word[0] == name[-1]
    short, long = sorted((word, name), key=len)
    return len(short) > 3 and long.startswith(short[:-1]) and len(long) - len(short) < 4


@dataclass(frozen=True)
class Places:
    """Naive Bayes: the cluster that the terms of a prompt speak for most.

    Log shares: `weights` (V, K) of the prompts of a cluster that hold a term, `start` (K,) of the cluster.
    """

    terms: Terms
    weights: Floats
    start: Floats

    def place(self, table: Any) -> Ints:
        """Return clusters (n,) of the prompts of a table (n, V)."""
        return np.asarray((table @ self.weights + self.start).argmax(axis=1), dtype=np.int64)

    def place_texts(self, texts: Sequence[Sequence[str]]) -> Ints:
        """Return clusters (n,) of prompts."""
        return self.place(self.terms.locate(texts))


def learn_places(terms: Terms, cluster: Ints, clusters: int) -> Places:
    """Learn the words of each cluster from prompts whose clusters (N,) are known."""
    inside, sizes = _counts(terms.table, cluster, clusters)
    share = np.log((inside + _SMOOTHING) / (inside + _SMOOTHING).sum(axis=1, keepdims=True))
    start = np.log((sizes + _SMOOTHING) / (sizes + _SMOOTHING).sum())
    return Places(Terms(terms.words, None, terms.ids), share.T.copy(), start)


# Clusters of coefficients or of embeddings, by the few directions that hold most of the variance.
#
# Ward's method on a sample gives every number of clusters at once, without random starts; k-means on up to 20,000
# prompts then corrects the borders. How many clusters: for other prompts, the share of the variance of their
# coefficients that lies between the clusters is computed (adjusted R^2), and the fewest clusters that reach 95 % of the
# best share are used: more would tell little more, and each be known less well.
#
# Shapes: N prompts, M models, F features, K clusters.

Cut: TypeAlias = Callable[[int], Floats]
_MAX_CLUSTERS = 20
_MAX_DIRECTIONS = 16
_VARIANCE_HELD = 0.95  # by the directions that are kept
_WARD_SAMPLE = 2000  # prompts; Ward's method takes memory for each pair
_KMEANS_SAMPLE = 20_000  # prompts
_ENOUGH_OF_BEST = 0.95  # share of the best number's variance that fewer clusters must explain
SAYS_LITTLE = 0.02
"""Share of variance up to which clusters count as chance."""


def principal(values: Floats) -> tuple[Floats, Floats]:
    """Return the mean (F,) and the directions (F, c) that hold 95 % of the variance of (N, F), at most 16."""
    mean = values.mean(axis=0)
    size, vectors = np.linalg.eigh(np.cov(values, rowvar=False).reshape(len(mean), len(mean)))
    size, vectors = np.maximum(size[::-1], 0.0), vectors[:, ::-1]
    number = int(np.searchsorted(np.cumsum(size), _VARIANCE_HELD * size.sum())) + 1
    return mean, vectors[:, : min(number, _MAX_DIRECTIONS)]


def tree(values: Floats, rng: np.random.Generator) -> Cut:
    """Return a function from a number of clusters of points (N, c) to their centres (K, c)."""
    chosen = rng.permutation(len(values))
    sample, refined = values[chosen[:_WARD_SAMPLE]], values[chosen[:_KMEANS_SAMPLE]]
    merges = hierarchy.linkage(sample, "ward")

    def cut(clusters: int) -> Floats:
        labels = hierarchy.fcluster(merges, clusters, "maxclust") - 1
        start = np.stack([sample[labels == label].mean(axis=0) for label in np.unique(labels)])
        try:
            centres, _ = vq.kmeans2(refined, start, iter=20, minit="matrix", missing="raise")
        except vq.ClusterError:  # a cluster lost all its points: Ward's centres are good ones too
            return start
        return np.asarray(centres, dtype=np.float64)

    return cut


def nearest(values: Floats, centres: Floats) -> Ints:
    """Return the cluster (N,) of each point (N, c): that of the nearest centre (K, c)."""
    return np.asarray(vq.vq(values, centres)[0], dtype=np.int64)


def centre_of(values: Floats, cluster: Ints, clusters: int) -> Floats:
    """Return the means (K, c) of the points of each cluster; zero where there are none."""
    number = np.bincount(cluster, minlength=clusters)
    sums = np.stack([np.bincount(cluster, column, minlength=clusters) for column in values.T], axis=1)
    return np.asarray(sums / np.maximum(number, 1)[:, None])


def explained(values: Floats, cluster: Ints) -> float:
    """Return the share of the variance of (N, c) between clusters (N,), adjusted for their number; chance gives 0."""
    clusters = len(np.unique(cluster))
    if len(values) <= clusters:
        return 0.0
    within = values - centre_of(values, cluster, int(cluster.max()) + 1)[cluster]
    whole = ((values - values.mean(axis=0)) ** 2).sum() / (len(values) - 1)
    return float(1.0 - (within**2).sum() / (len(values) - clusters) / whole) if whole > 0 else 0.0


def candidates(prompts: int, least: int) -> list[int]:
    """Return the numbers of clusters to try, if each is to have at least `least` of the prompts."""
    most = max(2, min(_MAX_CLUSTERS, prompts // max(least, 1)))
    return [number for number in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20) if number <= most]


def fewest(numbers: Sequence[int], shares: Sequence[float]) -> int:
    """Return the least number whose share reaches 95 % of the best; of noise, the least of all."""
    best = max(shares)
    if best < SAYS_LITTLE:
        return numbers[0]
    return next(number for number, share in zip(numbers, shares, strict=True) if share >= _ENOUGH_OF_BEST * best)
