"""Leaderboards as the page shows them: win rates with intervals, what moved, how sure the model is, what it resembles.

Beside each leaderboard stands the global one, which needs no votes at hand: a model with a posterior holds the one
leaderboard of its votes; another's is its mean over the example prompts of `topics.json`, and called so.

A prompt resembles a cluster of prompts whose leaderboard differs from the global one in the same way: the cosine of
both differences, 1 for the same shift. The clusters are those of `p2l explain --output`, or of the topics of the
examples those that the model tells apart: most examples of such a topic resemble its others more than any other topic.

Shapes: M models, K clusters, R components of the posterior.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.common.files import parse_json
from p2l.common.prompts import familiarity_note
from p2l.inference import P2L
from p2l.leaderboard import to_score
from p2l.likelihood import win_rates, win_rates_if
from p2l.serving.score_cache import Answer

Floats = npt.NDArray[np.float64]
_LEVEL = 0.9  # probability of the intervals
_REACH = NormalDist().inv_cdf(0.5 + _LEVEL / 2)  # in standard deviations
_CLUSTERS_SHOWN = 3  # of a prompt
_MOVES_SHOWN = 3  # between two prompts
_FAINT_SHIFT = 0.05  # coefficients closer to the global ones than this resemble nothing, whatever their direction


@lru_cache(maxsize=1)
def topics() -> dict[str, list[str]]:
    """Return the example prompts by topic."""
    content: dict[str, list[str]] = json.loads(Path(__file__).with_name("topics.json").read_text("utf-8"))
    return content


@dataclass(frozen=True)
class Clusters:
    """Kinds of prompts: K names, and how each shifts the models (K, M), against their mean; `source` is for readers."""

    names: list[str]
    shifts: Floats
    source: str
    centre: Floats | None = None
    """(M,) coefficients that the shifts start from; None for the global ones."""


@dataclass(frozen=True)
class Reference:
    """The global leaderboard and the clusters that leaderboards of one revision are compared with."""

    revision: str
    coefs: Floats
    eta: float | None
    gamma: float | None
    rates: Floats
    ranks: npt.NDArray[np.int64]
    source: str
    """In words: what the global leaderboard is."""
    clusters: Clusters
    unknown: Floats | None
    """(R,) variances of a prompt that is like none the model was trained on; None without a posterior."""


@dataclass(frozen=True)
class Row:
    """One model on one prompt."""

    model: str
    place: int
    """In the list of models."""
    rank: int
    rate: float
    lower: float | None
    """End of the interval of the win rate; None for a model without posterior."""
    upper: float | None
    score: float
    global_rank: int
    global_rate: float

    @property
    def moved(self) -> int:
        """Ranks gained against the global leaderboard."""
        return self.global_rank - self.rank


@dataclass(frozen=True)
class Board:
    """The leaderboard of one prompt, best model first, or the global one."""

    rows: list[Row]
    truncated: bool = False
    leads: float | None = None
    """Probability that the first model is truly better than the second on this prompt."""
    known: float | None = None
    """Share of what the votes could tell of such a prompt that they do tell, from 0 to 1."""
    resembles: Sequence[tuple[str, float]] = ()
    familiarity: float | None = None
    """Share of the prompt's own departure from the global leaderboard that is kept; None without a posterior."""

    @property
    def note(self) -> str:
        """Return in a sentence how far this is the global leaderboard; empty where it is the prompt's own."""
        return familiarity_note(self.familiarity)


def read_clusters(path: str, models: Sequence[str]) -> Clusters:
    """Read the clusters that `p2l explain --output FILE` wrote for these models; InputError where they do not fit."""
    try:
        content = parse_json(Path(path).read_bytes())
        cells = [(cell["cluster"], cell["model"], float(cell["change"])) for cell in content["strengths"]]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path}: is not what p2l explain --output writes; write it again") from error
    place = {name: number for number, name in enumerate(models)}
    names = list(dict.fromkeys(cluster for cluster, *_ in cells))
    shifts = np.full((len(names), len(models)), np.nan)
    for cluster, model, change in cells:
        if model in place:
            shifts[names.index(cluster), place[model]] = change
    if not names or np.isnan(shifts).any():
        raise InputError(f"{path}: has no change of every model in every cluster; run p2l explain with this model")
    return Clusters(names, _centred(shifts), "clusters of p2l explain")


