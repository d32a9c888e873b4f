"""Strengths and weaknesses of models, from what a P2L says of many prompts.

Different prompts count once and are split in halves. On the first, clusters are found, their number chosen, their names
given and the words of each learned. On the second, prompts are put into these clusters by their words alone and the
models are measured there. The numbers that are measured have so chosen nothing: not the borders, not the names, and
not the prompts that they are averaged over. Coefficients that are mere noise show no strengths, which clusters that
are measured on the coefficients that made them would. The price: what words do not tell is diluted.

Shapes: N prompts, M models, D dimensions of an embedding, K clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import stdtr

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.insight import terms as kinds
from p2l.insight.drift import adjusted
from p2l.insight.explain_report import Cluster, Explanation, Strength
from p2l.insight.terms import Places, Terms, count_terms, learn_places, typical_terms
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.likelihood import Likelihood, win_rates
from p2l.votes.schema import hash_turns

# How each model does in each cluster against how it does overall, with intervals over prompts.
#
# A model's strength on a prompt is its coefficient less the mean of the M models; its change in a cluster is the mean
# of that over the cluster's prompts less the mean over all. The bootstrap draws prompts again, for the cluster and for
# the whole together; beyond 2,048 prompts these are dealt into as many groups, which are drawn in their place.
#
# Shapes: N prompts, M models, K clusters, G groups of prompts, R replicates.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_GROUPS = 2048
_REPLICATES = 400
_AT_ONCE = 50  # replicates whose ranks are in memory together


@dataclass(frozen=True)
class PromptAnswers:
    """What a model says of N prompts: coefs (N, M), eta and gamma (N,) or None."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None

    def of(self, rows: Ints) -> PromptAnswers:
        """Some of the prompts."""
        eta, gamma = (None if values is None else values[rows] for values in (self.eta, self.gamma))
        return PromptAnswers(self.coefs[rows], eta, gamma)

    def means(self, cluster: Ints, clusters: int) -> tuple[Floats, Floats | None, Floats | None]:
        """Mean coefs (K, M), eta and gamma (K,) of each cluster."""
        number = np.maximum(np.bincount(cluster, minlength=clusters), 1)
        sums = _members(cluster, clusters) @ self.coefs
        sides = (
            None if values is None else np.bincount(cluster, values, minlength=clusters) / number
            for values in (self.eta, self.gamma)
        )
        return (np.asarray(sums / number[:, None]), *sides)  # type: ignore[return-value]


@dataclass(frozen=True)
class Rules:
    """When a change counts: coverage of intervals, false discovery rate, least change in points, fewest prompts."""

    level: float = 0.95
    fdr: float = 0.05
    least_change: float = 20.0
    least_prompts: int = 20


def measure(
    answers: PromptAnswers,
    cluster: Ints,
    names: Sequence[str],
    models: Sequence[str],
    likelihood: Likelihood,
    rules: Rules,
    rng: np.random.Generator,
) -> list[Strength]:
    """A cell for each model and each cluster with enough prompts; clusters (N,) refer to `names`."""
    strength = answers.coefs - answers.coefs.mean(axis=1, keepdims=True)
    sizes = np.bincount(cluster, minlength=len(names))
    used = [int(one) for one in np.argsort(-sizes, kind="stable") if sizes[one] >= rules.least_prompts]
    if not used:
        return []
    draws = _Draws(strength, cluster, len(names), rng)
    overall, inside = strength.mean(axis=0), centred(answers.means(cluster, len(names))[0])
    lower, upper, error = draws.changes(rules.level)
    rank_lower, rank_upper = draws.ranks(rules.level)
    change = inside - overall
    p = _chances(change[used], error[used], sizes[used], rules.least_change)
    q = adjusted(p.ravel()).reshape(p.shape)
    rates, overall_rates = _rates(answers, cluster, len(names), likelihood)
    ranks, overall_ranks = _ranks(inside), _ranks(overall[None])[0]
    points = POINTS_PER_LOGIT * np.stack([change, lower, upper])
    return [
        Strength(
            cluster=names[k],
            model=model,
            prompts=int(sizes[k]),
            change=float(points[0, k, m]),
            lower=float(points[1, k, m]),
            upper=float(points[2, k, m]),
            rank=int(ranks[k, m]),
            rank_lower=int(rank_lower[k, m]),
            rank_upper=int(rank_upper[k, m]),
            overall_rank=int(overall_ranks[m]),
            win_rate=float(rates[k, m]),
            overall_win_rate=float(overall_rates[m]),
            p=float(p[row, m]),
            q=float(q[row, m]),
            verdict="" if q[row, m] > rules.fdr else "better" if change[k, m] > 0 else "worse",
        )
        for row, k in enumerate(used)
        for m, model in enumerate(models)
    ]


