"""Check a file of votes: statistics of its contents, and everything that is wrong with it.

Shapes: N votes.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from p2l.common.cli import counted, nearest, progress
from p2l.common.text_table import align
from p2l.votes.door import names_read
from p2l.votes.kinds.texts import look_alike
from p2l.votes.reading import VoteBatch, check_columns, model_codes, open_vote_source, scan, without_bad
from p2l.votes.rows import Source
from p2l.votes.schema import WINNERS, IntArray, hash_turns, numbers
from p2l.votes.spool import RecordFile

_LISTED_NAMES = 5
_HASH_FILES = 64  # the prompt hashes are spread over them, so that those of one fit in memory
_LATEST_SECONDS = 1e11  # since 1970, in the year 5138
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Observe = Callable[[Any, Any, Any, Any, Any], None]
"""Takes an Arrow batch, codes of both models, places of the winners in WINNERS, and hashes of prompts, or None."""


@dataclass
class VoteReport:
    """Statistics of the rows that are votes, and the faults of those that are not."""

    source: Source
    votes: int = 0
    bad_rows: int = 0
    winners: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    models: dict[str, int] = field(default_factory=dict)  # votes of each model
    prompts: int | None = None  # distinct prompts; None without a prompt column
    times: tuple[float, float] | None = None
    time_sorted: bool = True
    weights: tuple[float, float, float] | None = None  # least, sum and greatest weight
    problems: list[str] = field(default_factory=list)  # the first problems, each with its row
    kinds: Counter[str] = field(default_factory=Counter)  # rows by kind of problem
    notes: list[str] = field(default_factory=list)  # observations that are not faults
    voters: int | None = None  # different voters; None without a column `voter`

    @property
    def is_fit(self) -> bool:
        """Whether the votes can be used as they are."""
        return not self.kinds


def check_votes(
    source: Any,
    *,
    split: str = "train",
    label_list: Sequence[str] | None = None,
    limit: int = 20,
    observe: Callable[[Source], Observe] | None = None,
    quiet: bool = True,
) -> VoteReport:
    """Read all votes of a source, named as for `read_votes`, once and report on them; memory stays bounded.

    The report lists `limit` problems; the others are counted. `observe` is told the source, and what it returns sees
    the votes too.
    """
    opened = open_vote_source(source, split=split)
    check_columns(opened, None, need_prompt=False, label_list=label_list)
    report = VoteReport(opened)
    builder = _ReportBuilder(report, None if observe is None else observe(opened))
    try:
        with progress(description=f"check {opened.name}", total=opened.rows, unit="votes", quiet=quiet) as bar:
            for batch, findings in scan(opened, None, 65536, label_list):
                faults = ((int(row), finding) for finding in findings for row in finding.rows[:limit])
                listed = sorted(faults, key=lambda fault: fault[0])
                for row, finding in listed[: limit - len(report.problems)]:
                    place = batch.place(row).removeprefix(f"{opened.name}: ")
                    report.problems.append(f"{place}: {finding.describe(row)}")
                for finding in findings:
                    report.kinds[finding.kind] += len(finding.rows)
                builder.count(without_bad(batch, findings))
                bar.update(len(batch))
        return builder.finish()
    finally:
        for file in builder.hashes:
            file.close()


class _ReportBuilder:
    """The report as it grows, with what it needs only while it does."""

    def __init__(self, report: VoteReport, observe: Observe | None) -> None:
        self.report = report
        self.observe = observe
        self.codes: dict[str, int] = {}
        self.counts: IntArray = np.zeros(0, dtype=np.int64)
        self.hashes = [RecordFile(np.dtype("<u8")) for _ in range(_HASH_FILES)]
        self.last_time = -np.inf
        self.voters: set[str] = set()

    def count(self, batch: VoteBatch) -> None:
        report = self.report
        columns = batch.batch
        report.votes += len(batch)
        report.bad_rows += batch.dropped
        if not len(batch):
            return
        report.winners.update(_value_counts(columns.column("winner")))
        sides = [model_codes(columns.column(name), self.codes) for name in ("model_a", "model_b")]
        grown = np.bincount(np.concatenate(sides), minlength=len(self.codes))
        grown[: len(self.counts)] += self.counts
        self.counts = grown
        names = columns.schema.names
        hashes = None
        if "prompt" in names:
            prompts = columns.column("prompt")
            report.turns.update(_value_counts(pc.list_value_length(prompts)))
            hashes = np.array([hash_turns(turns) for turns in prompts.to_pylist()], dtype="<u8")
            bucket = hashes >> np.uint64(58)  # the upper 6 bits number the 64 buckets
            for number in np.unique(bucket):
                self.hashes[int(number)].append(hashes[bucket == number])
        if "language" in names and pa.types.is_string(columns.schema.field("language").type):
            report.languages.update(_value_counts(columns.column("language")))
        if "tstamp" in names:
            self._see_times(numbers(columns.column("tstamp")))
        winner = pc.index_in(columns.column("winner").cast(pa.string()), pa.array(WINNERS)).to_numpy()
        if self.observe is not None:
            self.observe(columns, sides[0], sides[1], winner, hashes)
        if "voter" in names and not pa.types.is_nested(columns.schema.field("voter").type):
            self.voters.update(str(name) for name in columns.column("voter").unique().to_pylist() if name is not None)
        if "weight" in names:
            weights = numbers(columns.column("weight"))
            low, total, high = report.weights or (np.inf, 0.0, 0.0)
            total += float(weights.sum())
            report.weights = (min(low, float(weights.min())), total, max(high, float(weights.max())))

    def _see_times(self, times: IntArray) -> None:
        report = self.report
        present = times[~np.isnan(times)]
        ahead = np.concatenate([[self.last_time], present[:-1]]) if len(present) else present
        report.time_sorted &= len(present) == len(times) and bool((present >= ahead).all())
        if len(present):
            low, high = report.times or (np.inf, -np.inf)
            report.times = (min(low, float(present.min())), max(high, float(present.max())))
            self.last_time = present[-1]

    def finish(self) -> VoteReport:
        report = self.report
        report.models = dict(zip(self.codes, self.counts.tolist(), strict=True))
        if "voter" in report.source.columns:
            report.voters = len(self.voters)
        if "prompt" in report.source.columns:
            report.prompts = sum(len(np.unique(file.mapped())) for file in self.hashes)
        report.notes += [*([names_read(report.source)] if report.source.spellings else []), *_alike(report.models)]
        if not report.votes:
            report.problems.append("holds no votes")
            report.kinds["no votes"] += 1
        if report.prompts is None:
            near = nearest("prompt", report.source.columns)
            report.notes.append(f"no prompt column{near}: good for leaderboards, not for training")
        if report.times is None:
            report.notes.append("no times: cannot be split by time or replayed as a stream")
        elif report.times[1] > _LATEST_SECONDS:
            report.notes.append("tstamp is beyond the year 5000: milliseconds? seconds since 1970 are expected")
        elif not report.time_sorted:
            report.notes.append("votes are not sorted by time")
        unused = [name for name in WINNERS if report.votes and not report.winners[name]]
        if unused:
            report.notes.append(f"no vote is {' or '.join(repr(name) for name in unused)}")
        if report.weights is not None and report.weights[1] == 0 and report.votes:
            report.notes.append("all weights are zero")
        return report


def _alike(models: dict[str, int]) -> list[str]:
    """Return the names that look alike, with the lines that merge them."""
    notes = []
    alike: dict[str, list[str]] = {}
    for name in sorted(models, key=lambda name: (-models[name], name)):
        alike.setdefault(look_alike(name), []).append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    for kept, *others in groups[:_LISTED_NAMES]:
        named = " and ".join(repr(name) for name in (kept, *others))
        lines = io.StringIO()
        csv.writer(lines, lineterminator="; ").writerows((name, kept) for name in others)
        notes.append(
            f"{named} differ in case, punctuation or script alone; where they are one model, p2l votes import --rename "
            f"FILE merges them, with the line of FILE: {lines.getvalue().removesuffix('; ')}"
        )
    if len(groups) > _LISTED_NAMES:
        notes.append(f"{len(groups) - _LISTED_NAMES} more groups of names look alike")
    return notes


def _value_counts(column: Any) -> dict[Any, int]:
    return {item["values"]: item["counts"] for item in column.drop_null().value_counts().to_pylist()}


def render(report: VoteReport) -> str:
    """Render the report of `p2l votes check`: lines of two columns, then notes and problems."""
    lines = [report.source.name, *align(_statistics(report), left=(0, 1), indent="  ")]
    lines += [f"note: {note}" for note in report.notes]
    if report.is_fit:
        return "\n".join([*lines, "no problems"])
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.kinds.most_common())
    lines += [f"problems: {report.kinds.total():,} ({kinds})", *(f"  {problem}" for problem in report.problems)]
    more = report.kinds.total() - len(report.problems)
    return "\n".join([*lines, f"  ... and {more:,} more"] if more else lines)


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _statistics(report: VoteReport) -> list[tuple[str, str]]:
    """Return the statistics in rows of two texts."""
    rows = [("votes", f"{report.votes:,}")]
    counts = sorted(report.models.values())
    if counts:
        fewest = sorted(report.models, key=lambda name: (report.models[name], name))[:3]
        rows += [
            ("models", f"{len(counts):,}"),
            ("votes per model", f"min {counts[0]:,}, median {statistics.median(counts):,.0f}, max {counts[-1]:,}"),
            ("fewest votes", ", ".join(f"{name} {report.models[name]:,}" for name in fewest)),
        ]
    rows += [(f"winner {name}", _share(report.winners[name], report.votes)) for name in WINNERS if report.votes]
    if report.prompts is not None:
        again = report.votes - report.prompts
        repeats = f"{counted(again, 'vote')} {'repeats' if again == 1 else 'repeat'} one"
        rows.append(("distinct prompts", f"{report.prompts:,}; {repeats}"))
        rows.append(("turns", _top(report.turns, report.votes)))
    if report.voters is not None:
        rows.append(("voters", f"{report.voters:,}"))
    if report.languages:
        rows.append(("languages", _top(report.languages, report.votes)))
    if report.times:
        first, last = (_date(seconds) for seconds in report.times)
        rows.append(("time", f"{first} to {last}, {'sorted' if report.time_sorted else 'not sorted'}"))
    if report.weights and report.votes:
        low, total, high = report.weights
        rows.append(("weights", f"min {low:g}, mean {total / report.votes:g}, max {high:g}"))
    if report.bad_rows:
        rows.append(("rows that are not votes", f"{report.bad_rows:,} (not counted above)"))
    return rows


def _top(counts: Counter[Any], total: int) -> str:
    names = [f"{name} {_share(count, total)}" for name, count in counts.most_common(5)]
    rest = len(counts) - len(names)
    return ", ".join(names) + (f", {rest} more" if rest else "")


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"
