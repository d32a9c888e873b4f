"""The robust set: items of teachers that discriminate, on which the judges that agree best give the same score.

J* is the better half (rounded up) of the ranked judges, or all; T* the better half of teachers, ranked with J* alone.
An item d of T* is kept where enough of its (student, factor) pairs are consistent; one that J* owes and did not score
never is:
* share form: at least q = ceil(|J*| / 2) judges of J* scored the pair and all of them gave the same score; d is kept
  where the share of such pairs is at least the threshold (1: all of them);
* theta form: at least q judges of J* lie within theta of the pair's mean; d is kept where all pairs are so.

Shapes: P pairs (response, factor), J judges of J*, D datapoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.agreement import JudgeRow, judge_rows, ranked_judges
from coeval.analysis.judge_tests import CONSTANT, RANDOM, judge_scales
from coeval.analysis.records import LEVEL_WORDS
from coeval.analysis.statistics import Codes, Floats, Summaries
from coeval.analysis.students import StudentCell, cells_of, ranked, weighted_means
from coeval.analysis.tables import ItemCount, Rank, Shown, StudentName, TeacherName, barred, estimated
from coeval.analysis.teachers import TeacherRow, teacher_rows
from coeval.analysis.units import DEFAULTS, LoadedRun, Pairs, Report, RobustSettings, Units, positions
from coeval.storage.records import is_failed, now, read_json
from p2l.common.files import atomic_path


@dataclass(frozen=True)
class _RobustStudent:
    """A student on the robust set and on all."""

    rank: Rank
    student: StudentName
    robust: Annotated[float, estimated("robust", "mean over pairs of item and factor of the chosen judges' mean")]
    lower: float
    upper: float
    full_rank: Annotated[int, Shown("rank on all")]
    full: Annotated[float, Shown("on all", "all items and judges, on the factors that the chosen judges score", 3)]
    delta: float  # robust - full
    flagged: bool  # whether |delta| > 0.1
    pairs: Annotated[int, Shown("pairs", "of item and factor")]


@dataclass(frozen=True)
class _RobustTeacher:
    """How many of a teacher's items were kept."""

    teacher: TeacherName
    chosen: bool
    score: Annotated[float, barred("score", "with the chosen judges only")]
    items: ItemCount
    candidates: Annotated[int, Shown("candidates")]
    kept: Annotated[int, Shown("kept")]


@dataclass(frozen=True)
class RobustSummary(Report):
    """Report robust-summary."""

    settings: RobustSettings
    judges: tuple[JudgeRow, ...]
    chosen_judges: tuple[str, ...]
    teachers: tuple[_RobustTeacher, ...]
    chosen_teachers: tuple[str, ...]
    candidates: int
    kept: int
    kept_ids: tuple[str, ...]
    consistent_fraction: Mapping[str, float]  # candidate datapoint -> share of its pairs on which the judges agreed
    students: tuple[_RobustStudent, ...]
    cells: tuple[StudentCell, ...]  # students on the robust set by task and factor
    diagnostics: tuple[str, ...]  # each step in words, and what to change where nothing is left


_MAX_CHANGE_OF_SCORE = 0.1  # from all items to the robust ones; students that move farther are flagged
_BY_KAPPA = "--agreement-metric kappa does not reward that"
_REWARDS = {
    "spa": f"SPA rewards saying the same of all; {_BY_KAPPA}",
    "wpa": f"WPA rewards saying the same of all; {_BY_KAPPA}",
    "kappa": "more judges are needed, or others",
}


@dataclass(frozen=True)
class _RobustSet:
    """The chosen judges, teachers and items, with the scores of J*."""

    judges: tuple[JudgeRow, ...]
    chosen_judges: tuple[str, ...]
    teachers: tuple[TeacherRow, ...]  # ranked with J* alone
    chosen_teachers: tuple[str, ...]
    candidates: tuple[int, ...]
    kept: tuple[int, ...]
    fractions: dict[int, float]  # candidate -> share of consistent pairs
    pairs: Pairs  # (P, J*) of all items: what J* owes, NaN where it did not score


