"""Phase 3: items, each a prompt and a reference answer with the attributes that were drawn for it."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coeval.errors import RunError
from coeval.judging.prompts import render
from coeval.parsing import read_item
from coeval.phases.driving import drive, each_model
from coeval.phases.mapping import attributes_of
from coeval.phases.question import Kind, Question
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Attributes, Model, Phase, Sampling, Task
from coeval.storage.jsonl import RecordIndex
from coeval.storage.records import item_mark, now
from coeval.storage.run import Run

# Which attributes an item has: drawn anew for each item, and always the same for an item of the same experiment.
#
# The draw depends on (seed, task, teacher, number of the item), so a run that goes on after a stop, or with a larger
# total, draws what it would have drawn undisturbed. Combinations of `all` that items have already are not drawn again
# before the others, whatever the total was when those were made.


@dataclass(frozen=True)
class Draw:
    """The attributes of one item."""

    target: Mapping[str, Any]
    nuanced: Mapping[str, Any]


def draws(
    sampling: Sampling,
    target: Attributes,
    nuanced: Attributes,
    numbers: Iterable[int],
    *,
    seed: int,
    task: str,
    teacher: str,
    always: Sequence[str] = (),
    used: Mapping[int, Mapping[str, Any]] | None = None,
) -> Iterator[Draw]:
    """The attributes of items.

    Args:
        sampling: how many.
        target, nuanced: of which.
        numbers: of the items, rising from 1.
        seed, task, teacher: what the draw depends on.
        always: target attributes that every item has.
        used: number -> target attributes of the items that are there, which `all` does not draw again.
    """
    combinations = _left(lambda: _combinations(sampling, target, _random(seed, task, teacher, "all")), used or {})
    for number in numbers:
        chance = _random(seed, task, teacher, number)
        chosen = next(combinations) if sampling.target == "all" else _some(target, sampling.target, chance, always)
        yield Draw(chosen, _some(nuanced, sampling.nuance, chance))


def _some(
    attributes: Attributes, bounds: tuple[int, int], chance: random.Random, always: Sequence[str] = ()
) -> dict[str, Any]:
    """Between the bounds as many attributes as there are, each with one of its values, in their own order.

    Those of `always` are among them, be they more than the bounds allow.
    """
    names = [name for name, values in attributes.items() if values]
    least, most = (min(bound, len(names)) for bound in bounds)
    fixed = {name for name in names if name in always}
    free = [name for name in names if name not in fixed]
    chosen = fixed.union(chance.sample(free, max(chance.randint(least, most) - len(fixed), 0)))
    return {name: chance.choice(list(attributes[name])) for name in names if name in chosen}


def combinations_of(attributes: Attributes) -> int:
    """How many combinations of values there are."""
    return math.prod(len(values) for values in attributes.values() if values)


def _left(
    combinations: Callable[[], Iterator[dict[str, Any]]], used: Mapping[int, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The combinations without those used, each left out as often as it is; that of an item at the item's place."""
    strangers = Counter(map(_key, used.values()))
    in_place = set()
    for place, one in zip(range(1, max(used, default=0) + 1), combinations(), strict=False):
        if place in used and _key(used[place]) == _key(one):
            in_place.add(place)
            strangers[_key(one)] -= 1
    strangers = +strangers
    for place, one in enumerate(combinations(), start=1):
        if place in in_place:
            continue
        if strangers and strangers[_key(one)] > 0:
            strangers[_key(one)] -= 1
        else:
            yield one


def _key(combination: Mapping[str, Any]) -> str:
    return json.dumps(combination, sort_keys=True, default=str)


def _combinations(sampling: Sampling, attributes: Attributes, chance: random.Random) -> Iterator[dict[str, Any]]:
    """All combinations of values over and over, in their order; where there are more than items, in a random one."""
    names = [name for name, values in attributes.items() if values]
    values = [list(attributes[name]) for name in names]
    count = combinations_of(attributes)
    while True:
        for index in range(count) if sampling.total >= count else _shuffled(count, chance):
            yield dict(zip(names, _decoded(index, values), strict=True))


def _decoded(index: int, values: Sequence[Sequence[Any]]) -> list[Any]:
    """The combination at a place of the product, whose last attribute changes fastest."""
    found = []
    for some in reversed(values):
        index, at = divmod(index, len(some))
        found.append(some[at])
    return found[::-1]


def _shuffled(count: int, chance: random.Random) -> Iterator[int]:
    """0 to count - 1 in a random order, made as far as it is read."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = chance.randrange(place, count)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def _random(*key: object) -> random.Random:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


PHASE: Phase = "data_generation"
_NUMBERS = 1000  # of attempts that one item may take


@dataclass
class _Left:
    """What is left of a teacher's work on a task."""

    numbers: list[int]
    """Of the items to be made: the lowest that are free, as many as the total lacks."""
    used: dict[int, Mapping[str, Any]]
    """Number -> attributes of those that are there, where all combinations are gone through."""
    marked: Counter[str]
    """How often items of an id were marked as failed."""


async def generate_items(stage: Stage) -> Outcome:
    """Make the items that are missing.

    Raises:
        RunError: a task has no item, and no limit is the reason.
    """
    kept = _kept_tasks(stage)
    tasks = [task for task in stage.config.tasks if task.name not in kept]
    teachers = [model for model in stage.models("teacher") if not model.is_virtual]

    async def work(teacher: Model) -> Outcome:
        return await _of_teacher(stage, teacher, tasks)

    _warn_of_few(stage, tasks)
    outcome = await each_model(stage, PHASE, teachers, work)
    if not outcome.stopped and stage.only is None:
        _check_none_empty(stage)
    return outcome


