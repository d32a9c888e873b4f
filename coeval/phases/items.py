"""Phase 3: generate items, each a prompt and a reference answer with the attributes that were drawn for it."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from coeval.documents import Passage, check_quotes, passage_of, read_passages
from coeval.duplicates import PromptIndex, text_in
from coeval.errors import RunError
from coeval.judging.prompts import render
from coeval.parsing import read_item, read_quoting_item
from coeval.phases.asking import drive, each_model
from coeval.phases.mapping import attributes_of
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Kind, Question
from coeval.schema import Attributes, Model, Phase, Sampling, Task
from coeval.storage.records import RecordIndex, is_failed, item_mark, now, read_records
from coeval.storage.store import Store

_PHASE: Phase = "data_generation"
_ATTEMPTS_PER_ITEM = 1000  # of attempts that one item may take
_ATTEMPTS_PER_START = 10  # of those, however many attempts a start makes: the next one must not repeat them


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
    """Yield the attributes of the items with these numbers, which rise from 1.

    Target attributes in `always` belong to every item; `used` has the target attributes of existing items by number,
    which `all` does not draw again.
    """
    # With `all`, combinations that items have already are not drawn again before the others, whatever the total was
    # when those were made.
    combinations = _unused(lambda: _combinations(sampling, target, _random(seed, task, teacher, "all")), used or {})
    for number in numbers:
        # From the number alone: a run that is continued, or has a larger total, draws what it would have undisturbed.
        rng = _random(seed, task, teacher, number)
        chosen = next(combinations) if sampling.target == "all" else _sample(target, sampling.target, rng, always)
        yield Draw(chosen, _sample(nuanced, sampling.nuance, rng))


def _sample(
    attributes: Attributes, bounds: tuple[int, int], rng: random.Random, always: Sequence[str] = ()
) -> dict[str, Any]:
    """Draw a number of attributes within the bounds, all of `always` at least, in order, each with one value."""
    names = [name for name, values in attributes.items() if values]
    least, most = (min(bound, len(names)) for bound in bounds)
    fixed = {name for name in names if name in always}
    free = [name for name in names if name not in fixed]
    chosen = fixed.union(rng.sample(free, max(rng.randint(least, most) - len(fixed), 0)))
    return {name: rng.choice(list(attributes[name])) for name in names if name in chosen}


def _unused(
    combinations: Callable[[], Iterator[dict[str, Any]]], used: Mapping[int, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the combinations without those of existing items, skipping each as often as it is used."""
    elsewhere = Counter(map(_key, used.values()))
    in_place = set()  # items that have what their number draws
    for place, combination in zip(range(1, max(used, default=0) + 1), combinations(), strict=False):
        if place in used and _key(used[place]) == _key(combination):
            in_place.add(place)
            elsewhere[_key(combination)] -= 1
    elsewhere = +elsewhere  # those above zero
    for place, combination in enumerate(combinations(), start=1):
        if place in in_place:
            continue
        if elsewhere and elsewhere[_key(combination)] > 0:
            elsewhere[_key(combination)] -= 1
        else:
            yield combination


def _key(combination: Mapping[str, Any]) -> str:
    return json.dumps(combination, sort_keys=True, default=str)


