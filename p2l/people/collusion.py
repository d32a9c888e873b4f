"""The one test of voters: who does not vote like people, alone or together with others, and what that does to ranks.

`examine` fits one leaderboard to the votes of people and weighs voters by what the others' votes forecast
(`p2l.people.evidence`), in turns. Who is rigged and what is true are found together, so it begins more than once: with
all votes, and without the voters who mostly favour, or refuse, one of the models for which most votes are of that kind;
what explains all votes best is taken.

No test can tell which side is honest where most votes are of those it accuses, or where two camps that accuse each
other explain the votes about as well: nothing else tells them from people who agree. The examination says so then
(`is_beyond`) and weighs nobody.

Shapes: N votes, V voters, M models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.cli import counted
from p2l.common.errors import P2LError
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.fitting import fit_table, suited
from p2l.leaderboard.newton import BROAD, Prior
from p2l.leaderboard.pair_tables import vote_table
from p2l.people.cast import CastVotes
from p2l.people.evidence import LARGEST_SHARE, LEAST_CAP, Voter

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BREAKDOWN = 0.6
"""Share of the votes that are of accused voters, from which on nothing tells which side is honest: half, and those of
people who agree with the accused by chance."""
_STARTS = 4  # sets of voters that are left out first, beside none
_STARTS_OF_ONE_SIZE = 2  # more, without voters who cast about as many votes
_LEAST_VOTES_OF_ONE_KIND = 2  # of a voter on a model, from which on mostly favouring it is of interest
_MOSTLY = 0.7
_ROUNDS = 8
_MANY_VOTES = 300_000
_NEWTON_STEPS = 6
_LARGEST_SIDE = 0.5  # in log-odds, that being shown first is worth to people
_ONE_SIDED = 0.4  # difference of the shares of votes on a model
_DECISIVE = 20.0  # log-likelihood by which one of two explanations is taken
_STEADY_CHANGE = 0.01
_LISTED_VOTERS = 20
_LISTED_MOVES = 5


class Move(NamedTuple):
    """A model whose rank the accused votes change."""

    model: str
    rank: int
    """With voters weighed."""
    unweighed: int
    """Where all votes count alike."""


@dataclass(frozen=True)
class Examination:
    """What votes say of their voters."""

    voters: tuple[Voter, ...]
    votes: int
    """All votes of people, those without a name included."""
    moves: tuple[Move, ...] = ()
    """Models whose ranks differ without the accused votes, the largest difference first."""
    is_beyond: bool = False
    """Whether so many votes are of accused voters that nothing tells which side is honest."""

    @property
    def suspects(self) -> tuple[Voter, ...]:
        """The accused, those with the most votes first."""
        return tuple(sorted((v for v in self.voters if v.is_suspect), key=lambda v: (-v.votes, v.name)))

    @property
    def suspect_votes(self) -> int:
        """How many votes the accused have cast."""
        return sum(voter.votes for voter in self.suspects)

    @cached_property
    def weights(self) -> dict[str, float]:
        """What a vote of each voter counts; one for all of them beyond the breakdown point."""
        if self.is_beyond or not any(voter.is_suspect or voter.weight < 1.0 for voter in self.voters):
            return {}
        return {voter.name: voter.weight for voter in self.voters if voter.weight < 1.0}

    @property
    def weighed(self) -> tuple[Voter, ...]:
        """The voters with the weights that count."""
        return tuple(replace(voter, weight=self.weights.get(voter.name, 1.0)) for voter in self.voters)

    @property
    def verdict(self) -> str:
        """Return one sentence on the voters, empty where all of them vote like people."""
        if not self.suspects:
            return ""
        who = f"{len(self.suspects):,} of {len(self.voters):,} voters, with {self._share}"
        if self.is_beyond:
            return f"{who}, contradict the others, and nothing tells which side is honest: nobody is weighed less"
        moves = [f"{move.model} is {move.rank} in place of {move.unweighed}" for move in self.moves[:_LISTED_MOVES]]
        more = f" and {len(self.moves) - _LISTED_MOVES} more" if len(self.moves) > _LISTED_MOVES else ""
        effect = f"without them {', '.join(moves)}{more}" if moves else "no rank depends on them"
        return f"{who}, do not vote like people; {effect}"

    @property
    def _share(self) -> str:
        return f"{self.suspect_votes:,} ({self.suspect_votes / max(self.votes, 1):.1%}) of the votes"

    def lines(self) -> list[str]:
        """Return the verdict and the accused, for a terminal."""
        if not self.suspects:
            return []
        lines = [self.verdict + ":"]
        lines += [f"  {v.name}, {counted(v.votes, 'vote')}: {v.reason}" for v in self.suspects[:_LISTED_VOTERS]]
        rest = len(self.suspects) - _LISTED_VOTERS
        return lines + ([f"  ... and {rest:,} more"] if rest > 0 else [])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON says of it."""
        return {
            "voters": len(self.voters),
            "votes": self.votes,
            "breakdown": BREAKDOWN,
            "is_beyond": self.is_beyond,
            "suspect_votes": self.suspect_votes,
            "suspects": [
                {"voter": v.name, "votes": v.votes, "trust": v.trust, "weight": v.weight, "reason": v.reason}
                for v in self.suspects
            ],
            "moves": [move._asdict() for move in self.moves],
        }


