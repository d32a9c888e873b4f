"""Judge items in batches until the first place is decided, with a bound that holds however often one looks.

After each batch the report's fit compares its leader with every other student. Looking again and again at a test of a
fixed size would find a leader among equals sooner or later, so that what counts is the boundary of a mixture of normal
distributions over effects (Robbins 1970): of a mean of n prompts, in standard errors,

    |z| >= sqrt(2 (n r + 1) / (n r) log(sqrt(n r + 1) / a))

which equals cross at any n with probability a at most; r makes it tightest at 30 prompts. The level a is shared by the
comparisons with the others. z is that of the fit's Student's t, whose variance holds the tastes of judges.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coeval.analysis.fit import Fit, fit_run, fit_verdicts
from coeval.analysis.statistics import Floats
from coeval.analysis.students import by_datapoint, fitted_pairs
from coeval.analysis.units import load_run
from coeval.analysis.variance import missing_doubts
from coeval.phases.evaluation import evaluate
from coeval.phases.items import index_of_items
from coeval.phases.progress import Outcome, Stage
from coeval.storage.meta import Meta
from coeval.storage.run import Run

_FIRST_LOOK_ITEMS = 16
_GROWTH = 1.25  # of the number of items from one look to the next
_TIGHTEST_PROMPTS = 30.0


@dataclass(frozen=True)
class FirstPlace:
    """The student that leads, and whether that is decided."""

    student: int
    is_decided: bool


def boundary(prompts: float, level: float) -> float:
    """Return the standard errors that equals pass, at any number of prompts, with probability `level` at most."""
    wide = -2.0 * math.log(level)
    information = prompts * (wide + math.log(wide + 1.0)) / _TIGHTEST_PROMPTS
    return math.sqrt(2.0 * (information + 1.0) / information * math.log(math.sqrt(information + 1.0) / level))


def first_place(fit: Fit, confidence: float, doubts: Floats | None = None) -> FirstPlace:
    """Return the leader of a fit, and whether it is ahead of every other student at this confidence.

    `doubts` (S, 2) is what missing scores may explain of a lead (`missing_doubts`). Nothing is decided while a student
    has no scores: it may be the best.
    """
    from scipy.special import ndtri

    leader = int(np.nanargmax(fit.score))
    others = len(fit.score) - 1
    level = (1.0 - confidence) / max(others, 1)
    doubts = np.zeros((len(fit.score), 2)) if doubts is None else doubts
    ahead = set()
    for (a, b), (test, _) in fitted_pairs(fit):
        lead = test.difference if a == leader else -test.difference
        z = -float(ndtri(test.beyond(doubts[a], doubts[b]) / 2.0))
        if leader in (a, b) and lead > 0 and z >= boundary(test.prompts, level):
            ahead.add(b if a == leader else a)
    return FirstPlace(leader, is_decided=others > 0 and len(ahead) == others)


def looks(items: int) -> Iterator[int]:
    """Yield the numbers of items after which to look, the last of which is all."""
    number = _FIRST_LOOK_ITEMS
    while number < items:
        yield number
        number = math.ceil(number * _GROWTH)
    yield items


async def evaluate_until_decided(stage: Stage, confidence: float) -> Outcome:
    """Run the evaluation phase over ever more items until first place is decided, or there are no more."""
    numbers = {task.name: len(index_of_items(stage, task.name)) for task in stage.config.tasks}
    total = sum(numbers.values())
    meta = Meta(stage.run)
    meta.update(decided=None)
    outcome = Outcome()
    judged = await asyncio.to_thread(_judged_items, stage.run) if total else 0
    for number in looks(total):
        limits = {task: math.ceil(number * count / max(total, 1)) for task, count in numbers.items()}
        if sum(limits.values()) < judged and number < total:
            continue  # a run that goes on has more items already
        stage.item_limits = limits
        part = await evaluate(stage)
        outcome.add(part)
        if part.stopped or part.refused or stage.halted is not None or number == total:
            break
        stage.store.flush()
        name = await asyncio.to_thread(_decided, stage.run, confidence)
        if name:
            meta.update(decided={"first": name, "confidence": confidence, "items": dict(stage.item_limits)})
            stage.log.info(
                f"evaluation: stop: first place is decided at {confidence:.0%}: {name}, after {sum(limits.values())} "
                f"of {total} items"
            )
            break
    return outcome


def _judged_items(run: Run) -> int:
    """Return how many items of a run have scores or verdicts."""
    loaded = load_run(run.folder)
    return len({*np.unique(loaded.units.datapoint).tolist(), *(verdict.datapoint for verdict in loaded.verdicts)})


def _decided(run: Run, confidence: float) -> str:
    """Return the student whose first place is decided by the records of a run; empty where none is."""
    loaded = load_run(run.folder)
    fit = fit_run(loaded) or fit_verdicts(loaded)
    if fit is None or not np.isfinite(fit.score).any():
        return ""
    place = first_place(fit, confidence, missing_doubts(loaded, by_datapoint(loaded)))
    return loaded.students[place.student] if place.is_decided else ""
