"""The records of a run as they can be used: joined by id, one for each id, and what was left out and why.

`coeval.reports.pieces` explains the codes of records that are left out; of a DUPLICATE the last valid one counts.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from coeval.analysis.tables import Shown
from coeval.analysis.verdicts import Comparison, Preference, evaluation_of, read_verdicts, text_of
from coeval.duplicates import PromptIndex, text_in
from coeval.errors import RunInputError
from coeval.judging.prompts import stored_grading_text
from coeval.schema import LABEL_PREFIX, metric_of, weights_in
from coeval.storage.records import (
    Answer,
    Item,
    answer_mark,
    is_answer_to,
    is_failed,
    is_judgement_of,
    item_mark,
    read_json,
    read_records,
)
from coeval.storage.run import Run, entries_of, stored_config


@dataclass(frozen=True)
class Skipped:
    """Records of one kind that were left out."""

    # PARSE_ERROR_P3/P4/P5, MISSING_RESPONSE, MISSING_DATAPOINT, INCOMPLETE_SCORES, INVALID_SCORE_VALUE,
    # FAILED_P3/P4/P5, DUPLICATE_P3/P4/P5, STALE_P4/P5, and those of verdicts on pairs, which end in _PAIR.
    code: Annotated[str, Shown("code")]
    count: Annotated[int, Shown("records")]
    example: Annotated[str, Shown("for example", wide=True)]  # where: `file:line`, or the id of a record


# What a run tells about its tasks, rubrics, attributes and models, from whichever of its files can be read.


@dataclass(frozen=True)
class TaskInfo:
    """A task, from whichever files of the run can be read."""

    description: str = ""
    # Factor -> description; None where no rubric is known, so that no score counts as missing.
    rubric: Mapping[str, str] | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)  # factors that are computed -> the metric
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # How many of its attributes an item is drawn with; None where the run does not tell.
    drawn: tuple[int, int] | None = None
    label_attributes: tuple[str, ...] = ()
    is_configured: bool = False  # whether the run's configuration has it
    is_pairwise: bool = False  # whether models compare answers, and score none
    weights: Mapping[str, float] = field(default_factory=dict)  # factor -> weight, where that is not 1
    grading: str = ""  # how judges grade, where it is not by levels alone


@dataclass(frozen=True)
class RunInfo:
    """A run, as far as it tells."""

    experiment_id: str
    status: str
    created_at: str
    meta: Mapping[str, Any]
    tasks: Mapping[str, TaskInfo]
    interfaces: Mapping[str, str]  # model -> interface
    model_ids: Mapping[str, str]  # model -> what its provider calls it, where no role says otherwise
    # (model, role) -> what its provider calls it in this role, where that is another.
    role_models: Mapping[tuple[str, str], str]
    roles: Mapping[str, tuple[str, ...]]  # role -> models, as configured
    # Metric judge -> the one metric that it computes, where it does not compute all.
    own_metrics: Mapping[str, str] = field(default_factory=dict)

    def model_id(self, model: str, role: str) -> str:
        """Return the id of a model at its provider, in a role; its own name where the run does not tell."""
        return self.role_models.get((model, role)) or self.model_ids.get(model, model)

    def kind(self, judge: str, task: str, factors: Iterable[str]) -> str:
        """Return whether a judge is a model, a metric or the label judge; judged by its factors if not configured."""
        interface = self.interfaces.get(judge)
        if interface is not None:
            return interface if interface in ("metric", "label") else "model"
        names = set(factors)
        if names and all(name.startswith(LABEL_PREFIX) for name in names):
            return "label"
        return "metric" if names and names <= set(self.tasks.get(task, TaskInfo()).metrics) else "model"

    def required(self, kind: str, task: str, judge: str = "") -> tuple[str, ...] | None:
        """Return the factors that a judge of a kind has to score; None where the run does not tell."""
        info = self.tasks.get(task, TaskInfo())
        if kind == "label":
            return tuple(f"{LABEL_PREFIX}{name}" for name in info.label_attributes) or None
        if info.rubric is None:
            return None
        if kind == "metric":
            own = self.own_metrics.get(judge)
            return tuple(name for name, metric in info.metrics.items() if own in (None, metric))
        return tuple(name for name in info.rubric if name not in info.metrics)

    def owes(self, judge: str, kind: str, task: str) -> bool:
        """Return whether a judge has anything to score in a task."""
        info = self.tasks.get(task, TaskInfo())
        if kind == "label":
            return bool(info.label_attributes) or not info.is_configured
        required = self.required(kind, task, judge)
        return not (info.is_pairwise and kind == "model") and (required is None or len(required) > 0)


def read_run_info(run: Run) -> RunInfo:
    """Read meta, configuration, attributes and rubrics. Raise RunInputError if the folder holds no run."""
    if not run.meta.is_file() and not (run.folder / "phase5_evaluations").is_dir() and not run.record_files("pairwise"):
        raise RunInputError(
            f"{run.folder} holds no run: neither meta.json nor phase5_evaluations is there; check --run"
        )
    meta, config = _map(read_json(run.meta)), stored_config(run)
    models = {model["name"]: model for model in entries_of(config, "models") if isinstance(model.get("name"), str)}
    parameters = {name: _map(model.get("parameters")) for name, model in models.items()}
    interfaces = {
        # `auto` was resolved when the run started.
        name: str(_map(model.get("resolved")).get("interface") or model.get("interface") or "")
        for name, model in models.items()
    }
    configured = {task["name"]: task for task in entries_of(config, "tasks") if isinstance(task.get("name"), str)}
    stored = {path.name.split(".")[0] for path in (run.folder / "phase2_rubric").glob("[!.]*.rubric.json")}
    return RunInfo(
        experiment_id=str(meta.get("experiment_id") or _map(config.get("experiment")).get("id") or run.folder.name),
        status=str(meta.get("status") or "unknown"),
        created_at=str(meta.get("created_at") or ""),
        meta=meta,
        tasks={name: _task(run, name, configured.get(name, {})) for name in sorted({*configured, *stored})},
        interfaces=interfaces,
        model_ids={name: str(entries.get("model") or name) for name, entries in parameters.items()},
        role_models={
            (name, str(role)): str(entries["model"])
            for name, model in models.items()
            for role, entries in _map(model.get("role_parameters")).items()
            if _map(entries).get("model")
        },
        roles={
            role: tuple(name for name, model in models.items() if role in (model.get("roles") or ()))
            for role in ("teacher", "student", "judge")
        },
        own_metrics={
            name: str(entries["metric"])
            for name, entries in parameters.items()
            if interfaces[name] == "metric" and entries.get("metric")
        },
    )


def _task(run: Run, name: str, configured: Mapping[str, Any]) -> TaskInfo:
    configured_rubric = _map(configured.get("rubric"))
    rubric = _map(read_json(run.rubric(name))) or configured_rubric or None
    # Weights as the configuration has them now, else as stored.
    weighed = {**(rubric or {}), **{key: entry for key, entry in configured_rubric.items() if key in (rubric or {})}}
    path = run.find_attributes(name, "target")
    attributes = _map(read_json(path)) if path is not None else {}
    attributes = attributes or _map(configured.get("target_attributes"))
    declared = {key: tuple(map(str, values)) for key, values in attributes.items() if isinstance(values, list)}
    return TaskInfo(
        description=str(configured.get("description") or ""),
        rubric=None if rubric is None else {factor: _description(value) for factor, value in rubric.items()},
        metrics={
            factor: metric for factor, value in (rubric or {}).items() if (metric := metric_of(value)) is not None
        },
        attributes=declared,
        drawn=_drawn(_map(configured.get("sampling")).get("target"), len(declared)),
        label_attributes=tuple(map(str, configured.get("label_attributes") or ())),
        is_configured=bool(configured),
        is_pairwise=configured.get("evaluation_mode") == "pairwise",
        weights=weights_in(weighed),
        grading=stored_grading_text(configured),
    )


def _drawn(target: object, declared: int) -> tuple[int, int] | None:
    """Return with how many attributes, at least and at most, `sampling.target` has items made."""
    if target == "all":
        return declared, declared
    bounds = target if isinstance(target, list) else [target]  # one number is both bounds
    if not bounds or not all(isinstance(bound, int) for bound in bounds):
        return None
    return min(min(bounds), declared), min(max(bounds), declared)


def _description(value: object) -> str:
    return str(value.get("description") or value.get("metric") or "") if isinstance(value, Mapping) else str(value)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


LEVELS = {"high": 1.0, "medium": 0.5, "low": 0.0}  # level -> score
LEVEL_WORDS = {value: name.capitalize() for name, value in LEVELS.items()}  # score -> the word for it
_PHASES = {"data_generation": "P3", "response_collection": "P4", "evaluation": "P5"}
_MAX_TOKENS = 10**9  # no answer is longer, and `1e400` is infinite
_Parsed = TypeVar("_Parsed")


@dataclass
class Skips:
    """Counts of what was left out, with an example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, code: str, example: str) -> None:
        """Count one; the example is the first by name, whatever the order of records."""
        self.counts[code] += 1
        self.examples[code] = min(example, self.examples.get(code, example))

    def rows(self) -> tuple[Skipped, ...]:
        """Return the counts of records that were left out, by code."""
        return tuple(Skipped(code, count, self.examples[code]) for code, count in sorted(self.counts.items()))


