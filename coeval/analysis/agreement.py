"""How far judges agree, over the (response, factor) pairs E that two of them scored.

* SPA: share of equal scores. * WPA: mean of 1 - |difference|, which for levels is 1 equal, 0.5 adjacent, 0 opposite.
* Kappa and quadratic kappa: where both gave levels; numbers of metrics are not categories.
A judge's score is the mean over its peers: plain, and weighted by |E|.

Shapes: P pairs, J judges, V values of a dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.bias import BiasReport, bias_report
from coeval.analysis.judge_tests import (
    BiasTest,
    JudgeScale,
    PanelWorth,
    bias_tests,
    judge_scales,
    panel_worth,
    verdict_scales,
)
from coeval.analysis.statistics import (
    Codes,
    Floats,
    alpha_columns,
    alpha_of_sums,
    icc,
    jackknife,
    kappa,
    kappa_label,
    kendall,
    krippendorff,
    share_limits,
    spearman,
)
from coeval.analysis.tables import JudgeName, ScoreCount, Shown, estimated, named
from coeval.analysis.units import DEFAULTS, LoadedRun, Report, RobustSettings, once

_WEIGHTED = "mean over peers, each weighted by the scores shared with it"
_PLAIN = "plain mean over peers"


@dataclass(frozen=True)
class JudgeReport(Report):
    """Report judge-report."""

    metric: str  # what the ranking follows: spa, wpa or kappa, weighted by what was shared
    degenerate: bool  # one judge has no peers: its scores are 1.0 by definition
    judges: tuple[JudgeRow, ...]
    pairs: tuple[_JudgePair, ...]
    breakdown: tuple[_AgreementRow, ...]
    reliability: tuple[Reliability, ...]  # of all factors together (scope `all`), then of each task and factor
    bias: BiasReport
    scales: tuple[JudgeScale, ...]  # how each uses the scale, by the fit
    tests: tuple[BiasTest, ...]  # of each judge for each bias that the run can show
    panel: PanelWorth | None  # what all are worth together; None without two who tell answers apart


@dataclass(frozen=True)
class JudgeRow:
    """How far a judge agrees with its peers."""

    rank: Annotated[int | None, Shown("rank")]  # None: too few scores to be ranked
    judge: JudgeName
    kind: Annotated[str, Shown("kind", "model, metric or label")]
    units: ScoreCount
    coverage: float  # its units, as a share of those of the judge of its kind with most
    spa: Annotated[float | None, Shown("SPA", _PLAIN, 3)]  # share of equal levels
    wpa: Annotated[float | None, Shown("WPA", _PLAIN, 3)]
    kappa: Annotated[float | None, Shown("κ", _PLAIN, 3)]
    weighted_spa: Annotated[float | None, estimated("SPA weighted", _WEIGHTED, "weighted_spa_")]
    weighted_spa_lower: float | None
    weighted_spa_upper: float | None
    weighted_wpa: Annotated[float | None, Shown("WPA weighted", _WEIGHTED, 3)]
    weighted_kappa: Annotated[float | None, Shown("κ weighted", _WEIGHTED, 3)]
    kappa_label: Annotated[str, Shown("reads as", "of the weighted κ")]  # empty where that is None
    weighted_concordance: float | None  # agreement of numbers beyond chance: quadratic kappa of scores as they are


@dataclass(frozen=True)
class _JudgePair:
    """How far two judges agree on what both scored."""

    judge_a: Annotated[str, named("judge")]
    judge_b: Annotated[str, named("judge", "and")]
    n: Annotated[int, Shown("in common", "answers and factors that both scored")]
    spa: Annotated[float | None, estimated("SPA", "", "spa_")]
    spa_lower: float | None
    spa_upper: float | None
    wpa: Annotated[float | None, Shown("WPA", digits=3)]
    kappa: Annotated[float | None, Shown("κ", digits=3)]
    kappa_label: Annotated[str, Shown("reads as")]
    quadratic_kappa: Annotated[float | None, Shown("quadratic κ", digits=3)]
    spearman: Annotated[float | None, Shown("Spearman", digits=3)]
    kendall: Annotated[float | None, Shown("Kendall", digits=3)]  # tau-b


@dataclass(frozen=True)
class _AgreementRow:
    """A judge's agreement with its peers (weighted) on one value of a dimension (factor, teacher, student, task)."""

    judge: str
    dimension: str
    value: str
    n: int
    spa: float | None
    wpa: float | None
    kappa: float | None