def centred(coefs: Floats) -> Floats:
    """Coefficients (..., M) less their mean."""
    return np.asarray(coefs - coefs.mean(axis=-1, keepdims=True))


def _members(cluster: Ints, clusters: int) -> csr_array:
    """Sparse (K, N), 1 where a prompt is in a cluster."""
    return csr_array((np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(clusters, len(cluster)))


def _rates(answers: PromptAnswers, cluster: Ints, clusters: int, likelihood: Likelihood) -> tuple[Floats, Floats]:
    """Win rates (K, M) in each cluster and (M,) overall, at the mean coefficients."""
    everything = answers.means(np.zeros(len(cluster), dtype=np.int64), 1)
    inside = answers.means(cluster, clusters)
    return win_rates(inside[0], likelihood, *inside[1:]), win_rates(everything[0], likelihood, *everything[1:])[0]


def _ranks(strength: Floats) -> Ints:
    """Places (..., M) from 1, the greatest first."""
    return np.argsort(np.argsort(-strength, axis=-1, kind="stable"), axis=-1, kind="stable") + 1


def _chances(change: Floats, error: Floats, sizes: Ints, least: float) -> Floats:
    """p-values (K, M) of changes beyond the least that counts, by the t distribution."""
    beyond = np.maximum(np.abs(change) - least / POINTS_PER_LOGIT, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(beyond == 0, 0.0, beyond / error)
    return np.asarray(np.minimum(1.0, 2 * stdtr(sizes[:, None] - 1.0, -ratio)))


class _Draws:
    """Means of each cluster and of everything over prompts drawn again, R times."""

    def __init__(self, strength: Floats, cluster: Ints, clusters: int, rng: np.random.Generator) -> None:
        number, self.models = strength.shape
        self.clusters = clusters
        groups = min(number, _GROUPS)
        group = rng.permutation(number) % groups
        cells = _members(group * clusters + cluster, groups * clusters)
        sums = np.asarray(cells @ strength).reshape(groups, clusters * self.models)
        sizes = np.asarray(cells.sum(axis=1)).reshape(groups, clusters)
        times = rng.multinomial(groups, np.full(groups, 1 / groups), size=_REPLICATES).astype(np.float64)
        drawn = (times @ sums).reshape(_REPLICATES, clusters, self.models)
        counts = times @ sizes
        self.overall = drawn.sum(axis=1) / counts.sum(axis=1)[:, None]
        with np.errstate(invalid="ignore"):
            self.inside = drawn / counts[:, :, None]  # NaN where none of a small cluster was drawn

    def changes(self, level: float) -> tuple[Floats, Floats, Floats]:
        """Ends of the intervals and standard errors (K, M) of the changes."""
        change = self.inside - self.overall[:, None]
        empty = np.isnan(change).all(axis=0)
        change[:, empty] = 0.0
        tail = (1 - level) / 2
        lower, upper = np.nanquantile(change, [tail, 1 - tail], axis=0)
        return lower, upper, np.nanstd(change, axis=0, ddof=1)

    def ranks(self, level: float) -> tuple[Ints, Ints]:
        """Ends of the intervals (K, M) of the places in each cluster."""
        ranks = np.empty(self.inside.shape, dtype=np.int16)
        for start in range(0, len(ranks), _AT_ONCE):
            ranks[start : start + _AT_ONCE] = _ranks(np.nan_to_num(self.inside[start : start + _AT_ONCE]))
        tail = (1 - level) / 2
        lower, upper = np.quantile(ranks, [tail, 1 - tail], axis=0, method="nearest")
        return lower.astype(np.int64), upper.astype(np.int64)


Texts = Sequence[Sequence[str]]
_NAMED = 3  # terms of a name
_EXAMPLES, _EXAMPLE = 3, 160


@dataclass(frozen=True)
class _Data:
    """N different prompts: what is said of them, what is clustered, their texts and words."""

    said: PromptAnswers
    features: Floats
    texts: list[list[str]] | None
    terms: Terms | None


@dataclass(frozen=True)
class _Clustering:
    """Clusters of the first half: centres (K, c) of points (n, c), the cluster (n,) of each, and its words."""

    centres: Floats
    cluster: Ints
    places: Places | None


def explain(
    coefs: npt.ArrayLike,
    models: Sequence[str],
    *,
    likelihood: str = "grk",
    eta: npt.ArrayLike | None = None,
    gamma: npt.ArrayLike | None = None,
    texts: Texts | None = None,
    embeddings: npt.ArrayLike | None = None,
    clusters: int | None = None,
    by: str | None = None,
    rules: Rules | None = None,
    seed: int = 0,
) -> Explanation:
    """Find kinds of prompts, and how much better or worse each model is on them than overall.

    Args:
        coefs: (N, M) coefficients of each prompt.
        models: M names.
        likelihood: of the coefficients.
        eta, gamma: (N,) where the likelihood has them.
        texts: the N prompts as lists of turns; without them clusters have numbers for names.
        embeddings: (N, D) to cluster in the place of the coefficients.
        clusters: how many; by default as `p2l.insight.terms` says.
        by: how measured prompts come into clusters: `words` (the default with texts), or `nearest` centre.
        rules: when a change counts.
        seed: of the halves, the sample that is clustered, and the bootstrap.

    Raises:
        InputError: too few prompts or models, more clusters than they allow, or values that are no finite numbers.
    """
    rules, rng, likely = rules or Rules(), np.random.default_rng(seed), likelihoods.get(likelihood)
    by = by or ("nearest" if texts is None else "words")
    data = _different(_checked(coefs, eta, gamma, models, likely), texts, embeddings)
    number = len(data.features)
    _check_number(number, clusters, rules.least_prompts)
    order = rng.permutation(number)
    first, second = np.sort(order[: number // 2]), np.sort(order[number // 2 :])
    mean, directions = kinds.principal(data.features[first])
    points = (data.features - mean) @ directions
    clustering = _find(data, points, first, clusters, by, rules.least_prompts, rng)
    cluster = _place(clustering, data, points, second, by)
    names, terms = _names(data.terms, first, clustering)
    return _noted(
        rules,
        models=_best_first(models, data.said.coefs),
        clusters=_clusters(data, points, clustering, second, cluster, names, terms),
        strengths=tuple(measure(data.said.of(second), cluster, names, models, likely, rules, rng)),
        likelihood=likely.name,
        prompts=len(second),
        chosen_from=len(first),
        by=by,
        explained=kinds.explained(centred(data.said.coefs[second]), cluster),
        recovered=_recovered(clustering, data, points, second),
        seed=seed,
        names=tuple(names),
        places=clustering.places,
        known=_known(data.texts, second, cluster),
    )


def _noted(rules: Rules, **parts: Any) -> Explanation:
    """The explanation with its rules and with what a reader must know of it."""
    explanation = Explanation(level=rules.level, fdr=rules.fdr, least_change=rules.least_change, **parts)
    return replace(
        explanation, notes=tuple(_notes(explanation, rules, len(explanation.names) - len(explanation.clusters)))
    )


def _check_number(number: int, clusters: int | None, least: int) -> None:
    """Refuse too few different prompts, or more clusters than they allow."""
    if number < 4 * least:
        raise InputError(
            f"{number} different prompts are too few to explain; {4 * least} are needed with at least {least} a cluster"
        )
    most = number // 2 // least
    if clusters is not None and not 2 <= clusters <= most:
        raise InputError(
            f"{clusters} clusters of {number} different prompts: choose 2 to {most}, so that each can have {least} of "
            "the half that is clustered"
        )


def _best_first(models: Sequence[str], coefs: Floats) -> tuple[str, ...]:
    order = np.argsort(-centred(coefs).mean(axis=0), kind="stable")
    return tuple(models[place] for place in order.tolist())


def _checked(coefs: Any, eta: Any, gamma: Any, models: Sequence[str], likely: likelihoods.Likelihood) -> PromptAnswers:
    values = np.asarray(coefs, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(models):
        raise InputError(f"coefficients have shape {values.shape}; (prompts, {len(models)} models) is needed")
    if len(models) < 2:
        raise InputError("strengths are against other models; at least two models are needed")
    sides: dict[str, Floats | None] = {}
    for name, column in (("eta", eta), ("gamma", gamma)):
        is_needed = name in likely.parameters
        if is_needed and column is None:
            raise InputError(f"likelihood {likely.name} needs {name}, which the outputs lack")
        sides[name] = np.asarray(column, dtype=np.float64).reshape(-1) if is_needed else None
    for name, part in (("coefs", values), *sides.items()):
        if part is not None and (len(part) != len(values) or not np.isfinite(part).all()):
            raise InputError(f"{name}: one finite value for each prompt is needed")
    return PromptAnswers(values, sides["eta"], sides["gamma"])


def _different(answers: PromptAnswers, texts: Texts | None, embeddings: Any) -> _Data:
    """Every different prompt once."""
    features = centred(answers.coefs) if embeddings is None else _unit(np.asarray(embeddings, dtype=np.float64))
    if len(features) != len(answers.coefs) or (texts is not None and len(texts) != len(answers.coefs)):
        raise InputError("coefficients, prompts and embeddings must be of the same prompts")
    if texts is None:
        return _Data(answers, features, None, None)
    hashes = np.array([hash_turns(list(turns)) for turns in texts], dtype=np.uint64)
    rows = np.sort(np.unique(hashes, return_index=True)[1])
    texts_used = [list(texts[row]) for row in rows]
    return _Data(answers.of(rows), features[rows], texts_used, count_terms(texts_used))


def _unit(embeddings: Floats) -> Floats:
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise InputError("embeddings: one list of finite numbers, of the same length, is needed for each prompt")
    return np.asarray(embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12))


def _find(
    data: _Data, points: Floats, first: Ints, clusters: int | None, by: str, least: int, rng: np.random.Generator
) -> _Clustering:
    cut = kinds.tree(points[first], rng)
    if clusters is not None:
        return _cut(data, points, first, cut(clusters))
    learn, test = first[::2], first[1::2]
    target = centred(data.said.coefs)
    numbers = kinds.candidates(len(first), least)
    shares = []
    for number in numbers:
        clustering = _cut(data, points, learn, cut(number))
        shares.append(kinds.explained(target[test], _place(clustering, data, points, test, by)))
    return _cut(data, points, first, cut(kinds.fewest(numbers, shares)))


def _cut(data: _Data, points: Floats, rows: Ints, centres: Floats) -> _Clustering:
    cluster = kinds.nearest(points[rows], centres)
    places = None if data.terms is None else learn_places(data.terms.of(rows), cluster, len(centres))
    return _Clustering(centres, cluster, places)


def _place(clustering: _Clustering, data: _Data, points: Floats, rows: Ints, by: str) -> Ints:
    if by == "words":
        if clustering.places is None or data.terms is None:
            raise InputError("clusters by words need the prompts; give them, or choose by nearest centre")
        return clustering.places.place(data.terms.table[rows])
    return kinds.nearest(points[rows], clustering.centres)


def _recovered(clustering: _Clustering, data: _Data, points: Floats, rows: Ints) -> float | None:
    if clustering.places is None:
        return None
    return float(
        (_place(clustering, data, points, rows, "words") == _place(clustering, data, points, rows, "nearest")).mean()
    )


def _names(terms: Terms | None, first: Ints, clustering: _Clustering) -> tuple[list[str], list[list[str]]]:
    """A name for each cluster, all different, and its terms."""
    number = len(clustering.centres)
    if terms is None:
        return [f"cluster {one + 1}" for one in range(number)], [[] for _ in range(number)]
    typical = typical_terms(terms.of(first), clustering.cluster, number)
    names: list[str] = []
    for place, words in enumerate(typical):
        name = ", ".join(words[:_NAMED]) or f"cluster {place + 1}"
        names.append(name if name not in names else f"{name} ({place + 1})")
    return names, typical


def _clusters(
    data: _Data,
    points: Floats,
    clustering: _Clustering,
    rows: Ints,
    cluster: Ints,
    names: Sequence[str],
    terms: Sequence[list[str]],
) -> tuple[Cluster, ...]:
    sizes = np.bincount(cluster, minlength=len(names))
    return tuple(
        Cluster(
            names[one],
            tuple(terms[one]),
            int(sizes[one]),
            float(sizes[one] / len(rows)),
            _examples(data.texts, rows[cluster == one], points, clustering.centres[one]),
        )
        for one in np.argsort(-sizes, kind="stable")
        if sizes[one]
    )


def _examples(texts: list[list[str]] | None, rows: Ints, points: Floats, centre: Floats) -> tuple[str, ...]:
    """The beginnings of the prompts nearest to the centre."""
    if texts is None:
        return ()
    near = rows[np.argsort(((points[rows] - centre) ** 2).sum(axis=1), kind="stable")[:_EXAMPLES]]
    return tuple(_shortened(" / ".join(texts[row])) for row in near)


def _shortened(text: str) -> str:
    plain = " ".join(text[: 4 * _EXAMPLE].split())
    return plain if len(plain) <= _EXAMPLE else plain[: _EXAMPLE - 1].rstrip() + "…"


def _known(texts: list[list[str]] | None, rows: Ints, cluster: Ints) -> dict[int, int]:
    if texts is None:
        return {}
    return {hash_turns(texts[row]): int(one) for row, one in zip(rows, cluster, strict=True)}


def _notes(explanation: Explanation, rules: Rules, empty: int) -> list[str]:
    notes = []
    small = sum(one.prompts < rules.least_prompts for one in explanation.clusters) + empty
    if small:
        notes.append(f"Clusters with fewer than {rules.least_prompts} of the prompts measured are not judged: {small}.")
    if explanation.explained < kinds.SAYS_LITTLE:
        how = "The words of a prompt" if explanation.by == "words" else "Clusters"
        notes.append(
            f"{how} tell next to nothing of the coefficients ({max(explanation.explained, 0.0):.1%} of variance)."
        )
    if explanation.by == "nearest":
        notes.append(
            "Prompts came into clusters by what is said of them: a change is then in part how the clusters were made."
        )
    notes.append("Intervals are over prompts; the model's coefficients are taken as exact. Only votes can test them.")
    return notes
