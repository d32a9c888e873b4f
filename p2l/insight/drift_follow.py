"""Votes watched as they come: an alarm where a model rises or falls.

Whenever `window` votes have come, from the fifth window on, they are compared with those before them
(`p2l.insight.drift_votes`), each model in each category. A run that looks for ever would find something by chance in
the end, so look k spends the share 1 / (k (k + 1)) of the false discovery rate asked for. The shares add up to one:
where nothing changes, a run raises an alarm with at most that chance, however long it is. What is found gets harder to
see from look to look; where it is known how many looks are meant, each spends an equal share, and that chance is one of
so many looks. After an alarm the votes before the window are forgotten, so that a change is reported once.

Votes are held without their prompts, and those of the newest 20 windows alone: earlier ones narrow no interval by much.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from p2l.common.cli import print_note
from p2l.common.errors import InputError, VoteError
from p2l.common.retry import RetryPolicy
from p2l.insight.answers import CLUSTER, kinds_of_prompts
from p2l.insight.drift import Drift, judge
from p2l.insight.drift_votes import between_times, drift_of_votes
from p2l.leaderboard.groups import base_column
from p2l.online_training.live_votes import LiveVotes, turns_of
from p2l.votes.schema import hash_turns

FEWEST_WINDOWS, MOST_WINDOWS = 4, 20
"""Windows of votes that the newest one is compared with: fewer would widen its intervals more than it does itself."""
_ROWS_PER_BLOCK = 5000
_REQUEST_SECONDS = 10.0


@dataclass(frozen=True)
class DriftSettings:
    """What is looked at, and what counts as a change."""

    window: int = 5000
    """Votes between two looks."""
    by: Sequence[str] = ()
    """Columns whose values are categories."""
    clusters: str | None = None
    """A model whose clusters of prompts are categories too."""
    models: Sequence[str] = ()
    """Only these; none: all."""
    likelihood: str = "bt-tie"
    min_prompts: int = 20
    level: float = 0.95
    fdr: float = 0.05
    least_change: float = 0.0
    """In points."""
    comparisons: int | None = None
    """Looks that share `fdr` evenly; None: all of them do, however many, the first most."""

    def share(self, look: int) -> float:
        """Return the false discovery rate of look 1, 2, ...; they add up to `fdr`, or so many of them do."""
        return self.fdr / (look * (look + 1) if self.comparisons is None else self.comparisons)


@dataclass
class _Windows:
    """The newest votes in windows, each an Arrow table of text, with hashes for prompts."""

    votes: LiveVotes
    watch: DriftSettings
    tables: list[Any] = field(default_factory=list)
    _kinds: Callable[[Sequence[list[str]]], list[str]] | None = None
    _bases: list[str] | None = None

    def read(self, start: int) -> int:
        """Read the window from vote `start` on; return its votes, fewer than a window where the stream has ended."""
        import pyarrow as pa

        end = self.votes.wait_for(start + self.watch.window)
        # In blocks: prompts are long, and only their hashes are kept.
        blocks = [self._rows(first, min(first + _ROWS_PER_BLOCK, end)) for first in range(start, end, _ROWS_PER_BLOCK)]
        names = ["prompt", "model_a", "model_b", "winner", CLUSTER, *(self._bases or ())]
        schema = pa.schema([(name, pa.string()) for name in names])
        window = pa.Table.from_pylist([row for block in blocks for row in block], schema)
        self.tables = [*self.tables[-MOST_WINDOWS:], window]
        return end - start

    def table(self) -> Any:
        """Return all votes as one table, whose `tstamp` is the number of a vote's window."""
        import pyarrow as pa

        times = (pa.array(np.full(len(window), float(number))) for number, window in enumerate(self.tables))
        return pa.concat_tables(
            [window.append_column("tstamp", time) for window, time in zip(self.tables, times, strict=True)]
        )

    def _rows(self, start: int, end: int) -> list[dict[str, Any]]:
        ids = np.arange(start, end)
        rows = self.votes.rows(ids)
        prompts = [turns_of(row) for row in rows]
        if self._bases is None:
            columns = sorted({key for row in rows for key in row})
            bases = {base_column(path, columns, self.votes.name) for path in self.watch.by}
            self._bases = sorted(bases - {"prompt", "model_a", "model_b", "winner", CLUSTER})
            if self.watch.clusters is not None:
                self._kinds = kinds_of_prompts(self.watch.clusters, prompts)
        names = [None] * len(prompts) if self._kinds is None else self._kinds(prompts)
        return [
            {"prompt": f"{hash_turns(turns):x}", "model_a": row["model_a"], "model_b": row["model_b"]}
            | {"winner": row["winner"], CLUSTER: name}
            | {base: _flat(row.get(base)) for base in self._bases}
            for row, turns, name in zip(rows, prompts, names, strict=True)
        ]