def reference_of(model: P2L, answers: Sequence[Answer], clusters: Clusters | None) -> Reference:
    """Return the reference of a model, from the answers to all prompts of `topics`, in order."""
    coefs = np.array([answer.coefs for answer in answers], dtype=np.float64)
    overall, eta, gamma = _overall(model, answers, coefs)
    if clusters is None:
        clusters = _topics_told_apart(coefs)
    rates = win_rates(overall, model.likelihood, eta, gamma)
    ranks = np.empty(len(overall), np.int64)
    ranks[np.argsort(-overall, kind="stable")] = np.arange(1, len(overall) + 1)
    source = f"mean over {len(answers)} example prompts" if model.basis is None else "over all votes"
    posterior = model.model.posterior
    unknown = None
    if posterior is not None:
        unknown = np.asarray((posterior.offset * posterior.strange).double().cpu().numpy())
    return Reference(
        revision=answers[0].revision,
        coefs=overall,
        eta=eta,
        gamma=gamma,
        rates=rates,
        ranks=ranks,
        source=source,
        clusters=clusters,
        unknown=unknown,
    )


def global_board(model: P2L, reference: Reference) -> Board:
    """Return the global leaderboard."""
    scores = to_score(reference.coefs)
    rates, ranks = reference.rates.tolist(), reference.ranks.tolist()
    rows = [
        Row(
            model=name,
            place=place,
            rank=rank,
            rate=rate,
            lower=None,
            upper=None,
            score=float(score),
            global_rank=rank,
            global_rate=rate,
        )
        for place, (name, rank, rate, score) in enumerate(zip(model.model_list, ranks, rates, scores, strict=True))
    ]
    return Board(sorted(rows, key=lambda row: row.rank))


def board_of(model: P2L, answer: Answer, reference: Reference) -> Board:
    """Return the leaderboard of one prompt."""
    coefs = np.array(answer.coefs, dtype=np.float64)
    order = np.argsort(-coefs, kind="stable")
    rates = win_rates(coefs, model.likelihood, answer.eta, answer.gamma)
    scores = to_score(coefs)
    lower, upper = _rate_limits(model, answer, coefs)
    rows = [
        Row(
            model=model.model_list[place],
            place=place,
            rank=rank,
            rate=float(rates[place]),
            lower=None if lower is None else float(lower[place]),
            upper=None if upper is None else float(upper[place]),
            score=float(scores[place]),
            global_rank=int(reference.ranks[place]),
            global_rate=float(reference.rates[place]),
        )
        for rank, place in enumerate(order.tolist(), 1)
    ]
    return Board(
        rows=rows,
        truncated=answer.truncated,
        leads=_leads(model, answer, order, coefs),
        known=_known(model, answer, reference),
        resembles=_resembled(coefs, reference),
        familiarity=answer.familiarity,
    )


def to_json(turns: Sequence[str], board: Board, revision: str) -> dict[str, Any]:
    """Return a leaderboard as the page copies it."""
    rows = [
        {
            "rank": row.rank,
            "model": row.model,
            "win_rate": row.rate,
            "lower": row.lower,
            "upper": row.upper,
            "score": row.score,
            "global_rank": row.global_rank,
        }
        for row in board.rows
    ]
    about = {"revision": revision, "truncated": board.truncated, "familiarity": board.familiarity}
    return {"prompt": list(turns), **about, "leaderboard": rows}


def _overall(model: P2L, answers: Sequence[Answer], coefs: Floats) -> tuple[Floats, float | None, float | None]:
    """Return the global coefficients, eta and gamma."""
    head, posterior = model.model.head, model.model.posterior
    has = {"eta": head.has_eta, "gamma": head.has_gamma}
    if posterior is not None:
        means = posterior.coefs.double().cpu().numpy()
        sides = {name: float(getattr(posterior, name)) for name in has}
    else:
        means = coefs.mean(axis=0)
        sides = {name: float(np.mean([getattr(answer, name) or 0.0 for answer in answers])) for name in has}
    eta, gamma = (sides[name] if has[name] else None for name in ("eta", "gamma"))
    return np.asarray(means, dtype=np.float64), eta, gamma


