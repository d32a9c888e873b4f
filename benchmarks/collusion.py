"""What can colluding voters do to a leaderboard, and how often are honest ones accused?

    python -m benchmarks.collusion [--part attacks] [--seeds 20] [--sets 200] [--large]

An arena of eight models: honest visitors vote a few times each, by a truth that differs between prompts, by tastes and
sharpness of their own, with ties and a lean to the answer shown first. A hundred colluders lift the worst model.
Printed for each attack, with `--weigh-voters` and without: seeds in which every model stays within its interval of the
clean votes, how far the model that is attacked moves (in half-widths of that interval), its rank, and what is left of
the weight of honest votes and of colluders'. Then honest sets of many kinds with an accused voter, what a day of 5,000
votes in the arena keeps of its weight, and the share of colluding votes from which on nothing is told. `--large` times
one test of 2.2 million votes.

Promises: 18 of 20 seeds of the first two attacks hold; 5 of 200 honest sets at most have an accused voter; a day keeps
95 % of its weight. The other attackers know the rule: they vote softly, vote like people elsewhere, throw their names
away, or agree on a whole other truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.leaderboard import Leaderboard, fit
from p2l.people import CastVotes, Examination, cast_votes, examine
from p2l.people.robust import robust_factors

__all__ = ["main"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
MODELS = 8
_COLLUDERS = 100
_SPREAD, _PROMPT_SD = 0.8, 0.5
_LARGE_VOTES, _LARGE_MODELS, _LARGE_VOTERS = 2_200_000, 130, 300_000


@dataclass(frozen=True)
class Field:
    """Honest voters: how many votes, how many a voter on average, and how much they differ."""

    votes: int
    models: int = MODELS
    per_voter: float = 10.0
    taste: float = 0.3
    side: float = 0.1
    sharpness: float = 0.2


@dataclass(frozen=True)
class Votes:
    """Votes with names of voters and networks."""

    first: Ints
    second: Ints
    winner: Ints
    voter: list[str]
    network: list[str]

    def and_those_of(self, other: Votes) -> Votes:
        """Return both, those of the other mixed in last."""
        columns = (np.concatenate(pair) for pair in zip(self.columns, other.columns, strict=True))
        return Votes(*columns, self.voter + other.voter, self.network + other.network)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """First and second models, and winners."""
        return self.first, self.second, self.winner

    def cast(self, models: int, times: Floats | None = None) -> CastVotes:
        """Return them as they are examined; `times` (N,) in seconds."""
        return cast_votes(names_of(models), *self.columns, self.voter, network=self.network, times=times)


def names_of(models: int) -> list[str]:
    """Return names of models."""
    return [f"m{number}" for number in range(models)]


def honest(field: Field, rng: np.random.Generator) -> tuple[Floats, Votes]:
    """Return the truth (M,) and votes of people."""
    truth = rng.normal(0.0, _SPREAD, field.models)
    sizes = rng.geometric(1.0 / field.per_voter, field.votes)
    voter = np.repeat(np.arange(field.votes), sizes)[: field.votes]
    first, second = pairs(field.votes, field.models, rng)
    taste = rng.normal(0.0, field.taste, (int(voter.max()) + 1, field.models))
    sharpness = np.exp(rng.normal(0.0, field.sharpness, len(taste)))
    on_prompt = rng.normal(0.0, _PROMPT_SD, (field.votes, field.models))
    worth = (truth + on_prompt) * sharpness[voter][:, None] + taste[voter]
    winner = outcomes(worth, first, second, rng, side=field.side)
    names = [f"visitor-{code}" for code in voter.tolist()]
    return truth, Votes(first, second, winner, names, [f"home-{code}" for code in voter.tolist()])


def pairs(count: int, models: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return two different models (n,) each."""
    first = rng.integers(0, models, count)
    return first, (first + rng.integers(1, models, count)) % models