@dataclass(slots=True)
class Judgement:
    """A judge's scores of a response, from all its records."""

    response: str
    judge: str
    datapoint: str
    task: str
    teacher: str
    student: str  # empty where the record does not tell
    scores: dict[str, float] = field(default_factory=dict)
    levels: frozenset[str] = frozenset()  # factors with a level as score
    invalid: frozenset[str] = frozenset()
    at: str = ""  # when it was last evaluated
    failed: bool = True
    code: str = ""  # why it is left out; empty: it is valid


@dataclass(frozen=True)
class Records:
    """The records of a run, joined."""

    info: RunInfo
    items: Mapping[str, Item]
    answers: Mapping[str, Answer]
    judgements: tuple[Judgement, ...]  # by (response, judge)
    verdicts: tuple[Preference, ...]  # on pairs of answers, by item, pair and judge
    failed_verdicts: tuple[Comparison, ...]  # of which a judge gave none
    skips: Skips
    counts: Counter[tuple[str, str, str, str, str, bool]]  # (phase, task, teacher, student, judge, failed) -> records


def norm_of(value: object) -> tuple[float, bool] | None:
    """Return a score in [0, 1] and whether it is a level; None where it is neither level nor number."""
    if isinstance(value, str) and value.strip().lower() in LEVELS:
        return LEVELS[value.strip().lower()], True
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return (min(max(number, 0.0), 1.0), False) if math.isfinite(number) else None


