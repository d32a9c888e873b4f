"""Leaderboards of a lake of simulated votes: overall, 52 weekly and 20 of a category, cold, and after one more day.

    python -m benchmarks.lake [--votes 1000000000] [--models 130] [--day 1000000] [--keep DIR]

Each phase is a process of its own, so that its memory is its own: `scan`, reading the four columns alone, is the floor;
`cold` counts and fits everything; `day` does so after one more day; `check` compares with fits of votes in memory and
with fits from nothing. Beside it, where they are installed (benchmarks/requirements.txt), polars counts the same and
evalica fits the same boards, without intervals, on a part of the votes; their times are multiplied up and called so.
Files are in the system's cache throughout: they were just written.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from p2l.common.cli import parser, positive, run
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.counts import Group, Starts
from p2l.leaderboard.fitting import fit, fit_table, prior_of
from p2l.leaderboard.history import history_of_counts, parse_over
from p2l.leaderboard.lake_counts import Spec, lake_counts
from p2l.votes.lake import DAY, Lake
from p2l.votes.schema import WINNERS

__all__ = ["main"]

_DAYS = 364
_FIRST = 20_000 - 20_000 % 7 + 4  # a Monday
_CATEGORIES = 20
_AT_ONCE = 1 << 20
_COLUMNS = ["model_a", "model_b", "winner", "category"]
_BESIDE = 20_000_000  # votes that polars counts
_EVALICA = 1_000_000


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.lake", "Time leaderboards of a lake of simulated votes.")
    flags.add_argument("--votes", type=positive, default=1_000_000_000)
    flags.add_argument("--models", type=positive, default=130)
    flags.add_argument("--day", type=positive, default=1_000_000, help="votes of the day that comes")
    flags.add_argument("--keep", metavar="DIR", help="make the lake here and leave it; one that is there is used")
    flags.add_argument("--phase", choices=list(_PHASES), help="what the benchmark runs for itself")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or one of its phases."""
    args = build_parser().parse_args(argv)
    if args.phase:
        _PHASES[args.phase](args)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{args.phase}: most memory {peak:.2f} GB", file=sys.stderr, flush=True)
        return
    print("| | |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="p2l-lake-") as name:
        args.keep = args.keep or name
        for phase in _PHASES:
            flags_of_phase = [f"--{key}={getattr(args, key)}" for key in ("votes", "models", "day", "keep")]
            subprocess.run([sys.executable, "-m", "benchmarks.lake", "--phase", phase, *flags_of_phase], check=True)


def _timed(what: str, work: Any) -> Any:
    started = time.perf_counter()
    outcome = work()
    _row(what, f"{time.perf_counter() - started:.1f} s")
    return outcome


def _row(what: str, value: str) -> None:
    """Print a row of the table, to which every phase adds."""
    print(f"| {what} | {value} |", flush=True)


def _most_memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB (aim: 2 GB)"


def _make(args: Any) -> None:
    if (Path(args.keep) / "_lake.json").exists():
        return
    rng, lake = np.random.default_rng(0), Lake(args.keep, create=True)
    started = time.perf_counter()
    for day in range(_DAYS):
        votes = _votes(rng, args.votes // _DAYS, _FIRST + day, args.models)
        lake.add(votes, name=f"day-{day:03}", source="-", identity=str(day))
    size = sum(path.stat().st_size for path in Path(args.keep).rglob("*.parquet"))
    _row(f"{lake.rows:,} votes written, {size / 1e9:.2f} GB", f"{time.perf_counter() - started:.0f} s")


def _votes(rng: np.random.Generator, count: int, day: int, models: int) -> Iterator[Any]:
    """Votes of one day between models of known strength."""
    names = pa.array([f"model-{number:03}" for number in range(models)])
    categories = pa.array([f"category-{number:02}" for number in range(_CATEGORIES)])
    wins = 1 / (1 + np.exp(np.arange(1 - models, models) * 2 / models))
    while count > 0:
        rows = min(count, _AT_ONCE)
        a = rng.integers(models, size=rows, dtype=np.int32)
        b = (a + rng.integers(1, models, size=rows, dtype=np.int32)) % models
        first = rng.random(rows, dtype=np.float32) < wins[a - b + models - 1]
        is_tie = rng.random(rows, dtype=np.float32) < 0.2
        winner = np.where(is_tie, rng.integers(2, 4, size=rows, dtype=np.int32), np.where(first, 0, 1))
        columns = {
            "model_a": (a, names),
            "model_b": (b, names),
            "winner": (winner, pa.array(list(WINNERS))),
            "category": (rng.integers(_CATEGORIES, size=rows, dtype=np.int32), categories),
        }
        arrays = {
            name: pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), texts)
            for name, (codes, texts) in columns.items()
        }
        arrays["tstamp"] = pa.array(np.full(rows, day * float(DAY)))
        yield pa.RecordBatch.from_pydict(arrays)
        count -= rows


def _scan(args: Any) -> None:
    lake = Lake(args.keep)

    def rows() -> int:
        return sum(
            len(batch)
            for part in lake.parts
            for batch in lake.batches(part, _COLUMNS, 1 << 20, read_dictionary=_COLUMNS)
        )

    _timed("reading four columns alone", rows)


def _cold(args: Any) -> None:
    _boards(Lake(args.keep), "counts, and overall, weekly and category boards with sandwich intervals, cold")
    _row("most memory of that", _most_memory())


def _day(args: Any) -> None:
    lake = Lake(args.keep)
    if lake.commits[-1].name != "new":
        votes = _votes(np.random.default_rng(1), args.day, _FIRST + _DAYS, args.models)
        lake.add(votes, name="new", source="-", identity="new")
    _boards(lake, f"the same after one more day of {args.day:,} votes (aim: 2 s)")