def outcomes(worth: Floats, first: Ints, second: Ints, rng: np.random.Generator, *, side: float = 0.0) -> Ints:
    """Return positions in WINNERS (n,) for what each answer (n, M) is worth."""
    rows = np.arange(len(first))
    difference = worth[rows, first] - worth[rows, second] + side
    is_tie = rng.random(len(rows)) < 0.15 * np.exp(-np.abs(difference)) + 0.05
    tie = np.where(rng.random(len(rows)) < 0.6, 2, 3)
    return np.where(is_tie, tie, (rng.random(len(rows)) > 1.0 / (1.0 + np.exp(-difference))).astype(np.int64))


Attack = Callable[[Floats, int, np.random.Generator], Votes]
"""(truth, votes of each, random numbers) -> votes."""


def chosen(
    truth: Floats,
    each: int,
    rng: np.random.Generator,
    *,
    faithful: float = 1.0,
    sign: int = 1,
    colluders: int = _COLLUDERS,
) -> Votes:
    """Battles without the model are thrown away; of the others it wins a share (with `sign` -1: the best one loses)."""
    size, count = len(truth), colluders * each
    target = int(np.argmin(sign * truth))
    other = (target + rng.integers(1, size, count)) % size
    is_first = rng.random(count) < 0.5
    obeys = rng.random(count) < faithful
    winner = np.where((is_first == obeys) == (sign > 0), 0, 1)
    return _named(np.where(is_first, target, other), np.where(is_first, other, target), winner, each)


