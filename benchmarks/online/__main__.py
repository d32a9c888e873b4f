"""How much of what naive training on a stream forgets does each schedule keep?

    python -m benchmarks.online [--work DIR] [--real arena140k_votes.parquet] [--only replay,naive] [--quick]

A simulated arena, and with --real real votes: naive training in order of time, the published grids of replay and of the
geometric buffer, averaged weights, and oracles that train on the same votes shuffled. Every strategy trains the same
model with the same rate and, where it does not say otherwise, the same number of steps. Finished runs are kept in DIR:
the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.online.measures import Table, measure
from benchmarks.online.report import bars, bars_text, draw, table_text, write_json
from benchmarks.online.running import Outcome, run_strategy
from benchmarks.online.strategies import OURS, PREFIX, STRATEGIES, Strategy
from benchmarks.online.streams import ARENA, BATCHES, SLICES, Stream, real, simulated
from p2l.common.cli import parser, run
from p2l.common.errors import ConfigError

_QUICK = ("naive", "oracle", "replay 0.19", "replay 0.19, larger steps", "geometric 0.995 0.001")
_QUICK_BATCH = 8


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.online", "Compare schedules of online training.")
    flags.add_argument("--work", type=Path, default=Path("outputs/online"), help="folder that keeps finished runs")
    flags.add_argument("--real", type=Path, metavar="FILE", help="real votes with months and tags instead")
    flags.add_argument("--arena", type=int, default=0, metavar="SEED", help="another simulated arena of the same kind")
    flags.add_argument("--only", help="strategies whose names contain one of these texts, separated by commas")
    flags.add_argument("--seeds", type=int, default=6, help="most seeds of a strategy")
    flags.add_argument(
        "--quick", action="store_true", help="five strategies with one seed; on the simulated arena, batches of 8 votes"
    )
    flags.add_argument("--quiet", action="store_true", help="no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    torch.set_num_threads(1)
    work = flags.work.resolve() / ("quick" if flags.quick else "full")
    votes = _QUICK_BATCH * BATCHES if flags.quick else ARENA.votes
    arena = replace(ARENA, seed=flags.arena, votes=votes)
    stream = real(work, flags.real.expanduser().resolve()) if flags.real else simulated(work, arena)
    chosen = list(_chosen(flags.only, quick=flags.quick, bare=flags.real is not None))
    runs: dict[str, list[Outcome]] = {}
    for strategy in chosen:
        for seed in range(1 if flags.quick else min(flags.seeds, strategy.seeds)):
            try:
                outcome = run_strategy(stream, strategy, seed, quiet=flags.quiet)
            except ConfigError as error:  # a share of replay that is not a vote in batches so small
                print(f"{strategy.name}: left out: {error}")
                break
            runs.setdefault(strategy.name, []).append(outcome)
    table = _measured(stream, runs)
    print(table_text(table), flush=True)
    if stream.name == "simulated" and not (flags.quick or flags.arena) and OURS in {row.name for row in table.rows}:
        print(bars_text(bars(table, OURS)))
    write_json(table, stream.folder / "results.json")
    paths = draw(table, stream.folder / "figures")
    print(f"figures in {paths[0].parent}, all figures of the table in {stream.folder / 'results.json'}")


def _chosen(only: str | None, *, quick: bool, bare: bool) -> Iterable[Strategy]:
    for name, strategy in STRATEGIES.items():
        wanted = name in _QUICK if quick else not (bare and strategy.final_only)
        wanted_too = name in ("naive", "oracle") or only is None or any(text in name for text in only.split(","))
        if wanted and wanted_too:
            yield strategy


def _measured(stream: Stream, runs: dict[str, list[Outcome]]) -> Table:
    """The table, with a row of its own for averaged weights."""
    prefixes = [runs[name][0] for number in range(1, SLICES + 1) if (name := PREFIX.format(number)) in runs]
    rows: dict[str, list[Outcome]] = {}
    for name, outcomes in runs.items():
        if STRATEGIES[name].final_only:
            continue
        rows[name] = outcomes
        averaged = [replace(one, losses=one.averaged) for one in outcomes if one.averaged is not None]
        if averaged:
            rows[f"{name}, averaged"] = averaged
    return measure(stream, rows, prefixes if len(prefixes) == SLICES else [])


if __name__ == "__main__":
    run(main)