@dataclass(frozen=True)
class Reliability:
    """How far all judges agree."""

    scope: Annotated[str, Shown("scores of")]  # `all`, `task`, `factor`
    value: Annotated[str, Shown("")]
    judges: Annotated[int, Shown("judges")]
    pairs: Annotated[int, Shown("answers and factors", "with two scores or more")]
    alpha_ordinal: Annotated[float | None, Shown("α ordinal", "Krippendorff's alpha, levels as ranks", 3)]
    alpha_interval: Annotated[
        float | None, estimated("α interval", "Krippendorff's alpha, levels as 0, 0.5 and 1", "alpha_", zero=True)
    ]
    alpha_lower: float | None
    alpha_upper: float | None
    # On pairs that all judges scored.
    icc_single: Annotated[float | None, Shown("ICC of one", "ICC(2,1): absolute agreement of one judge", 3)]
    icc_average: Annotated[float | None, Shown("ICC of the mean", "ICC(2,k): of the mean of all judges", 3)]


# Of the scores of the busiest judge of its kind. Judges with fewer are shown without a rank, and are not peers of
# others: three lucky scores do not make the best judge.
LEAST_COVERAGE = 0.1
METRICS = ("spa", "wpa", "kappa")
_DIMENSIONS = ("factor", "teacher", "student", "task")


@dataclass(frozen=True)
class _Shared:
    """The scores that two judges have in common."""

    a: int
    b: int
    rows: npt.NDArray[np.intp]
    equal: Floats
    close: Floats
    cells: npt.NDArray[np.int64]  # 3 * level + level, or -1 where a score is a number

    def kappa(self, *, quadratic: bool = False) -> float | None:
        """Return kappa over all shared scores."""
        table = np.bincount(self.cells[self.cells >= 0], minlength=9).reshape(3, 3)
        return kappa(table, quadratic=quadratic)


@once
def _shared(loaded: LoadedRun) -> tuple[_Shared, ...]:
    """Return the scores that every two judges have in common."""
    pairs, shared = loaded.pairs, []
    for a, b in combinations(range(len(loaded.judges)), 2):
        rows = np.flatnonzero(~np.isnan(pairs.scores[:, a]) & ~np.isnan(pairs.scores[:, b]))
        of_a, of_b = pairs.scores[rows, a], pairs.scores[rows, b]
        gap = np.abs(of_a - of_b)  # equal numbers of a scale may differ by rounding
        levels = pairs.is_level[rows, a] & pairs.is_level[rows, b]  # 0, 0.5, 1: twice that is a row of the table
        cells = np.where(levels, 3 * np.rint(2 * of_a) + np.rint(2 * of_b), -1).astype(np.int64)
        shared.append(_Shared(a=a, b=b, rows=rows, equal=(gap < 1e-9).astype(np.float64), close=1.0 - gap, cells=cells))
    return tuple(shared)


