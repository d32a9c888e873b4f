"""The plan of a run as text and as a page: models, tasks, modes, prompts, calls; and the status of a run as text."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from coeval.config.keys import redacted
from coeval.interfaces import price_of
from coeval.judging.prompts import grading_text, shown_template
from coeval.phases.progress import time_text
from coeval.planning.counting import Remaining, Work, remaining
from coeval.planning.estimate import grid, minutes, static_estimate, text_grid
from coeval.planning.gaps import WORDS, progress_of
from coeval.schema import PHASES, ROLE_OF, Config, Mode, Model, Phase, Role, Sampling, Task, description_of, weight_of
from coeval.storage.meta import Meta
from coeval.storage.records import is_failed, read_json, read_records
from coeval.storage.run import KINDS_OF, Run
from p2l.common.report.tables import Cell, Column, Table, dollars_text, render

_PHASE_HEADS = {
    "attribute_mapping": "attributes",
    "rubric_mapping": "rubric",
    "data_generation": "items",
    "response_collection": "answers",
    "evaluation": "judgements",
}


def plan_text(config: Config, left: Remaining, only: Collection[str] | None = None) -> str:
    """Describe a run by what is left of it."""
    experiment = config.experiment
    head = f"{experiment.id}, in {experiment.folder}"
    if experiment.resume_from:
        head += f", from {experiment.resume_from}"
    if only is not None:
        head += f"; phases 3 to 5 for {', '.join(sorted(only))} alone"
    models = [(model.name, model.interface, _asked_for(model), ", ".join(model.roles)) for model in config.models]
    tasks = []
    for task in config.tasks:
        target, nuance, items = _sampling_text(task.sampling)
        if isinstance(task.rubric, str):
            rubric: str = task.rubric
        else:
            rubric = f"{len(task.rubric)} factor" + ("s" if len(task.rubric) != 1 else "")
        tasks.append((task.name, target, nuance, items, grading_text(task), rubric))
    phases = [(phase, str(left.modes[phase]), ", ".join(_batched_in(config, phase))) for phase in PHASES]
    # Batches are of no interest where there are none.
    shown = 3 if any(batched for _, _, batched in phases) else 2
    modes = text_grid(("phase", "mode", "in batches")[:shown], [row[:shown] for row in phases])
    calls = [
        (name, *(f"{count:,}" for count in counts)) for name, *counts in _calls_per_task(config, left.work, "total")
    ]
    return "\n\n".join(
        [
            head,
            text_grid(("model", "interface", "asked for", "roles"), models),
            text_grid(("task", "target", "nuance", "items", "evaluation", "rubric"), tasks),
            modes,
            grid(("calls", *(_PHASE_HEADS[phase] for phase in PHASES), "total"), calls),
        ]
    )


def phases_left(
    config: Config, run: Run | None, modes: Mapping[Any, Mode], only: Collection[str] | None = None
) -> list[Phase]:
    """Return the phases that are unsettled or have calls left."""
    left = remaining(config, run, modes, only)
    settled = left.stored.settled if run is not None else ()
    asking = {work.phase for work in left.work}
    return [phase for phase in PHASES if phase not in settled or phase in asking]


def _calls_per_task(config: Config, work: Iterable[Work], all_tasks: str) -> list[list[Any]]:
    """Return a row for each task with its calls in each phase and in all, then the same of all tasks, so named."""
    counts = {task.name: Counter[str]() for task in config.tasks}
    for entry in work:
        counts[entry.task][entry.phase] += entry.calls
    rows: list[list[Any]] = [[name, *(of[phase] for phase in PHASES), sum(of.values())] for name, of in counts.items()]
    return [*rows, [all_tasks, *(sum(row[place] for row in rows) for place in range(1, len(PHASES) + 2))]]


def _batched_in(config: Config, phase: Phase) -> list[str]:
    """Return the models whose calls of a phase go into batch jobs."""
    return [model.name for model in config.with_role(ROLE_OF[phase]) if config.is_batched(model, phase)]


def _sampling_text(sampling: Sampling) -> tuple[str, str, str]:
    """Return the numbers of target attributes, nuanced attributes and items, as text."""
    target = sampling.target if isinstance(sampling.target, str) else _range(sampling.target)
    return target, _range(sampling.nuance), f"{sampling.total} a teacher"


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _asked_for(model: Model) -> str:
    """Return a model's name at its provider, or its names with their roles."""
    names = model.asked_for
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{name} ({' and '.join(roles)})" for name, roles in names.items())


_LAST_ERRORS = 10
_RECENT_SECONDS = 600  # whose records tell the speed
_TIMES = ("generated_at", "evaluated_at", "created_at")