def _robust_set(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> _RobustSet:
    """Choose judges, teachers and items."""
    judges = judge_rows(loaded, settings.agreement_metric)
    if settings.agreement_metric == "kappa" and not ranked_judges(judges):
        judges = judge_rows(loaded, "spa")  # all gave one score: there is no agreement beyond chance
    ranked = ranked_judges(judges)
    chosen = ranked[: math.ceil(len(ranked) / 2)] if settings.judge_selection == "top_half" else ranked
    codes = [loaded.judges.index(name) for name in chosen]
    with_chosen = loaded.with_units(loaded.units.where(np.isin(loaded.units.judge, codes)))
    teachers = teacher_rows(with_chosen, settings.teacher_score_formula) if chosen else ()
    teachers = tuple(row for row in teachers if row.units)
    top = tuple(row.teacher for row in teachers[: math.ceil(len(teachers) / 2)])
    pairs = _asked(loaded, codes)
    candidate = np.isin(pairs.teacher, [loaded.teachers.index(name) for name in top])
    # Each candidate's share of pairs that are consistent.
    rows = pairs.where(candidate)
    points, place = np.unique(rows.datapoint, return_inverse=True)
    shares = Summaries(place, _consistent(rows.scores, settings).astype(np.float64), len(points)).mean
    fractions = dict(zip(points.tolist(), shares.tolist(), strict=True))
    least = 1.0 if settings.agreement_threshold is None else settings.agreement_threshold
    robust = tuple(datapoint for datapoint, share in fractions.items() if share >= least - 1e-9)
    return _RobustSet(
        judges=judges,
        chosen_judges=chosen,
        teachers=teachers,
        chosen_teachers=top,
        candidates=tuple(fractions),
        kept=robust,
        fractions=fractions,
        pairs=pairs,
    )


def _asked(loaded: LoadedRun, judges: Sequence[int]) -> Pairs:
    """Return all pairs that J* owes: each answer with each (task, factor) that one of J* scored anywhere."""
    size, responses = max(len(loaded.factors), 1), np.flatnonzero(loaded.response_datapoint >= 0)
    kinds = np.unique(_kinds(loaded.pairs, size)[~np.isnan(loaded.pairs.scores[:, judges]).all(axis=1)])
    task = loaded.datapoint_task[loaded.response_datapoint[responses]]
    first, end = np.searchsorted(kinds, task * size), np.searchsorted(kinds, (task + 1) * size)
    response = np.repeat(responses, end - first)
    factor = kinds[np.repeat(first, end - first) + positions(end - first)] % size if len(response) else response
    place = loaded.pair_places(response, factor)
    scores, levels = np.full((len(place), len(judges)), np.nan), np.zeros((len(place), len(judges)), dtype=bool)
    scored = place >= 0
    scores[scored] = loaded.pairs.scores[place[scored]][:, judges]
    levels[scored] = loaded.pairs.is_level[place[scored]][:, judges]
    point = loaded.response_datapoint[response]
    return Pairs(
        task=loaded.datapoint_task[point],
        teacher=loaded.datapoint_teacher[point],
        student=loaded.response_student[response],
        factor=factor,
        datapoint=point,
        response=response,
        scores=scores,
        is_level=levels,
    )


def _kinds(table: Pairs | Units, size: int) -> Codes:
    """Return keys of (task, factor)."""
    return table.task * size + table.factor


def _consistent(scores: Floats, settings: RobustSettings) -> npt.NDArray[np.bool_]:
    """Return whether the judges (P, J*) agree on a pair, (P,)."""
    scored = ~np.isnan(scores)
    least = max(1, math.ceil(settings.q_fraction * scores.shape[1] - 1e-9))  # 0.07 * 100 comes out above 7
    filled = np.where(scored, scores, 0.0)
    if settings.theta is not None:
        mean = filled.sum(axis=1) / np.maximum(scored.sum(axis=1), 1)
        near = scored & (np.abs(filled - mean[:, None]) <= settings.theta + 1e-9)
        within: npt.NDArray[np.bool_] = near.sum(axis=1) >= least
        return within
    high = np.where(scored, scores, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(scored, scores, np.inf).min(axis=1, initial=np.inf)
    same: npt.NDArray[np.bool_] = (scored.sum(axis=1) >= least) & (high - low < 1e-9)
    return same


def robust_summary(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> RobustSummary:
    """Compute the report: what was chosen, and how the students stand on it."""
    chosen = _robust_set(loaded, settings)
    pairs = chosen.pairs.where(
        np.isin(chosen.pairs.datapoint, chosen.kept) & ~np.isnan(chosen.pairs.scores).all(axis=1)
    )
    return RobustSummary(
        header=loaded.header,
        settings=settings,
        judges=chosen.judges,
        chosen_judges=chosen.chosen_judges,
        teachers=_teachers(loaded, chosen, settings.teacher_score_formula),
        chosen_teachers=chosen.chosen_teachers,
        candidates=len(chosen.candidates),
        kept=len(chosen.kept),
        kept_ids=tuple(loaded.datapoints[datapoint] for datapoint in chosen.kept),
        consistent_fraction={loaded.datapoints[point]: share for point, share in chosen.fractions.items()},
        students=_students(loaded, chosen, pairs),
        cells=(*cells_of(loaded, pairs, "task"), *cells_of(loaded, pairs, "factor")),
        diagnostics=_diagnostics(loaded, chosen, settings),
    )


def _teachers(loaded: LoadedRun, chosen: _RobustSet, formula: str) -> tuple[_RobustTeacher, ...]:
    owners = [loaded.teachers[code] for code in loaded.datapoint_teacher]
    candidates = [owners[datapoint] for datapoint in chosen.candidates]
    robust = [owners[datapoint] for datapoint in chosen.kept]
    return tuple(
        _RobustTeacher(
            teacher=row.teacher,
            chosen=row.teacher in chosen.chosen_teachers,
            score=getattr(row, formula),
            items=owners.count(row.teacher),
            candidates=candidates.count(row.teacher),
            kept=robust.count(row.teacher),
        )
        for row in chosen.teachers
    )


def _students(loaded: LoadedRun, chosen: _RobustSet, pairs: Pairs) -> tuple[_RobustStudent, ...]:
    means = weighted_means(loaded, pairs, pairs.student, len(loaded.students))
    # All items and judges, on the (task, factor) that J* scores.
    size, units = max(len(loaded.factors), 1), loaded.units
    units = units.where(np.isin(_kinds(units, size), _kinds(chosen.pairs, size)))
    full = Summaries(units.student, units.norm, len(loaded.students))
    full_ranks = ranked(loaded, full)
    rows = []
    for rank, code in enumerate(ranked(loaded, means), start=1):
        robust, lower, upper = means.estimate(code)
        delta = robust - float(full.mean[code])
        rows.append(
            _RobustStudent(
                rank=rank,
                student=loaded.students[code],
                robust=robust,
                lower=lower,
                upper=upper,
                full_rank=full_ranks.index(code) + 1,
                full=float(full.mean[code]),
                delta=delta,
                flagged=abs(delta) > _MAX_CHANGE_OF_SCORE,
                pairs=int(means.n[code]),
            )
        )
    return tuple(rows)


def _diagnostics(loaded: LoadedRun, chosen: _RobustSet, settings: RobustSettings) -> tuple[str, ...]:
    formula = settings.teacher_score_formula
    metric = settings.agreement_metric
    ranked = [row for row in chosen.judges if row.rank is not None]
    if metric == "kappa" and all(_agreement(row, metric) is None for row in ranked):
        metric = "spa"  # by which they are ranked where none has a kappa
    judges = ", ".join(
        f"{row.judge} {_number(_agreement(row, metric))}{'' if row.rank else ' (no rank)'}" for row in chosen.judges
    )
    clean = "spread" if formula == "s2" else "separation"
    teachers = ", ".join(f"{row.teacher} {_number(getattr(row, clean))}" for row in chosen.teachers)
    least = max(1, math.ceil(settings.q_fraction * len(chosen.chosen_judges) - 1e-9))
    valid = loaded.evaluations.valid
    lines = [
        f"scores: {len(loaded.units)}, from {int(valid.sum())} of {len(valid)} evaluations",
        f"judges by weighted {metric}: {judges or 'none'}",
        f"J* ({settings.judge_selection}): {', '.join(chosen.chosen_judges) or 'none'}; at least {least} for each pair",
        f"teachers by {clean} ({formula} without judges' noise), with J* alone: {teachers or 'none'}",
        f"T*: {', '.join(chosen.chosen_teachers) or 'none'}",
        f"candidates: {len(chosen.candidates)} items; kept: {len(chosen.kept)}",
    ]
    # Why the chosen judges may be the wrong ones.
    if metric != settings.agreement_metric:
        lines.append("kappa has no value, as the judges gave one score alone: they are ranked by SPA")
    blunt = [
        row.judge
        for row in judge_scales(loaded)
        if row.judge in chosen.chosen_judges and {CONSTANT, RANDOM} & set(row.flags.split(", "))
    ]
    if blunt:
        why = _REWARDS[settings.agreement_metric]
        lines.append(f"warning: {', '.join(blunt)} in J* tells answers apart no better than chance: {why}")
    if not chosen.kept:
        lines.append(_advice(chosen, settings))
    return tuple(lines)


def _agreement(row: JudgeRow, metric: str) -> float | None:
    value: float | None = getattr(row, f"weighted_{metric}")
    return row.weighted_concordance if value is None and metric == "kappa" else value


def _advice(chosen: _RobustSet, settings: RobustSettings) -> str:
    metric = settings.agreement_metric
    if not chosen.candidates:
        if chosen.judges and all(getattr(row, f"weighted_{metric}") is None for row in chosen.judges):
            return "no judge can be ranked: no two judges scored the same (answer, factor), so none agrees with another"
        return "no item can be chosen: no judge with enough valid scores is there; look at `coverage-summary`"
    best = max(chosen.fractions.values())
    if settings.theta is not None:
        return f"the best item has {best:.0%} of its pairs within theta {settings.theta:g}; a larger --theta keeps more"
    enough = math.floor(100 * best + 1e-9) / 100  # rounded up it would keep nothing
    return (
        f"the best item has {best:.0%} of its pairs consistent; --agreement-threshold {enough:.2f} or less keeps some"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# The robust set as a benchmark for others: items, rubric, and each student's level on each factor, which is that which
# most judges of J* gave (of two that tie the lower), or the mean of a metric's numbers.

_SCHEMA = "coeval-benchmark-v1"
_NESTED = ("sampled_target_attributes", "rubric", "student_scores", "judge_set")


def export_benchmark(loaded: LoadedRun, path: Path, *, form: str = "jsonl", settings: RobustSettings = DEFAULTS) -> int:
    """Write the robust set as `jsonl` or `parquet`, if it has items; return how many. Raise InputError if it fails."""
    records = list(_benchmark_records(loaded, settings))
    if records:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            if form == "parquet":
                _write_parquet(records, temporary)
            else:
                lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                temporary.write_bytes(lines.encode("utf-8", "replace"))
    return len(records)


def _benchmark_records(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> Iterator[dict[str, Any]]:
    """Yield the items of the robust set as records, by id."""
    chosen, exported_at = _robust_set(loaded, settings), now()
    texts = _texts(loaded, {loaded.datapoints[point] for point in chosen.kept})
    # Datapoint -> student -> factor -> level.
    scores: dict[int, dict[str, dict[str, str]]] = {point: {} for point in chosen.kept}
    pairs = chosen.pairs
    for row in np.flatnonzero(np.isin(pairs.datapoint, chosen.kept)).tolist():
        scored = ~np.isnan(pairs.scores[row])
        judge_scores = pairs.scores[row][scored]
        if len(judge_scores):
            student, factor = loaded.students[pairs.student[row]], loaded.factors[pairs.factor[row]]
            is_level = bool(pairs.is_level[row][scored].all())
            scores[int(pairs.datapoint[row])].setdefault(student, {})[factor] = plurality(
                judge_scores, is_level=is_level
            )
    for point in chosen.kept:
        identity, task = loaded.datapoints[point], loaded.tasks[loaded.datapoint_task[point]]
        stored = read_json(loaded.run.rubric(task))
        yield {
            "schema_version": _SCHEMA,
            "experiment_id": loaded.info.experiment_id,
            "datapoint_id": identity,
            "task_id": task,
            "teacher_model_id": loaded.teachers[loaded.datapoint_teacher[point]],
            **texts[identity],
            "rubric": stored if isinstance(stored, dict) else dict(loaded.info.tasks[task].rubric or {}),
            "student_scores": scores.get(point, {}),
            "judge_set": list(chosen.chosen_judges),
            "agreement_metric": settings.agreement_metric,
            "agreement_threshold": settings.theta
            if settings.agreement_threshold is None
            else settings.agreement_threshold,
            "consistent_fraction": round(chosen.fractions[point], 4),
            "exported_at": exported_at,
        }


def _texts(loaded: LoadedRun, ids: set[str]) -> dict[str, dict[str, Any]]:
    """Read prompt, reference and attributes of some items again, since memory holds attributes as text alone."""
    texts = {}
    for record in loaded.run.read("data_generation"):
        if record.get("id") in ids and not is_failed(record) and "prompt" in record:
            attributes = record.get("sampled_target_attributes")
            texts[record["id"]] = {
                "prompt": record["prompt"],
                "reference_response": str(record.get("reference_response") or ""),
                "sampled_target_attributes": attributes if isinstance(attributes, dict) else {},
            }
    return texts


def plurality(scores: Floats, *, is_level: bool = True) -> str:
    """Return the most frequent level, the lower of two that tie; of numbers the mean, as text."""
    values, counts = np.unique(scores, return_counts=True)
    chosen = float(values[np.argmax(counts)])
    return LEVEL_WORDS[chosen] if is_level and chosen in LEVEL_WORDS else f"{scores.mean():.4f}"


def _write_parquet(records: list[dict[str, Any]], path: Path) -> None:
    """Write nested values as JSON text, with the schema's version in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def flat(key: str, value: Any) -> Any:
        nested = key in _NESTED or (key == "prompt" and not isinstance(value, str))
        return json.dumps(value, ensure_ascii=False) if nested else value

    rows = [{key: flat(key, value) for key, value in record.items()} for record in records]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"coeval_schema_version": _SCHEMA})
    pq.write_table(table, path)
