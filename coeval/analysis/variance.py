"""How many items separate two students, sources of variance, advantages at own items, and missing scores.

A two-sided test at 5 % of the mean difference d over n datapoints, with standard deviation sd of the difference on one,
finds it with power Phi(|d| sqrt(n) / sd - 1.96); 80 % needs n = ((1.960 + 0.842) sd / d)^2.

Variance components: y = mu + student + teacher + item + judge + factor + student x item + residual, all random, by
Henderson's first method: T_f = sum over levels l of f of (sum of y in l)^2 / n_l has expectation
N mu^2 + sum over g of sigma_g^2 sum_l sum_m n_lm^2 / n_l + levels(f) sigma_e^2, a linear system in the variances that
needs no balance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Annotated

import numpy as np
import numpy.typing as npt

from coeval.analysis.fit import Fit, fit_run, fit_verdicts
from coeval.analysis.panel import ScoreTable, score_table, verdict_table
from coeval.analysis.statistics import Codes, Floats, holm, influence_variance, t_limits, two_sided
from coeval.analysis.tables import ItemCount, Shown, StudentName, barred, named, toned
from coeval.analysis.units import LoadedRun, codes_of, once, verdict_votes


@dataclass(frozen=True)
class PairPower:
    """How many items would separate two students."""

    better: Annotated[str, named("student", "better")]
    worse: Annotated[str, named("student", "worse")]
    difference: Annotated[float, Shown("difference", digits=3)]
    sd: Annotated[float, Shown("sd", "of the difference on one item", 3)]
    datapoints: Annotated[int, Shown("items it has")]
    # None where there is no difference.
    needed: Annotated[
        int | None, Shown("items it needs", "to find this difference in 80 of 100 runs, two-sided at 5 %")
    ]
    power: Annotated[float, Shown("power", "chance to find it with the items it has", 2)]


@dataclass(frozen=True)
class VarianceRow:
    """The variance of scores that comes from one source."""

    source: Annotated[str, Shown("source")]  # student, item, judge, teacher, factor, student x item, residual
    variance: Annotated[float, Shown("variance", digits=5)]
    share: Annotated[float, barred("share", digits=3)]


@dataclass(frozen=True)
class MissingRow:
    """How many of a student's answers lack a score, or a verdict, where that depends on the student beyond chance."""

    judge: str  # empty: no judge scored or compared them
    student: Annotated[str, named("student")]
    answers: Annotated[int, Shown("answers")]
    missing: Annotated[int, Shown("unjudged", "answers without a score, or of pairs without a verdict")]
    elsewhere: Annotated[float, Shown("of others", "unjudged share among the answers of others", 3)]
    p_value: Annotated[float, Shown("p", "of all students alike, after Holm's correction for all judges", 4)]


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


_QUANTILE_OF_TEST = NormalDist().inv_cdf(0.975)
_QUANTILE_OF_POWER = NormalDist().inv_cdf(0.8)
_CHANCE = 0.05


def missing_rows(loaded: LoadedRun) -> tuple[MissingRow, ...]:
    """Return the students whose answers lack scores more often than others', by judge and by all judges together.

    A judge is tested (chi-square, 5 %) on the answers of tasks that it scores, but its own, and to items of which any
    answer has a score: judging may have ended before the others. All figures of reports take what is missing to be
    missing by chance.
    """
    judged = np.isin(np.arange(len(loaded.datapoints)), loaded.units.datapoint)
    answers = np.flatnonzero((loaded.response_datapoint >= 0) & judged[loaded.response_datapoint])
    student = loaded.response_student[answers]
    task = loaded.datapoint_task[loaded.response_datapoint[answers]]
    scored = np.zeros((len(answers), len(loaded.judges)), dtype=bool)
    place = np.full(len(loaded.responses), -1)
    place[answers] = np.arange(len(answers))
    scored[place[loaded.units.response], loaded.units.judge] = True
    return _missing(loaded, student, scored, _due(loaded, scored, student, task))


def missing_verdicts(loaded: LoadedRun) -> tuple[MissingRow, ...]:
    """Return the same of answers that judges were asked to compare with others, and of which they gave no verdict.

    A pair without a verdict tells nothing of which of the two answers is at fault, an answer without any does.
    """
    if not loaded.failed_verdicts:
        return ()
    items, students, judges = (codes_of(names) for names in (loaded.datapoints, loaded.students, loaded.judges))
    # An answer is that of a student to an item.
    compared = np.zeros((len(items) * len(students), len(judges)), dtype=bool)
    votes = verdict_votes(loaded)
    for models in (votes.model_a, votes.model_b):
        compared[votes.datapoint * len(students) + models, votes.judge] = True
    asked = compared.copy()
    for failure in loaded.failed_verdicts:
        for model in (failure.model_a, failure.model_b):
            if failure.datapoint in items and model in students and failure.judge in judges:
                answer = items[failure.datapoint] * len(students) + students[model]
                asked[answer, judges[failure.judge]] = True
    student = np.tile(np.arange(len(students)), len(items))
    itself = loaded.student_codes("judge")
    due = [(-1, np.asarray(asked.any(axis=1)))]
    due += [(judge, asked[:, judge] & (student != itself[judge])) for judge in range(len(judges))]
    return _missing(loaded, student, compared, due)


