"""What can colluders still do who know how voters are weighed?

    python -m benchmarks.adaptive [--seeds 20]

The arena of `benchmarks.collusion`: eight models, a day of 3,000 honest votes, and beside them as many bought ones as a
budget allows. The attacker knows the rule and chooses what suits him best of `STRATEGIES`: over how many voters he
spreads the votes (one each, eight, or as people do), how many of them are honest votes on battles of other models, and
how many of its battles the model wins. Each voter has a network of his own, and votes come at any time of the day. What
does most damage in a few arenas is tried in others, which are printed: for the second model, which is to be first, and
for the worst. Then the strategy of the largest budget is changed in one respect after the other, which says what each
precaution is worth to him.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.collusion import MODELS, Field, Votes, board_of, honest, outcomes, robust_weights, weights_of
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.people import examine

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
_HONEST_VOTES = 3000
_BUDGETS = (0.05, 0.2)  # bought votes, as a share of the honest ones
_TRIED = 2  # arenas in which a strategy is chosen
_AS_THEY_ARE, _WEIGHED = 0, 1  # places of what a `Damage` tells of
_DAY, _HOUR = 86_400.0, 3600.0
"""Seconds."""


@dataclass(frozen=True)
class Strategy:
    """How bought votes are cast."""

    each: int | None
    """Votes of a voter; None: as different as those of people."""
    mimicked: float
    """Share of the votes that go to battles of other models, as people would."""
    faithful: float
    """Share of its battles that the model wins."""
    of_network: int = 1
    """Voters."""
    seconds: float = _DAY
    """Within which the votes come."""

    @property
    def text(self) -> list[str]:
        """Return it as cells of a table."""
        return ["as people" if self.each is None else f"{self.each}", f"{self.mimicked:.0%}", f"{self.faithful:.0%}"]

    def votes(self, worth: Floats, target: int, count: int, rng: np.random.Generator) -> Votes:
        """Return votes for a model among models of a worth (M,)."""
        others = np.delete(np.arange(len(worth)), target)
        pairs = np.array([rng.choice(others, 2, replace=False) for _ in range(count)]).reshape(count, 2)
        winner = outcomes(np.tile(worth, (count, 1)), pairs[:, 0], pairs[:, 1], rng)
        is_bought = rng.random(count) >= self.mimicked
        side = rng.integers(0, 2, count)
        pairs[is_bought, side[is_bought]] = target
        obeys = rng.random(count) < self.faithful
        winner = np.where(is_bought, np.where(obeys, side, 1 - side), winner)
        sizes = rng.geometric(1.0 / Field(votes=0).per_voter, count) if self.each is None else np.full(count, self.each)
        voter = np.repeat(np.arange(count), sizes)[:count]
        names = [f"colluder-{code}" for code in voter.tolist()]
        networks = [f"den-{code // self.of_network}" for code in voter.tolist()]
        return Votes(pairs[:, 0], pairs[:, 1], winner, names, networks)


STRATEGIES = tuple(Strategy(*values) for values in itertools.product((1, 8, None), (0.0, 0.5), (1.0, 0.8, 0.65)))


class Damage(NamedTuple):
    """What bought votes do in one arena; of each: as votes are, weighed, robust."""

    moved: tuple[float, ...]
    """Half-widths of the interval of the clean votes by which the model moves."""
    points: tuple[float, ...]
    """Points of the score."""
    leads: tuple[bool, ...]
    """Whether it is first, which it is not by the clean votes."""


def damage(strategy: Strategy, budget: float, rank: int, seed: int) -> Damage:
    """Return what a strategy does for the model of a rank by the clean votes (-1: the last)."""
    rng = np.random.default_rng([seed, 49])
    truth, people = honest(Field(votes=_HONEST_VOTES), rng)
    clean = board_of(people, None)
    target = int(np.argsort(-clean.coefs)[rank])
    bought = strategy.votes(truth, target, round(budget * _HONEST_VOTES), rng)
    votes = people.and_those_of(bought)
    times = np.concatenate(
        [rng.uniform(0.0, _DAY, len(people.winner)), rng.uniform(0.0, strategy.seconds, len(bought.winner))]
    )
    cast = votes.cast(MODELS, times)
    examination = examine(cast)
    half = float(clean.upper[target] - clean.lower[target]) / 2.0
    boards = [
        board_of(votes, weights, intervals=None)
        for weights in (None, weights_of(votes, examination), robust_weights(votes, cast, examination))
    ]
    moves = [float(board.coefs[target] - clean.coefs[target]) for board in boards]
    return Damage(
        moved=tuple(move / half for move in moves),
        points=tuple(move * POINTS_PER_LOGIT for move in moves),
        leads=tuple(int(np.argmax(board.coefs)) == target for board in boards),
    )


def chosen_strategy(budget: float, rank: int) -> Strategy:
    """Return the strategy that moves a model most, weighed, in the arenas where strategies are tried."""

    def moved(strategy: Strategy) -> float:
        return float(np.mean([damage(strategy, budget, rank, 1000 + seed).moved[_WEIGHED] for seed in range(_TRIED)]))

    return max(STRATEGIES, key=moved)


def rows_of(strategy: Strategy, budget: float, rank: int, seeds: int) -> list[str]:
    """Return cells of what a strategy does in other arenas."""
    damages = [damage(strategy, budget, rank, seed) for seed in range(seeds)]
    moved, points = (np.median([getattr(each, name) for each in damages], axis=0) for name in ("moved", "points"))
    leads = np.sum([each.leads for each in damages], axis=0)
    cells = [f"{moved[_WEIGHED]:.1f}", *(f"{value:+.0f}" for value in points)]
    return cells + [f"{leads[place]} of {seeds}" for place in (_AS_THEY_ARE, _WEIGHED)]


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("benchmarks.adaptive", "What colluders who know the rule can still do to a leaderboard.")
    flags.add_argument("--seeds", type=positive, default=20, metavar="N", help="arenas of each row")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    seeds = build_parser().parse_args(argv).seeds
    did = ["half-widths, weighed", "points, as they are", "weighed", "robust", "leads, as they are", "leads, weighed"]
    header = ["for", "bought votes", "votes of each", "honest ones", "wins", *did]
    rows, last = [], STRATEGIES[0]
    for name, rank in (("the second", 1), ("the worst", -1)):
        for budget in _BUDGETS:
            last = chosen_strategy(budget, rank)
            count = f"{round(budget * _HONEST_VOTES):,} beside {_HONEST_VOTES:,}"
            rows.append([name, count, *last.text, *rows_of(last, budget, rank, seeds)])
    print(table(header, rows), "\n")
    changes: list[tuple[str, Strategy]] = [
        ("as chosen", last),
        ("19 votes of each", replace(last, each=19)),
        ("one vote of each", replace(last, each=1)),
        ("no honest votes", replace(last, mimicked=0.0)),
        ("the model always wins", replace(last, faithful=1.0)),
        ("ten voters of a network", replace(last, of_network=10)),
        ("within an hour", replace(last, seconds=_HOUR)),
    ]
    rows = [[name, *rows_of(strategy, _BUDGETS[-1], -1, seeds)] for name, strategy in changes]
    print(table(["the last, but for", *did], rows))


if __name__ == "__main__":
    run(main)