def examine(votes: CastVotes) -> Examination:
    """Return what votes say of their voters; nobody is accused where no leaderboard can be fitted to them."""
    if not votes.voters or not len(votes):
        return Examination((), len(votes))
    fitter = Fitter(votes)
    try:
        first = fitter.settle(fitter.capped)
        starts = _starts(votes, first, fitter.capped)
        if len(votes) > _MANY_VOTES:  # of which each search takes long, and tells more
            starts = starts[:1]
        states = [first, *(fitter.settle(start) for start in starts)]
    except P2LError:  # as of votes that are all ties, or without a vote that counts
        return Examination((), len(votes))
    likely = [state for state in states if not _trusts_one_model(votes, state)]
    best = max(likely or states, key=lambda state: state.log_likelihood)
    suspect_votes = sum(voter.votes for voter in best.voters if voter.is_suspect)
    is_beyond = not likely or suspect_votes >= BREAKDOWN * len(votes) or any(best.contests(state) for state in likely)
    moves = () if suspect_votes == 0 else _moves(votes.models, best.board, fitter.board(np.ones(len(votes))))
    return Examination(tuple(best.voters), len(votes), moves, is_beyond)


def _trusts_one_model(votes: CastVotes, state: _State) -> bool:
    """Return whether those who are trusted voted on one model nearly alone, and the accused on all alike.

    Arenas draw models whoever asks: that is a crowd who threw other battles away, so many that people look rigged.
    """
    is_suspect = np.array([*(voter.is_suspect for voter in state.voters), False])[votes.voter]
    if not is_suspect.any() or is_suspect.all():
        return False
    shares = []
    for rows in (~is_suspect, is_suspect):
        shown = np.bincount(np.concatenate([votes.first[rows], votes.second[rows]]), minlength=len(votes.models))
        shares.append(shown / rows.sum())
    return bool((shares[0] - shares[1]).max() > _ONE_SIDED)


def _moves(models: Sequence[str], weighed: Leaderboard, unweighed: Leaderboard) -> tuple[Move, ...]:
    ranks = [np.argsort(np.argsort(-board.coefs, kind="stable")) + 1 for board in (weighed, unweighed)]
    moves = [
        Move(name, int(now), int(before)) for name, now, before in zip(models, *ranks, strict=True) if now != before
    ]
    return tuple(sorted(moves, key=lambda move: (-abs(move.rank - move.unweighed), move.rank)))


