"""Is the certificate of a leaderboard as low as changing one vote after the other, and how long does it take?

    python -m benchmarks.certificate [--part first-places] [DATA_DIR]

For each file of votes, public ones of DATA_DIR and simulated arenas: the fewest votes whose removal or reversal changes
the first place, by `p2l leaderboard` and by greedy refitting. That fits the leaderboard again without votes of each
kind on two models (or with them reversed), takes the kind that closes the gap most for each vote, and goes on until
another model leads in a complete fit. It tries the rivals next to the leader and the one that the certificate names. A
step changes a twentieth of the votes that are still needed, so that the last ones are single votes; the twelve kinds
that did most are tried in each step, and all of them in every eighth. Then the same of every model's rank, greedy
against the two models on either side. Promise: within 5 % of greedy, or lower. Last, 2.2 million votes between 130
models: at most 10 s on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.leaderboards import simulate
from benchmarks.tables import table as markdown_table
from p2l.common.cli import parser, run
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.fitting import fit_table
from p2l.leaderboard.newton import BROAD
from p2l.leaderboard.pair_tables import PairTable, vote_table
from p2l.votes import encode_votes, read_votes

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
_PUBLIC = ("llmfao_votes", "pandalm_human", "oasst_vicuna_gpt4_battles", "alpaca_eval_battles", "arena140k_votes")
_SIMULATED = ((400, 5), (1000, 6), (2000, 8), (5000, 10), (10_000, 12))  # votes and models
_RIVALS = 3  # models that greedy tries to put first
_STEP = 0.05  # of the votes that seem to be needed still, at least one, that greedy leaves out at once
_BEST_KINDS = 12  # of votes that greedy tries in each step
_ALL_KINDS_EVERY = 8  # steps; all of them are tried then
_BESIDE = 2  # models on either side of one whose rank is tried
_MOST_RANKED = 6  # models of a file, above which ranks are not tried
_MOST_OVER = 1.05  # what a certificate may be over greedy
_LARGE_VOTES, _LARGE_MODELS = 2_200_000, 130


def tables(folder: Path | None) -> Iterator[tuple[str, PairTable, list[str]]]:
    """Yield name, votes by pair, and models."""
    for name in _PUBLIC if folder is not None else ():
        path = folder / f"{name}.parquet" if folder is not None else Path(name)
        if path.is_file():
            names = ["model_a", "model_b", "winner"]
            batches = [votes.batch for votes in read_votes(str(path), columns=names, drop_bad=True)]
            columns = [[value for batch in batches for value in batch.column(each).to_pylist()] for each in names]
            yield name, *_table(*columns)
    for seed, (votes, models) in enumerate(_SIMULATED):
        first, second, winner, _ = simulate(votes, models, seed)
        yield f"{votes:,} votes, {models} models", *_table(first, second, winner)


def _table(first: object, second: object, winner: object) -> tuple[PairTable, list[str]]:
    codes = encode_votes(first, second, winner)
    return vote_table(codes.model_a, codes.model_b, codes.winner, len(codes.models)), list(codes.models)


def greedy(table: PairTable, board: Leaderboard, model: int, rivals: Sequence[int], *, reverse: bool) -> int | None:
    """Return how many votes greedy refitting changes until a model has another rank; None where it finds none."""
    best: int | None = None
    for rival in dict.fromkeys(rivals):
        found = _Greedy(board, model, rival, reverse=reverse).search(table, most=best)
        best = found if best is None or (found is not None and found < best) else best
    return best


class _Greedy:
    """Changes the votes that, by a fit to what is left, close the gap of two models most, again and again."""

    def __init__(self, board: Leaderboard, model: int, rival: int, *, reverse: bool) -> None:
        self.board, self.model, self.reverse = board, model, reverse
        self.above, self.below = (model, rival) if board.coefs[model] >= board.coefs[rival] else (rival, model)
        self.rank = self._rank_of(board.coefs)
        self.prior = Prior(sd=board.prior_sd or 1.0, broad=BROAD)

    def search(self, table: PairTable, most: int | None) -> int | None:
        """Return the votes that it takes; None where it is `most` or more, or more than half of all."""
        limit = int(table.votes.sum() / 2) if most is None else most
        start = self.board.coefs if self.board.eta is None else np.append(self.board.coefs, self.board.eta)
        gap, changed = self._gap(start), 0
        gains: dict[tuple[int, int], float] = {}  # of a vote of each kind, when it was last tried
        for number in range(limit):
            kinds = self._kinds(table)
            if number % _ALL_KINDS_EVERY:
                kinds = sorted(kinds, key=lambda kind: -gains.get(kind, -np.inf))[:_BEST_KINDS]
            step = max(1, int(gap / max(gains.values()) * _STEP)) if gains else 1
            tries = [self._tried(table, kind, step, start) for kind in kinds]
            gains |= {kind: (gap - self._gap(each.coefs)) / each.votes for kind, each in zip(kinds, tries, strict=True)}
            if not kinds or max(gains[kind] for kind in kinds) <= 0.0:
                return None
            best = tries[int(np.argmax([gains[kind] for kind in kinds]))]
            table, start, gap, changed = best.table, best.coefs, self._gap(best.coefs), changed + best.votes
            if changed >= limit:
                return None
            if gap < 0.0 and self._is_turned(table, start):
                return changed
        return None

    def _kinds(self, table: PairTable) -> list[tuple[int, int]]:
        """Return the rows and winners of the votes left on either model."""
        both = (self.above, self.below)
        touches = np.isin(table.first, both) | np.isin(table.second, both)
        is_kind = (table.votes > 0) & touches[:, None]
        is_kind[:, 2:] &= not self.reverse  # a tie has nobody to turn to
        return [(row, winner) for row, winner in np.argwhere(is_kind).tolist()]

    def _tried(self, table: PairTable, kind: tuple[int, int], step: int, start: Floats) -> _Try:
        row, winner = kind
        number = int(min(step, table.votes[row, winner]))
        columns = {}
        for name in ("weights", "squares", "votes"):
            columns[name] = getattr(table, name).copy()
            columns[name][row, winner] -= number
            if self.reverse:
                columns[name][row, 1 - winner] += number
        after = dataclasses.replace(table, **columns)
        board = self._fit(after, prior=self.prior, start=start, tolerance=1e-4)
        return _Try(number, after, board.coefs if board.eta is None else np.append(board.coefs, board.eta))

    def _fit(self, table: PairTable, **options: Any) -> Leaderboard:
        board = self.board
        return fit_table(table, models=board.models, likelihood=board.likelihood, intervals=None, **options)

    def _gap(self, coefs: Floats) -> float:
        return float(coefs[self.above] - coefs[self.below])

    def _rank_of(self, coefs: Floats) -> int:
        return int((coefs[: len(self.board.models)] > coefs[self.model]).sum())

    def _is_turned(self, table: PairTable, coefs: Floats) -> bool:
        """Return whether the model has another rank; the first place by a fit with a prior of its own."""
        return self._rank_of(coefs if self.rank else self._fit(table).coefs) != self.rank


class _Try(NamedTuple):
    """What a change of some votes of a kind does."""

    votes: int
    table: PairTable
    coefs: Floats
    """And eta, where there is one."""


def first_places(name: str, table: PairTable, models: list[str]) -> list[list[str]]:
    """Return rows about the first place in one file, by removal and by reversal."""
    started = time.perf_counter()
    board = fit_table(table, models=models, certified_votes=1)
    seconds = time.perf_counter() - started
    certificate = board.certificate
    assert certificate is not None
    leader, *rivals = np.argsort(-board.coefs)[: 1 + _RIVALS].tolist()
    rows = []
    for change, reverse in ((certificate.removed, False), (certificate.reversed, True)):
        named = [] if change is None else [models.index(change.leader)]
        plain = greedy(table, board, leader, [*named, *rivals], reverse=reverse)
        number = None if change is None else change.number
        row = [name, f"{len(models)}", f"{certificate.total:,}", "turned" if reverse else "removed"]
        rows.append([*row, _number(number), _number(plain), _ratio(number, plain), f"{seconds:.2f}"])
    return rows


def every_rank(name: str, table: PairTable, models: list[str]) -> list[str]:
    """Return a row about the ranks of all models in one file, greedy against the models next to each."""
    board = fit_table(table, models=models, certified_votes=1)
    assert board.certificate is not None
    order = np.argsort(-board.coefs).tolist()
    ratios = []
    for certified, reverse in ((board.certificate.rank_removed, False), (board.certificate.rank_reversed, True)):
        for rank, model in enumerate(order):
            beside = [*order[max(rank - _BESIDE, 0) : rank], *order[rank + 1 : rank + 1 + _BESIDE]]
            plain = greedy(table, board, model, beside, reverse=reverse)
            if plain is not None:
                ratios.append(float(certified[model]) / plain)
    over = sum(ratio > _MOST_OVER for ratio in ratios)
    return [name, f"{len(ratios)}", f"{np.median(ratios):.2f}", f"{max(ratios):.2f}", f"{over}"]


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _ratio(number: int | None, plain: int | None) -> str:
    return "" if number is None or plain is None else f"{number / plain:.3f}"


def _first_places(folder: Path | None) -> str:
    header = ["votes of", "models", "votes", "votes are", "certificate", "greedy", "ratio", "seconds with the fit"]
    return markdown_table(header, [row for file in tables(folder) for row in first_places(*file)])


def _ranks(folder: Path | None) -> str:
    header = ["ranks in", "ranks", "median ratio", "largest", f"over {_MOST_OVER}"]
    small = [file for file in tables(folder) if len(file[2]) <= _MOST_RANKED]
    return markdown_table(header, [every_rank(*file) for file in small])


def _large(_: Path | None) -> str:
    first, second, winner, _ = simulate(_LARGE_VOTES, _LARGE_MODELS, 0)
    table, models = _table(first, second, winner)
    started, started_cpu = time.perf_counter(), time.process_time()
    board = fit_table(table, models=models, certified_votes=1)
    seconds, core = time.perf_counter() - started, time.process_time() - started_cpu
    assert board.certificate is not None
    header = ["votes", "models", "seconds with the fit", "seconds of one core", "what it says"]
    row = [f"{_LARGE_VOTES:,}", f"{_LARGE_MODELS}", f"{seconds:.1f}", f"{core:.1f}", board.certificate.sentence]
    return markdown_table(header, [row])


PARTS = {"first-places": _first_places, "ranks": _ranks, "large": _large}
"""What is printed, by name."""


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("benchmarks.certificate", "The certificate of a leaderboard beside greedy refitting.")
    flags.add_argument("data", nargs="?", type=Path, metavar="DATA_DIR", help="folder of public votes in Parquet")
    flags.add_argument(
        "--part", action="append", choices=PARTS, help="print this table; may be repeated (default: all)"
    )
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = build_parser().parse_args(argv)
    for part in args.part or PARTS:
        print(PARTS[part](args.data), "\n")


if __name__ == "__main__":
    run(main)
