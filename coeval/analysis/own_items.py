"""How much better students are at items that they wrote themselves: the advantages that the fit takes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coeval.analysis.advantages import Advantages
from coeval.analysis.fit import Fit, fit_run
from coeval.analysis.panel import score_table
from coeval.analysis.statistics import holm, influence_variance, t_limits, two_sided
from coeval.analysis.tables import ItemCount, Shown, StudentName, toned
from coeval.analysis.units import LoadedRun, once

_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class OwnItemsRow:
    """How much better a student is at items that it wrote itself; its score is that at items of others."""

    student: StudentName
    # None where it cannot be told from the student's quality: its score then holds it.
    effect: Annotated[
        float | None, toned("advantage", "its score on its own items beyond that on others', as others do there")
    ]
    lower: float | None
    upper: float | None
    p_value: Annotated[float | None, Shown("p", "one-sided", 4)]
    flagged: Annotated[bool, Shown("beyond chance", "p below 0.05 after Holm's correction for all advantages")]
    in_common: Annotated[bool, Shown("in common", "one advantage of all who wrote items: each's own cannot be told")]
    items: ItemCount


@once
def own_items(loaded: LoadedRun) -> tuple[OwnItemsRow, ...]:
    """Return every student that answered items of its own with its advantage there, as the fit has it."""
    fit, table = fit_run(loaded), score_table(loaded)
    counts = ~np.isnan(table.scores) if fit is None else fit.counts
    number = np.bincount(table.student[counts.any(axis=1) & table.wrote], minlength=table.students)
    advantages = None if fit is None else fit.advantages
    known = {} if fit is None or advantages is None else _known(fit, advantages)
    rows = []
    for student in np.flatnonzero(number).tolist():
        test = known.get(student)
        rows.append(
            OwnItemsRow(
                student=loaded.students[student],
                effect=None if test is None else test.effect,
                lower=None if test is None else test.lower,
                upper=None if test is None else test.upper,
                p_value=None if test is None else test.p_value,
                flagged=test is not None and test.flagged,
                in_common=test is not None and test.in_common,
                items=int(number[student]),
            )
        )
    return tuple(rows)


@dataclass(frozen=True)
class _AdvantageTest:
    """A test of an advantage."""

    effect: float
    lower: float
    upper: float
    p_value: float
    flagged: bool
    in_common: bool


def _known(fit: Fit, advantages: Advantages) -> dict[int, _AdvantageTest]:
    """Return the tests of advantages by student."""
    effect = fit.scale * fit.solution.advantage
    # An advantage is known as well as the fewer of the answers that it compares are.
    own, others = advantages.own_shares, advantages.other_shares
    shares = np.where((own**2).sum(axis=0) > (others**2).sum(axis=0), own, others)
    spread = influence_variance(effect, fit.scale * fit.solution.of_advantage, shares)
    low, high = t_limits(effect, spread.variance, spread.freedom)
    two = two_sided(effect, spread.variance, spread.freedom)
    p_values = np.where(effect > 0, two / 2.0, 1.0 - two / 2.0)
    is_flagged = holm(p_values.tolist()) < _SIGNIFICANT
    return {
        writer: _AdvantageTest(
            effect=float(effect[place]),
            lower=float(low[place]),
            upper=float(high[place]),
            p_value=float(p_values[place]),
            flagged=bool(is_flagged[place]),
            in_common=not advantages.is_own[writer],
        )
        for writer, place in zip(advantages.writers.tolist(), advantages.place.tolist(), strict=True)
    }
