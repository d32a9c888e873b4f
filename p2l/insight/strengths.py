"""How each model does on each kind of prompts, against how it does overall, with intervals over prompts.

A model's strength is its coefficient less the mean of the M models; its change in a cluster is its strength there less
that over all prompts. Strengths come from the votes that a model keeps, with the error that these leave. Without votes
they are means of its predictions, which are shrunk, with intervals over prompts alone: the bootstrap draws prompts for
the cluster and for the whole together; beyond 2,048 prompts it draws as many random groups of them, as
`p2l.common.bootstrap` does.

Shapes: N prompts, M models, K clusters, k of them measured, G groups of prompts, R replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.bootstrap import MAX_GROUPS, limits
from p2l.common.files import no_nan
from p2l.insight.drift import adjusted, p_values
from p2l.insight.kept_boards import VotesOnPrompts
from p2l.insight.terms import Places, centre_of, members
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.likelihood import Likelihood, win_rates

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_REPLICATES = 400
_REPLICATES_PER_BLOCK = 50  # whose ranks are in memory together


@dataclass(frozen=True)
class Cluster:
    """A kind of prompts, with the beginnings of a few of them.

    Attributes:
        name: its most typical terms.
        terms: more of them, the most typical first; empty where nothing tells it apart, or the prompts are unknown.
        prompts, share: of the prompts measured.
    """

    name: str
    terms: tuple[str, ...]
    prompts: int
    share: float
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """What votes show of a model in a cluster.

    Attributes:
        votes: of the model, on prompts of the cluster.
        rate: share of them that it won; ties count half. `rate_elsewhere`: of its votes on other prompts.
        change, lower, upper: its score in the cluster minus that of all votes, in points; shrunk towards none.
    """

    votes: int
    rate: float
    rate_elsewhere: float
    change: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Strength:
    """How one model does in one cluster, against how it does overall.

    Attributes:
        prompts: measured in the cluster.
        change: score in the cluster minus score overall, in points, both against the mean of the models.
        lower, upper: its interval.
        rank: place in the cluster, 1 the best; `rank_lower` to `rank_upper` its interval.
        win_rate: chance of beating another model drawn at random, at the mean coefficients; ties count half.
        p: chance of as large a change where the true one is no larger than the least that counts.
        q: the least false discovery rate at which it is found.
        verdict: better, worse, or empty.
    """

    cluster: str
    model: str
    prompts: int
    change: float
    lower: float
    upper: float
    rank: int
    rank_lower: int
    rank_upper: int
    overall_rank: int
    win_rate: float
    overall_win_rate: float
    p: float
    q: float
    verdict: str
    observed: Observed | None = None


@dataclass(frozen=True)
class VoteAgreement:
    """Whether votes confirm the strengths.

    Attributes:
        votes: placed in clusters.
        cells: (model, cluster) with enough votes to compare.
        correlation: between predicted and observed change over these, weighted by votes; None with fewer than three.
        found: strengths and weaknesses among these; the votes of `same_sign` of them change in the same direction.
    """

    votes: int
    cells: int
    correlation: float | None
    found: int
    same_sign: int


@dataclass(frozen=True)
class Explanation:
    """Strengths and weaknesses of every model.

    Attributes:
        models: M names, the best overall first.
        clusters: those that hold a measured prompt, the largest first.
        strengths: a cell for each model and cluster.
        prompts, chosen_from: different prompts that were measured, and that the clusters were chosen on.
        by: how a measured prompt came into its cluster: `words` or `nearest`.
        explained: share of the variance of the coefficients that lies between the clusters, adjusted for their number.
        recovered: share of the prompts that their words place as their coefficients do; None without words.
        notes: sentences for the reader.
        names: of all K clusters, by number.
        places: puts other prompts into the clusters, as numbers, by their words.
        known: cluster of each known prompt by `hash_turns`, for `by="nearest"`.
    """

    models: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    strengths: tuple[Strength, ...]
    likelihood: str
    prompts: int
    chosen_from: int
    by: str
    explained: float
    recovered: float | None
    level: float
    fdr: float
    least_change: float
    seed: int
    agreement: VoteAgreement | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    places: Places | None = field(default=None, repr=False, compare=False)
    known: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def found(self) -> list[Strength]:
        """The cells where a model is better or worse, the largest change first."""
        return sorted((cell for cell in self.strengths if cell.verdict), key=lambda cell: -abs(cell.change))

    def of(self, model: str) -> list[Strength]:
        """Return the cells of one model, its best cluster first."""
        return sorted((cell for cell in self.strengths if cell.model == model), key=lambda cell: -cell.change)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, without NaN."""
        # The words and hashes that place other prompts are large, and of use to programs alone.
        plain = asdict(replace(self, places=None, known={}))
        return {name: no_nan(part) for name, part in plain.items() if name not in ("names", "places", "known")}


