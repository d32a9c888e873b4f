"""Add a benchmark to a run: its items under a virtual teacher, its task and its judges in the configuration.

Existing items, tasks and rubrics are left alone, so repeating the command changes nothing. Phases 4 and 5 are reopened.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from coeval.config.keys import redacted
from coeval.config.models import read_experiment
from coeval.config.reading import read_yaml
from coeval.errors import RunInputError
from coeval.ingest.answers import ReadyAnswer, model_name
from coeval.ingest.benchmarks import BadRowError, Benchmark, BenchmarkItem, stratified
from coeval.ingest.rows import Rows, rows_at
from coeval.parsing import split_thoughts
from coeval.storage.meta import Meta, create_meta, main_process
from coeval.storage.records import is_failed, now, read_json, write_json
from coeval.storage.run import Run
from coeval.storage.store import Store
from p2l.common.config import parse_yaml, read_limited
from p2l.common.files import atomic_path


def read_configuration(run: Run) -> dict[str, Any]:
    """Read the `config.yaml` of a run. Raise RunInputError if it cannot be read."""
    try:
        configuration, _ = parse_yaml(read_limited(run.config).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "no YAML"
        raise RunInputError(f"{run.config}: cannot be read: {why}") from error
    if not isinstance(configuration, dict):
        raise RunInputError(f"{run.config}: is not a configuration")
    return configuration


def _patched(configuration: Mapping[str, Any], benchmark: Benchmark, run: Run) -> dict[str, Any]:
    """Add a benchmark's teacher, task and judge to a configuration; existing entries stay as they are.

    Raise RunInputError if another model has the teacher's name, or an existing task lacks labels or the metric.
    """
    changed = copy.deepcopy(dict(configuration))
    models, tasks = changed.setdefault("models", []), changed.setdefault("tasks", [])
    _add_model(models, benchmark.name, "benchmark", "teacher", {}, run)
    if benchmark.metric is not None:
        parameters = {"metric": benchmark.metric}
        _add_model(models, f"metric-{benchmark.metric}", "metric", "judge", parameters, run)
    existing = next((task for task in tasks if task.get("name") == benchmark.task), None)
    if existing is None:
        tasks.append(_task(benchmark))
    else:
        _check_fits(existing, benchmark, run)
        if existing.get("category") == "benchmark" and isinstance(existing.get("target_attributes"), dict):
            _merge_values(existing["target_attributes"], benchmark)
    return changed


def _check_fits(task: Mapping[str, Any], benchmark: Benchmark, run: Run) -> None:
    """Raise unless an existing task has the benchmark's labels, metric and requested description."""
    name, rubric = benchmark.task, task.get("rubric")
    factors = rubric.values() if isinstance(rubric, dict) else ()
    metrics = [factor.get("metric") for factor in factors if isinstance(factor, dict)]
    labels = task.get("label_attributes") or ()
    lacks = [f"label attribute {label!r}" for label in benchmark.label_attributes if label not in labels]
    if benchmark.metric not in (None, *metrics):
        lacks.append(f"factor with metric {benchmark.metric!r}")
    if benchmark.described and task.get("description") != benchmark.description:
        lacks.append("such description")
    if lacks:
        raise RunInputError(
            f"{run.config}: task {name!r} is there already and has no {' and no '.join(lacks)}; "
            f"add what it lacks there, or take another task"
        )


def _add_model(
    models: list[dict[str, Any]], name: str, interface: str, role: str, parameters: Mapping[str, Any], run: Run
) -> None:
    existing = next((model for model in models if model.get("name") == name), None)
    if existing is None:
        models.append({"name": name, "interface": interface, "roles": [role], "parameters": dict(parameters)})
    elif existing.get("interface") != interface:
        raise RunInputError(
            f"{run.config}: {name!r} is a model of interface {existing.get('interface')!r}; use another --teacher-id"
        )


def _task(benchmark: Benchmark) -> dict[str, Any]:
    drawn = 1 if benchmark.attributes else 0
    return {
        "name": benchmark.task,
        "description": benchmark.description,
        "output_description": benchmark.output_description,
        "target_attributes": {name: list(values) for name, values in benchmark.attributes.items()},
        "nuanced_attributes": {},
        "sampling": {"target": [drawn, drawn], "nuance": [0, 0], "total": 0},
        "rubric": {name: value if isinstance(value, str) else dict(value) for name, value in benchmark.rubric.items()},
        "label_attributes": list(benchmark.label_attributes),
        "category": "benchmark",
    }


