"""The preferences of a run as a user wants them: from verdicts or scores, of each judge or of all together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from coeval.errors import RunInputError
from coeval.pairs.derive import Rule, derived
from coeval.pairs.preference import Preference, majority, native
from coeval.storage.layout import Run
from p2l.command import nearest

__all__ = ["Gathered", "Wanted", "gather"]

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
    self_judged: int
    """Left out because the judge is one of the two."""


def gather(run: Run, wanted: Wanted) -> Gathered:
    """Read the preferences of a run.

    Raises:
        RunInputError: the folder holds no run, there is no such judge, or there are no preferences.
    """
    if not run.meta.is_file() and not run.record_files("evaluation") and not run.pair_files():
        raise RunInputError(
            f"{run.folder} holds no run: neither meta.json nor phase5_evaluations is there; check --run"
        )
    found = _of_judges(_found(run, wanted), wanted.judges)
    kept = [one for one in found if wanted.keep_self_judged or not one.is_self_judged]
    if not kept:
        raise RunInputError(f"{run.folder}: {_why_none(wanted, len(found))}")
    rows = majority(kept) if wanted.rows == "majority" else kept
    rows.sort(key=lambda one: (one.task, one.key, one.judge))
    return Gathered(rows, len(found) - len(kept))


def _found(run: Run, wanted: Wanted) -> list[Preference]:
    verdicts = native(run) if wanted.source != "derived" else []
    if wanted.source == "native":
        return verdicts
    with_verdicts = {one.task for one in verdicts}
    return verdicts + [one for one in derived(run, wanted.rule) if one.task not in with_verdicts]


def _of_judges(found: list[Preference], judges: Collection[str]) -> list[Preference]:
    known = sorted({one.judge for one in found})
    for judge in judges:
        if known and judge not in known:
            raise RunInputError(f"--judges: {judge!r} judged nothing{nearest(judge, known) or '; ' + ', '.join(known)}")
    return [one for one in found if not judges or one.judge in judges]


def _why_none(wanted: Wanted, self_judged: int) -> str:
    if self_judged:
        return f"all {self_judged} preferences are self-judged; use --keep-self-judged, or a judge that is no student"
    if wanted.source == "native":
        return "no verdicts on pairs; use --source derived, or a task with `evaluation_mode: pairwise`"
    return "no preferences: phase 5 has scored no two answers to the same item yet"
