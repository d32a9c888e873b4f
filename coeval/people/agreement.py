"""How far a judge agrees with people, and people with each other, by the same figures.

Each row is a score of a rater beside one person's score of the same (answer, factor), so that the figures of judges and
those of people among themselves can be compared: no judge can be expected to agree with people more than they do.
Limits draw whole items; ranks are those of all rows.

Shapes: N rows, R replicates, V different scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coeval.analysis.resampling import limits, resample
from coeval.analysis.statistics import mid_ranks
from coeval.analysis.units import Codes, Floats, Loaded
from coeval.people.annotations import Annotations

__all__ = ["PEOPLE", "PeopleAgreement", "agreement_rows", "pair_places"]

PEOPLE = "people"
_MOST_GRADES = 101


@dataclass(frozen=True)
class PeopleAgreement:
    """A rater beside people."""

    rater: str
    kind: str
    """judge, annotator (beside the others), or people: all of them among themselves, the ceiling."""
    dimension: str
    """all, task or factor."""
    value: str
    rows: int
    answers: int
    """Pairs of answer and factor."""
    datapoints: int
    equal: float | None
    """Share of equal scores."""
    equal_lower: float | None
    equal_upper: float | None
    weighted: float | None
    """Mean of 1 - |difference|."""
    weighted_lower: float | None
    weighted_upper: float | None
    kappa: float | None
    """Of equal scores; None where scores are not of a scale, or never vary."""
    kappa_lower: float | None
    kappa_upper: float | None
    spearman: float | None
    spearman_lower: float | None
    spearman_upper: float | None
    bias: float | None
    """Mean of the rater's score less people's."""
    bias_lower: float | None
    bias_upper: float | None


@dataclass(frozen=True)
class _Rows:
    """A rater's scores (N,), people's, and of what."""

    rater: Floats
    people: Floats
    pair: Codes
    datapoint: Codes
    task: Codes
    factor: Codes

    def where(self, rows: Codes) -> _Rows:
        return _Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def pair_places(loaded: Loaded, response: Codes, factor: Codes) -> Codes:
    """Row of each (response, factor) among the run's pairs; -1 where no judge scored it."""
    size = max(len(loaded.factors), 1)
    keys, wanted = loaded.pairs.response * size + loaded.pairs.factor, response * size + factor
    place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return np.where(keys[place] == wanted, place, -1) if len(keys) else np.full(len(wanted), -1)


def agreement_rows(loaded: Loaded, given: Annotations) -> tuple[PeopleAgreement, ...]:
    """Judges by name, then people, over all and by task and factor."""
    place = pair_places(loaded, given.response, given.factor)
    made: list[PeopleAgreement] = []
    for code, judge in enumerate(loaded.judges):
        rated = place >= 0
        rated[rated] = ~np.isnan(loaded.pairs.scores[place[rated], code])
        chosen = np.flatnonzero(rated)
        if len(chosen):
            scores = loaded.pairs.scores[place[chosen], code]
            made += _of(loaded, judge, "judge", _rows(loaded, given, scores, chosen))
    return (*made, *_people(loaded, given))


def _rows(loaded: Loaded, given: Annotations, rater: Floats, chosen: Codes) -> _Rows:
    """A rater's scores beside those of some annotations."""
    response, factor = given.response[chosen], given.factor[chosen]
    point = loaded.response_datapoint[response]
    pair = response * max(len(loaded.factors), 1) + factor
    return _Rows(rater, given.score[chosen], pair, point, loaded.datapoint_task[point], factor)


def _people(loaded: Loaded, given: Annotations) -> Iterator[PeopleAgreement]:
    one, other = _both(given)
    if not len(one):
        return
    rows = _rows(loaded, given, given.score[one], other)
    for code, name in enumerate(given.annotators):
        mine = np.flatnonzero(given.annotator[one] == code)
        if len(mine):
            yield _row(name, "annotator", ("all", ""), rows.where(mine))
    yield from _of(loaded, PEOPLE, PEOPLE, rows)


def _both(given: Annotations) -> tuple[Codes, Codes]:
    """Every two annotations of one (response, factor), both ways round; annotations are sorted by these."""
    starts = np.flatnonzero(np.diff(given.response, prepend=-1) | np.diff(given.factor, prepend=-1))
    found = [
        (one, other)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(given)], strict=True)
        for one in range(start, end)
        for other in range(start, end)
        if one != other
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _of(loaded: Loaded, rater: str, kind: str, rows: _Rows) -> Iterator[PeopleAgreement]:
    yield _row(rater, kind, ("all", ""), rows)
    for dimension in ("task", "factor"):
        codes, names = getattr(rows, dimension), loaded.names(dimension)
        for code in np.unique(codes).tolist():
            yield _row(rater, kind, (dimension, names[code]), rows.where(np.flatnonzero(codes == code)))


def _row(rater: str, kind: str, place: tuple[str, str], rows: _Rows) -> PeopleAgreement:
    columns = _columns(rows)
    figures = _figures(columns.sum(axis=0)[None])[0]
    lower, upper = limits(resample(rows.datapoint, columns, _figures))
    counts = (len(rows.pair), len(np.unique(rows.pair)), len(np.unique(rows.datapoint)))
    sure = counts[2] > 1  # the items of one draw are those of all others
    numbers = [
        float(values[number]) if np.isfinite(figures[number]) and known else None
        for number in range(len(figures))
        for values, known in ((figures, True), (lower, sure), (upper, sure))
    ]
    return PeopleAgreement(rater, kind, *place, *counts, *numbers)


def _columns(rows: _Rows) -> Floats:
    """What the figures are made of, (N, 9 + 2 V): sums over rows are enough for all of them."""
    x, y = rows.rater, rows.people
    ranks = [mid_ranks(values) / len(x) - 0.5 for values in (x, y)]
    grades = np.unique(np.round(np.concatenate([x, y]), 6))
    if len(grades) > _MOST_GRADES:
        grades = grades[:0]
    shares = [np.round(values, 6)[:, None] == grades for values in (x, y)]
    one, other = ranks
    sums = [
        np.ones(len(x)),
        np.abs(x - y) < 1e-6,
        1.0 - np.abs(x - y),
        x - y,
        one,
        other,
        one**2,
        other**2,
        one * other,
    ]
    return np.concatenate([np.stack(sums, axis=1), *shares], axis=1).astype(np.float64)


def _figures(sums: Floats) -> Floats:
    """Equal, weighted, kappa, spearman and bias (R, 5) of sums (R, 9 + 2 V)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        n = sums[:, 0]
        equal, weighted, bias, one, other, ones, others, both = (sums[:, 1:9] / n[:, None]).T
        shares = (sums[:, 9:] / n[:, None]).reshape(len(sums), 2, -1)
        chance = (shares[:, 0] * shares[:, 1]).sum(axis=1)
        varies = (chance < 1.0 - 1e-9) & (shares.shape[2] > 0)
        kappa = np.where(varies, (equal - chance) / (1.0 - chance), np.nan)
        spread = (ones - one**2) * (others - other**2)
        spearman = np.where(spread > 1e-12, (both - one * other) / np.sqrt(np.maximum(spread, 1e-12)), np.nan)
    return np.stack([equal, weighted, kappa, spearman, bias], axis=1)