class _State(NamedTuple):
    """A leaderboard and voters who agree with each other."""

    board: Leaderboard
    voters: list[Voter]
    log_likelihood: float
    """Of all votes, by the board or as rigged."""
    per_vote: Floats
    """(N,) by the board."""

    @property
    def suspects(self) -> dict[str, int]:
        """Votes of the accused by name."""
        return {voter.name: voter.votes for voter in self.voters if voter.is_suspect}

    def contests(self, other: _State) -> bool:
        """Whether another state accuses mainly voters whom this one trusts, and explains the votes nearly as well."""
        if self.log_likelihood - other.log_likelihood > _DECISIVE:
            return False
        here, there = self.suspects, other.suspects
        shared = sum(votes for name, votes in here.items() if name in there)
        return bool(here and there) and shared < 0.5 * min(sum(here.values()), sum(there.values()))


class Fitter:
    """Fits leaderboards to weighed votes, each from where the last one ended."""

    def __init__(self, votes: CastVotes) -> None:
        self.votes = votes
        outcomes = np.bincount(votes.winner, minlength=4).astype(np.float64)
        self.likelihood = likelihoods.get(suited(outcomes))
        keys = (votes.first * len(votes.models) + votes.second) * 4 + votes.winner
        kinds, self.kind = np.unique(keys, return_inverse=True)
        self.kind = self.kind.reshape(-1)
        pairs, self.winner_of_kind = kinds // 4, kinds % 4
        self.first_of_kind, self.second_of_kind = pairs // len(votes.models), pairs % len(votes.models)
        self.prior: Prior | None = None
        self.start: Floats | None = None
        number = np.bincount(votes.voter[votes.voter >= 0], minlength=len(votes.voters))
        cap = max(float(LEAST_CAP), LARGEST_SHARE * len(votes))
        self.capped = self.weights_of(np.minimum(1.0, cap / np.maximum(number, 1)))

    def weights_of(self, by_voter: Floats) -> Floats:
        """Return the weights (N,) of votes by those of voters (V,)."""
        return np.asarray(np.append(by_voter, 1.0)[self.votes.voter])

    def board(self, weights: Floats) -> Leaderboard:
        """Return the leaderboard of votes of these weights (N,), without intervals."""
        mass = np.bincount(self.kind, weights, len(self.first_of_kind))
        table = vote_table(self.first_of_kind, self.second_of_kind, self.winner_of_kind, len(self.votes.models), mass)
        name = self.likelihood.name
        board = fit_table(
            table, models=self.votes.models, likelihood=name, intervals=None, prior=self.prior, start=self.start
        )
        self.prior = Prior(sd=board.prior_sd or 1.0, broad=BROAD)
        self.start = board.coefs if board.eta is None else np.append(board.coefs, board.eta)
        return board

    def log_likelihood(self, board: Leaderboard, weights: Floats) -> Floats:
        """Return that of each vote (N,) by a leaderboard of votes of these weights."""
        mass = np.asarray(np.bincount(self.kind, weights, len(self.first_of_kind)), dtype=np.float64)
        size = len(self.first_of_kind)
        eta = None if board.eta is None else np.full(size, board.eta)
        gamma = None if board.gamma is None else np.full(size, board.gamma)
        logs = self.likelihood.log_probs(board.coefs[self.first_of_kind], board.coefs[self.second_of_kind], eta, gamma)
        columns = {name: place for place, name in enumerate(self.likelihood.outcomes)}
        tie = columns.get("tie", 0)
        place = np.array([columns["win"], columns["loss"], tie, columns.get("bothbad", tie)])[self.winner_of_kind]
        by_kind = np.take_along_axis(logs, place[:, None], axis=1)[:, 0]
        return np.asarray(self._sided(by_kind, mass)[self.kind])

    def _sided(self, log_likelihood: Floats, mass: Floats) -> Floats:
        """Return the log-likelihood of kinds of votes with what being shown first is worth to all people."""
        decided = self.winner_of_kind < 2
        probability = np.clip(np.exp(log_likelihood[decided]), 1e-12, 1.0 - 1e-12)
        logit = np.log(probability) - np.log1p(-probability)
        sign = np.where(self.winner_of_kind[decided] == 0, 1.0, -1.0)
        side = 0.0
        for _ in range(_NEWTON_STEPS):
            rest = 1.0 / (1.0 + np.exp(logit + sign * side))
            slope, curvature = mass[decided] @ (sign * rest), mass[decided] @ (rest * (1.0 - rest)) + 1.0
            side = float(np.clip(side + slope / curvature, -_LARGEST_SIDE, _LARGEST_SIDE))
        sided = log_likelihood.copy()
        sided[decided] = -np.logaddexp(0.0, -logit - sign * side)
        return np.asarray(sided)

    def settle(self, weights: Floats) -> _State:
        """Fit the leaderboard and weigh the voters in turns, until neither changes."""
        for _ in range(_ROUNDS):
            board = self.board(weights)
            per_vote = self.log_likelihood(board, weights)
            voters, gain = self.votes.evidence.judged(per_vote)
            before, weights = weights, self.weights_of(np.array([voter.weight for voter in voters]))
            if np.abs(weights - before).max() < _STEADY_CHANGE:
                break
        return _State(board, voters, float(per_vote.sum()) + gain, per_vote)