def _merge_values(target: dict[str, Any], benchmark: Benchmark) -> None:
    """Add the benchmark's attribute values that a task lacks."""
    for name, values in benchmark.attributes.items():
        target[name] = list(dict.fromkeys([*target.get(name, ()), *values]))


def _reopened(meta: Meta) -> dict[str, Any]:
    """Return what `meta.json` says of a run that has new items or answers: phases 4 and 5 are not completed."""
    phases = [phase for phase in meta.completed if phase not in ("response_collection", "evaluation")]
    return {"phases_completed": phases, "status": "in_progress"}


@dataclass(frozen=True)
class _IngestCounts:
    """The rows of a file, counted."""

    written: int  # new items
    there: int  # items that the run had already
    skipped: int  # rows without an item, such as those without a label


def ingest(
    run: Run, benchmark: Benchmark, path: Path, limit: int | None = None, rows: Rows | None = None
) -> _IngestCounts:
    """Add the new items of a file, or of `rows`, to a run, at most `limit`; of a published data set a sample.

    Raise RunInputError if the folder holds no run or another process works on it, the file or a row cannot be used, or
    a name is in use.
    """
    Meta(run)  # a folder without a run is refused before a large file is read
    items, skipped = read_items(benchmark, path, rows)
    if benchmark.sample is not None:
        items = stratified(items, limit or benchmark.sample, benchmark.label_attributes)
    meta = Meta(run)  # as it is now: reading may have taken minutes
    _check_names(benchmark)
    with main_process(run):
        return _add(run, meta, benchmark, items, skipped, limit)


def _add(
    run: Run, meta: Meta, benchmark: Benchmark, entries: Sequence[BenchmarkItem], skipped: int, limit: int | None
) -> _IngestCounts:
    configuration = read_configuration(run)
    stored_ids = {str(record.get("id")) for record in run.read("data_generation", benchmark.task)}
    by_id: dict[str, BenchmarkItem] = {}
    for entry in entries:
        by_id.setdefault(_identity(benchmark, entry.native_id), entry)  # of duplicates the first
    new = [(identity, entry) for identity, entry in by_id.items() if identity not in stored_ids]
    chosen = new if limit is None else new[:limit]
    counts = _IngestCounts(written=len(chosen), there=len(entries) - len(new), skipped=skipped)
    whole = _with_values(benchmark, entries)
    changed = _patched(configuration, whole, run)
    # A task of the user's own gets no further values, since teachers draw from its attributes.
    task = next((task for task in configuration.get("tasks") or () if task.get("name") == benchmark.task), None)
    # Write the attributes and rubric of the task where they are missing; `extend` adds attribute values.
    extend = task is None or task.get("category") == "benchmark"
    path = run.find_attributes(whole.task, "target")
    stored = read_json(path) if path is not None else None
    target = dict(stored) if isinstance(stored, dict) else {}
    if extend or path is None:
        _merge_values(target, whole)
    write_json(path or run.attributes(whole.task, "target"), target)
    if run.find_attributes(whole.task, "nuanced") is None:
        write_json(run.attributes(whole.task, "nuanced"), {})
    if not run.rubric(whole.task).is_file():
        write_json(run.rubric(whole.task), dict(whole.rubric))
    with Store(run) as store:
        for identity, entry in chosen:
            record = {
                "id": identity,
                "task_id": whole.task,
                "teacher_model_id": whole.name,
                "sampled_target_attributes": dict(entry.attributes),
                "prompt": entry.prompt,
                "reference_response": entry.reference,
                "generated_at": now(),
                "benchmark_id": whole.name,
                "benchmark_split": whole.split,
                "benchmark_native_id": entry.native_id,
                "benchmark_native_score": entry.native_score,
            }
            store.append(run.records("data_generation", whole.task, whole.name), record)
    _write_configuration(run, changed)
    # New items have no answers and no scores yet, so phases 4 and 5 are open again.
    logged = {
        "benchmark": whole.name,
        "teacher_id": whole.name,
        "task_name": whole.task,
        "n_written": counts.written,
        "n_skipped": counts.there + counts.skipped,
        "ingested_at": now(),
    }
    log = [*(meta.data.get("ingest_log") or []), logged]
    meta.update(ingest_log=log, **(_reopened(meta) if counts.written else {}))
    return counts