def status_text(run: Run) -> str:
    """Return the text of `coeval status`. Raise RunInputError if the folder holds no run."""
    meta = Meta(run)
    data = meta.data
    lines = [f"{data.get('experiment_id')}: {data.get('status')}"]
    lines.append(f"  created {data.get('created_at')}, updated {data.get('updated_at')}")
    if data.get("resume_from"):
        lines.append(f"  started from {data['resume_from']}")
    used = ", ".join(f"{model} {count}" for model, count in sorted(meta.quota_used.items()))
    if used:
        lines.append(f"  calls: {used}; ${meta.spent_usd:.4f}")
    decided = data.get("decided")
    if isinstance(decided, dict) and isinstance(decided.get("items"), dict):
        number = sum(decided["items"].values())
        lines.append(
            f"  stopped: first place is decided at {decided['confidence']:.0%}: {decided['first']}, {number} items"
        )
    parts = ["\n".join(lines), _phase_lines(run, meta), _batches(run), _errors(run)]
    return "\n\n".join(part for part in parts if part)


def _phase_lines(run: Run, meta: Meta) -> str:
    lines = ["phases"]
    progress = progress_of(run)
    since = (datetime.now(timezone.utc) - timedelta(seconds=_RECENT_SECONDS)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for phase in PHASES:
        kinds = KINDS_OF.get(phase, ())
        folder = {"attribute_mapping": "phase1_attributes", "rubric_mapping": "phase2_rubric"}.get(phase)
        maps = None if folder is None else len(list((run.folder / folder).glob("[!.]*.json")))
        if phase in meta.completed:
            state = "completed"
        elif phase in meta.settled:
            state = "kept as it is"
        elif phase in (meta.data.get("phases_in_progress") or []):
            state = "in progress"
        else:
            state = "not completed" if maps or any(map(run.record_files, kinds)) else "not begun"
        lines.append(f"  {phase:<20} {state}" + ("" if maps is None else f", {maps} files"))
        for kind in kinds:
            missing, expected = progress[kind]
            lines += [line] if (line := _counted(run, kind, missing, expected, since)) else []
    return "\n".join(lines)


def _counted(run: Run, kind: str, missing: int, expected: int, since: str) -> str:
    """Return a line about the records of one kind: those that are there, expected, and failed alone; bad lines."""
    files = run.record_files(kind)
    bad = list[int]()
    if not files and not expected:
        return ""
    ids: dict[bool, set[str]] = {True: set(), False: set()}
    recent: list[str] = []
    for path in files:
        for record in read_records(path, lambda _path, number, _why: bad.append(number)):
            ids[is_failed(record)].add(str(record.get("id")))
            at = next((record[key] for key in _TIMES if isinstance(record.get(key), str)), "")
            if at >= since:
                recent.append(at)
    valid, failed = len(ids[False]), len(ids[True] - ids[False])
    done, expected = (expected - missing, expected) if expected else (valid, valid)  # of a task nobody knows any more
    repeats = sum(1 for _ in read_records(run.repeats)) if kind == "data_generation" else 0
    line = f"    {done} of {expected} {WORDS[kind]} in {len(files)} files" + (f", {failed} failed" if failed else "")
    line += _speed(recent, missing)
    line += f", {repeats} refused as they repeat others" if repeats else ""
    return line + (f", {len(bad)} lines that are not records" if bad else "")


def _speed(recent: Sequence[str], missing: int) -> str:
    """Return how fast records with these times came, and when the missing ones will be there at that speed."""
    if len(recent) < 2 or not missing:
        return ""
    try:
        first, last = (datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (min(recent), max(recent)))
    except (TypeError, ValueError):  # of a record that somebody else wrote
        return ""
    seconds = max((last - first).total_seconds(), 1.0)
    a_minute = 60 * (len(recent) - 1) / seconds
    return f", {a_minute:,.0f} a minute, {time_text(60 * missing / a_minute)} left"


def _batches(run: Run) -> str:
    jobs = read_json(run.pending)
    lines = ["pending batch jobs"]
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        what = f"{job.get('interface')}, {job.get('phase')}, {job.get('n_requests')} requests"
        lines.append(f"  {name}: {job.get('status')}, {what}, submitted {job.get('submitted_at')}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _errors(run: Run) -> str:
    lines = ["last errors"]
    for error in deque(read_records(run.errors), maxlen=_LAST_ERRORS):
        where = " ".join(str(error[key]) for key in ("phase", "task", "model", "id") if error.get(key))
        lines.append(f"  {error.get('timestamp')} {where}: {error.get('error')}")
    return "\n".join(lines) if len(lines) > 1 else ""


# A configuration as a page: the models and their roles, the tasks with their prompts, the calls and their cost.

_HIDDEN = ("model", "system_prompt")


def description_page(config: Config, probed: Mapping[str, str] | None = None) -> str:
    """Return the page; `probed` holds the state of each model after a probe."""
    estimate = static_estimate(config)
    experiment = config.experiment
    return render(
        "coeval/describe.html",
        title=experiment.id,
        facts=_facts(config, estimate),
        models=_models(config, estimate, probed),
        systems=_systems(config),
        # Those of a category together.
        tasks=[_task(config, task) for task in sorted(config.tasks, key=lambda task: task.category or "")],
        phases=Table.of(
            (Column("Phase", number=False), PHASES),
            (Column("Mode", number=False), [experiment.phases[phase] for phase in PHASES]),
            (
                Column("In batches", number=False, wide=True),
                [", ".join(_batched_in(config, phase)) for phase in PHASES],
            ),
        ),
        budget=_budget(config),
        costs=[_costs("Phase", estimate["per_phase"]), _costs("Provider", estimate["per_provider"])],
        savings=dollars_text(estimate["batch_savings_usd"]) if estimate["batch_savings_usd"] else "",
        limits=_limits(config),
        notes=list(config.notes),
        probed=probed is not None,
    )


def _facts(config: Config, estimate: Mapping[str, Any]) -> list[tuple[str, str]]:
    count = {role: len(config.with_role(role)) for role in ("teacher", "student", "judge")}
    teachers = len([model for model in config.with_role("teacher") if not model.is_virtual])
    items = sum(task.sampling.total for task in config.tasks) * teachers
    return [
        ("Models", f"{len(config.models)}"),
        ("Teachers, students, judges", ", ".join(str(number) for number in count.values())),
        ("Tasks", f"{len(config.tasks)}"),
        ("Items", f"{items:,}"),
        ("Calls", f"{estimate['total_calls']:,}"),
        ("Expected cost", dollars_text(estimate["total_cost_usd"])),
        ("Expected time", minutes(estimate["total_time_min"])),
        ("Stored in", str(config.experiment.folder)),
    ]


def _models(config: Config, estimate: Mapping[str, Any], probed: Mapping[str, str] | None) -> Table:
    columns = [
        Column("Model", number=False),
        Column("Interface", number=False),
        Column("Asked for", number=False),
        Column("Roles", number=False),
        Column("Parameters", number=False, wide=True),
        Column("$/M in", digits=3, note="List price of a million tokens of prompt"),
        Column("$/M out", digits=3, note="List price of a million tokens of answer"),
        Column("Calls"),
        Column("Cost"),
    ]
    if probed is not None:
        columns.append(Column("Probe", number=False, wide=True))
    rows = []
    for model in config.models:
        of_model = estimate["per_model"][model.name]
        # A row for each of the provider's names for it; a virtual model has none.
        for model_id, roles in {"": model.roles}.items() if model.is_virtual else model.asked_for.items():
            price = price_of(model, roles[0])
            share = of_model["models"].get(model_id, of_model)
            row: list[Any] = [model.name, model.interface, model_id, ", ".join(roles), _parameters(model)]
            row += [price.input, price.output, share["estimated_calls"]]
            row.append(Cell(dollars_text(share["cost_usd"]), share["cost_usd"]))
            if probed is not None:
                state = probed.get(model.name, "not asked")
                row.append(Cell(state, state, "good" if state == "ok" else "bad" if model.name in probed else "quiet"))
            rows.append(row)
    return Table(columns, rows)


def _parameters(model: Model) -> str:
    """Return the parameters as they are written, without keys."""
    texts = [f"{key}: {value}" for key, value in redacted(model.parameters).items() if key not in _HIDDEN]
    for role, inner in redacted(model.role_parameters).items():
        texts += [f"{key}: {value} as {role}" for key, value in inner.items() if key not in _HIDDEN]
    return ", ".join(texts)


def _systems(config: Config) -> list[tuple[str, str]]:
    """Return (model, with its roles where their prompts differ; system prompt)."""
    prompts = []
    for model in config.models:
        by_text: dict[str, list[str]] = {}
        for role in () if model.is_virtual else model.roles:
            text = str(redacted(model.parameters_for(role)).get("system_prompt") or "").strip()
            by_text.setdefault(text, []).append(role)
        for text, roles in by_text.items():
            who = model.name if len(by_text) == 1 else f"{model.name} as {' and '.join(roles)}"
            prompts += [(who, text)] if text else []
    return prompts


def _task(config: Config, task: Task) -> dict[str, Any]:
    target, nuance, total = _sampling_text(task.sampling)
    facts = [
        ("Target attributes of an item", target),
        ("Nuanced attributes of an item", nuance),
        ("Items", total),
        ("Evaluation", grading_text(task)),
    ]
    if task.category:
        facts.insert(0, ("Category", task.category))
    if task.label_attributes:
        facts.append(("Labels", ", ".join(task.label_attributes)))
    return {
        "name": task.name,
        "description": task.description,
        "output": task.output_description,
        "facts": facts,
        "target": _attributes(task.target_attributes, task.target_attributes_seed),
        "nuanced": _attributes(task.nuanced_attributes, task.nuanced_attributes_seed),
        "rubric": _rubric_rows(task),
        "prompts": prompts_of(config, task),
    }


def _attributes(attributes: Any, seed: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return a sentence, where teachers propose them, and the attributes of the configuration."""
    own = seed if isinstance(attributes, str) else attributes
    sentence = {"auto": "Proposed by the teachers.", "complete": "Extended by the teachers, from these:"}
    rows = [(name, ", ".join(map(str, values))) for name, values in own.items()]
    return (sentence[attributes] if isinstance(attributes, str) else "" if rows else "None."), rows


def _rubric_rows(task: Task) -> tuple[str, list[tuple[str, str]]]:
    if isinstance(task.rubric, str):
        ways = {"auto": "Proposed by the teachers.", "extend": "That of the earlier run, extended by the teachers."}
        return ways[task.rubric], []
    rows = []
    for factor, definition in task.rubric.items():
        text, weight = description_of(definition), weight_of(definition)
        if not isinstance(definition, str) and "metric" in definition:
            text = f"{text} (computed: {definition['metric']})".strip()
        rows.append((factor, text if weight == 1.0 else f"{text} (weight {weight:g})"))
    return "", rows


def prompts_of(config: Config, task: Task) -> list[tuple[str, str, str]]:
    """Return (prompt, its models, its text) of every prompt of the task, as it is resolved for each model."""
    used: list[tuple[str, Role]] = []
    if isinstance(task.target_attributes, str):
        used.append(("map_target_attrs", "teacher"))
    if isinstance(task.nuanced_attributes, str):
        used.append(("map_nuanced_attrs", "teacher"))
    if isinstance(task.rubric, str):
        used.append(("autorubric", "teacher"))
    of_judges = {"single": "evaluate_single", "per_factor": "evaluate_per_factor", "pairwise": "compare"}
    used += [("sample", "teacher"), ("test", "student"), (of_judges[task.evaluation_mode], "judge")]
    prompts = []
    for prompt, role in used:
        by_text: dict[str, list[str]] = {}
        for model in config.with_role(role):
            if not model.is_virtual:
                by_text.setdefault(shown_template(task, model.name, prompt), []).append(model.name)
        for text, names in by_text.items():
            who = f"every {role}" if len(by_text) == 1 else ", ".join(names)
            prompts.append((prompt, who, text.strip()))
    return prompts


def _budget(config: Config) -> Table:
    columns = [Column("Task", number=False), *(Column(phase) for phase in PHASES), Column("All")]
    return Table(columns, _calls_per_task(config, remaining(config).work, "all"))


def _costs(what: str, parts: Mapping[str, Any]) -> Table:
    return Table.of(
        (Column(what, number=False), list(parts)),
        (Column("Calls"), [share["calls"] for share in parts.values()]),
        (Column("Cost"), [Cell(dollars_text(share["cost_usd"]), share["cost_usd"]) for share in parts.values()]),
        (Column("Time"), [Cell(minutes(share["time_min"]), share["time_min"]) for share in parts.values()]),
    )


def _limits(config: Config) -> list[tuple[str, str]]:
    run = config.experiment
    concurrency = run.concurrency if isinstance(run.concurrency, int) else dict(run.concurrency)
    limits = [
        ("Resumed from", run.resume_from or ""),
        ("Budget", dollars_text(run.budget_usd) if run.budget_usd else "none"),
        ("Judging ends", f"when first place is decided at {run.stop_at:.0%}" if run.stop_at is not None else ""),
        ("Calls in flight", str(concurrency) if isinstance(concurrency, int) else _pairs(concurrency)),
        ("Calls a minute", _pairs(run.rate_limit)),
        ("Quota", _pairs(run.quota, " calls")),
        ("Seconds for an answer", f"{run.request_timeout:g}"),
        ("MiB of an answer", f"{run.max_answer_mb:g}"),
        ("Further attempts at an item", str(run.generation_retries)),
        ("Answers of earlier runs", "taken where everything is the same" if run.cache else "not taken"),
        ("Seed", str(run.seed)),
    ]
    return [(name, value) for name, value in limits if value]


def _pairs(values: Mapping[str, float], unit: str = "") -> str:
    return ", ".join(f"{name}: {value:g}{unit}" for name, value in values.items())
