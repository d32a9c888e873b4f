"""What a run lacks: records that its configuration and earlier phases call for, and records that are unusable."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coeval.analysis.verdicts import WINNERS
from coeval.interfaces import VIRTUAL
from coeval.judging.grading import is_score
from coeval.phases.pairwise import Schedule, current_verdicts, meetings, read_verdicts
from coeval.schema import LABEL_PREFIX, PHASES, Phase, factors_for
from coeval.storage.meta import Meta
from coeval.storage.records import (
    LONGEST_RECORD,
    AnswerMark,
    ItemMark,
    answer_mark,
    as_line,
    first_items,
    is_answer_to,
    is_failed,
    is_judgement_of,
    item_mark,
    read_json,
    read_records,
)
from coeval.storage.run import RECORD_FOLDERS, Run, entries_of, stored_config
from p2l.common.files import atomic_path, bounded_lines, parse_json


@dataclass(frozen=True)
class Gap:
    """Missing records of a model."""

    kind: str  # kind of record; see `coeval.storage.run.RECORD_FOLDERS`
    task: str
    model: str
    missing: int


@dataclass(frozen=True)
class _StoredConfig:
    """The stored configuration, as far as it can be read."""

    tasks: Sequence[Mapping[str, Any]]
    models: Sequence[Mapping[str, Any]]

    def names(self, role: str) -> list[tuple[str, str, Any]]:
        """Return (name, interface, metric) of the models in a role."""
        models = [model for model in self.models if role in (model.get("roles") or ())]
        named = []
        for model in models:
            parameters = model.get("parameters")
            metric = parameters.get("metric") if isinstance(parameters, dict) else None
            named.append((str(model.get("name")), str(model.get("interface")), metric))
        return named

    def judges(self, task: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
        """Return the judges of a task, as `coeval.schema.judges_of` does for a loaded configuration."""
        judges = self.names("judge")
        has_label = any(interface == "label" for _, interface, _ in judges)
        return judges if has_label or not task.get("label_attributes") else [*judges, ("label", "label", None)]


@dataclass(frozen=True)
class _Present:
    """The items and answers of a task that exist, by id."""

    run: Run
    task: Mapping[str, Any]
    items: Mapping[str, ItemMark]
    by_teacher: Mapping[str, Collection[str]]  # teacher -> ids of its items
    by_student: Mapping[str, Mapping[str, AnswerMark]]  # student -> its answers to the current items
    answers: Mapping[str, AnswerMark]  # those of the configured students

    @property
    def name(self) -> str:
        """The name of the task."""
        return str(self.task.get("name"))

    def has(self, record: Mapping[str, Any]) -> bool:
        """Whether a judge's record is about an existing answer."""
        item, answer = self._pair(str(record.get("response_id")))
        return answer is not None and (item is None or is_judgement_of(record, item, [answer]))

    def required(self, response: str, factors: set[str]) -> set[str]:
        """Return the factors that an answer needs scores for: labels only where its item has them."""
        item, _ = self._pair(response)
        names = () if item is None else item.attributes
        return {
            factor
            for factor in factors
            if not factor.startswith(LABEL_PREFIX) or factor.removeprefix(LABEL_PREFIX) in names
        }

    def first(self, limits: Mapping[str, int]) -> _Present:
        """Return what there is of the first items, where a task (name -> number) has a limit."""
        if self.name not in limits:
            return self
        chosen = first_items(self.items, limits[self.name])
        return replace(
            self,
            by_teacher={teacher: [each for each in ids if each in chosen] for teacher, ids in self.by_teacher.items()},
            answers={each: mark for each, mark in self.answers.items() if each.rpartition("__")[0] in chosen},
        )

    def _pair(self, response: str) -> tuple[ItemMark | None, AnswerMark | None]:
        # The id of an answer is that of its item and the student's name, which holds no `__`.
        return self.items.get(response.rpartition("__")[0]), self.answers.get(response)


