"""How many calls a run makes, phase by phase, and of how many tokens.

With T teachers, S students, J judges and N items per teacher, one task takes T calls for each map or rubric that is
left to teachers, T N items, T S N answers, and J T S N judgements (times the factors in mode `per_factor`) or
J T N S (S - 1) / 2 comparisons in each order (mode `pairwise`). Stored records are counted first and not asked again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from coeval.phases.start import continued_modes, extended_tasks
from coeval.schema import PHASES, Config, Mode, Model, Phase, Task, required_factors
from coeval.storage.records import (
    AnswerMark,
    ItemMark,
    answer_mark,
    is_answer_to,
    is_failed,
    is_judgement_of,
    item_mark,
    read_json,
    read_records,
)
from coeval.storage.run import Run, renewed_phases

T = TypeVar("T")
_NAMES = ("task_id", "teacher_model_id", "student_model_id", "judge_model_id", "model_a", "model_b")
_SLIM = frozenset((*_NAMES, "id", "datapoint_id", "response_id", "scores"))


@dataclass
class Stored:
    """The valid records of a run, counted by model; each id once."""

    attributes: set[tuple[str, str]] = field(default_factory=set)  # (task, target or nuanced)
    rubrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    items: Counter[tuple[str, str]] = field(default_factory=Counter)  # (task, teacher)
    responses: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (task, teacher, student)
    # (task, teacher, student, judge) -> factor -> answers with a score for it.
    scores: dict[tuple[str, str, str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    # (task, teacher, judge, student, student), the students in order of their names.
    pairs: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    completed: tuple[str, ...] = ()  # phases that are complete
    settled: tuple[str, ...] = ()  # these, and phases that were kept as they are


def read_stored(run: Run) -> Stored:
    """Count the valid records in a run's folder."""
    stored = Stored()
    for path in sorted((run.folder / "phase1_attributes").glob("[!.]*.json")):
        for kind in ("target", "nuanced"):
            # A run may have either name of these files: `coeval.storage.run`.
            for ending in (f"_{kind}_attrs.json", f".{kind}_attrs.json"):
                if path.name.endswith(ending) and isinstance(read_json(path), dict):
                    stored.attributes.add((path.name.removesuffix(ending), kind))
    for path in sorted((run.folder / "phase2_rubric").glob("[!.]*.rubric.json")):
        rubric = read_json(path)
        if isinstance(rubric, dict):
            stored.rubrics[path.name.partition(".")[0]] = rubric
    _count_records(run, stored)
    meta = read_json(run.meta)
    stored.completed = _phases(meta, "phases_completed")
    stored.settled = stored.completed + _phases(meta, "phases_kept")
    return stored


def _count_records(run: Run, stored: Stored) -> None:
    """Count the records about texts that still exist; the others are asked for again."""
    items, answers = dict[str, ItemMark](), dict[str, AnswerMark]()
    for record, mark in _records(run.record_files("data_generation"), item_mark):
        stored.items[record["task_id"], record["teacher_model_id"]] += 1
        items[str(record.get("id"))] = mark

    def present_answer(record: Mapping[str, Any]) -> AnswerMark | None:
        item = items.get(str(record.get("datapoint_id")))
        return answer_mark(record) if item is None or is_answer_to(record, item) else None

    for record, answer in _records(run.record_files("response_collection"), present_answer):
        stored.responses[record["task_id"], record["teacher_model_id"], record["student_model_id"]] += 1
        answers[str(record.get("id"))] = answer

    def is_current(record: Mapping[str, Any], *keys: str) -> bool:
        item = items.get(str(record.get("datapoint_id")))
        marks = [answers[name] for name in (str(record.get(key)) for key in keys) if name in answers]
        return item is None or (len(marks) == len(keys) and is_judgement_of(record, item, marks))

    for record, _ in _records(run.record_files("evaluation"), lambda record: is_current(record, "response_id")):
        # A score names the answer, not the student, and an answer's id is made of both.
        student = str(record["response_id"]).removeprefix(f"{record['datapoint_id']}__")
        names = (record["task_id"], record["teacher_model_id"], student, record["judge_model_id"])
        stored.scores[names].update(record["scores"].keys())
    both = ("response_a_id", "response_b_id")
    for record, _ in _records(run.record_files("pairwise"), lambda record: is_current(record, *both)):
        first, second = sorted(str(record.get(side)) for side in ("model_a", "model_b"))
        stored.pairs[record["task_id"], record["teacher_model_id"], record["judge_model_id"], first, second] += 1


