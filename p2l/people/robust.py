"""Votes of a voter on a model that no taste explains count less: a fit that few colluders cannot move.

The surplus of wins of a voter's votes on a model, over what the leaderboard expects, is divided by its standard
deviation. Up to 2.5 of them votes count fully, from 4 on not at all, and between linearly less (a redescending
influence, by voter and model). Fit and weights follow each other in turns. A voter with one or two votes on a model
cannot depart so far: what such voters do together, the test of voters finds (`p2l.people.evidence`), if anything does.

Shapes: N votes, V voters, M models, K cells of a voter and a model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p2l.common.errors import P2LError
from p2l.people.cast import CastVotes
from p2l.people.collusion import Fitter

Floats = npt.NDArray[np.float64]
_FULL, _NOTHING = 2.5, 4.0  # standard deviations
_ROUNDS = 5
_STEADY_CHANGE = 0.01


def robust_factors(votes: CastVotes, voter_weights: dict[str, float]) -> dict[tuple[str, str], float]:
    """Return by voter and model what a vote counts, where that is less than one, beside the weights of voters."""
    if not votes.voters or not len(votes):
        return {}
    labels, num_models = votes.evidence.labels, len(votes.models)
    named = np.flatnonzero(votes.voter >= 0)
    keys = [votes.voter[named] * num_models + labels[named, column] for column in (0, 1)]
    cells, cell = np.unique(np.concatenate(keys), return_inverse=True)
    won, lost = np.split(cell.reshape(-1), 2)
    decided = labels[named, 2] == 0
    fitter = Fitter(votes)
    of_voters = fitter.weights_of(np.array([voter_weights.get(name, 1.0) for name in votes.voters]))
    factor = np.ones(len(cells))
    try:
        for _ in range(_ROUNDS):
            weights = of_voters.copy()
            weights[named] *= np.minimum(factor[won], factor[lost])
            chance = np.exp(fitter.log_likelihood(fitter.board(weights), weights))[named]
            surplus = np.where(decided, 1.0 - chance, 0.0)
            spread = np.where(decided, chance * (1.0 - chance), 0.0)
            total = np.bincount(won, surplus, len(cells)) - np.bincount(lost, surplus, len(cells))
            variance = np.bincount(won, spread, len(cells)) + np.bincount(lost, spread, len(cells))
            departure = np.abs(total) / np.sqrt(np.maximum(variance, 1e-12))
            before, factor = factor, np.clip((_NOTHING - departure) / (_NOTHING - _FULL), 0.0, 1.0)
            if np.abs(factor - before).max() < _STEADY_CHANGE:
                break
    except P2LError:  # as of votes that are all ties
        return {}
    return {
        (votes.voters[cells[place] // num_models], votes.models[cells[place] % num_models]): float(factor[place])
        for place in np.flatnonzero(factor < 1.0).tolist()
    }


def share_left(votes: CastVotes, voter_weights: dict[str, float], factors: dict[tuple[str, str], float]) -> float:
    """Return which share of all weight votes keep."""
    if not len(votes):
        return 1.0
    of_voter = np.append([voter_weights.get(name, 1.0) for name in votes.voters], 1.0)[votes.voter]
    if not factors:
        return float(of_voter.mean())
    voter_code = {name: code for code, name in enumerate(votes.voters)}
    model_code = {name: code for code, name in enumerate(votes.models)}
    keys = [voter_code[voter] * len(votes.models) + model_code[model] for voter, model in factors]
    order = np.argsort(keys)
    cells, values = np.array(keys)[order], np.array([*factors.values()])[order]
    lesser = np.ones(len(votes))
    for side in (votes.first, votes.second):
        of_vote = votes.voter * len(votes.models) + side
        places = np.minimum(np.searchsorted(cells, of_vote), len(cells) - 1)
        is_there = (cells[places] == of_vote) & (votes.voter >= 0)
        lesser = np.minimum(lesser, np.where(is_there, values[places], 1.0))
    return float((of_voter * lesser).mean())