def _judged_items(run: Run, raw: Mapping[str, Any]) -> Mapping[str, int]:
    """Return how many items of each task are judged, where the first place was decided by them; empty: all."""
    experiment, decided = raw.get("experiment"), Meta(run).data.get("decided") if run.meta.exists() else None
    if not isinstance(experiment, dict) or experiment.get("stop_at") is None or not isinstance(decided, dict):
        return {}
    items = decided.get("items")
    return {str(task): number for task, number in items.items()} if isinstance(items, dict) else {}


def find_gaps(run: Run, kinds: Collection[str] = tuple(RECORD_FOLDERS)) -> Iterator[Gap]:
    """Yield the gaps in these kinds of records; none if the stored configuration cannot be read."""
    raw = stored_config(run)
    config = _StoredConfig(entries_of(raw, "tasks"), entries_of(raw, "models"))
    limits = _judged_items(run, raw)
    for task in config.tasks:
        present = _present(run, config, task, with_answers=bool(set(kinds) - {"data_generation"}))
        for kind, needs_of in _NEEDS.items():
            needed = present.first(limits) if kind in _JUDGED else present
            for model, missing, _ in needs_of(config, needed) if kind in kinds else ():
                if missing:
                    yield Gap(kind, present.name, model, missing)


WORDS = {
    "data_generation": "items",
    "response_collection": "responses",
    "evaluation": "evaluations",
    "pairwise": "pairs",
}
"""Kind of record -> what it is called in messages."""