def among_people(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """All battles as they come, by the truth but for the model, which always wins."""
    count, target = _COLLUDERS * each, int(np.argmin(truth))
    first, second = pairs(count, len(truth), rng)
    winner = outcomes(np.tile(truth, (count, 1)), first, second, rng)
    winner = np.where(first == target, 0, np.where(second == target, 1, winner))
    return _named(first, second, winner, each)


def another_truth(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """All battles as they come, like people for whom the model is as good as the best."""
    count, other = _COLLUDERS * each, truth.copy()
    other[np.argmin(truth)] = truth.max() + 0.3
    first, second = pairs(count, len(truth), rng)
    return _named(first, second, outcomes(np.tile(other, (count, 1)), first, second, rng), each)


def nameless(truth: Floats, each: int, rng: np.random.Generator, *, networks: int) -> Votes:
    """Chosen battles, each under a new name, from some networks."""
    votes = chosen(truth, each, rng)
    count = len(votes.winner)
    homes = [f"den-{number % networks}" for number in range(count)]
    return Votes(*votes.columns, [f"colluder-{number}" for number in range(count)], homes)


def _named(first: Ints, second: Ints, winner: Ints, each: int) -> Votes:
    voter = (np.arange(len(winner)) // each).tolist()
    return Votes(first, second, winner, [f"colluder-{code}" for code in voter], [f"den-{code}" for code in voter])


def soft(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """Chosen battles, of which the model wins four fifths."""
    return chosen(truth, each, rng, faithful=0.8)


def against(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """Battles of the best model are chosen, and it loses."""
    return chosen(truth, each, rng, sign=-1)


def from_few(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """A new name for each vote, from ten networks."""
    return nameless(truth, each, rng, networks=10)


def from_many(truth: Floats, each: int, rng: np.random.Generator) -> Votes:
    """A new name and a new network for each vote."""
    return nameless(truth, each, rng, networks=1_000_000)


ATTACKS: Sequence[tuple[str, Attack, int, int]] = (
    ("chosen battles, all won", chosen, 8, 3000),
    ("chosen battles, all won", chosen, 19, 1900),
    ("chosen battles, all won", chosen, 19, 3000),
    ("chosen battles of the best, all lost", against, 8, 3000),
    ("chosen battles, four fifths won", soft, 8, 3000),
    ("like people, but for the model", among_people, 8, 3000),
    ("like people of another truth", another_truth, 8, 3000),
    ("new name each vote, ten networks", from_few, 8, 3000),
    ("new name and network each vote", from_many, 8, 3000),
)
"""What is done, votes of each colluder, honest votes."""


def board_of(votes: Votes, weights: Floats | None, **options: Any) -> Leaderboard:
    """Return the leaderboard of votes of some weights (N,)."""
    return fit(*votes.columns, models=names_of(MODELS), weights=weights, **options)


def weights_of(votes: Votes, examination: Examination) -> Floats:
    """Return the weight (N,) of each vote."""
    return np.array([examination.weights.get(name, 1.0) for name in votes.voter])


def attacked(attack: Attack, each: int, field: Field, seeds: int) -> list[str]:
    """Return a row about one attack."""
    held: dict[bool, int] = {False: 0, True: 0}
    moved: dict[bool, list[float]] = {False: [], True: []}
    ranks: dict[bool, list[int]] = {False: [], True: []}
    kept: dict[str, list[float]] = {"visitor": [], "colluder": []}
    beyond = 0
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 47])
        truth, people = honest(field, rng)
        votes = people.and_those_of(attack(truth, each, rng))
        examination = examine(votes.cast(MODELS))
        beyond += examination.is_beyond
        clean, weights = board_of(people, None), weights_of(votes, examination)
        target = int(np.argmax(truth) if attack is against else np.argmin(truth))
        half = (clean.upper - clean.lower) / 2.0
        for is_weighed in (False, True):
            board = board_of(votes, weights if is_weighed else None, intervals=None)
            held[is_weighed] += bool(((board.coefs >= clean.lower) & (board.coefs <= clean.upper)).all())
            moved[is_weighed].append(float(abs(board.coefs - clean.coefs)[target] / half[target]))
            ranks[is_weighed].append(int((board.coefs > board.coefs[target]).sum()) + 1)
        for kind, shares in kept.items():
            shares.append(float(weights[[name.startswith(kind) for name in votes.voter]].mean()))
    return [
        *(f"{held[is_weighed]} of {seeds}" for is_weighed in (False, True)),
        *(f"{np.median(moved[is_weighed]):.1f}" for is_weighed in (False, True)),
        *(f"{np.median(ranks[is_weighed]):.0f}" for is_weighed in (False, True)),
        *(f"{np.mean(shares):.1%}" for shares in kept.values()),
        str(beyond),
    ]


def honest_sets(sets: int) -> tuple[int, float]:
    """Return how many honest sets have an accused voter, and the least weight that a day in the arena keeps."""
    accused, least = 0, 1.0
    for number in range(sets):
        rng = np.random.default_rng([number, 1])
        field = Field(
            votes=int(rng.choice([1000, 3000, 5000])),
            models=int(rng.choice([5, 8, 20])),
            per_voter=float(rng.choice([3, 10, 30])),
            taste=float(rng.choice([0.0, 0.3, 0.6])),
            side=float(rng.choice([0.0, 0.1, 0.4])),
            sharpness=float(rng.choice([0.0, 0.2, 0.5])),
        )
        accused += bool(examine(honest(field, rng)[1].cast(field.models)).suspects)
        if number < sets // 10:
            _, day = honest(Field(votes=5000), rng)
            least = min(least, float(weights_of(day, examine(day.cast(MODELS))).mean()))
    return accused, least


def _attacks(args: argparse.Namespace) -> str:
    header = ["a hundred colluders", "votes of each", "honest votes", "held, as they are", "held, weighed"]
    header += ["moved", "moved, weighed", "rank", "rank, weighed", "honest weight", "colluders' weight", "cannot tell"]
    rows = [
        [name, str(each), f"{votes:,}", *attacked(attack, each, Field(votes=votes), args.seeds)]
        for name, attack, each, votes in ATTACKS
    ]
    return table(header, rows)


def _breakdown(args: argparse.Namespace) -> str:
    """Return a table of what becomes of a rising share of colluding votes, 1,900 honest ones beside them."""
    rows = []
    for each in (10, 19, 24, 29, 38):
        results = attacked(chosen, each, Field(votes=1900), args.seeds)
        part = _COLLUDERS * each / (1900 + _COLLUDERS * each)
        rows.append([f"{part:.0%}", results[1], results[3], results[6], results[8]])
    return table(["colluding votes", "held, weighed", "moved, weighed", "honest weight", "cannot tell"], rows)


def _one_percent(args: argparse.Namespace) -> str:
    """Return a table of what one colluding vote in a hundred does, as they are, weighed and under `--robust`.

    Of the model that moves most, in half-widths of its interval.
    """
    rows, seeds = [], max(1, args.seeds // 5)
    for honest_votes in (3000, 30_000):
        for each in (1, 2, 4, 8):
            moves, costs = list[list[float]](), list[float]()
            for seed in range(seeds):
                rng = np.random.default_rng([seed, 48])
                truth, people = honest(Field(votes=honest_votes), rng)
                votes = people.and_those_of(chosen(truth, each, rng, colluders=honest_votes // 100 // each))
                clean = board_of(people, None)
                half = (clean.upper - clean.lower) / 2.0
                boards = [board_of(votes, weights, intervals=None) for weights in _three_weights(votes)]
                moves.append([float((np.abs(board.coefs - clean.coefs) / half).max()) for board in boards])
                robust = board_of(people, _three_weights(people)[2])
                costs.append(float(((robust.upper - robust.lower) / (clean.upper - clean.lower)).mean() ** 2 - 1.0))
            texts = [f"{value:.2f}" for value in np.median(moves, axis=0)]
            rows.append([f"{honest_votes:,}", str(each), *texts, f"{np.mean(costs):.1%}"])
    header = ["honest votes", "votes of each colluder", "moved", "moved, weighed", "moved, robust"]
    return table([*header, "cost on honest votes"], rows)


def _three_weights(votes: Votes) -> tuple[Floats | None, Floats, Floats]:
    """Return no weights, those of voters, and those of voters and of their votes on models."""
    cast = votes.cast(MODELS)
    examination = examine(cast)
    return None, weights_of(votes, examination), robust_weights(votes, cast, examination)


def robust_weights(votes: Votes, cast: CastVotes, examination: Examination) -> Floats:
    """Return the weight (N,) of each vote under `--robust`."""
    factors, names = robust_factors(cast, examination.weights), names_of(MODELS)
    lesser = [
        min(factors.get((voter, names[a]), 1.0), factors.get((voter, names[b]), 1.0))
        for voter, a, b in zip(votes.voter, votes.first.tolist(), votes.second.tolist(), strict=True)
    ]
    return np.asarray(weights_of(votes, examination) * np.array(lesser))


def _honest(args: argparse.Namespace) -> str:
    accused, least = honest_sets(args.sets)
    header = ["honest sets", "with an accused voter", "least weight that a day of 5,000 votes keeps"]
    return table(header, [[f"{args.sets}", f"{accused}", share(least, 1)]])


PARTS = {"attacks": _attacks, "breakdown": _breakdown, "one-percent": _one_percent, "honest": _honest}
"""What is printed, by name."""


def large() -> str:
    """Return how long one test of millions of votes takes."""
    rng = np.random.default_rng(0)
    field = Field(votes=_LARGE_VOTES, models=_LARGE_MODELS, per_voter=_LARGE_VOTES / _LARGE_VOTERS)
    first, second = pairs(field.votes, field.models, rng)
    truth = rng.normal(0.0, _SPREAD, field.models)
    difference = truth[first] - truth[second]
    winner = (rng.random(field.votes) > 1.0 / (1.0 + np.exp(-difference))).astype(np.int64)
    voter = [f"v{code}" for code in rng.integers(0, _LARGE_VOTERS, field.votes).tolist()]
    votes = cast_votes(names_of(field.models), first, second, winner, voter)
    started = time.perf_counter()
    suspects = examine(votes).suspects
    seconds = time.perf_counter() - started
    return f"{_LARGE_VOTES:,} votes of {_LARGE_VOTERS:,} voters: {seconds:.0f} s, {len(suspects)} accused"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("benchmarks.collusion", "What colluding voters can do to a leaderboard.")
    flags.add_argument("--seeds", type=positive, default=20, metavar="N", help="arenas of each attack")
    flags.add_argument("--sets", type=positive, default=200, metavar="N", help="honest sets")
    flags.add_argument(
        "--part", action="append", choices=PARTS, help="print this table; may be repeated (default: all)"
    )
    flags.add_argument("--large", action="store_true", help="time one test of 2.2 million votes instead")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = build_parser().parse_args(argv)
    if args.large:
        print(large())
        return
    for part in args.part or PARTS:
        print(PARTS[part](args), "\n")


if __name__ == "__main__":
    run(main)