def read_run(run: Run, info: RunInfo) -> Records:
    """Read phases 3 to 5 and join them."""
    skips, counts = Skips(), Counter[tuple[str, str, str, str, str, bool]]()
    with_text = {name for name, task in info.tasks.items() if task.label_attributes}
    prompts = PromptIndex()
    items = _last_valid(run, "data_generation", skips, counts, lambda record: _item(record, prompts))
    answers = _last_valid(run, "response_collection", skips, counts, lambda record: _answer(record, with_text), items)
    judgements = _judgements(run, items, answers, skips, counts)
    for judgement in judgements:
        # Fill in task, teacher and student from response and datapoint, else from the ids.
        answer = answers.get(judgement.response)
        if answer is not None:
            judgement.datapoint, judgement.student = answer.datapoint, answer.student
        judgement.datapoint = judgement.datapoint or judgement.response.rpartition("__")[0]
        judgement.student = judgement.student or judgement.response.rpartition("__")[2]
        item = items.get(judgement.datapoint)
        if item is not None:
            judgement.task, judgement.teacher = item.task, item.teacher
        judgement.task = judgement.task or _part(judgement.response, 0)
        judgement.teacher = judgement.teacher or _part(judgement.response, 1)
        judgement.code = _check(judgement, items, answers, info)
        if judgement.code and not judgement.failed:
            skips.note(judgement.code, f"{judgement.response}__{judgement.judge}")
    verdicts, failed_verdicts = read_verdicts(run, items, answers, skips.note, counts)
    return Records(
        info=info,
        items=items,
        answers=answers,
        judgements=judgements,
        verdicts=verdicts,
        failed_verdicts=failed_verdicts,
        skips=skips,
        counts=counts,
    )