def _phases(meta: Any, key: str) -> tuple[str, ...]:
    phases = meta.get(key) if isinstance(meta, dict) else None
    return tuple(map(str, phases)) if isinstance(phases, list) else ()


def _records(paths: Iterable[Path], look: Callable[[dict[str, Any]], T | None]) -> Iterator[tuple[dict[str, Any], T]]:
    """Yield valid records without their texts, of each id the last, and what `look` returned for it, unless empty.

    `look` is called as the file is read, so that the texts of a file are never in memory at once.
    """
    for path in paths:
        last: dict[str, tuple[dict[str, Any], T | None]] = {}
        for record in read_records(path):
            is_valid = not is_failed(record) and _has_names(record)
            slim = {key: value for key, value in record.items() if key in _SLIM}
            # A record that was asked for again stands under the same id further down, so the last one counts.
            last[str(record.get("id"))] = slim, look(record) if is_valid else None
        yield from ((record, mark) for record, mark in last.values() if mark)


def _has_names(record: dict[str, Any]) -> bool:
    """Whether a record names its task and models; records of an earlier format may not."""
    if not isinstance(record.get("scores", {}), dict):
        return False
    keys = ["task_id", "teacher_model_id"]
    if "response_id" in record:
        keys += ["judge_model_id", "datapoint_id"]
    elif "datapoint_id" in record and "winner" not in record:
        keys += ["student_model_id"]
    return all(isinstance(record.get(key), str) for key in keys)


class Tokens(NamedTuple):
    """Tokens of an average call."""

    input: int
    output: int


TOKENS: Mapping[str, Tokens] = {
    "attribute_mapping": Tokens(250, 200),
    "rubric_mapping": Tokens(300, 200),
    "data_generation": Tokens(350, 250),
    "response_collection": Tokens(200, 180),
    "evaluation": Tokens(600, 100),
    "pairwise": Tokens(780, 10),
}
"""Assumed for each phase."""
_RATIONALE_TOKENS = 60  # further tokens of an answer with a rationale
_PASSAGE_TOKENS = 600  # further tokens of a question with a passage of a document
_UNKNOWN_FACTORS = 4  # assumed of a rubric that teachers have yet to write
Key = TypeVar("Key")


@dataclass(frozen=True)
class Work:
    """Calls of one model in one phase of one task."""

    phase: Phase
    task: str
    model: Model
    calls: int
    tokens: Tokens


def work_of(
    config: Config,
    stored: Stored | None = None,
    modes: Mapping[Any, Mode] | None = None,
    only: Collection[str] | None = None,
) -> list[Work]:
    """Return the calls that are left besides `stored` records; `modes` are the configuration's by default."""
    chosen = dict(modes or config.experiment.phases)
    chosen.update(dict.fromkeys(renewed_phases(chosen), "New"))  # records built on renewed ones are renewed too
    count = _Count(config, stored or Stored(), chosen, only)
    return [work for task in config.tasks for work in count.of(task) if work.calls]


class Remaining(NamedTuple):
    """The calls that are left of a run, or of a new one."""

    stored: Stored
    modes: Mapping[Any, Mode]
    work: list[Work]