def judge_report(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> JudgeReport:
    """Compute the report on judges."""
    return JudgeReport(
        header=loaded.header,
        metric=settings.agreement_metric,
        degenerate=is_degenerate(loaded),
        judges=judge_rows(loaded, settings.agreement_metric),
        pairs=judge_pairs(loaded),
        breakdown=breakdown(loaded),
        reliability=reliability(loaded),
        bias=bias_report(loaded),
        scales=judge_scales(loaded) or verdict_scales(loaded),
        tests=bias_tests(loaded),
        panel=panel_worth(loaded),
    )


def coverage(loaded: LoadedRun) -> Floats:
    """Return each judge's units as a share of those of the busiest judge of its kind, (J,)."""
    units = np.bincount(loaded.units.judge, minlength=len(loaded.judges)).astype(np.float64)
    kinds = np.array(loaded.kinds, dtype=object)
    most = np.array([units[kinds == kind].max() for kind in loaded.kinds])
    share: Floats = units / np.maximum(most, 1.0)
    return share


def peers(loaded: LoadedRun) -> npt.NDArray[np.bool_]:
    """Return which judges count as peers, those of enough coverage, (J,)."""
    return coverage(loaded) >= LEAST_COVERAGE


def is_degenerate(loaded: LoadedRun) -> bool:
    """Return whether at most one judge that is a model scored enough."""
    return len(_judging_models(loaded)) <= 1


def _judging_models(loaded: LoadedRun) -> list[int]:
    """Return the judges that are models and scored enough."""
    enough = peers(loaded)
    return [judge for judge, kind in enumerate(loaded.kinds) if kind == "model" and enough[judge]]


def judge_pairs(loaded: LoadedRun) -> tuple[_JudgePair, ...]:
    """Compute the agreement of every two judges."""
    scores, rows = loaded.pairs.scores, []
    for shared in _shared(loaded):
        n = len(shared.rows)
        lower = upper = None
        if n:
            lower, upper = share_limits(loaded.clusters[loaded.pairs.datapoint[shared.rows]], shared.equal)
        of_a, of_b = scores[shared.rows, shared.a], scores[shared.rows, shared.b]
        value = shared.kappa()
        rows.append(
            _JudgePair(
                judge_a=loaded.judges[shared.a],
                judge_b=loaded.judges[shared.b],
                n=n,
                spa=float(shared.equal.mean()) if n else None,
                spa_lower=lower,
                spa_upper=upper,
                wpa=float(shared.close.mean()) if n else None,
                kappa=value,
                kappa_label=kappa_label(value),
                quadratic_kappa=shared.kappa(quadratic=True),
                spearman=spearman(of_a, of_b),
                kendall=kendall(of_a, of_b),
            )
        )
    return tuple(rows)


def judge_rows(loaded: LoadedRun, metric: str = "kappa") -> tuple[JudgeRow, ...]:
    """Return the judges, best first by the weighted `metric`; those without a rank come last.

    Kappa of a judge that gives numbers, not levels, is the same correction for chance of its distances from others.
    """
    rows = _unranked(loaded)
    values = {row.judge: getattr(row, f"weighted_{metric}") for row in rows}
    if metric == "kappa":
        values |= {row.judge: row.weighted_concordance for row in rows if values[row.judge] is None}
    fit = [row for row in rows if row.coverage >= LEAST_COVERAGE and row.units and values[row.judge] is not None]
    fit.sort(key=lambda row: (-values[row.judge], row.judge))
    ranked = {row.judge: rank for rank, row in enumerate(fit, start=1)}
    ordered = sorted(rows, key=lambda row: (ranked.get(row.judge, len(rows) + 1), row.judge))
    return tuple(replace(row, rank=ranked.get(row.judge)) for row in ordered)


@once
def _unranked(loaded: LoadedRun) -> list[JudgeRow]:
    units, share = np.bincount(loaded.units.judge, minlength=len(loaded.judges)), coverage(loaded)
    rows = [_judge_row(loaded, judge, int(units[judge]), float(share[judge])) for judge in range(len(loaded.judges))]
    ones: dict[str, Any] = {f"{weighted}{name}": 1.0 for weighted in ("", "weighted_") for name in METRICS}
    ones["weighted_concordance"] = 1.0
    ones |= {"weighted_spa_lower": None, "weighted_spa_upper": None, "kappa_label": ""}
    # With one judge of its kind there is nobody to agree with: its scores are 1, and the report says so.
    degenerate = is_degenerate(loaded)
    return [replace(row, **ones) if degenerate and row.kind == "model" and row.units else row for row in rows]


def _judge_row(loaded: LoadedRun, judge: int, units: int, share: float) -> JudgeRow:
    enough = peers(loaded)
    with_peers = [
        shared
        for shared in _shared(loaded)
        if len(shared.rows) and ((shared.a == judge and enough[shared.b]) or (shared.b == judge and enough[shared.a]))
    ]
    n = np.array([len(shared.rows) for shared in with_peers], dtype=np.float64)
    figures: dict[str, list[float | None]] = {
        "spa": [float(shared.equal.mean()) for shared in with_peers],
        "wpa": [float(shared.close.mean()) for shared in with_peers],
        "kappa": [shared.kappa() for shared in with_peers],
    }
    near = []
    for shared in with_peers:
        # 1 - mean squared difference / that of scores dealt anew; None where both give one score alone.
        of_a, of_b = (loaded.pairs.scores[shared.rows, code] for code in (shared.a, shared.b))
        expected = float(of_a.var() + of_b.var() + (of_a.mean() - of_b.mean()) ** 2)
        near.append(1.0 - float(((of_a - of_b) ** 2).mean()) / expected if expected > 1e-12 else None)
    plain = {name: _mean(values, np.ones(len(n))) for name, values in figures.items()}
    weighted = {f"weighted_{name}": _mean(values, n) for name, values in figures.items()}
    lower = upper = None
    if with_peers:
        rows = np.concatenate([shared.rows for shared in with_peers])
        equal = np.concatenate([shared.equal for shared in with_peers])
        lower, upper = share_limits(loaded.clusters[loaded.pairs.datapoint[rows]], equal)
    return JudgeRow(
        rank=None,
        judge=loaded.judges[judge],
        kind=loaded.kinds[judge],
        units=units,
        coverage=share,
        **plain,
        **weighted,
        weighted_spa_lower=lower,
        weighted_spa_upper=upper,
        kappa_label=kappa_label(weighted["weighted_kappa"]),
        weighted_concordance=_mean(near, n),
    )


def _mean(values: list[float | None], weights: Floats) -> float | None:
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in pairs)
    return float(sum(value * weight for value, weight in pairs) / total) if total else None