def _last_valid(
    run: Run,
    phase: str,
    skips: Skips,
    counts: Counter[Any],
    make: Callable[[dict[str, Any]], _Parsed | None],
    items: Mapping[str, Item] | None = None,
) -> dict[str, _Parsed]:
    """Return records by id, without answers to other prompts than these items have."""
    latest: dict[str, _Parsed] = {}
    for place, record in _records(run, phase, skips, counts):
        parsed = make(record)
        if parsed is None:
            skips.note(f"PARSE_ERROR_{_PHASES[phase]}", place)
            continue
        item = items.get(parsed.datapoint) if items is not None and isinstance(parsed, Answer) else None
        if item is not None and not is_answer_to(record, item.mark):
            skips.note("STALE_P4", record["id"])
            continue
        if record["id"] in latest:
            skips.note(f"DUPLICATE_{_PHASES[phase]}", record["id"])
        latest[record["id"]] = parsed
    return {identity: latest[identity] for identity in sorted(latest)}


def _records(run: Run, phase: str, skips: Skips, counts: Counter[Any]) -> Any:
    """Yield sound records with the file they are in, and note the others."""
    code = _PHASES[phase]

    def on_bad(path: Path, line: int, _why: str) -> None:
        skips.note(f"PARSE_ERROR_{code}", f"{path.parent.name}/{path.name}:{line}")

    for path in run.record_files(phase):
        place = f"{path.parent.name}/{path.name}"
        for record in read_records(path, on_bad):
            if not isinstance(record.get("id"), str):
                skips.note(f"PARSE_ERROR_{code}", place)
                continue
            keys = ("task_id", "teacher_model_id", "student_model_id", "judge_model_id")
            task, teacher, student, judge = (text_of(record, key) for key in keys)
            counts[phase, task, teacher, student, judge, is_failed(record)] += 1
            if is_failed(record) and phase != "evaluation":
                skips.note(f"FAILED_{code}", record["id"])
            else:
                yield place, record


def _part(identity: str, place: int) -> str:
    """Return a part of an id `task__teacher__seq__student__judge`; empty where it has fewer."""
    parts = identity.split("__")
    return parts[place] if len(parts) > place else ""


def _item(record: dict[str, Any], prompts: PromptIndex) -> Item | None:
    task = text_of(record, "task_id") or _part(record["id"], 0)
    teacher = text_of(record, "teacher_model_id") or _part(record["id"], 1)
    if not task or not teacher or not isinstance(record.get("prompt"), (str, list)):
        return None
    attributes = record.get("sampled_target_attributes")
    named = {str(key): str(value) for key, value in attributes.items()} if isinstance(attributes, Mapping) else {}
    # `repr`, since a prompt may be a list of turns; twelve bytes, since a large run keeps all of these in memory.
    key = hashlib.blake2b(repr(record["prompt"]).encode("utf-8", "replace")).digest()[:12]
    return Item(
        task=task,
        teacher=teacher,
        attributes=named,
        prompt_key=key,
        mark=item_mark(record),
        cluster=prompts.add(text_in(record["prompt"])),
    )