@dataclass(frozen=True)
class PromptAnswers:
    """Predictions for N prompts: coefs (N, M), eta and gamma (N,) or None; and votes that tell categories of them."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None
    votes: VotesOnPrompts | None = None

    def of(self, rows: Ints) -> PromptAnswers:
        """Return some of the prompts."""
        eta, gamma = (None if values is None else values[rows] for values in (self.eta, self.gamma))
        votes = None if self.votes is None else self.votes.of(rows)
        return PromptAnswers(self.coefs[rows], eta, gamma, votes)

    def means(self, cluster: Ints, clusters: int) -> tuple[Floats, Floats | None, Floats | None]:
        """Return mean coefs (K, M), eta and gamma (K,) of each cluster."""
        eta, gamma = (
            None if values is None else centre_of(values[:, None], cluster, clusters)[:, 0]
            for values in (self.eta, self.gamma)
        )
        return centre_of(self.coefs, cluster, clusters), eta, gamma


@dataclass(frozen=True)
class Rules:
    """When a change counts: coverage of intervals, false discovery rate, least change in points, fewest prompts."""

    level: float = 0.95
    fdr: float = 0.05
    least_change: float = 20.0
    least_prompts: int = 20


@dataclass(frozen=True)
class _Boards:
    """The leaderboards of k measured clusters and of everything, and R draws of what they might have been."""

    inside: Floats
    """(k, M)"""
    overall: Floats
    """(M,)"""
    rates: Floats
    """(k, M) win rates"""
    overall_rates: Floats
    """(M,)"""
    drawn: Floats
    """(R, k, M)"""
    drawn_overall: Floats
    """(R, M)"""
    prompts: Floats
    """(k, M) that each coefficient rests on."""

    def changes(self, rules: Rules) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the changes, ends of their intervals, and standard errors (k, M).

        A change is against the mean change of the models that a cluster says enough of.
        """
        field = (self.prompts >= rules.least_prompts).astype(np.float64)
        field[field.sum(axis=1) < 2] = 1.0
        field /= field.sum(axis=1, keepdims=True)

        def against_field(change: Floats) -> Floats:
            return np.asarray(change - (change * field).sum(axis=-1, keepdims=True))

        drawn = against_field(self.drawn - self.drawn_overall[:, None])
        drawn[:, np.isnan(drawn).all(axis=0)] = 0.0
        return against_field(self.inside - self.overall), *limits(drawn, rules.level), np.nanstd(drawn, axis=0, ddof=1)

    def rank_limits(self, level: float) -> tuple[Ints, Ints]:
        """Return ends of the intervals (k, M) of the places in each cluster."""
        ranks = np.empty(self.drawn.shape, dtype=np.int16)
        for start in range(0, len(ranks), _REPLICATES_PER_BLOCK):
            block = slice(start, start + _REPLICATES_PER_BLOCK)
            ranks[block] = _ranks(np.nan_to_num(self.drawn[block]))
        tail = (1 - level) / 2
        lower, upper = np.quantile(ranks, [tail, 1 - tail], axis=0, method="nearest")
        return lower.astype(np.int64), upper.astype(np.int64)


def measure(
    answers: PromptAnswers,
    cluster: Ints,
    names: Sequence[str],
    models: Sequence[str],
    likelihood: Likelihood,
    rules: Rules,
    rng: np.random.Generator,
) -> list[Strength]:
    """Return a cell for each model and each cluster with enough prompts; clusters (N,) refer to `names`."""
    sizes = np.bincount(cluster, minlength=len(names))
    measured = [int(k) for k in np.argsort(-sizes, kind="stable") if sizes[k] >= rules.least_prompts]
    if not measured:
        return []
    if answers.votes is None:
        boards = _of_predictions(answers, cluster, measured, len(names), likelihood, rng)
    else:
        boards = _of_votes(answers.votes, cluster, measured, models, rng)
    change, lower, upper, error = boards.changes(rules)
    rank_lower, rank_upper = boards.rank_limits(rules.level)
    p = p_values(change, error, np.maximum(boards.prompts - 1.0, 1.0), rules.least_change)
    p[boards.prompts < rules.least_prompts] = 1.0
    q = adjusted(p.ravel()).reshape(p.shape)
    ranks, overall_ranks = _ranks(boards.inside), _ranks(boards.overall)
    return [
        Strength(
            cluster=names[k],
            model=model,
            prompts=int(sizes[k]),
            change=float(POINTS_PER_LOGIT * change[row, m]),
            lower=float(POINTS_PER_LOGIT * lower[row, m]),
            upper=float(POINTS_PER_LOGIT * upper[row, m]),
            rank=int(ranks[row, m]),
            rank_lower=int(rank_lower[row, m]),
            rank_upper=int(rank_upper[row, m]),
            overall_rank=int(overall_ranks[m]),
            win_rate=float(boards.rates[row, m]),
            overall_win_rate=float(boards.overall_rates[m]),
            p=float(p[row, m]),
            q=float(q[row, m]),
            verdict="" if q[row, m] > rules.fdr else "better" if change[row, m] > 0 else "worse",
        )
        for row, k in enumerate(measured)
        for m, model in enumerate(models)
    ]