def _flat(value: Any) -> str | None:
    """Return a cell as text that `--by` can be followed into, so that rows need not agree on its type."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def look_at(votes: LiveVotes, watch: DriftSettings, tell: Callable[[str], None] = print_note) -> Iterator[Drift]:
    """Yield the comparison of each window with those before it, until the stream ends.

    Its `fdr` is the share of this look. StopRequestedError on a signal, InputError where the votes cannot be read.
    """
    if watch.clusters is not None and CLUSTER in watch.by:
        raise InputError(f"--by {CLUSTER}: is the name of the clusters of --clusters; leave one of the two out")
    windows, start, look = _Windows(votes, watch), 0, 0
    while (count := windows.read(start)) == watch.window:
        start += count
        if len(windows.tables) <= FEWEST_WINDOWS:
            continue
        look += 1
        drift = _compare(windows, watch, watch.share(look), start, tell)
        if drift is None:
            continue
        if drift.found:
            windows.tables = windows.tables[-1:]
        yield drift
    if not look:
        tell(
            f"{votes.name}: {start + count:,} of the {(FEWEST_WINDOWS + 1) * watch.window:,} votes that the first "
            "comparison needs had come: nothing was compared (--window)"
        )


def _compare(
    windows: _Windows, watch: DriftSettings, fdr: float, arrived: int, tell: Callable[[str], None]
) -> Drift | None:
    newest = float(len(windows.tables) - 1)
    by = [*watch.by, *([CLUSTER] if watch.clusters is not None else [])]
    try:
        changes = drift_of_votes(
            windows.table(), between_times(newest, newest), by=by, likelihood=watch.likelihood, least=watch.min_prompts
        )
    except VoteError:
        raise
    except InputError:
        tell(f"{windows.votes.name}: {arrived:,} votes: no model has enough of them on both sides to be compared yet")
        return None
    measured = [cell for cell in changes.measured if not watch.models or cell.model in watch.models]
    if not measured:
        tell(f"{windows.votes.name}: {arrived:,} votes: none of --model has enough of them to be compared yet")
        return None
    cells = judge(measured, level=watch.level, fdr=fdr, least_change=watch.least_change)
    before = sum(map(len, windows.tables[:-1]))
    return Drift(
        before=f"{before:,} votes",
        after=f"the {len(windows.tables[-1]):,} up to vote {arrived:,}",
        likelihood=changes.likelihood,
        level=watch.level,
        fdr=fdr,
        cells=cells,
        notes=changes.notes,
        least_change=watch.least_change,
    )


def send_alarm(url: str, drift: Drift, tell: Callable[[str], None] = print_note) -> bool:
    """POST the cells that changed to a URL as JSON; try again after failures, then say so and return False."""
    import httpx2

    policy, failures = RetryPolicy(attempts=4), 0
    body = {"event": "drift", "before": drift.before, "after": drift.after, "likelihood": drift.likelihood}
    changed = [{"title": cell.title, **asdict(cell)} for cell in drift.found]
    while True:
        try:
            httpx2.post(url, json={**body, "changed": changed}, timeout=_REQUEST_SECONDS).raise_for_status()
        except httpx2.HTTPError as error:
            failures += 1
            pause = policy.pause(failures)
            if pause is None:
                # The URL may hold a secret, and the texts of errors may hold the URL.
                tell(f"warning: the alarm could not be delivered: {type(error).__name__}")
                return False
            time.sleep(pause)
        else:
            return True
