"""What does it cost to change models within a conversation, and does the router do so only where that pays?

    python -m benchmarks.agent_conversations DATA_DIR [--conversations 400]

Conversations of ten turns, whose prompt grows from 6,000 tokens (instructions and schemas of tools) by 1,200 a turn. A
turn is a kind of tool calls of `bfcl_scores`; the next is of another kind with a chance of one in three. It is worth a
model's share of right answers on this kind, which the router foresees: how well it does so is another question
(`benchmarks.routing_quality`), so that what differs here is the cache alone. Prices are those of the providers' lists,
with that of input in their cache. A turn that stays pays the cached price for the prompt of the turn before; one that
has moved pays all of it.

A dollar must buy a number of right answers (as under `budget_usd` of a key), and a conversation is worth its right
answers less rate x dollars. Policies:

    best constant    one model for all conversations, the best of all
    sticking         the model that the first turn chooses (`sticky: true`)
    moving freely    the best of each turn, as if there were no cache
    the router       moves where the gain is larger than what the cache is worth (`Router.decide`)
    clairvoyant      the best path, of a program that knows all ten turns in advance

Bar: at no rate is the router worth less than sticking, than moving freely or than the best constant by an interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from route.evaluation.table import Floats, Rows
from route.routing.decision import Coefficients, Held, RoutedModel
from route.routing.dollars import Dollars
from route.routing.router import Router

_TURNS, _FIRST_TOKENS, _TOKENS_PER_TURN, _ANSWER_TOKENS = 10, 6000, 1200, 300
_CHANGE = 1 / 3
"""Chance that the next turn is another kind of work."""
_RATES = (0.3, 1.0, 3.0, 10.0)
"""Right answers that a dollar must buy."""
_LEAST_CHANCE = 0.01


class _Price(NamedTuple):
    """Dollars per million tokens."""

    input: float
    cached: float
    output: float


_PRICES = {
    "claude-3-5-sonnet-20240620": _Price(3.0, 0.3, 15.0),
    "claude-3-opus-20240229": _Price(15.0, 1.5, 75.0),
    "claude-3-haiku-20240307": _Price(0.25, 0.03, 1.25),
    "gpt-4o-2024-08-06-FC": _Price(2.5, 1.25, 10.0),
    "gpt-4o-mini-2024-07-18": _Price(0.15, 0.075, 0.6),
}
"""Lists of autumn 2024."""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.agent_conversations", "Changing models within a conversation.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder that holds bfcl_scores.parquet")
    flags.add_argument("--conversations", type=positive, default=400)
    flags.add_argument("--seed", type=int, default=0)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    scores = _drawn(flags.data, flags.conversations, np.random.default_rng(flags.seed))
    rows = []
    for rate in _RATES:
        constants = [np.full(scores.shape[:2], column, dtype=np.intp) for column in range(len(_PRICES))]
        paths: dict[str, Rows] = {
            "best constant": max(constants, key=lambda path: _worth(scores, path, rate).mean()),
            "sticking": _routed(scores, rate, sticks=True),
            "moving freely": _routed(scores, rate, has_cache=False),
            "the router": _routed(scores, rate),
            "clairvoyant": _best_paths(scores, rate),
        }
        worths = {name: _worth(scores, path, rate) for name, path in paths.items()}
        for name, path in paths.items():
            rows.append(
                [
                    f"{rate:g}",
                    name,
                    f"{100 * _earned(scores, path).mean() / _TURNS:.1f}",
                    f"{1000 * _dollars(path).mean():.1f}",
                    f"{(path[:, 1:] != path[:, :-1]).sum(axis=1).mean():.2f}",
                    _difference(worths["the router"] - worths[name]) if name != "the router" else "",
                ]
            )
    heads = ["right answers for $1", "policy", "right, %", "$ per 1,000 conversations", "moves"]
    print(table([*heads, "the router is worth more by, right answers"], rows))


def _drawn(data: Path, count: int, rng: np.random.Generator) -> Floats:
    """Return the expected scores (N, T, M) of drawn conversations."""
    import pandas as pd

    answers = pd.read_parquet(data / "bfcl_scores.parquet", columns=["category", "model", "score"])
    means = answers.pivot_table(index="category", columns="model", values="score")[list(_PRICES)].to_numpy()
    kinds = rng.integers(len(means), size=(count, _TURNS))
    stays = rng.random((count, _TURNS)) >= _CHANGE
    for turn in range(1, _TURNS):
        kinds[:, turn] = np.where(stays[:, turn], kinds[:, turn - 1], kinds[:, turn])
    return np.asarray(means[kinds].clip(_LEAST_CHANCE, 1 - _LEAST_CHANCE))


def _tokens(turn: int) -> int:
    return _FIRST_TOKENS + turn * _TOKENS_PER_TURN


def _bills(turn: int) -> tuple[Floats, Floats]:
    """Return the dollars (M,) of a turn without a cache, and what the cache of the turn before saves."""
    prices = np.array(list(_PRICES.values()))
    full = (_tokens(turn) * prices[:, 0] + _ANSWER_TOKENS * prices[:, 2]) / 1e6
    saved = _tokens(turn - 1) * (prices[:, 0] - prices[:, 1]) / 1e6 if turn else np.zeros(len(prices))
    return full, saved


def _dollars(path: Rows) -> Floats:
    """Return what conversations (N, T) cost (N,)."""
    spent = np.zeros(len(path))
    for turn in range(_TURNS):
        full, saved = _bills(turn)
        stays = path[:, turn] == path[:, turn - 1] if turn else np.zeros(len(path), dtype=bool)
        spent += full[path[:, turn]] - stays * saved[path[:, turn]]
    return spent


def _earned(scores: Floats, path: Rows) -> Floats:
    """Return the right answers (N,) of conversations."""
    return np.asarray(np.take_along_axis(scores, path[..., None], axis=2)[..., 0].sum(axis=1))


def _worth(scores: Floats, path: Rows, rate: float) -> Floats:
    return np.asarray(_earned(scores, path) - rate * _dollars(path))


def _routed(scores: Floats, rate: float, *, sticks: bool = False, has_cache: bool = True) -> Rows:
    """Return the models (N, T) that the router chooses."""
    names = list(_PRICES)
    models = [RoutedModel(name, float(cost)) for name, cost in zip(names, _bills(0)[0], strict=True)]
    router = Router(models, kind="grk-endpoint", rng=np.random.default_rng(0))
    order = [names.index(name) for name in router.menu.names]
    logits = np.log(scores) - np.log1p(-scores)
    path = np.empty(logits.shape[:2], dtype=np.intp)
    for number, turns in enumerate(logits):
        last = ""
        for turn, coefs in enumerate(turns):
            full, saved = _bills(turn)
            dollars = Dollars(costs=full[order], is_budget=False, rates=((1.0, rate),))
            held = Held(last, float(saved[names.index(last)])) if last and has_cache and not sticks else None
            coefficients = Coefficients(dict(zip(names, coefs.tolist(), strict=True)))
            decision = router.decide(
                coefficients, None, dollars=dollars, held=held, fixed=last if last and sticks else None
            )
            last = decision.model
            path[number, turn] = names.index(last)
    return path


def _best_paths(scores: Floats, rate: float) -> Rows:
    """Return the paths (N, T) of the largest worth, by a program backwards over turns."""
    count, turns, models = scores.shape
    ahead = np.zeros((count, models))  # worth of the turns to come, by the model of this one
    choices = []
    for turn in reversed(range(turns)):
        full, saved = _bills(turn)
        here = scores[:, turn] - rate * full + ahead
        # (N, model before, model now): who stays saves what is in the cache.
        values = here[:, None, :] + rate * np.diag(saved)
        choices.append(values.argmax(axis=2))
        ahead = values.max(axis=2)
    path = np.empty((count, turns), dtype=np.intp)
    last = np.zeros(count, dtype=np.intp)  # nothing is saved on the first turn, whatever was before
    for turn, choice in enumerate(reversed(choices)):
        last = path[:, turn] = choice[np.arange(count), last]
    return path


def _difference(values: Floats) -> str:
    """Return a mean with its 95 % interval over conversations."""
    error = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} [{values.mean() - error:+.3f}, {values.mean() + error:+.3f}]"


if __name__ == "__main__":
    run(main)