def centred(coefs: Floats) -> Floats:
    """Return coefficients (..., M) less their mean."""
    return np.asarray(coefs - coefs.mean(axis=-1, keepdims=True))


def _ranks(strength: Floats) -> Ints:
    """Return places (..., M) from 1, the greatest first."""
    return np.argsort(np.argsort(-strength, axis=-1, kind="stable"), axis=-1, kind="stable") + 1


def _of_votes(
    votes: VotesOnPrompts, cluster: Ints, measured: Sequence[int], models: Sequence[str], rng: np.random.Generator
) -> _Boards:
    """Return the leaderboards that votes give; draws move every kept prompt's share in them at random, all together."""
    columns = [votes.kept.models.index(model) for model in models]
    boards = [
        votes.board(rows) for rows in [np.arange(len(cluster)), *(np.flatnonzero(cluster == k) for k in measured)]
    ]
    coefs = np.stack([board.coefs[columns] for board in boards])
    drawn = np.empty((_REPLICATES, *coefs.shape))
    signs = rng.normal(size=(_REPLICATES, len(votes.kept.hashes)))
    for place, board in enumerate(boards):
        of_prompts, of_prior = np.split(board.influences[:, columns], [len(votes.kept.hashes)])
        apart = rng.normal(size=(_REPLICATES, len(of_prior))) @ of_prior
        drawn[:, place] = coefs[place] + signs @ of_prompts + apart
    rates = np.stack([board.rates[columns] for board in boards])
    prompts = np.stack([board.prompts[columns] for board in boards])
    return _Boards(coefs[1:], coefs[0], rates[1:], rates[0], drawn[:, 1:], drawn[:, 0], prompts[1:])


def _of_predictions(
    answers: PromptAnswers,
    cluster: Ints,
    measured: Sequence[int],
    clusters: int,
    likelihood: Likelihood,
    rng: np.random.Generator,
) -> _Boards:
    """Return the means of the predictions, over R draws of prompts: of a cluster's and of all together."""
    strength = centred(answers.coefs)
    number, models = strength.shape
    groups = min(number, MAX_GROUPS)
    group = rng.permutation(number) % groups
    cells = members(group * clusters + cluster, groups * clusters)
    sums = np.asarray(cells @ strength).reshape(groups, clusters * models)
    sizes = np.asarray(cells.sum(axis=1)).reshape(groups, clusters)
    times = rng.multinomial(groups, np.full(groups, 1 / groups), size=_REPLICATES).astype(np.float64)
    drawn = (times @ sums).reshape(_REPLICATES, clusters, models)
    counts = times @ sizes
    overall = drawn.sum(axis=1) / counts.sum(axis=1)[:, None]
    with np.errstate(invalid="ignore"):
        inside = drawn / counts[:, :, None]  # NaN where none of a small cluster was drawn
    coefs, eta, gamma = answers.means(cluster, clusters)
    all_coefs, all_eta, all_gamma = answers.means(np.zeros_like(cluster), 1)
    prompts = np.bincount(cluster, minlength=clusters)[measured].astype(np.float64)
    return _Boards(
        inside=centred(coefs)[measured],
        overall=strength.mean(axis=0),
        rates=win_rates(coefs, likelihood, eta, gamma)[measured],
        overall_rates=win_rates(all_coefs, likelihood, all_eta, all_gamma)[0],
        drawn=inside[:, measured],
        drawn_overall=overall,
        prompts=np.repeat(prompts[:, None], models, axis=1),
    )