def ranked_judges(rows: tuple[JudgeRow, ...]) -> tuple[str, ...]:
    """Return the judges with a rank, best first; only models where there are any."""
    ranked = [row for row in rows if row.rank is not None]
    return tuple(row.judge for row in ranked if row.kind == "model") or tuple(row.judge for row in ranked)


def breakdown(loaded: LoadedRun) -> tuple[_AgreementRow, ...]:
    """Compute each judge's weighted agreement by factor, teacher, student and task."""
    shared = [pair for pair in _shared(loaded) if len(pair.rows)]
    return tuple(row for dimension in _DIMENSIONS for row in _breakdown(loaded, shared, dimension))


def _breakdown(loaded: LoadedRun, shared: list[_Shared], dimension: str) -> Iterator[_AgreementRow]:
    names = loaded.names(dimension)
    codes = getattr(loaded.pairs, dimension)
    enough, shape = peers(loaded), (len(loaded.judges), len(names))
    n, equal, close, kappas, weights = (np.zeros(shape) for _ in range(5))
    size = len(names)
    for pair in shared:
        values, cells = codes[pair.rows], pair.cells >= 0
        counts = np.bincount(values, minlength=size)  # (V,), as all sums here
        tables = np.bincount(9 * values[cells] + pair.cells[cells], minlength=9 * size).reshape(size, 3, 3)
        agreement = np.array([np.nan if value is None else value for value in map(kappa, tables)])
        for judge, peer in ((pair.a, pair.b), (pair.b, pair.a)):
            if enough[peer]:
                n[judge] += counts
                equal[judge] += np.bincount(values, pair.equal, minlength=size)
                close[judge] += np.bincount(values, pair.close, minlength=size)
                kappas[judge] += np.where(np.isnan(agreement), 0.0, agreement * counts)
                weights[judge] += np.where(np.isnan(agreement), 0.0, counts)
    for judge, value in np.argwhere(n > 0):
        total, weight = n[judge, value], weights[judge, value]
        yield _AgreementRow(
            judge=loaded.judges[judge],
            dimension=dimension,
            value=names[value],
            n=int(total),
            spa=float(equal[judge, value] / total),
            wpa=float(close[judge, value] / total),
            kappa=float(kappas[judge, value] / weight) if weight else None,
        )


def reliability(loaded: LoadedRun) -> tuple[Reliability, ...]:
    """Compute alpha and ICC of the judges that are models, over all, then for each task and factor."""
    pairs, (scores, clusters) = loaded.pairs, _model_scores(loaded)
    rows = [overall_reliability(loaded)]
    for scope, names in (("task", loaded.tasks), ("factor", loaded.factors)):
        for code, name in enumerate(names):
            mask = getattr(pairs, scope) == code
            if mask.any():
                rows.append(_reliability(scope, name, scores[mask], clusters[mask]))
    return tuple(rows)


@once
def overall_reliability(loaded: LoadedRun) -> Reliability:
    """Compute alpha and ICC of the judges that are models, over all tasks and factors."""
    return _reliability("all", "", *_model_scores(loaded))


def _model_scores(loaded: LoadedRun) -> tuple[Floats, Codes]:
    """Return the scores of the judges that are models and scored enough, (P, judges), and their clusters, (P,)."""
    return loaded.pairs.scores[:, _judging_models(loaded)], loaded.clusters[loaded.pairs.datapoint]


def _reliability(scope: str, value: str, scores: Floats, clusters: npt.NDArray[Any]) -> Reliability:
    scored = ~np.isnan(scores)
    shared, judges = int((scored.sum(axis=1) > 1).sum()), int(scored.any(axis=0).sum())
    alpha = krippendorff(scores)
    ordinal = krippendorff(scores, ordinal=True)
    lower = upper = None
    if alpha is not None:
        alphas = jackknife(clusters, alpha_columns(scores), alpha_of_sums)
        lower, upper = float(alphas.lower[0]), float(alphas.upper[0])
    single, average = icc(scores[scored.all(axis=1)])
    return Reliability(
        scope=scope,
        value=value,
        judges=judges,
        pairs=shared,
        alpha_ordinal=ordinal,
        alpha_interval=alpha,
        alpha_lower=lower,
        alpha_upper=upper,
        icc_single=single,
        icc_average=average,
    )
