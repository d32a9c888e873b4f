"""Leaderboards fitted from votes, for every likelihood of `p2l.likelihood`.

Shapes: N votes, M models, P pairs of models that met, C covariates, D parameters.

Votes are counted once into a table of pairs (`p2l.leaderboard.pair_tables`), on which a damped Newton method finds the
optimum in a few steps; 2.2 million votes between 130 models take about as long as counting them. With covariates the
rows are pairs with equal covariates, up to one for each vote.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.errors import InputError
from p2l.leaderboard.board import Leaderboard, several
from p2l.leaderboard.certificate import Refit, certificate
from p2l.leaderboard.covariates import Effect, covariate_table, covariates_of, expressible, without_covariates
from p2l.leaderboard.intervals import (
    Bounds,
    Units,
    bounds,
    check_intervals,
    cluster_scores,
    redrawn_clusters,
    redrawn_votes,
    sandwich_covariance,
    units_at,
    units_of,
    vote_scores,
)
from p2l.leaderboard.newton import (
    BROAD,
    Expansion,
    Objective,
    Prior,
    has_eta,
    minimise,
    one_blas_thread,
    prior_coupling,
    prior_terms,
    shift_invariant,
    winner_targets,
)
from p2l.leaderboard.pair_tables import Covariates, Ints, PairTable, check_number_of_models, components, vote_table
from p2l.likelihood import Likelihood

Floats = npt.NDArray[np.float64]
_NAMED_MODELS = 5  # in a note
_LEAST_MASS = 1e-100  # squares of less, or of more than its inverse, leave the range of float64


def fit(
    model_a: npt.ArrayLike,
    model_b: npt.ArrayLike,
    winner: npt.ArrayLike,
    *,
    models: Sequence[str],
    likelihood: str | None = None,
    weights: npt.ArrayLike | None = None,
    clusters: npt.ArrayLike | None = None,
    covariates: Covariates | Mapping[str, npt.ArrayLike] | None = None,
    offsets: npt.ArrayLike | None = None,
    **options: Any,
) -> Leaderboard:
    """Fit a leaderboard to votes.

    Raise InputError for fewer than two models, no vote that counts, or columns that are not votes, and ConvergenceError
    where there is no optimum, as for an undefeated model without a prior.

    Args:
        model_a: (N,) codes of the models shown first, positions in `models`.
        model_b: (N,) codes of the models shown second.
        winner: (N,) positions in `p2l.votes.WINNERS`.
        models: M names.
        likelihood: name of the outcome model; by default the one that suits the outcomes: bt, bt-tie, rk or grk.
        weights: (N,) weight of each vote; weight 2 gives the same coefficients as the vote twice.
        clusters: (N,) whose vote it is, or on which prompt: intervals then treat a cluster as one observation.
        covariates: what else may have decided the votes: columns (N,) of numbers by name, which count for model_a and
            against model_b (`{"side": 1}`: being shown first), or `Covariates` with roles.
        offsets: (N, 3) what is known to be added to both coefficients and eta of each vote, as by a forecast: the fit
            says what has to be added to that. Beside covariates it needs a `prior`.
        options: `intervals`, `level`, `seed`, `replicates` and `prior` of `fit_table`.
    """
    if clusters is not None and np.shape(clusters) != np.shape(model_a):
        raise InputError(f"clusters has {np.size(clusters)} entries for {np.size(model_a)} votes")
    nuisance = covariates_of(covariates, np.size(model_a))
    if nuisance is None and offsets is None:
        table = vote_table(model_a, model_b, winner, len(models), weights)
        units = None if clusters is None else units_of(table, model_a, model_b, winner, weights, clusters)
    else:
        table, row, column = covariate_table(model_a, model_b, winner, len(models), weights, nuisance, offsets)
        units = None if clusters is None else units_at(row, column, weights, clusters)
    return fit_table(table, models=models, likelihood=likelihood, units=units, **options)


def fit_labels(
    labels: npt.ArrayLike, *, models: Sequence[str], likelihood: str | None = None, **options: Any
) -> Leaderboard:
    """Fit labels (N, 3) `[winner, loser, tie]`: the marginal leaderboard that per-prompt models must beat."""
    triples = np.asarray(labels)
    winner = np.array([0, 2, 3])[triples[:, 2]]
    return fit(triples[:, 0], triples[:, 1], winner, models=models, likelihood=likelihood, **options)


@one_blas_thread()
def fit_table(
    table: PairTable,
    *,
    models: Sequence[str],
    likelihood: str | None = None,
    intervals: str | None = "sandwich",
    seed: int = 0,
    level: float = 0.95,
    replicates: int = 200,
    prior: Prior | None = None,
    units: Units | None = None,
    start: npt.ArrayLike | None = None,
    tolerance: float = 1e-7,
    certified_votes: int | None = None,
) -> Leaderboard:
    """Fit a leaderboard to votes that are already counted; for what is not named here see `fit`.

    Args:
        intervals: "sandwich", "bootstrap" or None.
        seed, replicates: of the bootstrap.
        level: coverage of the intervals.
        prior: by default normal, with the standard deviation that `fitted_prior` finds; `Prior(sd=math.inf)` switches
            it off. With means of its own (`Prior.coefs`) it holds the leaderboard to their scale, uncentred.
        units: the votes by cluster, for intervals.
        start: where the search for the optimum begins: M coefficients, and eta behind them where the likelihood has it.
        tolerance: the last Newton step's at most, whose square is the order of the error that is left.
        certified_votes: votes from which a model is listed: how few votes decide the ranks of these models is searched
            too (`certificate`). By default it is not.
    """
    check_intervals(intervals, level, replicates)
    check_number_of_models(len(models))
    model = likelihoods.get(likelihood or suited(table.votes.sum(axis=0)))
    table, constant = expressible(table, model)
    refit = partial(_coefs_of, models=models, likelihood=model.name, prior=prior)
    if prior is None:
        prior, start = fitted_prior(without_covariates(table), models=models, likelihood=model.name, start=start)
    scales = _scales(table)
    objective = _objective(table, models, model, prior, scales)
    point = minimise(objective, _start(objective, prior, start), tolerance=tolerance)
    ends = _bounds_of(objective, point, table, units, intervals, level, replicates, seed)
    size, counted = len(models), winner_targets(model).any(axis=1)
    board = Leaderboard(
        models=list(models),
        coefs=point.theta[:size],
        lower=ends.lower[:size],
        upper=ends.upper[:size],
        eta=objective.eta(point.theta),
        gamma=model.board_gamma,
        likelihood=model.name,
        loss=objective.loss(point),
        votes=table.votes_per_model(counted),
        components=_joined(objective, prior),
        notes=_notes(objective, point.theta, list(models), prior, constant),
        level=level,
        not_counted=round(float(table.votes[:, ~counted].sum())),
        prior_sd=prior.sd,
        covariance=None if ends.covariance is None else ends.covariance[:size, :size],
        effects=_effects(table, point.theta, ends, scales),
    )
    return board if certified_votes is None else _certified(board, objective, point, table, certified_votes, refit)


def _bounds_of(
    objective: Objective,
    point: Expansion,
    table: PairTable,
    units: Units | None,
    intervals: str | None,
    level: float,
    replicates: int,
    seed: int,
) -> Bounds:
    """Return the intervals of the parameters, by votes or by clusters of them."""
    rng = np.random.default_rng(seed)
    scores = partial(_scores, objective, point, table, units)
    draws = partial(redrawn_votes, objective, table, replicates, rng)
    if units is not None:
        draws = partial(redrawn_clusters, objective, units, replicates, rng)
    return bounds(objective, point, intervals, level, scores, draws, rng)


def _certified(
    board: Leaderboard, objective: Objective, point: Expansion, table: PairTable, least_votes: int, refit: Refit
) -> Leaderboard:
    """Return a leaderboard with how few votes decide the ranks of its models with enough votes."""
    assert board.votes is not None
    listed = np.flatnonzero(board.votes >= least_votes)
    decisive, note = certificate(objective, point, table, board.models, listed, refit)
    first = [] if decisive is None else [decisive.sentence]
    notes = (*first, *board.notes, *([note] if note else []))
    return dataclasses.replace(board, certificate=decisive, notes=notes)


def _coefs_of(table: PairTable, *, models: Sequence[str], likelihood: str, prior: Prior | None) -> Floats:
    """Return the coefficients (M,) of a complete fit, its prior too where none is given."""
    return fit_table(table, models=models, likelihood=likelihood, intervals=None, prior=prior).coefs


def suited(outcomes: Floats) -> str:
    """Return the likelihood that suits the outcomes: bt, bt-tie, rk or grk; `outcomes` (4,) counts `WINNERS`."""
    won, lost, ties, both_bad = (round(float(votes)) for votes in outcomes)
    return likelihoods.outcome_model(ties + both_bad, both_bad, won + lost + ties + both_bad)[1]


_MAX_PRIOR_ROUNDS = 30
_SMALL_CHANGE = 0.01  # of the standard deviation, relative to it, at which the fit of a prior ends
# Observations that say a standard deviation of one, so that two models have a finite prior too.
_PSEUDO_OBSERVATIONS = 1.0


def fitted_prior(
    table: PairTable, *, models: Sequence[str], likelihood: str, start: npt.ArrayLike | None = None
) -> tuple[Prior, Floats]:
    """Return the normal prior under which the votes are likeliest, all coefficients integrated out, and the fit to it.

    By Laplace's approximation sd^2 = (squared distances of the coefficients from their mean + 1) / (g + 1), with g the
    number of coefficients that the votes decide rather than the prior (MacKay's evidence update); the ones are an
    observation of its own that says one. Eta and the level of grounded coefficients keep a broad prior.
    """
    model = likelihoods.get(likelihood)
    sd, begin = 1.0, start
    for _ in range(_MAX_PRIOR_ROUNDS):
        prior = Prior(sd=sd, broad=BROAD)
        objective = _objective(table, models, model, prior)
        point = minimise(objective, _start(objective, prior, begin), tolerance=1e-4)
        group = np.zeros(len(models), dtype=np.int64) if objective.gauge is None else objective.gauge
        same = group[:, None] == group[None, :]
        centre = np.eye(len(models)) - same / same.sum(axis=1, keepdims=True)
        spread = float(((centre @ point.theta[: len(models)]) ** 2).sum())
        covariance = np.linalg.inv(point.hessian * objective.total)[: len(models), : len(models)]
        decided = len(models) - len(np.unique(group)) - float(np.trace(centre @ covariance @ centre)) / sd**2
        last = sd
        sd = math.sqrt((spread + _PSEUDO_OBSERVATIONS) / (max(decided, 0.0) + _PSEUDO_OBSERVATIONS))
        begin = point.theta
        if abs(math.log(sd / last)) < _SMALL_CHANGE:
            break
    return Prior(sd=sd, broad=BROAD), point.theta


def fit_covariance(
    table: PairTable, *, models: Sequence[str], likelihood: str = "bt", units: Units | None = None
) -> Floats:
    """Return the sandwich covariance (M, M) of the coefficients under `Prior()`, for intervals of differences.

    Where only differences count, those of models of different components have no meaning.
    """
    model = likelihoods.get(likelihood)
    objective = _objective(table, models, model, Prior())
    point = minimise(objective, _start(objective, Prior(), None))
    scores = _scores(objective, point, table, units)
    return sandwich_covariance(objective, point, scores)[: len(models), : len(models)]


def _scores(objective: Objective, point: Expansion, table: PairTable, units: Units | None) -> Floats:
    return vote_scores(objective, point, table) if units is None else cluster_scores(objective, point, units)


def _scales(table: PairTable) -> Floats:
    """Return the root mean square (C,) of each covariate, in which the fit counts, so that the prior suits any unit."""
    if table.covariates is None:
        return np.ones(0)
    votes = table.votes.sum(axis=1)
    return np.asarray(np.sqrt(votes @ table.covariates.values**2 / votes.sum()))


def _objective(
    table: PairTable, models: Sequence[str], likelihood: Likelihood, prior: Prior, scales: Floats | None = None
) -> Objective:
    if likelihood.evaluation_only:
        raise InputError(f"likelihood {likelihood.name} serves metrics only; fit {', '.join(likelihoods.names())}")
    if len(models) < 2:
        raise InputError(f"a leaderboard needs votes between at least two models, not {len(models)}")
    targets = table.weights @ winner_targets(likelihood)
    if targets.sum() <= 0:
        why = "all are ties; use bt-tie, rk or grk" if table.weights.sum() else "all weights are zero"
        why = why if table.votes.sum() else "there are no votes"
        raise InputError(f"no vote counts under likelihood {likelihood.name}: {why}")
    if not _LEAST_MASS < targets.sum() < 1.0 / _LEAST_MASS:
        raise InputError(f"weights sum to {targets.sum():.0e}: scale them, to about one a vote")
    controls: dict[str, Any] = {"offsets": table.offsets}
    if scales is None or table.covariates is None:
        mean, precision = prior_terms(prior, likelihood, len(models))
    else:
        keys, means = zip(table.covariates.names, table.covariates.roles, strict=True), prior.effects or {}
        effects = np.array([means.get(key, 0.0) for key in keys]) * scales
        mean, precision = prior_terms(prior, likelihood, len(models), effects)
        unit = likelihood.eta_scale.unit
        precision[-len(effects) :] /= [unit**2 if role == "ties" else 1.0 for role in table.covariates.roles]
        values, roles = table.covariates.values / scales, table.covariates.matrix
        controls |= {"covariates": values, "roles": roles}
    objective = Objective(
        likelihood=likelihood,
        num_models=len(models),
        first=table.first,
        second=table.second,
        targets=targets,
        mean=mean,
        precision=precision,
        **controls,
    )
    if not shift_invariant(likelihood):
        return dataclasses.replace(objective, coupling=prior_coupling(prior, likelihood, len(models)))
    return dataclasses.replace(objective, gauge=_joined(objective, prior))


def _start(objective: Objective, prior: Prior, start: npt.ArrayLike | None) -> Floats:
    if start is None and prior.coefs is not None:
        return objective.mean
    theta = np.zeros(objective.size)
    if start is not None:
        begin = np.asarray(start, dtype=np.float64)
        theta[: len(begin)] = begin
    elif has_eta(objective.likelihood):
        theta[objective.num_models] = objective.likelihood.eta_scale.start
    return theta


def _effects(table: PairTable, theta: Floats, ends: Bounds, scales: Floats) -> tuple[Effect, ...]:
    """Return the effects in the units of the covariates."""
    if table.covariates is None:
        return ()
    ends_of = [(values[-len(scales) :] / scales).tolist() for values in (theta, ends.lower, ends.upper)]
    columns = (table.covariates.names, table.covariates.roles, *ends_of)
    return tuple(
        Effect(name, role, coef, lower, upper) for name, role, coef, lower, upper in zip(*columns, strict=True)
    )


def _notes(
    objective: Objective, theta: Floats, models: list[str], prior: Prior, constant: Sequence[str]
) -> tuple[str, ...]:
    notes = []
    if constant:
        notes.append(f"{several(constant, _NAMED_MODELS)} is zero in every vote and was left out.")
    used = objective.targets.sum(axis=1) > 0
    seen = np.bincount(np.concatenate([objective.first[used], objective.second[used]]), minlength=len(models)) > 0
    if not seen.all():
        unseen = [models[index] for index in np.flatnonzero(~seen)]
        notes.append(f"{several(unseen, _NAMED_MODELS)} without a vote that counts: the score shown is the prior's.")
    if prior.coefs is None:
        notes += _notes_on_graph(objective, models, prior)
    least = objective.likelihood.eta_scale.least
    if least is not None and theta[objective.num_models] <= least:
        notes.append(
            "The votes have fewer ties than rk can express (eta is at its floor); bt-tie or grk suits them better."
        )
    return tuple(notes)


def _notes_on_graph(objective: Objective, models: list[str], prior: Prior) -> list[str]:
    """Note what the graph of comparisons leaves open; a prior with means of its own closes it."""
    graph, notes = objective.graph, []
    sizes = np.bincount(graph)
    groups = [np.flatnonzero(graph == number) for number in np.flatnonzero(sizes > 1)]
    if len(groups) > 1:
        named = "; ".join(several([models[index] for index in group], _NAMED_MODELS) for group in groups)
        apart = "scores of different components compare only through the level of a usable answer."
        if shift_invariant(objective.likelihood):
            apart = "scores of different components cannot be compared; each has mean 1000."
        notes.append(f"The votes fall into {len(groups)} components that never met ({named}): {apart}")
    held = {
        what: several([models[index] for index in group], _NAMED_MODELS)
        for what, group in _held_by_prior(objective, graph)
    }
    if held and np.isfinite(prior.sd):
        named = "; ".join(f"{names} {what}" for what, names in held.items())
        notes.append(
            f"{named}: how far ahead or behind they are rests on the prior (normal, standard deviation {prior.sd:.2g})."
        )
    return notes


def _held_by_prior(objective: Objective, graph: Ints) -> Iterator[tuple[str, Ints]]:
    """Yield what became of the votes on the models that only the prior keeps near the others, and these models.

    They are outside the largest set of their component in which everyone beat everyone, if in a chain.
    """
    outcomes = objective.likelihood.outcomes
    first_up = np.delete(objective.targets, outcomes.index("loss"), axis=1).sum(axis=1) > 0
    second_up = np.delete(objective.targets, outcomes.index("win"), axis=1).sum(axis=1) > 0
    winners = np.concatenate([objective.first[first_up], objective.second[second_up]])
    losers = np.concatenate([objective.second[first_up], objective.first[second_up]])
    strong = components(objective.num_models, winners, losers, directed=True)
    sizes = np.bincount(strong)[strong]
    largest = np.zeros(int(graph.max()) + 1, dtype=np.int64)
    np.maximum.at(largest, graph, sizes)
    is_held = (sizes < largest[graph]) | ((largest[graph] == 1) & (np.bincount(graph)[graph] > 1))
    won, lost = (np.bincount(side, minlength=objective.num_models) > 0 for side in (winners, losers))
    for what, is_meant in (
        ("won every vote", ~lost),
        ("lost every vote", ~won),
        ("won or lost every vote against the rest", won & lost),
    ):
        group = np.flatnonzero(is_held & is_meant)
        if len(group):
            yield what, group


def _joined(objective: Objective, prior: Prior) -> Ints:
    """Return the component (M,) of each model; a prior with means of its own joins them all."""
    return objective.graph if prior.coefs is None else np.zeros(objective.num_models, dtype=np.int64)


def prior_of(overall: Leaderboard, models: Sequence[str], sd: float) -> Prior | None:
    """Return the prior that holds some models to a leaderboard; None for an infinite standard deviation."""
    if math.isinf(sd):
        return None
    effects = {(effect.name, effect.role): effect.coef for effect in overall.effects}
    return Prior(sd=sd, coefs=coefs_of(overall, models), eta=overall.eta, effects=effects)


def coefs_of(board: Leaderboard, models: Sequence[str]) -> Floats:
    """Return the coefficients (M,) of some models; zero for those that the leaderboard does not know."""
    coefs = dict(zip(board.models, board.coefs.tolist(), strict=True))
    return np.array([coefs.get(name, 0.0) for name in models])