def remaining(
    config: Config,
    run: Run | None = None,
    modes: Mapping[Any, Mode] | None = None,
    only: Collection[str] | None = None,
) -> Remaining:
    """Return what is stored of a run that continues, or of none, and what is left to ask.

    `modes` are by default those of a continued run, or the configuration's; phases 3 to 5 are confined to the models
    `only`, if it is given.
    """
    source = config.experiment.resume_folder
    if run is not None:
        stored = read_stored(run)
    elif source is not None:  # whose records the new run will copy
        stored = read_stored(Run(source))
        for task in extended_tasks(config):
            stored.rubrics.pop(task, None)
    else:
        stored = Stored()
    chosen = modes or (continued_modes(config, stored.settled) if run else config.experiment.phases)
    return Remaining(stored, chosen, work_of(config, stored, chosen, only))


def tokens_by_phase(work: Iterable[Work]) -> dict[Phase, float]:
    """Return the tokens of answers that are asked for in each phase, which is what models take their time for."""
    tokens = dict.fromkeys(PHASES, 0.0)
    for entry in work:
        tokens[entry.phase] += entry.calls * entry.tokens.output
    return tokens


@dataclass(frozen=True)
class _Count:
    """The calls of one run, task by task."""

    config: Config
    stored: Stored
    modes: dict[Any, Mode]
    only: Collection[str] | None

    def of(self, task: Task) -> Iterator[Work]:
        """Yield the calls of a task, phase by phase."""
        teachers = [teacher for teacher in self.config.with_role("teacher") if not teacher.is_virtual]
        kinds = {"target": task.target_attributes, "nuanced": task.nuanced_attributes}
        maps = sum(
            self.modes[PHASES[0]] == "New" or (task.name, kind) not in self.stored.attributes
            for kind, setting in kinds.items()
            if isinstance(setting, str)
        )
        is_rubric_missing = self.modes[PHASES[1]] == "New" or task.name not in self.stored.rubrics
        rubrics = int(isinstance(task.rubric, str) and is_rubric_missing)
        items = self._items(task)
        for teacher in teachers:
            yield Work(PHASES[0], task.name, teacher, maps, TOKENS[PHASES[0]])
            yield Work(PHASES[1], task.name, teacher, rubrics, TOKENS[PHASES[1]])
            written = self._retained(PHASES[2], self.stored.items[task.name, teacher.name])
            input_, output = TOKENS[PHASES[2]]
            tokens = Tokens(input_ + (_PASSAGE_TOKENS if task.documents else 0), output)
            yield Work(PHASES[2], task.name, teacher, items[teacher.name] - written, tokens)
        answers = self._answers(task)
        for student in self.config.with_role("student"):
            missing = self._missing_answers(task, student, items)
            answers.update({(name, student.name): number for name, number in missing.items()})
            yield Work(PHASES[3], task.name, student, sum(missing.values()), TOKENS[PHASES[3]])
        for judge in self.config.with_role("judge"):
            if not self._asks(judge):
                continue
            pairwise = task.evaluation_mode == "pairwise"
            calls = self._pairs(task, judge, answers) if pairwise else self._scores(task, judge, answers)
            input_, output = TOKENS["pairwise" if pairwise else PHASES[4]]
            tokens = Tokens(input_, output + (_RATIONALE_TOKENS if task.rationale else 0))
            yield Work(PHASES[4], task.name, judge, calls, tokens)

    def _asks(self, model: Model) -> bool:
        """Whether phases 3 to 5 ask this model."""
        return not model.is_virtual and (self.only is None or model.name in self.only)

    def _retained(self, phase: Phase, number: int) -> int:
        """Return how many stored records stay."""
        return 0 if self.modes[phase] == "New" else number

    def _items(self, task: Task) -> dict[str, int]:
        """Return teacher -> items at the end, also of teachers that left the configuration."""
        there = _of(self.stored.items, task.name)
        counts = {name: self._retained(PHASES[2], number) for (name,), number in there.items()}
        for teacher in self.config.with_role("teacher"):
            number = counts.setdefault(teacher.name, 0)
            missing = {teacher.name: max(0, task.sampling.total - number)} if self._asks(teacher) else {}
            counts[teacher.name] += sum(self._left(PHASES[2], missing, bool(there), bool(number)).values())
        return counts

    def _left(self, phase: Phase, missing: Mapping[Key, int], of_task: bool, of_model: bool) -> Mapping[Key, int]:
        """Return the missing records that are made: none if the mode keeps those of the task, or of the model."""
        mode = self.modes[phase]
        return {} if (mode == "Keep" and of_task) or (mode == "Model" and of_model) else missing

    def _answers(self, task: Task) -> Counter[tuple[str, ...]]:
        """Return (teacher, student) -> stored answers of the configured students."""
        there = _of(self.stored.responses, task.name)
        students = {student.name for student in self.config.with_role("student")}
        return Counter(
            {names: self._retained(PHASES[3], count) for names, count in there.items() if names[1] in students}
        )

    def _missing_answers(self, task: Task, student: Model, items: Mapping[str, int]) -> Mapping[str, int]:
        """Return teacher -> missing answers of a student."""
        if not self._asks(student):
            return {}
        there = self._answers(task)
        missing = {name: max(0, number - there[name, student.name]) for name, number in items.items()}
        of_model = any(there[name, student.name] for name in items)
        return self._left(PHASES[3], missing, bool(_of(self.stored.responses, task.name)), of_model)

    def _scores(self, task: Task, judge: Model, answers: Mapping[tuple[str, ...], int]) -> int:
        """Return the calls to a judge: one for each answer, or one for each of its factors."""
        rubric = task.rubric if not isinstance(task.rubric, str) else self.stored.rubrics.get(task.name)
        if rubric is None or (isinstance(task.rubric, str) and self.modes[PHASES[1]] == "New"):
            # Placeholders while the rubric is unknown.
            factors = tuple(f"factor {number}" for number in range(1, _UNKNOWN_FACTORS + 1))
        else:
            factors = required_factors(judge, task, rubric)
        whole = task.evaluation_mode == "single"
        of_task = any(key[0] == task.name for key in self.stored.scores)
        total = 0
        for student in sorted({student for _, student in answers}):
            # By teacher: factor -> answers with a score for it.
            teachers = [teacher for teacher, name in answers if name == student]
            is_new = self.modes[PHASES[4]] == "New"
            by_teacher: dict[str, Mapping[str, int]] = {
                teacher: {} if is_new else self.stored.scores.get((task.name, teacher, student, judge.name), {})
                for teacher in teachers
            }
            of_model = any(map(len, by_teacher.values()))
            missing: dict[str, int] = {}
            for name, scored in by_teacher.items():
                lacking = [max(0, answers[name, student] - scored.get(factor, 0)) for factor in factors]
                missing[name] = max(lacking, default=0) if whole else sum(lacking)
            total += sum(self._left(PHASES[4], missing, of_task, of_model).values())
        return total

    def _pairs(self, task: Task, judge: Model, answers: Mapping[tuple[str, ...], int]) -> int:
        """Return the calls to a judge for verdicts on pairs of the configured students."""
        names = sorted({student for _, student in answers})
        there = _of(self.stored.pairs, task.name)
        verdicts = {key: self._retained(PHASES[4], count) for key, count in there.items() if key[1] == judge.name}
        seen = {key[2:] for key, count in verdicts.items() if count}
        most = task.pairwise.pairs
        missing = {}
        for teacher in sorted({name for name, _ in answers}):
            judged = {couple: verdicts.get((teacher, judge.name, *couple), 0) for couple in combinations(names, 2)}
            possible = {couple: min(answers.get((teacher, student), 0) for student in couple) for couple in judged}
            if self.modes[PHASES[4]] == "Model":  # a new student is compared with the earlier ones
                possible.update({couple: judged[couple] for couple in judged if couple in seen})
            total = sum(possible.values())
            missing[teacher] = max(0, (total if most is None else min(total, most)) - sum(judged.values()))
        left = self._left(PHASES[4], missing, bool(there), of_model=False)
        return sum(left.values()) * (2 if task.pairwise.both_orders else 1)


def _of(counts: Mapping[Any, int], task: str) -> dict[tuple[str, ...], int]:
    """Return the counts of one task, without its name."""
    return {key[1:]: number for key, number in counts.items() if key[0] == task and number}