def _combinations(sampling: Sampling, attributes: Attributes, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield all combinations over and over, in order; in a random one where there are more than items."""
    names = [name for name, values in attributes.items() if values]
    values = [list(attributes[name]) for name in names]
    count = math.prod(map(len, values))
    while True:
        for index in range(count) if sampling.total >= count else _shuffled(count, rng):
            # The combination at this index of the product, in which the last attribute changes fastest.
            chosen = []
            for options in reversed(values):
                index, place = divmod(index, len(options))
                chosen.append(options[place])
            yield dict(zip(names, reversed(chosen), strict=True))


def _shuffled(count: int, rng: random.Random) -> Iterator[int]:
    """Yield 0 to count - 1 in a random order, without a list of all: there may be millions of combinations."""
    moved: dict[int, int] = {}
    # Fisher and Yates: what stands at `place` goes where the drawn number was; only what has moved is noted.
    for place in range(count):
        drawn = rng.randrange(place, count)
        yield moved.get(drawn, drawn)
        moved[drawn] = moved.get(place, place)


def _random(*key: object) -> random.Random:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


async def generate_items(stage: Stage) -> Outcome:
    """Generate the missing items. Raise RunError if a task has no item, and no limit is the reason."""
    is_kept = stage.modes[_PHASE] == "Keep"
    tasks = [task for task in stage.config.tasks if not (is_kept and len(index_of_items(stage, task.name)))]
    teachers = [model for model in stage.models("teacher") if not model.is_virtual]
    for task in tasks:
        target = attributes_of(stage.run, task.name, "target") if task.sampling.target == "all" else None
        count = 0 if target is None else math.prod(len(values) for values in target.values() if values)
        total = task.sampling.total
        if 0 < total < count:
            stage.log.warning(
                f"{_PHASE}: task {task.name!r}: sampling.target is `all`, but there are {count} combinations of "
                f"attributes and {total} items: {total} are drawn at random; raise sampling.total to have all"
            )
    outcome = await each_model(stage, _PHASE, teachers, lambda teacher: _generate(stage, teacher, tasks))
    if not outcome.stopped and stage.only is None:
        for task in stage.config.tasks:
            if not len(index_of_items(stage, task.name)):
                raise RunError(f"{_PHASE}: task {task.name!r} has no items; see {stage.run.errors}")
    return outcome


async def _generate(stage: Stage, teacher: Model, tasks: list[Task]) -> Outcome:
    """Generate one teacher's missing items of all tasks."""
    indexes, missing = dict[str, RecordIndex](), dict[str, list[int]]()
    for task in tasks:
        indexes[task.name] = RecordIndex(
            [stage.run.records("data_generation", task.name, teacher.name)],
            partial(_is_item_of, task=task.name, teacher=teacher.name),
            stage.warn_bad_line,
            _attributes if task.sampling.target == "all" else None,
        )
        missing[task.name] = _missing(stage, task, teacher, indexes[task.name])
    failures = stage.store.failures(_PHASE)

    def questions() -> Iterator[Question]:
        for task in tasks:
            index, numbers = indexes[task.name], missing[task.name]
            if not numbers:
                continue
            passages = read_passages(task.documents) if task.documents else []
            for number, draw in zip(numbers, _drawn(stage, task, teacher, numbers, index), strict=True):
                key = stage.config.experiment.seed, task.name, teacher.name, "documents"
                passage = passage_of(passages, number, _random(*key)) if passages else None
                yield _question(task, teacher, number, draw, failures + index.marked, passage)

    outcome = await drive(
        stage,
        _PHASE,
        teacher,
        questions(),
        expected=sum(map(len, missing.values())),
        attempts=1 + stage.config.experiment.generation_retries,
    )
    if outcome.failed:
        stage.log.warning(f"{_PHASE}: {teacher.name}: {outcome.failed} items could not be made; see {stage.run.errors}")
    return outcome


def _is_item_of(record: Mapping[str, Any], task: str, teacher: str) -> bool:
    """Return whether a record is an item of a task by a teacher."""
    return bool(record.get("prompt")) and (record.get("task_id"), record.get("teacher_model_id")) == (task, teacher)


def _attributes(record: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = record.get("sampled_target_attributes")
    return attributes if isinstance(attributes, dict) else {}


def _missing(stage: Stage, task: Task, teacher: Model, index: RecordIndex) -> list[int]:
    """Return the numbers of the items to generate: the lowest that are free, as many as the total lacks."""
    if stage.modes[_PHASE] == "Model" and len(index):
        return []
    free = (number for number in range(1, task.sampling.total + 1) if _id(task, teacher, number) not in index)
    return list(islice(free, max(task.sampling.total - len(index), 0)))


def _drawn(stage: Stage, task: Task, teacher: Model, numbers: list[int], index: RecordIndex) -> Iterator[Draw]:
    target = attributes_of(stage.run, task.name, "target")
    nuanced = attributes_of(stage.run, task.name, "nuanced")
    if target is None or nuanced is None:
        raise RunError(f"{stage.run.folder}: no attributes of task {task.name!r}; run phase attribute_mapping first")
    used = {}
    for identity, attributes in index.notes.items():
        number = identity.rpartition("__")[2]
        # Benchmarks bring ids of their own, without a number: those count as used, at place 0, which nothing draws.
        used[int(number) if number.isascii() and number.isdecimal() else 0] = attributes
    return draws(
        task.sampling,
        target,
        # Teachers may propose a name twice: what the output has is not drawn again for the input.
        {name: values for name, values in nuanced.items() if name not in target},
        numbers,
        seed=stage.config.experiment.seed,
        task=task.name,
        teacher=teacher.name,
        always=task.label_attributes,
        used=used,
    )


def _id(task: Task, teacher: Model, number: int) -> str:
    return f"{task.name}__{teacher.name}__{number:05d}"


def _question(
    task: Task, teacher: Model, number: int, draw: Draw, failures: Mapping[str, int], passage: Passage | None
) -> Question:
    identity = _id(task, teacher, number)
    context: dict[str, Any] = {
        "id": identity,
        "task_id": task.name,
        "teacher_model_id": teacher.name,
        "sampled_target_attributes": dict(draw.target),
    }
    if task.store_nuanced:
        context["sampled_nuanced_attributes"] = dict(draw.nuanced)
    attributes = {"target_attributes": draw.target, "nuanced_attributes": draw.nuanced}
    texts = {name: json.dumps(drawn, ensure_ascii=False) for name, drawn in attributes.items()}
    if passage is None:
        prompt = render(task, teacher.name, "sample", **texts)
    else:
        about = {"document": passage.document, "start": passage.start, "end": passage.start + len(passage.text)}
        context |= {"source": about, "passage": passage.text}
        prompt = render(task, teacher.name, "sample_document", document=passage.document, passage=passage.text, **texts)
    # Items with the same attributes have the same prompt; their numbers keep the cached answers apart.
    first = number * _ATTEMPTS_PER_ITEM + failures.get(identity, 0) * _ATTEMPTS_PER_START
    return Question(
        kind="item",
        phase=_PHASE,
        role="teacher",
        model=teacher.name,
        task=task.name,
        context=context,
        prompts={"": prompt},
        first_attempt=first,
    )


class TeacherPrompts:
    """The prompts of one teacher's items of one task, by the items that have them."""

    # Two items with one prompt tell no more than one: the second is refused, and the teacher asked again.

    def __init__(self, store: Store, task: str, teacher: str) -> None:
        self._store, self._about = store, {"task": task, "teacher": teacher}
        self._index = PromptIndex()
        self._owners: dict[int, str] = {}
        self._refused: set[tuple[str, str]] = set()
        for record in read_records(store.run.records("data_generation", task, teacher)):
            if _is_item_of(record, task, teacher) and not is_failed(record):
                self._owners.setdefault(self._index.add(text_in(record["prompt"])), str(record.get("id")))

    def claim(self, item: str, prompt: str) -> str | None:
        """Take a prompt for an item; return why it cannot have it if another item has it, or nearly, and note that."""
        earlier = self._index.find(prompt)
        if earlier is None:
            self._owners[self._index.add(prompt)] = item
            return None
        owner = self._owners[earlier]
        if owner == item:
            return None
        if (item, prompt) not in self._refused:  # an answer is read again once no attempt is left
            self._refused.add((item, prompt))
            self._store.append(self._store.run.repeats, {"id": item, "repeats": owner, **self._about, "at": now()})
        return f"the prompt repeats that of {owner}, exactly or nearly"


def _conflict(store: Store, context: Mapping[str, Any], item: tuple[str, str, list[str]]) -> str | None:
    """Return why an item cannot stand beside the others of its teacher."""
    task, teacher = context["task_id"], context["teacher_model_id"]
    key = ("prompts", task, teacher)
    if key not in store.shared:
        store.shared[key] = TeacherPrompts(store, task, teacher)
    reason: str | None = store.shared[key].claim(str(context["id"]), item[0])
    return reason


def _record(
    context: Mapping[str, Any], answers: Mapping[str, Any], failures: Mapping[str, str]
) -> dict[str, Any] | None:
    if failures:
        return None
    prompt, response, quotes = answers[""]
    record = {key: value for key, value in context.items() if key != "passage"}
    record |= {"quotes": quotes} if quotes else {}
    return {**record, "prompt": prompt, "reference_response": response, "generated_at": now()}


def _read(context: Mapping[str, Any], _part: str, text: str) -> tuple[str, str, list[str]]:
    """Return prompt, reference answer and quotes. Raise MalformedAnswerError for quotes that the passage has not."""
    if "passage" not in context:
        return *read_item(text), []
    prompt, response, quotes = read_quoting_item(text)
    return prompt, response, check_quotes(quotes, context["passage"])


KINDS = {
    "item": Kind(_read, _record, "data_generation", conflict=_conflict),
}


def index_of_items(stage: Stage, task: str) -> RecordIndex:
    """Return the items of a task with their marks, also of teachers that are no longer configured."""
    return RecordIndex(
        stage.run.record_files("data_generation", task),
        lambda record: bool(record.get("prompt")) and record.get("task_id") == task,
        note=item_mark,
    )