def missing_text(run: Run) -> str:
    """Return what a run lacks, by kind of record and model; empty if nothing is missing."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for gap in find_gaps(run):
        counts[gap.kind, gap.model] += gap.missing
    return ", ".join(f"{count} {WORDS[kind]} of {model}" for (kind, model), count in counts.items())


def progress_of(run: Run) -> dict[str, tuple[int, int]]:
    """Return kind of record -> how many are missing and how many there should be, in the end: those included that rest
    on records still to be made."""
    raw = stored_config(run)
    counts = dict.fromkeys(_NEEDS, (0, 0))
    config = _StoredConfig(entries_of(raw, "tasks"), entries_of(raw, "models"))
    limits = _judged_items(run, raw)
    for task in config.tasks:
        present = _present(run, config, task, with_answers=True)
        for kind, needs_of in _NEEDS.items():
            needs = list(needs_of(config, present.first(limits) if kind in _JUDGED else present))
            missing, expected = counts[kind]
            missing += sum(model_missing for _, model_missing, _ in needs)
            expected += sum(model_expected for _, _, model_expected in needs)
            counts[kind] = (missing, expected)
            if kind == "data_generation":
                present = _with_items(present, {teacher: count for teacher, count, _ in needs})
            elif kind == "response_collection":
                # With the answers that students will have given, there are scores and pairs to come.
                students = [student for student, count, _ in needs if count]
                to_come = {f"{item}__{student}": AnswerMark("", "") for student in students for item in present.items}
                present = replace(present, answers={**to_come, **present.answers})
    return counts


def _with_items(present: _Present, missing: Mapping[str, int]) -> _Present:
    """Return what there is with the items that teachers will have written."""
    added = {
        teacher: {f"{present.name}__{teacher}__to come {number}" for number in range(count)}
        for teacher, count in missing.items()
    }
    labels = tuple(present.task.get("label_attributes") or ())
    items = {identity: ItemMark("", "", labels) for identities in added.values() for identity in identities}
    by_teacher = {
        teacher: {*present.by_teacher.get(teacher, ()), *added.get(teacher, ())}
        for teacher in {*present.by_teacher, *added}
    }
    return replace(present, items={**present.items, **items}, by_teacher=by_teacher)


def _present(run: Run, config: _StoredConfig, task: Mapping[str, Any], *, with_answers: bool) -> _Present:
    items, by_teacher = dict[str, ItemMark](), defaultdict[str, set[str]](set)
    for record in _valid(run, "data_generation", task, "prompt"):
        by_teacher[str(record.get("teacher_model_id"))].add(str(record.get("id")))
        items[str(record.get("id"))] = item_mark(record)
    by_student = defaultdict[str, dict[str, AnswerMark]](dict)
    for record in _valid(run, "response_collection", task, "response") if with_answers else ():
        item = items.get(str(record.get("datapoint_id")))
        if item is None or is_answer_to(record, item):
            by_student[str(record.get("student_model_id"))][str(record.get("id"))] = answer_mark(record)
    students = {student for student, *_ in config.names("student")}
    answers = {identity: mark for name in students for identity, mark in by_student[name].items()}
    return _Present(run, task, items, by_teacher, by_student, answers)


def _valid(run: Run, kind: str, task: Mapping[str, Any], needed: str) -> Iterator[dict[str, Any]]:
    for path in run.record_files(kind, str(task.get("name"))):
        yield from (record for record in read_records(path) if not is_failed(record) and record.get(needed))


# Models, with how many of their records are missing, and how many there should be.
_Needs = Iterator[tuple[str, int, int]]


def _items(config: _StoredConfig, present: _Present) -> _Needs:
    sampling = present.task.get("sampling")
    total = int(sampling.get("total") or 0) if isinstance(sampling, dict) else 0
    for teacher, interface, _ in config.names("teacher"):
        stored = len(present.by_teacher.get(teacher, ()))
        expected = stored if interface == "benchmark" else max(total, stored)
        yield teacher, expected - stored, expected


def _answers(config: _StoredConfig, present: _Present) -> _Needs:
    for student, interface, _ in config.names("student"):
        answered = {identity.rpartition("__")[0] for identity in present.by_student.get(student, ())}
        is_made = interface == "answers"  # there is what was ingested
        expected = answered if is_made else present.items.keys()
        yield student, len(expected - answered), len(expected)


def _scores(config: _StoredConfig, present: _Present) -> _Needs:
    rubric = read_json(present.run.rubric(present.name))
    labels = present.task.get("label_attributes") or ()
    definitions = rubric if isinstance(rubric, dict) else present.task.get("rubric")
    for judge, interface, metric in config.judges(present.task):
        if present.task.get("evaluation_mode") != "pairwise" or interface in VIRTUAL:
            factors = set(factors_for(interface, metric, labels, definitions if isinstance(definitions, dict) else {}))
            if not isinstance(definitions, dict) and interface not in VIRTUAL:
                factors = {""}  # unknown, as long as the rubric is not written
            if factors:
                missing, expected = _unscored(judge, factors, present)
                yield judge, missing, expected


def _pairs(config: _StoredConfig, present: _Present) -> _Needs:
    """Yield what is needed of verdicts: all pairs of answers to an item are due, or as many as the schedule has."""
    if present.task.get("evaluation_mode") != "pairwise":
        return
    pairwise = present.task.get("pairwise")
    limit = pairwise.get("pairs") if isinstance(pairwise, dict) else None
    most = limit if isinstance(limit, int) else None
    answered: dict[str, list[str]] = {}
    for datapoint, _, student in (identity.rpartition("__") for identity in present.answers):
        answered.setdefault(datapoint, []).append(student)
    possible = [meetings({one: answered.get(one, []) for one in ids}) for ids in present.by_teacher.values()]
    is_current = current_verdicts(present.items, present.answers)
    for judge, interface, _ in config.judges(present.task):
        if interface not in VIRTUAL:
            files = present.run.record_files("pairwise", present.name, judge)
            verdicts = read_verdicts(files, judge, is_current).winners
            expected = sum(len(part) if most is None else min(len(part), most) for part in possible)
            yield judge, sum(Schedule(part, verdicts, most, seed=0).left for part in possible), expected


def _unscored(judge: str, factors: set[str], present: _Present) -> tuple[int, int]:
    """Return how many answers lack a score of a judge for one of these factors, and how many need one."""
    left = {response: present.required(response, factors) for response in present.answers}
    expected = sum(map(bool, left.values()))
    for path in present.run.record_files("evaluation", present.name, judge):
        for record in read_records(path):
            if record.get("judge_model_id") == judge and not is_failed(record) and present.has(record):
                scores = record.get("scores")
                factor_scores = scores.items() if isinstance(scores, dict) else ()
                left[record["response_id"]] -= {factor for factor, score in factor_scores if is_score(score)}
    return sum(map(bool, left.values())), expected


_JUDGED = ("evaluation", "pairwise")
# Kind of record -> function that yields what is needed of each model.
_NEEDS = {"data_generation": _items, "response_collection": _answers, "evaluation": _scores, "pairwise": _pairs}


# Unusable is an item without reference, an answer without text, an evaluation without scores, a verdict without winner,
# and what was built on one, or on a text that has changed since. Unusable items and answers are marked as failed,
# evaluations and verdicts are removed: `coeval run --continue` makes them anew.

_COPIED_BYTES = 1 << 20  # of a line, at once
KINDS = ("data_generation", "response_collection", "evaluation", "pairwise")
# Kind -> the kind that it is built on, and the keys that say on which records.
_UPSTREAM = {
    "response_collection": ("data_generation", ("datapoint_id",)),
    "evaluation": ("response_collection", ("response_id",)),
    "pairwise": ("response_collection", ("response_a_id", "response_b_id")),
}


@dataclass(frozen=True)
class _BadLine:
    """An unusable line."""

    path: Path
    number: int
    id: str | None
    reason: str
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class Inspection:
    """The state of the records of one kind."""

    kind: str
    valid: set[str] = field(default_factory=set)
    marks: dict[str, Any] = field(default_factory=dict, repr=False)  # id of a valid item or answer -> mark of its texts
    bad: list[_BadLine] = field(default_factory=list)  # unusable lines whose record is nowhere else
    gaps: list[Gap] = field(default_factory=list)

    @property
    def phase(self) -> Phase:
        """The phase that makes these records."""
        return next((phase for phase in PHASES if phase == self.kind), "evaluation")

    @property
    def is_lacking(self) -> bool:
        """Whether something is to be made anew."""
        return bool(self.gaps) or any(bad.id is not None for bad in self.bad)


def examine(run: Run) -> dict[str, Inspection]:
    """Look through all records, by kind; RunInputError if the folder holds no run."""
    Meta(run)
    inspections = {kind: Inspection(kind) for kind in KINDS}
    for kind, inspection in inspections.items():
        upstream, parents = _UPSTREAM.get(kind, (kind, ()))
        lost = {bad.id for bad in inspections[upstream].bad if bad.id is not None}
        for path in run.record_files(kind):
            for number, record in _lines(path):
                if record is None:
                    inspection.bad.append(_BadLine(path, number, None, "no JSON object"))
                    continue
                reason = _fault(kind, record)
                if reason is None and any(str(record.get(parent)) in lost for parent in parents):
                    reason = f"its {'item' if kind == 'response_collection' else 'response'} is unusable"
                reason = reason or _fault_of_texts(kind, record, inspections)
                if reason is not None:
                    inspection.bad.append(_BadLine(path, number, str(record.get("id")), reason, record))
                    continue
                inspection.valid.add(str(record.get("id")))
                if kind in _MARKS:
                    inspection.marks[str(record.get("id"))] = _MARKS[kind](record)
        inspection.bad = [bad for bad in inspection.bad if bad.id is None or bad.id not in inspection.valid]
    for gap in find_gaps(run):
        inspections[gap.kind].gaps.append(gap)
    return inspections


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield number and record of each line that is not blank; None where it holds no JSON object."""
    with path.open("rb") as lines:
        for number, (line, _) in enumerate(bounded_lines(lines, LONGEST_RECORD), start=1):
            if not line:
                yield number, None
            elif line.strip():
                try:
                    record = parse_json(line)
                except ValueError:
                    record = None
                yield number, record if isinstance(record, dict) else None


_MARKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "data_generation": item_mark,
    "response_collection": answer_mark,
}


def _fault_of_texts(kind: str, record: Mapping[str, Any], inspections: Mapping[str, Inspection]) -> str | None:
    """Return why a record is not about the texts that are there, as far as they are."""
    item = inspections["data_generation"].marks.get(str(record.get("datapoint_id")))
    if kind == "data_generation" or item is None:
        return None
    if kind == "response_collection":
        return None if is_answer_to(record, item) else "its item has another prompt now"
    marks = inspections["response_collection"].marks
    answers = [marks.get(str(record.get(parent))) for parent in _UPSTREAM[kind][1]]
    if None in answers or is_judgement_of(record, item, [answer for answer in answers if answer is not None]):
        return None
    return "its response is another now"


def _fault(kind: str, record: Mapping[str, Any]) -> str | None:
    """Return why a record is unusable; None for a usable one."""
    if is_failed(record):
        return "failed"
    if not record.get("id"):
        return "no id"
    if kind == "pairwise":
        for key in ("datapoint_id", "model_a", "model_b", "judge_model_id"):
            if not isinstance(record.get(key), str):
                return f"no {key}"
        if record["model_a"] == record["model_b"]:
            return "one model twice"
        return None if record.get("winner") in WINNERS else "no winner"
    if kind == "evaluation":
        scores = record.get("scores")
        if not isinstance(scores, dict) or not scores:
            return "empty scores"
        return None if all(is_score(score) for score in scores.values()) else "a score that is none"
    needed = ("prompt",) if record.get("benchmark_id") else _NEEDED[kind]  # prompts may be ingested without reference
    empty = [key for key in needed if not str(record.get(key) or "").strip()]
    return f"empty {empty[0]}" if empty else None