def _starts(votes: CastVotes, state: _State, capped: Floats) -> list[Floats]:
    """Return weights (N,) without voters who mostly favour, or refuse, one of a few models.

    Of those models for which the votes of such voters exceed most what the leaderboard expects of people.
    """
    labels, num_models = votes.evidence.labels, len(votes.models)
    decided = np.flatnonzero((labels[:, 2] == 0) & (votes.voter >= 0))
    keys = [votes.voter[decided] * num_models + labels[decided, column] for column in (0, 1)]
    cells, cell = np.unique(np.concatenate(keys), return_inverse=True)
    won, lost = np.split(cell.reshape(-1), 2)
    chance = np.exp(state.per_vote[decided])
    number = np.bincount(cell.reshape(-1))
    wins = np.bincount(won, minlength=len(cells))
    # Of the winner the chance is that of the vote, of the loser the rest.
    expected = np.bincount(won, chance, len(cells)) + np.bincount(lost, 1.0 - chance, len(cells))
    model, voter = cells % num_models, cells // num_models
    sizes = votes.evidence.sizes
    candidates: list[tuple[float, npt.NDArray[np.bool_]]] = []
    of_one_size: list[tuple[float, npt.NDArray[np.bool_]]] = []
    for sign in (1, -1):
        obeyed = wins if sign > 0 else number - wins
        mostly = obeyed >= _MOSTLY * number
        is_mostly = mostly & (number >= _LEAST_VOTES_OF_ONE_KIND)
        excess = np.bincount(model, is_mostly * sign * (wins - expected), num_models)
        for favoured in np.argsort(-excess)[:_STARTS].tolist():
            candidates.append((float(excess[favoured]), _suspected(votes, voter[is_mostly & (model == favoured)])))
        # Voters with a vote each tell nothing alone, but together with all who cast as few.
        group = sizes[voter] * num_models + model
        excess = np.bincount(group, sign * (wins - expected))
        for favoured in np.argsort(-excess)[:_STARTS_OF_ONE_SIZE].tolist():
            of_one_size.append((float(excess[favoured]), _suspected(votes, voter[mostly & (group == favoured)])))
    starts = []
    for those, most in ((candidates, _STARTS), (of_one_size, _STARTS_OF_ONE_SIZE)):
        those.sort(key=lambda candidate: -candidate[0])
        starts += [np.where(left_out, 0.0, capped) for excess, left_out in those[:most] if excess > 0]
    return starts


def _suspected(votes: CastVotes, voters: Ints) -> npt.NDArray[np.bool_]:
    """Return which votes (N,) are of some voters."""
    is_suspect = np.zeros(len(votes.voters) + 1, dtype=bool)
    is_suspect[voters] = True
    return np.asarray(is_suspect[votes.voter])
