"""A run as columns: one row for each (response, factor, judge) score, names as codes, scores in [0, 1].

Shapes: U units, P pairs (response, factor), J judges, R responses, D datapoints, E evaluations. All is sorted by id, so
the order in which a run was written plays no part, except for drift, which follows the times of evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, update_wrapper
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from coeval.analysis.records import Judgement, Records, RunInfo, Skipped, read_run, read_run_info
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.verdicts import WINNERS, Comparison, Preference
from coeval.storage.run import Run


@dataclass(frozen=True)
class Header:
    """The head of every report: the run, its models, its counts, and what names mean."""

    experiment_id: str
    status: str
    created_at: str
    partial: bool  # whether the run is not completed, so that all below may change
    tasks: tuple[str, ...]
    teachers: tuple[str, ...]
    students: tuple[str, ...]
    judges: tuple[str, ...]
    factors: tuple[str, ...]
    datapoints: int
    responses: int
    evaluations: int  # records of scores, after those of one id became one
    valid_evaluations: int
    units: int  # (response, factor, judge) scores of valid evaluations
    self_judging: int  # units whose judge is the student
    self_teaching: int  # units whose teacher is the student
    skipped: tuple[Skipped, ...]
    task_descriptions: Mapping[str, str] = field(default_factory=dict)
    factor_descriptions: Mapping[str, str] = field(default_factory=dict)  # `task/factor` -> description
    # Task -> target attribute -> its values.
    attribute_values: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    verdicts: int = 0  # on pairs of answers, after those on the same became one
    # Task -> factor -> what it counts in students' means, where that is not 1.
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    grading: Mapping[str, str] = field(default_factory=dict)  # task -> grading, where it is not by levels alone
    prompts: int = 0  # distinct ones, near duplicates being one

    @property
    def may_change(self) -> str:
        """Why figures of a partial run may change, as the end of a sentence that begins with the run."""
        state = f"is {self.status}, not completed" if self.status != "unknown" else "has no meta.json that can be read"
        return f"{state}: all figures may change"


Figure = TypeVar("Figure")
DIMENSIONS = ("task", "factor", "judge", "teacher", "student", "attribute")


@dataclass(frozen=True)
class Report:
    """A report: its header and tables, which are tuples of rows, or `Columns` where there may be very many.

    Scores lie in [0, 1] (High 1, Medium 0.5, Low 0). `lower` and `upper` are 95 % limits over clusters of items with
    one prompt (`coeval.analysis.statistics`). None is what cannot be computed (no data, one judge, no variance), never
    zero.
    """

    header: Header


@dataclass(frozen=True)
class RobustSettings:
    """How the robust set was chosen."""

    judge_selection: str = "top_half"  # or all
    agreement_metric: str = "kappa"  # or spa, wpa: ranks the judges
    teacher_score_formula: str = "v1"  # or s2, r3: ranks the teachers
    # Share of (student, factor) pairs on which the judges have to agree; None in the other form.
    agreement_threshold: float | None = 1.0
    theta: float | None = None  # other form: how far judges may lie from the pair's mean
    q_fraction: float = 0.5  # share of the chosen judges that has to have scored (or to lie within theta)


DEFAULTS = RobustSettings()


@dataclass(frozen=True)
class ArrayTable:
    """A table of which each field is an array with a row for each entry."""

    def where(self, rows: npt.NDArray[Any]) -> Self:
        """Return the rows that a mask or indices choose."""
        return type(self)(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True)
class Units(ArrayTable):
    """Scores (U,)."""

    task: Codes
    teacher: Codes
    student: Codes
    judge: Codes
    factor: Codes
    datapoint: Codes
    response: Codes
    evaluation: Codes
    norm: Floats
    is_level: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs(ArrayTable):
    """The (response, factor) pairs that judges scored, with the matrix of their scores."""

    task: Codes
    teacher: Codes
    student: Codes
    factor: Codes
    datapoint: Codes
    response: Codes
    scores: Floats  # (P, J), NaN where a judge did not score
    is_level: npt.NDArray[np.bool_]  # (P, J)

    @cached_property
    def mean(self) -> Floats:
        """Mean over the judges that scored, (P,)."""
        scored = ~np.isnan(self.scores)
        with np.errstate(invalid="ignore"):
            mean: Floats = np.where(scored, self.scores, 0.0).sum(axis=1) / scored.sum(axis=1)
        return mean


@dataclass(frozen=True)
class Evaluations:
    """Evaluations (E,), valid or not, one for each (response, judge)."""

    task: Codes
    teacher: Codes
    student: Codes
    judge: Codes
    valid: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]
    at: tuple[str, ...]


@dataclass(frozen=True)
class LoadedRun:
    """A run as columns, with the names that codes stand for, sorted."""

    run: Run
    info: RunInfo
    tasks: tuple[str, ...]
    teachers: tuple[str, ...]
    students: tuple[str, ...]
    judges: tuple[str, ...]
    factors: tuple[str, ...]
    kinds: tuple[str, ...]  # of each judge: model, metric or label
    datapoints: tuple[str, ...]
    datapoint_task: Codes
    datapoint_teacher: Codes
    prompt_keys: tuple[bytes, ...]
    attributes: tuple[Mapping[str, str], ...]  # of each datapoint
    clusters: Codes  # (D,): datapoints with the same prompt, or nearly, share a code
    responses: tuple[str, ...]
    response_student: Codes
    response_datapoint: Codes  # -1 where the datapoint is missing
    tokens: Floats
    texts: Mapping[int, str]  # response -> its text, in tasks with labels
    units: Units
    evaluations: Evaluations
    counts: Counter[tuple[str, str, str, str, str, bool]]  # (phase, task, teacher, student, judge, failed) -> records
    skipped: tuple[Skipped, ...]
    verdicts: tuple[Preference, ...] = ()  # on pairs of answers
    failed_verdicts: tuple[Comparison, ...] = ()  # of which a judge gave none
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # of `once`

    def names(self, dimension: str) -> tuple[str, ...]:
        """Return the names that the codes of a dimension stand for."""
        if dimension == "attribute":
            return self.attribute_names
        names: tuple[str, ...] = getattr(self, f"{dimension}s")
        return names

    def grouped(self, table: Any, dimension: str) -> tuple[npt.NDArray[np.intp], Codes]:
        """Return rows of an array table and their values in a dimension; by `attribute` a row repeats for each."""
        if dimension != "attribute":
            return np.arange(len(table)), getattr(table, dimension)
        datapoints, values = self._attribute_links
        counts = np.bincount(datapoints, minlength=len(self.datapoints))[table.datapoint]
        starts = np.searchsorted(datapoints, table.datapoint)  # links are sorted by datapoint
        rows = np.repeat(np.arange(len(table)), counts)
        return rows, values[np.repeat(starts, counts) + positions(counts)]

    @cached_property
    def attribute_names(self) -> tuple[str, ...]:
        """Every `name=value` of an item."""
        return tuple(sorted({f"{key}={value}" for item in self.attributes for key, value in item.items()}))

    @cached_property
    def _attribute_links(self) -> tuple[Codes, Codes]:
        """(datapoint, name=value) links, by datapoint."""
        code = codes_of(self.attribute_names)
        links = [(d, code[f"{k}={v}"]) for d, item in enumerate(self.attributes) for k, v in sorted(item.items())]
        table = np.array(links, dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def pair_keys(self, response: Codes, factor: Codes) -> Codes:
        """Return one key for each (response, factor)."""
        return response * max(len(self.factors), 1) + factor

    def pair_places(self, response: Codes, factor: Codes) -> Codes:
        """Return the row of each (response, factor) among the pairs; -1 where no judge scored it."""
        keys, targets = self.pair_keys(self.pairs.response, self.pairs.factor), self.pair_keys(response, factor)
        place = np.minimum(np.searchsorted(keys, targets), max(len(keys) - 1, 0))
        return np.where(keys[place] == targets, place, -1) if len(keys) else np.full(len(targets), -1)

    @cached_property
    def pairs(self) -> Pairs:
        """The (response, factor) pairs that a judge scored, with the matrix of scores."""
        pair_keys = self.pair_keys(self.units.response, self.units.factor)
        keys, first, pair = np.unique(pair_keys, return_index=True, return_inverse=True)
        scores = np.full((len(keys), len(self.judges)), np.nan)
        levels = np.zeros(scores.shape, dtype=bool)
        scores[pair, self.units.judge] = self.units.norm
        levels[pair, self.units.judge] = self.units.is_level
        names = ("task", "teacher", "student", "factor", "datapoint", "response")
        return Pairs(**{name: getattr(self.units, name)[first] for name in names}, scores=scores, is_level=levels)

    @cached_property
    def header(self) -> Header:
        """The head of every report."""
        units = self.units
        return Header(
            experiment_id=self.info.experiment_id,
            status=self.info.status,
            created_at=self.info.created_at,
            partial=self.info.status != "completed",
            tasks=self.tasks,
            teachers=self.teachers,
            students=self.students,
            judges=self.judges,
            factors=self.factors,
            datapoints=len(self.datapoints),
            responses=len(self.responses),
            evaluations=len(self.evaluations.valid),
            valid_evaluations=int(self.evaluations.valid.sum()),
            units=len(units),
            self_judging=int(self.is_student("judge").sum()),
            self_teaching=int(self.is_student("teacher").sum()),
            skipped=self.skipped,
            task_descriptions={name: task.description for name, task in self.info.tasks.items()},
            factor_descriptions={
                f"{name}/{factor}": text
                for name, task in self.info.tasks.items()
                for factor, text in (task.rubric or {}).items()
            },
            attribute_values={name: dict(task.attributes) for name, task in self.info.tasks.items()},
            verdicts=len(self.verdicts),
            weights={name: dict(task.weights) for name, task in self.info.tasks.items() if task.weights},
            grading={name: task.grading for name, task in self.info.tasks.items() if task.grading},
            prompts=len(np.unique(self.clusters)),
        )

    def student_codes(self, role: str) -> Codes:
        """Return the code as a student of each model of a role; -1 where it is none."""
        codes = codes_of(self.students)
        return column(codes.get(name, -1) for name in self.names(role))

    def is_student(self, role: str) -> npt.NDArray[np.bool_]:
        """Return whether the model in a role of a unit is its student, too, (U,)."""
        matches: npt.NDArray[np.bool_] = self.student_codes(role)[getattr(self.units, role)] == self.units.student
        return matches

    def with_units(self, units: Units) -> LoadedRun:
        """Return the same run with other units."""
        return replace(self, units=units, cache={})  # figures of the old units do not hold


def once(function: Callable[[LoadedRun], Figure]) -> Callable[[LoadedRun], Figure]:
    """Cache a figure of a run that several reports show."""

    def cached(loaded: LoadedRun) -> Figure:
        if function not in loaded.cache:
            loaded.cache[function] = function(loaded)
        figure: Figure = loaded.cache[function]
        return figure

    return update_wrapper(cached, function)


@once
def factor_weights(loaded: LoadedRun) -> Floats:
    """Return the weight of each factor in each task, (K, F)."""
    weights = np.ones((len(loaded.tasks), len(loaded.factors)))
    for row, task in enumerate(loaded.tasks):
        info = loaded.info.tasks.get(task)
        for factor, weight in info.weights.items() if info is not None else ():
            if factor in loaded.factors:
                weights[row, loaded.factors.index(factor)] = weight
    return weights


@dataclass(frozen=True)
class Votes(ArrayTable):
    """Preferences, all (N,), as codes of names."""

    task: Codes
    datapoint: Codes
    judge: Codes
    model_a: Codes
    model_b: Codes
    winner: Codes  # position in WINNERS
    weight: Floats


def coded(preferences: Iterable[Preference], *names: Iterable[str]) -> Votes:
    """Return preferences as codes of these names: tasks, datapoints, judges and models."""
    tasks, datapoints, judges, models = map(codes_of, names)
    preferences = list(preferences)

    def codes(field: str, places: Mapping[str, int]) -> Codes:
        return column(map(places.__getitem__, map(attrgetter(field), preferences)))

    return Votes(
        task=codes("task", tasks),
        datapoint=codes("datapoint", datapoints),
        judge=codes("judge", judges),
        model_a=codes("model_a", models),
        model_b=codes("model_b", models),
        winner=codes("winner", codes_of(WINNERS)),
        weight=np.fromiter(map(attrgetter("weight"), preferences), dtype=np.float64),
    )


@once
def verdict_votes(loaded: LoadedRun) -> Votes:
    """Return the run's verdicts on pairs as codes of its names."""
    return coded(loaded.verdicts, loaded.tasks, loaded.datapoints, loaded.judges, loaded.students)


