"""Covariates of votes: what else than the two models may have decided a vote, fitted together with the coefficients.

Shapes: N votes, M models, P rows of a table, C covariates.

A covariate has a value for each vote, an effect for all of them, and one of three roles:

    difference   value x effect is added to the first model's lead: half to its coefficient, half taken from the other's
    level        value x effect is added to both coefficients; where only differences count it does not exist
    ties         value x effect is added to eta

So one design serves every likelihood, and its formulas stay as they are. A difference changes sign when the two models
change places; `side`, who was shown first, is the difference that is one for every vote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard.newton import has_eta, shift_invariant
from p2l.leaderboard.pair_tables import Covariates, Ints, PairTable, fold, pair_codes, vote_keys
from p2l.likelihood import Likelihood

Floats = npt.NDArray[np.float64]
SIDE = "side"
_KEY_LIMIT = 1 << 62


class Effect(NamedTuple):
    """The effect of a covariate on the log-odds, per unit of its value, with its interval (NaN without one)."""

    name: str
    role: str
    coef: float
    lower: float
    upper: float


def covariates_of(columns: Covariates | Mapping[str, npt.ArrayLike] | None, number: int) -> Covariates | None:
    """Return covariates from columns (N,) of differences by name; InputError if one does not fit `number` votes."""
    if columns is None or isinstance(columns, Covariates):
        covariates = columns
    else:
        values = [np.broadcast_to(np.asarray(column, dtype=np.float64), (number,)) for column in columns.values()]
        stacked = np.stack(values, axis=1) if values else np.empty((number, 0))
        covariates = Covariates(tuple(columns), ("difference",) * len(columns), stacked)
    if covariates is None or not covariates.names:
        return None
    if covariates.values.shape != (number, len(covariates.names)):
        raise InputError(f"covariates have shape {covariates.values.shape} for {number} votes")
    wrong = ~np.isfinite(covariates.values).all(axis=0)
    if wrong.any():
        raise InputError(f"covariate {covariates.names[int(np.argmax(wrong))]} has values that are not finite numbers")
    return covariates


def able(likelihood: Likelihood) -> set[str]:
    """Return the roles that a likelihood can tell."""
    tells = {"difference": True, "level": not shift_invariant(likelihood), "ties": has_eta(likelihood)}
    return {role for role, it_does in tells.items() if it_does}


def expressible(table: PairTable, likelihood: Likelihood) -> tuple[PairTable, list[str]]:
    """Return the table with the covariates that a likelihood can tell, and the names of those without any variation."""
    if table.covariates is None:
        return table, []
    roles = able(likelihood)
    varied = (table.covariates.values != 0).any(axis=0)
    constant = [name for name, varies in zip(table.covariates.names, varied, strict=True) if not varies]
    kept = table.covariates.pick([role in roles for role in table.covariates.roles] & varied)
    return dataclasses.replace(table, covariates=kept if kept.names else None), constant


def covariate_table(
    model_a: npt.ArrayLike,
    model_b: npt.ArrayLike,
    winner: npt.ArrayLike,
    num_models: int,
    weights: npt.ArrayLike | None,
    covariates: Covariates | None,
    offsets: npt.ArrayLike | None = None,
    sums: Floats | None = None,
) -> tuple[PairTable, Ints, Ints]:
    """Count votes (N,) by pair and covariates, if any; return the table, and the row and column (N,) of each vote.

    `offsets` (N, 3) are added to both coefficients and eta of each vote, which is a row of its own then. `sums` (3, N)
    are votes, weights and squared weights where each of the N stands for several equal votes.
    """
    vote_keys(model_a, model_b, winner, num_models)  # refuses what is not a vote
    a, b, won = (np.asarray(column, dtype=np.int64) for column in (model_a, model_b, winner))
    weight = np.ones(len(a)) if weights is None else np.asarray(weights, dtype=np.float64)
    pair, column = fold(a, b, won, num_models)
    nuisance = covariates or Covariates((), (), np.zeros((len(a), 0)))
    turns = np.array([role == "difference" for role in nuisance.roles], dtype=np.bool_)
    values = np.where((a > b)[:, None] & turns, -nuisance.values, nuisance.values) + 0.0
    keys = row_keys(pair, values) if offsets is None else np.arange(len(pair))
    _, at, row = np.unique(keys, return_index=True, return_inverse=True)
    cell, size = row * 4 + column, 4 * len(at)
    with np.errstate(over="ignore", under="ignore"):
        summed = (np.ones(len(a)), weight, weight**2) if sums is None else sums
        votes, total, squares = (np.bincount(cell, row, size).reshape(-1, 4).astype(np.float64) for row in summed)
    first, second = np.divmod(pair[at], num_models)
    fixed = None
    if offsets is not None:
        fixed = np.array(offsets, dtype=np.float64)
        fixed[a > b, :2] = fixed[a > b, 1::-1]  # seen from the pair's lower model, as all of a row
    table = PairTable(
        num_models=num_models,
        first=first,
        second=second,
        weights=total,
        squares=squares,
        votes=votes,
        covariates=None if covariates is None else dataclasses.replace(covariates, values=values[at]),
        offsets=fixed,
    )
    return table, row, column


def row_keys(pair: Ints, values: Floats) -> Ints:
    """Return one integer (N,) for each pair with equal values."""
    keys: Ints = np.unique(pair, return_inverse=True)[1].astype(np.int64)
    for column in values.T:
        distinct, codes = np.unique(column, return_inverse=True)
        if (int(keys.max(initial=0)) + 1) * len(distinct) >= _KEY_LIMIT:
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        keys = keys * len(distinct) + codes
    return keys


def without_covariates(table: PairTable) -> PairTable:
    """Return the table with one row for each pair."""
    if table.covariates is None:
        return table
    pairs, row = np.unique(pair_codes(table), return_inverse=True)

    def sums(cells: Floats) -> Floats:
        flat = np.bincount((row[:, None] * 4 + np.arange(4)).ravel(), cells.ravel(), 4 * len(pairs))
        return flat.reshape(-1, 4).astype(np.float64)

    first, second = np.divmod(pairs, table.num_models)
    return PairTable(table.num_models, first, second, sums(table.weights), sums(table.squares), sums(table.votes))


def shifted(
    likelihood: Likelihood,
    coef_a: Any,
    coef_b: Any,
    eta: Any,
    covariates: Covariates,
    effects: Mapping[tuple[str, str], float],
) -> tuple[Any, Any, Any]:
    """Return coefficients (N,) and eta (N,) of votes with their covariates counted in; eta None where there is none."""
    keys = zip(covariates.names, covariates.roles, strict=True)
    known = np.array([effects.get(key, 0.0) for key in keys])
    shift = (covariates.values * known) @ covariates.matrix
    return coef_a + shift[:, 0], coef_b + shift[:, 1], (eta + shift[:, 2] if has_eta(likelihood) else None)