def _answer(record: dict[str, Any], with_text: set[str]) -> Answer | None:
    datapoint = text_of(record, "datapoint_id") or record["id"].rpartition("__")[0]
    student = text_of(record, "student_model_id") or record["id"].rpartition("__")[2]
    text = record.get("response")
    if not datapoint or not student or not isinstance(text, str):
        return None
    tokens = record.get("token_count")
    is_count = isinstance(tokens, (int, float)) and not isinstance(tokens, bool) and 0 < tokens <= _MAX_TOKENS
    # Where nobody counted: about four letters a token.
    length = float(tokens) if is_count else float(max(1, len(text) // 4))  # type: ignore[arg-type]
    task = text_of(record, "task_id") or _part(datapoint, 0)
    return Answer(datapoint, student, length, text if task in with_text else None, answer_mark(record))


def _judgements(
    run: Run, items: Mapping[str, Item], answers: Mapping[str, Answer], skips: Skips, counts: Counter[Any]
) -> tuple[Judgement, ...]:
    """Return one judgement for each (response, judge), with the last valid score of each factor."""
    judgements: dict[tuple[str, str], Judgement] = {}
    for place, record in _records(run, "evaluation", skips, counts):
        response, judge = evaluation_of(record)
        scores = record.get("scores")
        if not response or not judge or not (isinstance(scores, Mapping) or is_failed(record)):
            skips.note("PARSE_ERROR_P5", place)
            continue
        if is_failed(record):
            skips.note("FAILED_P5", record["id"])
        else:
            answer = answers.get(response)
            item = None if answer is None else items.get(answer.datapoint)
            # Scores of texts that have changed since.
            if answer is not None and item is not None and not is_judgement_of(record, item.mark, [answer.mark]):
                skips.note("STALE_P5", record["id"])
                continue
        _merge(judgements, record, response, judge, skips)
    return tuple(judgements[key] for key in sorted(judgements))


def _merge(
    judgements: dict[tuple[str, str], Judgement], record: dict[str, Any], response: str, judge: str, skips: Skips
) -> None:
    before = judgements.get((response, judge))
    if before is None:
        keys = ("datapoint_id", "task_id", "teacher_model_id", "student_model_id")
        # Interned, as hundreds of thousands of judgements share these names.
        datapoint, task, teacher, student = (sys.intern(text_of(record, key)) for key in keys)
        response, judge = sys.intern(response), sys.intern(judge)
        before = judgements[response, judge] = Judgement(
            response=response, judge=judge, datapoint=datapoint, task=task, teacher=teacher, student=student
        )
    elif not before.failed and not is_failed(record):
        skips.note("DUPLICATE_P5", record["id"])
    if is_failed(record):
        return
    before.failed = False
    before.at = max(before.at, sys.intern(text_of(record, "evaluated_at")))
    norms = {sys.intern(factor): norm_of(value) for factor, value in record["scores"].items()}
    valid = {factor: norm for factor, norm in norms.items() if norm is not None}
    before.scores.update({factor: score for factor, (score, _) in valid.items()})
    before.invalid = _shared(before.invalid.union(norms.keys() - valid.keys()))
    levels = {factor for factor, (_, is_level) in valid.items() if is_level}
    before.levels = _shared(before.levels.difference(valid).union(levels))


@lru_cache(maxsize=4096)
def _shared(names: frozenset[str]) -> frozenset[str]:
    """Return the first of equal sets: most judgements have the same factors."""
    return names


def _check(judgement: Judgement, items: Mapping[str, Item], answers: Mapping[str, Answer], info: RunInfo) -> str:
    """Return why a judgement is left out, empty if it counts; only factors that its judge has to score are kept."""
    if judgement.failed:
        return "FAILED_P5"
    if judgement.response not in answers:
        return "MISSING_RESPONSE"
    if judgement.datapoint not in items:
        return "MISSING_DATAPOINT"
    named = {*judgement.scores, *judgement.invalid}
    kind = info.kind(judgement.judge, judgement.task, named)
    required = info.required(kind, judgement.task, judgement.judge)
    needed = named if required is None else set(required)
    if kind == "label":  # an item has only the labels that it was made with
        made_with = {f"{LABEL_PREFIX}{name}" for name in items[judgement.datapoint].attributes}
        needed = needed & made_with or needed
    computed = set(info.required(kind, judgement.task) or ()) if kind == "metric" else set()
    computed &= set(judgement.scores)  # in earlier runs a metric judge computed all metrics, not only its own
    needed = needed or computed
    if any(factor in judgement.invalid and factor not in judgement.scores for factor in needed):
        return "INVALID_SCORE_VALUE"
    if not needed or not needed <= set(judgement.scores):
        return "INCOMPLETE_SCORES"
    judgement.scores = {factor: judgement.scores[factor] for factor in sorted(needed | computed)}
    return ""
