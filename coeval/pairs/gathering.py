"""The preferences of a run as a user wants them: from verdicts or scores, of each judge or of all together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from coeval.analysis.about import read_about
from coeval.analysis.records import Records, read_run
from coeval.analysis.results import FlipRow, Skipped
from coeval.errors import RunInputError
from coeval.pairs.derive import Rule, derived
from coeval.pairs.flips import flip_rows
from coeval.pairs.preference import Preference, majority
from coeval.storage.layout import Run
from p2l.command import nearest

__all__ = ["Gathered", "Wanted", "gather", "why_none"]

Source = Literal["auto", "native", "derived"]


@dataclass(frozen=True)
class Wanted:
    """Which preferences."""

    source: Source = "auto"
    """`auto`: verdicts on pairs for tasks that have them, scores for the others."""
    rows: Literal["judge", "majority"] = "judge"
    judges: Collection[str] = ()
    """Empty: all."""
    keep_self_judged: bool = False
    rule: Rule = field(default_factory=Rule)


@dataclass(frozen=True)
class Gathered:
    """The preferences, ordered by task, item, pair and judge, and what was left out."""

    preferences: list[Preference]
    self_judged: int = 0
    """Left out because the judge is one of the two."""
    skipped: tuple[Skipped, ...] = ()
    """Records of the run that are of no use."""
    flips: tuple[FlipRow, ...] = ()
    """Of these judges."""
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Item -> target attribute -> value."""


def gather(run: Run, wanted: Wanted) -> Gathered:
    """Read the preferences of a run.

    Raises:
        RunInputError: the folder holds no run, there is no such judge, or there are no preferences.
    """
    records = read_run(run, read_about(run))
    found = _of_judges(_found(records, wanted), wanted.judges)
    kept = [one for one in found if wanted.keep_self_judged or not one.is_self_judged]
    if not kept:
        raise RunInputError(f"{run.folder}: {why_none(wanted, len(found), records.skips.rows())}")
    rows = majority(kept) if wanted.rows == "majority" else kept
    rows.sort(key=lambda one: (one.task, one.key, one.judge))
    flips = flip_rows(one for one in records.verdicts if not wanted.judges or one.judge in wanted.judges)
    attributes = {name: item.attributes for name, item in records.items.items()}
    return Gathered(rows, len(found) - len(kept), records.skips.rows(), flips, attributes)


def _found(records: Records, wanted: Wanted) -> list[Preference]:
    verdicts = list(records.verdicts) if wanted.source != "derived" else []
    if wanted.source == "native":
        return verdicts
    with_verdicts = {one.task for one in verdicts}
    return verdicts + [one for one in derived(records, wanted.rule) if one.task not in with_verdicts]


def _of_judges(found: list[Preference], judges: Collection[str]) -> list[Preference]:
    known = sorted({one.judge for one in found})
    for judge in judges:
        if known and judge not in known:
            raise RunInputError(f"--judges: {judge!r} judged nothing{nearest(judge, known) or '; ' + ', '.join(known)}")
    return [one for one in found if not judges or one.judge in judges]


def why_none(wanted: Wanted, self_judged: int, skipped: Iterable[Skipped]) -> str:
    """Why a run has no preferences, where so many were left out as self-judged."""
    if self_judged:
        return f"all {self_judged} preferences are self-judged; use --keep-self-judged, or a judge that is no student"
    lost = ", ".join(f"{one.count} {one.code}" for one in skipped)
    lost = f" (skipped: {lost})" if lost else ""
    if wanted.source == "native":
        return f"no verdicts on pairs{lost}; use --source derived, or a task with `evaluation_mode: pairwise`"
    instead = "; use --source native for verdicts on pairs" if wanted.source == "derived" else ""
    return f"no preferences: phase 5 has scored no two answers to the same item yet{lost}{instead}"