_NEEDED = {"data_generation": ("prompt", "reference_response"), "response_collection": ("response",)}


def mend(run: Run, inspections: Mapping[str, Inspection], kinds: tuple[str, ...] = KINDS) -> int:
    """Mark and remove useless records, open their phases; return the changed lines; InputError if unwritable."""
    changed = 0
    shutil.rmtree(run.waiting, ignore_errors=True)  # they may judge what is made anew
    for kind in kinds:
        is_judged = kind in ("evaluation", "pairwise")
        by_file: dict[Path, dict[int, _BadLine]] = {}
        for bad in inspections[kind].bad:
            if is_judged or bad.reason != "failed":
                by_file.setdefault(bad.path, {})[bad.number] = bad
        for path, bad_lines in by_file.items():
            _rewrite(path, bad_lines, keep=not is_judged)
            changed += len(bad_lines)
    lacking = {inspections[kind].phase for kind in kinds if inspections[kind].is_lacking}
    if lacking:
        # The first phase that lacks something is open again, and so are all after it, which build on its records.
        meta = Meta(run)
        first = min(lacking, key=PHASES.index)
        opened = PHASES[PHASES.index(first) :]
        in_progress = [phase for phase in meta.data.get("phases_in_progress") or [] if phase not in opened]
        meta.update(
            phases_completed=[phase for phase in meta.completed if phase not in opened],
            phases_in_progress=[*in_progress, first],
            status="in_progress",
        )
    return changed


def _rewrite(path: Path, bad: Mapping[int, _BadLine], *, keep: bool) -> None:
    """Replace a file by one whose bad records are marked as failed (`keep`), or are in `{name}.bad` instead."""
    aside = path.with_name(f"{path.name}.bad")
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as file,
        aside.open("ab") as removed,
        path.open("rb") as old,
    ):
        number, is_begin = 0, True
        while piece := old.readline(_COPIED_BYTES):
            number += is_begin
            is_marked = keep and number in bad and bad[number].id is not None
            if is_marked:
                file.write(as_line({**bad[number].record, "status": "failed"}) if is_begin else b"")
            else:
                (removed if number in bad else file).write(piece)
            is_begin = piece.endswith(b"\n")
            if not is_begin and len(piece) < _COPIED_BYTES and not is_marked:  # the last line has no end
                (removed if number in bad else file).write(b"\n")
    if not aside.stat().st_size:
        aside.unlink()