def score_weights(loaded: LoadedRun, table: Units | Pairs) -> Floats | None:
    """Return the weight of each score of a table, (N,); None where all count alike."""
    weights = factor_weights(loaded)
    return None if (weights == 1.0).all() else weights[table.task, table.factor]


def load_run(folder: Path | str) -> LoadedRun:
    """Read a run of any version; damaged records are listed in `skipped`. Raise RunInputError if it is none."""
    run = Run(Path(folder))
    return _loaded(run, read_run(run, read_run_info(run)))


def _loaded(run: Run, records: Records) -> LoadedRun:
    judgements, info = records.judgements, records.info
    items, answers = list(records.items.values()), list(records.answers.values())
    tasks = _names(info.tasks, (item.task for item in items), (j.task for j in judgements))
    teachers = _names(info.roles["teacher"], (item.teacher for item in items), (j.teacher for j in judgements))
    students = _names(info.roles["student"], (answer.student for answer in answers), (j.student for j in judgements))
    judges = _names(info.roles["judge"], (j.judge for j in judgements), (v.judge for v in records.verdicts))
    valid = [judgement for judgement in judgements if not judgement.code]
    factors = _names(
        (factor for task in info.tasks.values() for factor in task.rubric or ()), (f for j in valid for f in j.scores)
    )
    datapoint, response = codes_of(records.items), codes_of(records.answers)
    codes = {
        "task": codes_of(tasks),
        "teacher": codes_of(teachers),
        "student": codes_of(students),
        "judge": codes_of(judges),
    }
    columns = {name: column(code[getattr(j, name)] for j in judgements) for name, code in codes.items()}
    # Clusters numbered in the order in which they first occur, whatever the order of records was.
    _, first, cluster = np.unique(column(item.cluster for item in items), return_index=True, return_inverse=True)
    return LoadedRun(
        run=run,
        info=info,
        tasks=tasks,
        teachers=teachers,
        students=students,
        judges=judges,
        factors=factors,
        kinds=_kinds(info, judges, judgements),
        datapoints=tuple(records.items),
        datapoint_task=column(codes["task"][item.task] for item in items),
        datapoint_teacher=column(codes["teacher"][item.teacher] for item in items),
        prompt_keys=tuple(item.prompt_key for item in items),
        attributes=tuple(item.attributes for item in items),
        clusters=np.argsort(np.argsort(first))[cluster],
        responses=tuple(records.answers),
        response_student=column(codes["student"][answer.student] for answer in answers),
        response_datapoint=column(datapoint.get(answer.datapoint, -1) for answer in answers),
        tokens=np.array([answer.tokens for answer in answers], dtype=np.float64),
        texts={number: answer.text for number, answer in enumerate(answers) if answer.text is not None},
        units=_units(judgements, columns, datapoint, response, codes_of(factors)),
        evaluations=Evaluations(
            **columns,
            valid=np.array([not j.code for j in judgements], dtype=bool),
            failed=np.array([j.failed for j in judgements], dtype=bool),
            at=tuple(j.at for j in judgements),
        ),
        counts=records.counts,
        skipped=records.skips.rows(),
        verdicts=records.verdicts,
        failed_verdicts=records.failed_verdicts,
    )