def _missing(
    loaded: LoadedRun,
    student: Codes,
    judged: npt.NDArray[np.bool_],
    due: Iterable[tuple[int, npt.NDArray[np.bool_]]],
) -> tuple[MissingRow, ...]:
    """Test each judge, -1 for all together, on the answers that are `due`, (A,); `judged` is (A, J)."""
    from scipy.stats import chi2_contingency

    tests = []
    for judge, answers in due:
        is_judged = np.asarray(judged.any(axis=1)) if judge < 0 else judged[:, judge]
        missing = ~is_judged[answers]
        counts = np.stack(
            [np.bincount(student[answers], missing == lacks, len(loaded.students)) for lacks in (True, False)]
        )
        present = counts.sum(axis=0) > 0
        if missing.any() and not missing.all() and present.sum() > 1:
            tests.append((judge, counts, present, float(chi2_contingency(counts[:, present]).pvalue)))
    rows = []
    for (judge, counts, present, _), p_value in zip(tests, holm([p for *_, p in tests]), strict=True):
        lacking, total = counts[0], counts.sum(axis=0)
        for code in np.flatnonzero(present).tolist() if p_value < _CHANCE else ():
            elsewhere = float((lacking.sum() - lacking[code]) / max(total.sum() - total[code], 1))
            if lacking[code] / total[code] > elsewhere:
                name = loaded.judges[judge] if judge >= 0 else ""
                numbers = (int(total[code]), int(lacking[code]))
                rows.append(MissingRow(name, loaded.students[code], *numbers, elsewhere, float(p_value)))
    return tuple(rows)


def missing_doubts(loaded: LoadedRun, scores: Floats) -> Floats:
    """Return by how much each student's mean may be too high, and too low, by answers that no judge scored, (S, 2).

    Of a student who lacks more of them than others (`missing_rows`) what lacks beyond that may be as bad as the worst
    answers of others, or as good as their best, as many of these; all is by `scores` (D, S). Nothing is lacking where
    that depends on no student.
    """
    doubts = np.zeros((len(loaded.students), 2))
    for row in missing_rows(loaded):
        student = loaded.students.index(row.student)
        given, others = scores[:, student], np.delete(scores, student, axis=1)
        given, others = given[np.isfinite(given)], np.sort(others[np.isfinite(others)])
        share = row.missing / row.answers - row.elsewhere
        if not row.judge and len(given) and len(others):
            number = max(1, round(share * len(others)))
            ends = (given.mean() - others[:number].mean(), others[-number:].mean() - given.mean())
            doubts[student] = share * np.maximum(ends, 0.0)
    return doubts