def begin_run(path: Path) -> Run:
    """Return the run of a configuration, which may still lack tasks; one that is not there is begun, without a call.

    Raise ConfigErrors if the configuration cannot be read, or does not say where the run is.
    """
    raw, problems = read_yaml(path)
    experiment = read_experiment(raw.get("experiment") if isinstance(raw, Mapping) else None, problems, None, None)
    problems.raise_any()
    run = Run(experiment.folder)
    if not run.meta.exists():
        stored = {part: redacted(value, by_key=part != "tasks") for part, value in raw.items()}
        run.folder.mkdir(parents=True, exist_ok=True)
        _write_configuration(run, {"tasks": [], **stored})
        create_meta(run, experiment.id)
    return run


def _write_configuration(run: Run, configuration: Mapping[str, Any]) -> None:
    """Replace the `config.yaml` of a run."""
    with atomic_path(run.config) as temporary:
        text = yaml.safe_dump(dict(configuration), sort_keys=True, allow_unicode=True, width=120)
        temporary.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class _AnswerCounts:
    """What became of a file of answers."""

    items: int  # new items
    written: int  # new answers
    there: int
    models: tuple[str, ...]


def ingest_answers(run: Run, benchmark: Benchmark, answers: Sequence[ReadyAnswer], path: Path) -> _AnswerCounts:
    """Add answers that were made elsewhere, as those of students that are never called, with items that are new.

    An answer belongs to the item of the run that has its `item` as id, otherwise to the benchmark's of that name. Raise
    RunInputError as `ingest` does, and for an answer whose item is neither in the run nor in the file; then nothing is
    written.
    """
    meta = Meta(run)
    _check_names(benchmark)
    names = _student_names(answers, path)
    with main_process(run):
        prompts = _prompts_of(run, benchmark.task)
        _check_items(benchmark, answers, prompts, path)
        fresh = {answer.item: answer for answer in answers if answer.item not in prompts and answer.prompt}
        items = [BenchmarkItem(answer.item, answer.prompt, answer.reference) for answer in fresh.values()]
        added = _add(run, meta, benchmark, items, 0, None).written if items else 0
        configuration = read_configuration(run)
        models = configuration.setdefault("models", [])
        for model_id, name in names.items():
            if not any(model.get("name") == name and "student" in (model.get("roles") or ()) for model in models):
                _add_model(models, name, "answers", "student", {"model": model_id}, run)
        _write_configuration(run, configuration)
        written = _write_answers(run, benchmark, answers, names)
        meta.update(**_reopened(meta))
    return _AnswerCounts(
        items=added, written=written, there=len(answers) - written, models=tuple(sorted(set(names.values())))
    )


def _prompts_of(run: Run, task: str) -> dict[str, tuple[str, str]]:
    """Return the prompt and the teacher of each item of a task, by id."""
    return {
        str(record.get("id")): (str(record.get("prompt")), str(record.get("teacher_model_id")))
        for record in run.read("data_generation", task)
        if record.get("prompt") and not is_failed(record)
    }


def _student_names(answers: Sequence[ReadyAnswer], path: Path) -> dict[str, str]:
    """Return the name in the run of each model of the answers; two that would have the same one are an error."""
    names, owners = dict[str, str](), dict[str, str]()
    for model in dict.fromkeys(answer.model for answer in answers):
        names[model] = model_name(model)
        owner = owners.setdefault(names[model], model)
        if owner != model:
            raise RunInputError(
                f"{path}: models {owner!r} and {model!r} would both be named {names[model]!r} in the run; rename one"
            )
    return names


def _check_items(
    benchmark: Benchmark, answers: Sequence[ReadyAnswer], stored: Mapping[str, tuple[str, str]], path: Path
) -> None:
    """Raise RunInputError for an answer without an item, or with another prompt than its item has."""
    prompts = {item: prompt for item, (prompt, _) in stored.items()}
    identities = [answer.item if answer.item in prompts else _identity(benchmark, answer.item) for answer in answers]
    for identity, answer in zip(identities, answers, strict=True):
        if answer.prompt and identity not in stored and prompts.setdefault(identity, answer.prompt) != answer.prompt:
            raise RunInputError(f"{path}: item {answer.item[:60]!r} has two prompts; give each an item of its own")
    for identity, answer in zip(identities, answers, strict=True):
        if identity not in prompts:
            raise RunInputError(
                f"{path}: item {answer.item[:60]!r} is none of task {benchmark.task!r}, and has no prompt; "
                "add `prompt`, or name an item by its id in the run"
            )
        if answer.prompt and answer.prompt != prompts[identity]:
            raise RunInputError(f"{path}: item {answer.item[:60]!r} has another prompt than in the run")