def _units(
    judgements: Sequence[Judgement],
    columns: Mapping[str, Codes],
    datapoint: Mapping[str, int],
    response: Mapping[str, int],
    factor: Mapping[str, int],
) -> Units:
    """Return one row for each score of a valid judgement."""
    chosen = [number for number, judgement in enumerate(judgements) if not judgement.code]
    valid = [judgements[number] for number in chosen]
    repeats = np.array([len(judgement.scores) for judgement in valid], dtype=np.int64)
    evaluation = np.repeat(np.array(chosen, dtype=np.int64), repeats)
    return Units(
        **{name: column[evaluation] for name, column in columns.items()},
        factor=column(factor[name] for judgement in valid for name in judgement.scores),
        datapoint=np.repeat(column(datapoint[judgement.datapoint] for judgement in valid), repeats),
        response=np.repeat(column(response[judgement.response] for judgement in valid), repeats),
        evaluation=evaluation,
        norm=np.array([score for judgement in valid for score in judgement.scores.values()], dtype=np.float64),
        is_level=np.array([name in judgement.levels for judgement in valid for name in judgement.scores], dtype=bool),
    )


def _kinds(info: RunInfo, judges: Sequence[str], judgements: Iterable[Judgement]) -> tuple[str, ...]:
    kinds: dict[str, str] = {}
    for judgement in judgements:
        if judgement.judge not in kinds and not judgement.code:
            kinds[judgement.judge] = info.kind(judgement.judge, judgement.task, judgement.scores)
    return tuple(kinds.get(judge) or info.kind(judge, "", ()) for judge in judges)


def _names(*sources: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for source in sources for name in source}))


def codes_of(names: Iterable[str]) -> dict[str, int]:
    """Return the place of each name."""
    return {name: code for code, name in enumerate(names)}


def positions(counts: Codes) -> Codes:
    """Count from 0 within each of consecutive groups of these sizes, (sum of counts,)."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def places_within(groups: Codes, *keys: Any) -> Codes:
    """Return the place of each row among those of its group, from 0, by the last of the keys first, then by place."""
    places = np.empty(len(groups), dtype=np.int64)
    places[np.lexsort((*keys, groups))] = positions(np.bincount(groups))
    return places


def column(codes: Iterable[int]) -> Codes:
    """Return codes as an array."""
    return np.fromiter(codes, dtype=np.int64)