def _due(
    loaded: LoadedRun, scored: npt.NDArray[np.bool_], student: Codes, task: Codes
) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield each judge, -1 for all together, with the answers (R,) that it should have scored."""
    scored_tasks = np.unique(task[scored.any(axis=1)])
    yield -1, np.isin(task, scored_tasks)
    itself = loaded.student_codes("judge")
    for judge in np.flatnonzero(scored.any(axis=0)).tolist():
        yield judge, np.isin(task, np.unique(task[scored[:, judge]])) & (student != itself[judge])


@once
def own_items(loaded: LoadedRun) -> tuple[OwnItemsRow, ...]:
    """Return every student that answered items of its own with its advantage there, as the fit has it."""
    return _own_items(loaded, score_table(loaded), fit_run(loaded))


@once
def verdict_own_items(loaded: LoadedRun) -> tuple[OwnItemsRow, ...]:
    """Return the same of verdicts on pairs, whose advantages are differences of scores of 1 for a win and 0."""
    return _own_items(loaded, verdict_table(loaded), fit_verdicts(loaded)) if loaded.verdicts else ()


def _own_items(loaded: LoadedRun, table: ScoreTable, fit: Fit | None) -> tuple[OwnItemsRow, ...]:
    """Return the rows of a fit of scores or of verdicts, and of its table, which is there where no fit is."""
    counts = ~np.isnan(table.scores) if fit is None else fit.counts
    own = counts.any(axis=1) & table.wrote
    # Of verdicts an item stands in several places, one for each pair.
    written = np.unique(table.items[table.item[own]] * table.students + table.student[own])
    number = np.bincount(written % table.students, minlength=table.students)
    known = {} if fit is None else advantage_tests(fit)
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
class AdvantageTest:
    """A test of an advantage."""

    effect: float
    lower: float
    upper: float
    p_value: float
    flagged: bool
    in_common: bool


def advantage_tests(fit: Fit) -> dict[int, AdvantageTest]:
    """Return the tests of advantages by student."""
    advantages = fit.advantages
    if advantages is None:
        return {}
    effect = fit.scale * fit.solution.advantage
    # An advantage is known as well as the fewer of the answers that it compares are.
    own, others = advantages.own_shares, advantages.other_shares
    shares = np.where((own**2).sum(axis=0) > (others**2).sum(axis=0), own, others)
    spread = influence_variance(effect, fit.scale * fit.solution.of_advantage, shares)
    low, high = t_limits(effect, spread.variance, spread.freedom)
    two = two_sided(effect, spread.variance, spread.freedom)
    p_values = np.where(effect > 0, two / 2.0, 1.0 - two / 2.0)
    is_flagged = holm(p_values.tolist()) < _CHANCE
    return {
        writer: AdvantageTest(
            effect=float(effect[place]),
            lower=float(low[place]),
            upper=float(high[place]),
            p_value=float(p_values[place]),
            flagged=bool(is_flagged[place]),
            in_common=not advantages.is_own[writer],
        )
        for writer, place in zip(advantages.writers.tolist(), advantages.place.tolist(), strict=True)
    }


def needed_items(difference: float, sd: float) -> int | None:
    """Return the datapoints needed for 80 % power; None without a difference."""
    if abs(difference) < 1e-9:
        return None
    return max(2, math.ceil(((_QUANTILE_OF_TEST + _QUANTILE_OF_POWER) * sd / difference) ** 2))


def test_power(difference: float, sd: float, datapoints: int) -> float:
    """Return the chance that the test detects the difference."""
    if sd < 1e-12:
        return 1.0 if abs(difference) > 1e-12 else 0.05
    shift = abs(difference) * math.sqrt(datapoints) / sd
    return NormalDist().cdf(shift - _QUANTILE_OF_TEST) + NormalDist().cdf(-shift - _QUANTILE_OF_TEST)


def pair_power(loaded: LoadedRun, scores: Floats) -> tuple[PairPower, ...]:
    """Compute the power of the test of every two students by scores (D, S); those that need most items last."""
    rows = []
    for a, b in combinations(range(scores.shape[1]), 2):
        gaps = scores[:, a] - scores[:, b]
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps) < 2:
            continue
        mean, sd = float(gaps.mean()), float(gaps.std(ddof=1))
        better, worse = (a, b) if mean >= 0 else (b, a)
        rows.append(
            PairPower(
                better=loaded.students[better],
                worse=loaded.students[worse],
                difference=abs(mean),
                sd=sd,
                datapoints=len(gaps),
                needed=needed_items(mean, sd),
                power=test_power(mean, sd, len(gaps)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.needed or math.inf, row.better, row.worse)))


def variance_rows(loaded: LoadedRun) -> tuple[VarianceRow, ...]:
    """Estimate the variance components of all units."""
    units = loaded.units
    sources = {
        "student": units.student,
        "teacher": units.teacher,
        "item": units.datapoint,
        "judge": units.judge,
        "factor": units.task * max(len(loaded.factors), 1) + units.factor,
        "student x item": units.response,
    }
    components = variance_components(units.norm, sources)
    total = sum(components.values())
    return tuple(VarianceRow(name, value, value / total if total else 0.0) for name, value in components.items())


def variance_components(values: Floats, sources: Mapping[str, Codes]) -> dict[str, float]:
    """Estimate the variance of each source that varies, and `residual`, without sources equal to one before."""
    if len(values) < 2:
        return {}
    values = values - values.mean()
    levels: dict[str, Codes] = {}
    for name, source in sources.items():
        codes = np.unique(source, return_inverse=True)[1]
        size = int(codes.max()) + 1
        # A source that is another under a new name, or tells all values or none apart, would make the system singular.
        same_size = [earlier for earlier in levels.values() if int(earlier.max()) + 1 == size]
        alike = any(len(np.unique(codes * size + earlier)) == size for earlier in same_size)
        if 1 < size < len(codes) and not alike:
            levels[name] = codes
    names, n = list(levels), len(values)
    matrix, right = np.zeros((len(names) + 1, len(names) + 1)), np.zeros(len(names) + 1)
    base = np.array([float((np.bincount(levels[name]) ** 2).sum()) / n for name in names] + [1.0])
    for row, name in enumerate(names):
        counts = np.bincount(levels[name])
        right[row] = float((np.bincount(levels[name], values) ** 2 / counts).sum())
        for place, column in enumerate(levels.values()):
            # The sum over levels l of the one and m of the other of n_lm^2 / n_l.
            width = int(column.max()) + 1
            cells, joint = np.unique(levels[name] * width + column, return_counts=True)
            matrix[row, place] = float((joint.astype(np.float64) ** 2 / counts[cells // width]).sum())
        matrix[row, -1] = len(counts)
    matrix[-1] = n
    right[-1] = float((values**2).sum())
    solved = np.linalg.lstsq(matrix - base, right, rcond=None)[0]
    # An estimate without bias may come out below 0, where a source hardly varies.
    return dict(zip([*names, "residual"], np.maximum(solved, 0.0).tolist(), strict=True))