def _boards(lake: Lake, what: str, *, is_warm: bool = True) -> list[Leaderboard]:
    """Fit all boards with sandwich intervals, in one pass over what is new in the lake."""
    started, computed = time.perf_counter(), time.process_time()
    everything, weeks, categories = lake_counts(lake, [Spec(), Spec("", "week"), Spec("category")])
    counted = time.perf_counter()
    starts = Starts(lake if is_warm else None, "benchmark")
    table, models = everything.counter.table(everything.code(Group()), list(everything.names))
    overall = fit_table(table, models=models, start=starts.of("", "all", models, "grk", None))
    starts.add("", "all", overall)
    codes = {group.period: code for group, code in weeks.groups.items()}
    week = parse_over("week")
    history = history_of_counts(weeks.counter, codes, list(weeks.names), over=week, mode="alone", starts=starts)
    boards = [overall, *(period.board for period in history.periods)]
    for group, code in categories.groups.items():
        table, models = categories.counter.table(code, list(categories.names))
        prior = prior_of(overall, models, 0.5)
        start = starts.of(group.by, group.value, models, overall.likelihood, prior)
        boards.append(fit_table(table, models=models, likelihood=overall.likelihood, prior=prior, start=start))
        starts.add(group.by, group.value, boards[-1])
    starts.keep()
    ended, computed = time.perf_counter(), time.process_time() - computed
    counts = f"of which counts {counted - started:.1f} s, {len(boards)} boards, {computed:.1f} s of computing"
    _row(what, f"{ended - started:.1f} s, {counts}")
    return boards


def _check(args: Any) -> None:
    """Compare the boards with fits from nothing, and the last day's with that of its votes in memory."""
    lake = Lake(args.keep)
    warm, cold = _boards(lake, "the same again"), _boards(lake, "the same, fits begun from nothing", is_warm=False)
    pairs = zip(warm, cold, strict=True)
    ends = ("coefs", "lower", "upper")
    gap = max(float(np.abs(getattr(one, end) - getattr(two, end)).max()) for one, two in pairs for end in ends)
    _row("greatest difference to fits from nothing, intervals included", f"{gap:.1e}")
    part = next(part for part in reversed(lake.parts) if part.day == lake.parts[-1].day)
    names = [f"model-{number:03}" for number in range(args.models)]
    batches = list(lake.batches(part, _COLUMNS[:3], 1 << 22, read_dictionary=_COLUMNS[:3]))
    a, b, won = (
        np.concatenate([_codes(batch.column(place), texts) for batch in batches])
        for place, texts in enumerate((names, names, list(WINNERS)))
    )
    memory = fit(a, b, won, models=names)
    [days] = lake_counts(lake, [Spec("", "day")], keep=False)
    newest = max(days.groups, key=lambda group: group.period)
    table, models = days.counter.table(days.groups[newest], list(days.names))
    ours = fit_table(table, models=models, likelihood=memory.likelihood)
    assert models == names
    apart = np.abs(ours.coefs - memory.coefs).max()
    _row("greatest difference of a coefficient to the fit in memory, one day's votes", f"{apart:.1e}")
    _row("most memory of these comparisons, boards of every day counted among them", _most_memory())


def _codes(column: Any, texts: list[str]) -> Any:
    place = {text: code for code, text in enumerate(texts)}
    return np.array([place[text] for text in column.dictionary.to_pylist()])[column.indices.to_numpy()]


def _polars(args: Any) -> None:
    """Count the same votes with polars: by pair and winner, with the week, and with the category."""
    if importlib.util.find_spec("polars") is None:
        _row("polars", "not installed")
        return
    import polars

    lake = Lake(args.keep)
    parts, rows = list[str](), 0
    for part in lake.parts:
        if rows < _BESIDE:
            parts.append(f"{lake.root}/{part.path}")
            rows += part.rows
    pair = ["model_a", "model_b", "winner"]
    week = (polars.col("tstamp") // (7 * DAY)).alias("week")
    started = time.perf_counter()
    for keys in (pair, [*pair, week], [*pair, "category"]):
        polars.scan_parquet(parts, hive_partitioning=False).group_by(keys).len().collect(engine="streaming")
    seconds = time.perf_counter() - started
    whole = seconds * lake.rows / rows
    about = f"polars, the counts alone, for {rows:,} votes (multiplied up for {lake.rows:,})"
    _row(about, f"{seconds:.1f} s ({whole:.0f} s)")


def _evalica(args: Any) -> None:
    """Fit the same votes with evalica, three times each: overall, weekly, by category; without intervals."""
    if importlib.util.find_spec("evalica") is None:
        _row("evalica", "not installed")
        return
    import evalica

    batch = next(iter(_votes(np.random.default_rng(2), _EVALICA, _FIRST, args.models)))
    kinds = [evalica.Winner.X, evalica.Winner.Y, evalica.Winner.Draw, evalica.Winner.Draw]
    winners = [kinds[code] for code in batch.column("winner").indices.to_pylist()]
    names = [batch.column(name).to_pylist() for name in ("model_a", "model_b")]
    started = time.perf_counter()
    evalica.bradley_terry(*names, winners)
    seconds, rows = time.perf_counter() - started, Lake(args.keep).rows
    whole = 3 * seconds * rows / len(winners)
    about = f"evalica, one fit of {len(winners):,} votes (multiplied up for {rows:,} votes three times)"
    _row(about, f"{seconds:.1f} s ({whole:,.0f} s)")


_PHASES = {
    "make": _make,
    "scan": _scan,
    "cold": _cold,
    "day": _day,
    "check": _check,
    "polars": _polars,
    "evalica": _evalica,
}


if __name__ == "__main__":
    run(main)
