"""Leaderboards of a lake of simulated votes: overall, 52 weekly and 20 of a category, cold, and after one more day.

    python -m benchmarks.lake [--votes 1000000000] [--models 130]

Every figure is of this machine, in this run: the time to read the columns alone is the floor. The counts of the lake
are compared with those of the same votes in memory, on the last day.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from p2l.common.cli import parser, positive, run
from p2l.leaderboard.counts import Counts, Group, Spec, lake_counts
from p2l.leaderboard.fitting import fit, fit_table, prior_of
from p2l.leaderboard.history import history_of_counts, parse_over
from p2l.votes.lake import DAY, Lake
from p2l.votes.schema import WINNERS

__all__ = ["main"]

_DAYS = 364
_FIRST = 20_000 - 20_000 % 7 + 4  # a Monday
_CATEGORIES = 20
_AT_ONCE = 1 << 21


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = parser("python -m benchmarks.lake", "Time leaderboards of a lake of simulated votes.")
    flags.add_argument("--votes", type=positive, default=1_000_000_000)
    flags.add_argument("--models", type=positive, default=130)
    args = flags.parse_args(argv)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="p2l-lake-") as name:
        lake = Lake(Path(name) / "lake", create=True)
        per_day = args.votes // _DAYS
        started = time.perf_counter()
        for day in range(_DAYS):
            lake.add(
                _votes(rng, per_day, _FIRST + day, args.models), name=f"day-{day:03}", source="-", identity=str(day)
            )
        size = sum(path.stat().st_size for path in Path(name).rglob("*.parquet"))
        print(f"{lake.rows:,} votes written in {time.perf_counter() - started:.1f} s, {size / 1e9:.2f} GB", flush=True)
        floor = _timed("reading the columns alone", lambda: _scan(lake))
        cold = _timed("cold: overall, 52 weeks, 20 categories, sandwich intervals", lambda: _boards(lake))
        print(f"cold / floor: {cold / floor:.2f}")
        lake.add(_votes(rng, per_day, _FIRST + _DAYS, args.models), name="new", source="-", identity="new")
        _timed(f"one more day of {per_day:,} votes", lambda: _boards(lake))
        print(f"greatest difference of a coefficient to the fit in memory: {_difference(lake):.1e}")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def _timed(what: str, work: Any) -> float:
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    print(f"{what}: {seconds:.2f} s", flush=True)
    return seconds


def _votes(rng: np.random.Generator, count: int, day: int, models: int) -> Iterator[Any]:
    """Votes of one day between models of known strength."""
    names = pa.array([f"model-{number:03}" for number in range(models)])
    categories = pa.array([f"category-{number:02}" for number in range(_CATEGORIES)])
    while count > 0:
        rows = min(count, _AT_ONCE)
        a = rng.integers(models, size=rows)
        b = (a + rng.integers(1, models, size=rows)) % models
        first = rng.random(rows) < 1 / (1 + np.exp((a - b) * 2 / models))
        winner = np.where(rng.random(rows) < 0.2, rng.integers(2, 4, size=rows), np.where(first, 0, 1))
        columns = {
            "model_a": (a, names),
            "model_b": (b, names),
            "winner": (winner, pa.array(list(WINNERS))),
            "category": (rng.integers(_CATEGORIES, size=rows), categories),
        }
        arrays = {
            name: pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), texts)
            for name, (codes, texts) in columns.items()
        }
        arrays["tstamp"] = pa.array(np.full(rows, day * float(DAY)))
        yield pa.RecordBatch.from_pydict(arrays)
        count -= rows


def _scan(lake: Lake) -> int:
    columns = ["model_a", "model_b", "winner", "category"]
    return sum(
        len(batch) for part in lake.parts for batch in lake.batches(part, columns, 1 << 22, read_dictionary=columns)
    )


def _boards(lake: Lake) -> None:
    specs = [Spec(), Spec("", "week"), Spec("category")]
    everything, weeks, categories = lake_counts(lake, specs)
    names = list(everything.names)
    table, models = everything.counter.table(everything.code(Group()), names)
    overall = fit_table(table, models=models)
    codes = {group.period: code for group, code in weeks.groups.items()}
    history_of_counts(weeks.counter, codes, list(weeks.names), over=parse_over("week"), mode="alone")
    for code in categories.groups.values():
        table, models = categories.counter.table(code, list(categories.names))
        fit_table(table, models=models, likelihood=overall.likelihood, prior=prior_of(overall, models, 0.5))


def _difference(lake: Lake) -> float:
    """Compare the fit of the last day's counts with that of its votes."""
    part = lake.parts[-1]
    batches = list(lake.batches(part, ["model_a", "model_b", "winner"], 1 << 30))
    a, b, winner = (pa.chunked_array([batch.column(at) for batch in batches]).to_pylist() for at in range(3))
    names = sorted({*a, *b})
    place = {name: number for number, name in enumerate(names)}
    outcomes = [list(WINNERS).index(each) for each in winner]
    memory = fit([place[each] for each in a], [place[each] for each in b], outcomes, models=names)
    counts = Counts()
    [of_days] = lake_counts(lake, [Spec("", "day")], keep=False)
    counts = of_days
    newest = max(counts.groups, key=lambda group: group.period)
    table, models = counts.counter.table(counts.groups[newest], list(counts.names))
    ours = fit_table(table, models=models, likelihood=memory.likelihood)
    assert models == names
    return float(np.abs(np.asarray(ours.coefs) - np.asarray(memory.coefs)).max())


if __name__ == "__main__":
    run(main)
