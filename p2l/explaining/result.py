"""What an explanation holds: clusters of prompts, and how each model does in each.

Shapes: M models, K clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from p2l.explaining.terms import Places

__all__ = ["Agreement", "Cluster", "Explanation", "Observed", "Strength"]


@dataclass(frozen=True)
class Cluster:
    """A kind of prompts.

    Attributes:
        name: its most typical terms.
        terms: more of them, the most typical first; empty where nothing tells it apart, or the prompts are unknown.
        prompts: how many of those measured are in it.
        share: of those measured.
        examples: beginnings of a few of its prompts.
    """

    name: str
    terms: tuple[str, ...]
    prompts: int
    share: float
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """What votes say of a model in a cluster.

    Attributes:
        votes: of the model, on prompts of the cluster.
        rate: share of them that it won; ties count half.
        rate_elsewhere: the same over the votes on other prompts.
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
        cluster: its name.
        model: its name.
        prompts: measured in the cluster.
        change: score in the cluster minus score overall, in points, both against the mean of the models.
        lower, upper: its interval.
        rank: place in the cluster, 1 the best; `rank_lower` to `rank_upper` its interval.
        overall_rank: place over all prompts.
        win_rate: chance of beating another model drawn at random, at the mean coefficients; ties count half.
        overall_win_rate: the same over all prompts.
        p: chance of as large a change where there is none larger than the least that counts.
        q: the least false discovery rate at which it is found.
        verdict: better, worse, or nothing.
        observed: what votes say, if there were any to ask.
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
class Agreement:
    """Whether votes bear the strengths out.

    Attributes:
        votes: placed in clusters.
        cells: (model, cluster) with enough votes to compare.
        correlation: between predicted and observed change over these, weighted by votes; None with fewer than three.
        found: strengths and weaknesses among these.
        same_sign: of those found, how many the votes change in the same direction.
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
        clusters: the clusters that a measured prompt is in, the largest first.
        strengths: a cell for each model and cluster.
        likelihood: of the coefficients.
        prompts: different ones, measured.
        chosen_from: different ones, that the clusters were found on.
        by: how a measured prompt came into its cluster: `words` or `nearest`.
        explained: share of the variance of the coefficients that lies between the clusters, adjusted for their number.
        recovered: share of the prompts that their words place as their coefficients do; None without words.
        level, fdr, least_change, seed: as they were given.
        agreement: with votes, if there were any to ask.
        notes: sentences that a reader needs.
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
    agreement: Agreement | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    places: Places | None = field(default=None, repr=False, compare=False)
    known: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def found(self) -> list[Strength]:
        """What models are better or worse at, the largest change first."""
        return sorted((cell for cell in self.strengths if cell.verdict), key=lambda cell: -abs(cell.change))

    def of(self, model: str) -> list[Strength]:
        """The cells of one model, its best cluster first."""
        return sorted((cell for cell in self.strengths if cell.model == model), key=lambda cell: -cell.change)

    def to_dict(self) -> dict[str, Any]:
        """As plain data that JSON can hold: no NaN."""
        names = ("likelihood", "prompts", "chosen_from", "by", "explained", "recovered", "level", "fdr")
        plain = {name: getattr(self, name) for name in (*names, "least_change", "seed")}
        plain |= {"models": list(self.models), "clusters": [asdict(one) for one in self.clusters]}
        plain |= {"strengths": [asdict(cell) for cell in self.strengths], "notes": list(self.notes)}
        plain["agreement"] = None if self.agreement is None else asdict(self.agreement)
        return {key: _finite(part) for key, part in plain.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