def _write_answers(run: Run, benchmark: Benchmark, answers: Sequence[ReadyAnswer], names: Mapping[str, str]) -> int:
    prompts, written = _prompts_of(run, benchmark.task), 0
    stored = {
        str(record.get("id")) for record in run.read("response_collection", benchmark.task) if not is_failed(record)
    }
    with Store(run) as store:
        for answer in answers:
            item = answer.item if answer.item in prompts else _identity(benchmark, answer.item)
            prompt, teacher = prompts[item]
            student = names[answer.model]
            if f"{item}__{student}" in stored:
                continue
            text, thoughts = split_thoughts(answer.answer)
            record = {
                "id": f"{item}__{student}",
                "datapoint_id": item,
                "task_id": benchmark.task,
                "teacher_model_id": teacher,
                "student_model_id": student,
                "input": prompt,
                "response": text,
                "token_count": max(1, len(text) // 4),
                "generated_at": now(),
                **({"thoughts": thoughts} if thoughts else {}),
            }
            store.append(run.records("response_collection", benchmark.task, student), record)
            stored.add(str(record["id"]))
            written += 1
    return written


def _check_names(benchmark: Benchmark) -> None:
    for what, name, more in (("teacher", benchmark.name, "._-"), ("task", benchmark.task, "_-")):
        plain = "".join(character for character in name if character not in more)
        if not plain.isascii() or not plain.isalnum() or "__" in name:
            raise RunInputError(f"{what} {name!r}: use letters (a-z, A-Z), digits and {' '.join(more)}, and no __")


# Share of the rows of a published data set that may lack something, which nobody here can mend; they are skipped.
_ODD_ROWS = 0.05


def read_items(benchmark: Benchmark, path: Path, rows: Rows | None = None) -> tuple[list[BenchmarkItem], int]:
    """Return the items of a file of rows, each once, and how many rows have none.

    Raise RunInputError if a row cannot be used, or of a published data set more than a few.
    """
    items, odd, count = dict[str, BenchmarkItem](), list[str](), 0
    for number, (line, row) in enumerate(rows or rows_at(path, benchmark.split)):
        count += 1
        try:
            entry = benchmark.read(row, number)
        except BadRowError as error:
            odd.append(f"{path}: line {line}: {error}")
            if benchmark.sample is None:
                break
            continue
        if entry is not None:
            known = items.setdefault(entry.native_id, entry)
            if benchmark.sample is None and known != entry:
                raise RunInputError(
                    f"{path}: line {line}: id {entry.native_id[:60]!r} is that of another row; give each its own"
                )
    if len(odd) > (0 if benchmark.sample is None else _ODD_ROWS * count):
        raise RunInputError(f"{odd[0]}{f'; {len(odd)} of {count} rows cannot be used' if len(odd) > 1 else ''}")
    if not items:
        raise RunInputError(f"{path}: holds no items")
    return list(items.values()), count - len(items)


def _identity(benchmark: Benchmark, native: str) -> str:
    while "__" in native:  # which parts the ids of records
        native = native.replace("__", "_")
    return f"{benchmark.task}__{benchmark.name}__{native}"


def _with_values(benchmark: Benchmark, entries: Sequence[BenchmarkItem]) -> Benchmark:
    """Return the benchmark with all attribute values in the file."""
    values = {name: dict.fromkeys(declared) for name, declared in benchmark.attributes.items()}
    for entry in entries:
        for name, value in entry.attributes.items():
            if isinstance(value, str | int | float):
                values.setdefault(name, {})[value] = None
    for label in benchmark.label_attributes:
        if label not in values:
            there = ", ".join(values) or "none"
            raise RunInputError(f"label attribute {label!r}: no row has it; attributes: {there}")
    return replace(benchmark, attributes={name: list(distinct) for name, distinct in values.items()})