def _kept_tasks(stage: Stage) -> set[str]:
    if stage.modes[PHASE] != "Keep":
        return set()
    return {task.name for task in stage.config.tasks if len(index_of_items(stage, task.name))}


def _warn_of_few(stage: Stage, tasks: list[Task]) -> None:
    """Say where `all` cannot be meant: there are more combinations than items."""
    for task in tasks:
        target = attributes_of(stage.run, task.name, "target") if task.sampling.target == "all" else None
        count, total = 0 if target is None else combinations_of(target), task.sampling.total
        if 0 < total < count:
            stage.log.warning(
                f"{PHASE}: task {task.name!r}: sampling.target is `all`, but there are {count} combinations of "
                f"attributes and {total} items: {total} are drawn at random; raise sampling.total to have all"
            )


async def _of_teacher(stage: Stage, teacher: Model, tasks: list[Task]) -> Outcome:
    missing = {task.name: _missing(stage, task, teacher) for task in tasks}
    expected = sum(len(left.numbers) for left in missing.values())
    stage.progress.expect(expected)
    failures = stage.store.failures(PHASE)

    def questions() -> Iterator[Question]:
        for task in tasks:
            left = missing[task.name]
            before = failures + left.marked
            for number, draw in _drawn(stage, task, teacher, left):
                yield _question(task, teacher, number, draw, before)

    outcome = await drive(stage, PHASE, teacher, questions(), attempts=1 + stage.config.experiment.generation_retries)
    outcome.expected = expected
    if outcome.failed:
        stage.log.warning(f"{PHASE}: {teacher.name}: {outcome.failed} items could not be made; see {stage.run.errors}")
    return outcome


def _missing(stage: Stage, task: Task, teacher: Model) -> _Left:
    path = stage.run.datapoints(task.name, teacher.name)
    note = _attributes if task.sampling.target == "all" else None
    index = RecordIndex([path] if path.is_file() else [], _by(task.name, teacher.name), stage.warn_bad_line, note)
    used = {_number(identity): attributes for identity, attributes in index.notes.items()}
    left = _Left([], used, index.marked)
    if stage.modes[PHASE] != "Model" or not len(index):
        lacking = task.sampling.total - len(index)
        free = (number for number in range(1, task.sampling.total + 1) if _id(task, teacher, number) not in index)
        left.numbers = [number for number, _ in zip(free, range(lacking), strict=False)]
    return left


def _number(identity: str) -> int:
    """Of an item, from its id; 0 where it has none."""
    number = identity.rpartition("__")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


def _attributes(record: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = record.get("sampled_target_attributes")
    return attributes if isinstance(attributes, dict) else {}


def _by(task: str, teacher: str) -> Any:
    return lambda record: (
        _is_item(record) and record.get("task_id") == task and record.get("teacher_model_id") == teacher
    )


def _is_item(record: Mapping[str, Any]) -> bool:
    return bool(record.get("prompt"))


def _drawn(stage: Stage, task: Task, teacher: Model, left: _Left) -> Iterator[tuple[int, Draw]]:
    """The missing items with their attributes."""
    if not left.numbers:
        return
    target = attributes_of(stage.run, task.name, "target")
    nuanced = attributes_of(stage.run, task.name, "nuanced")
    if target is None or nuanced is None:
        raise RunError(f"{stage.run.folder}: no attributes of task {task.name!r}; run phase attribute_mapping first")
    drawn = draws(
        task.sampling,
        target,
        nuanced,
        left.numbers,
        seed=stage.config.experiment.seed,
        task=task.name,
        teacher=teacher.name,
        always=task.label_attributes,
        used=left.used,
    )
    yield from zip(left.numbers, drawn, strict=True)


def _id(task: Task, teacher: Model, number: int) -> str:
    return f"{task.name}__{teacher.name}__{number:05d}"


def _question(task: Task, teacher: Model, number: int, draw: Draw, failures: Mapping[str, int]) -> Question:
    identity = _id(task, teacher, number)
    context: dict[str, Any] = {
        "id": identity,
        "task_id": task.name,
        "teacher_model_id": teacher.name,
        "sampled_target_attributes": dict(draw.target),
    }
    if task.store_nuanced:
        context["sampled_nuanced_attributes"] = dict(draw.nuanced)
    prompt = render(
        task,
        teacher.name,
        "sample",
        target_attributes=json.dumps(draw.target, ensure_ascii=False),
        nuanced_attributes=json.dumps(draw.nuanced, ensure_ascii=False),
    )
    # Items with the same attributes have the same prompt; their own numbers keep the answers apart.
    first = number * _NUMBERS + failures.get(identity, 0) * 10
    return Question("item", PHASE, "teacher", teacher.name, task.name, context, {"": prompt}, first)


def _record(
    context: Mapping[str, Any], values: Mapping[str, Any], failures: Mapping[str, str]
) -> dict[str, Any] | None:
    if failures:
        return None
    prompt, response = values[""]
    return {**context, "prompt": prompt, "reference_response": response, "generated_at": now()}


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.datapoints(context["task_id"], context["teacher_model_id"])


KINDS = {"item": Kind(lambda _context, _part, text: read_item(text), _record, _path)}


def index_of_items(stage: Stage, task: str) -> RecordIndex:
    """The items of all teachers for a task, also of teachers that the configuration has no more; notes: their marks."""
    return RecordIndex(
        stage.run.datapoint_files(task),
        lambda record: _is_item(record) and record.get("task_id") == task,
        note=item_mark,
    )


def _check_none_empty(stage: Stage) -> None:
    for task in stage.config.tasks:
        if not len(index_of_items(stage, task.name)):
            raise RunError(f"{PHASE}: task {task.name!r} has no items; see {stage.run.errors}")