def _contrasts(basis: npt.NDArray[Any]) -> Floats:
    """Return the squares (M, R) of each model's components less the mean of the others'."""
    number = len(basis)
    return np.asarray(((basis - basis.mean(axis=0)) * (number / max(1, number - 1))) ** 2, dtype=np.float64)


def _rate_limits(model: P2L, answer: Answer, coefs: Floats) -> tuple[Floats | None, Floats | None]:
    """Return the ends of the win rates' intervals, from those of each coefficient against the mean of the others."""
    if answer.variances is None or model.basis is None:
        return None, None
    reach = _REACH * np.sqrt(_contrasts(model.basis) @ np.array(answer.variances, dtype=np.float64))
    lower, upper = (
        win_rates_if(coefs + sign * reach, coefs, model.likelihood, answer.eta, answer.gamma) for sign in (-1, 1)
    )
    return lower, upper


def _leads(model: P2L, answer: Answer, order: npt.NDArray[np.intp], coefs: Floats) -> float | None:
    if answer.variances is None or model.basis is None or len(order) < 2:
        return None
    first, second = order[0], order[1]
    difference = (model.basis[first] - model.basis[second]) ** 2
    sd = float(np.sqrt(difference @ np.array(answer.variances, dtype=np.float64)))
    return NormalDist().cdf((coefs[first] - coefs[second]) / sd) if sd > 0 else None


def _known(model: P2L, answer: Answer, reference: Reference) -> float | None:
    """Return the part of an unknown prompt's variance that the votes have taken away."""
    if answer.variances is None or model.basis is None or reference.unknown is None:
        return None
    contrasts = _contrasts(model.basis)
    left = (contrasts @ np.array(answer.variances, dtype=np.float64)).sum()
    return float(np.clip(1.0 - left / (contrasts @ reference.unknown).sum(), 0.0, 1.0))


def _topics_told_apart(coefs: Floats) -> Clusters:
    """Return the topics of the examples, whose coefficients (n, M) are given in order, as far as they hold together."""
    sizes = [len(prompts) for prompts in topics().values()]
    groups = np.split(coefs, np.cumsum(sizes)[:-1])
    means = np.stack([rows.mean(axis=0) for rows in groups])
    centre = means.mean(axis=0)
    kept = []
    for number, rows in enumerate(groups):
        nearest = []
        for place, row in enumerate(rows):
            others = means.copy()
            others[number] = np.delete(rows, place, axis=0).mean(axis=0)  # an example resembles itself whatever it is
            nearest.append(int(_cosines(_centred(others - centre), _centred(row - centre)).argmax()))
        if 2 * nearest.count(number) > len(rows):
            kept.append(number)
    names = list(topics())
    return Clusters(
        [names[number] for number in kept], _centred(means - centre)[kept], "topics of the examples", centre
    )


def _resembled(coefs: Floats, reference: Reference) -> list[tuple[str, float]]:
    clusters = reference.clusters
    cosines = _cosines(
        clusters.shifts, _centred(coefs - (reference.coefs if clusters.centre is None else clusters.centre))
    )
    best = np.argsort(-cosines, kind="stable")[:_CLUSTERS_SHOWN]
    return [(clusters.names[place], float(cosines[place])) for place in best if cosines[place] > 0]


def _cosines(shifts: Floats, shift: Floats) -> Floats:
    """Return the cosine (K,) of each shift (K, M) with one (M,); 0 where either is faint, whatever its direction."""
    lengths = np.linalg.norm(shifts, axis=1) * np.linalg.norm(shift)
    faint = np.abs(shifts).max(axis=1, initial=0.0) < _FAINT_SHIFT
    if np.abs(shift).max(initial=0.0) < _FAINT_SHIFT:
        faint[:] = True
    return np.asarray(np.where(faint, 0.0, shifts @ shift / np.maximum(lengths, 1e-12)))


def _centred(values: Floats) -> Floats:
    return np.asarray(values - values.mean(axis=-1, keepdims=True))


def moves(first: Board, second: Board) -> list[tuple[str, int]]:
    """Return the models that move most between two prompts, and the ranks that each gains in the second."""
    ranks = {row.model: row.rank for row in first.rows}
    gains = [(row.model, ranks[row.model] - row.rank) for row in second.rows]
    return sorted((gain for gain in gains if gain[1]), key=lambda gain: -abs(gain[1]))[:_MOVES_SHOWN]
