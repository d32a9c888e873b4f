"""A configuration as a page: the models and their roles, the tasks with their prompts, the calls and their cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coeval.config.keys import redacted
from coeval.judging.factors import description_of, weight_of
from coeval.judging.prompts import grading_text, shown_template
from coeval.planning.counting import remaining
from coeval.planning.estimate import dollars, minutes, static_estimate
from coeval.planning.plan import batched_in, calls_per_task, sampling_text
from coeval.prices import price_of
from coeval.schema import PHASES, Config, Model, Role, Task
from p2l.common.report.tables import Cell, Column, Table, Value, render

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
        tasks=_tasks(config),
        phases=_phases(config),
        budget=_budget(config),
        costs=[_costs("Phase", estimate["per_phase"]), _costs("Provider", estimate["per_provider"])],
        savings=dollars(estimate["batch_savings_usd"]) if estimate["batch_savings_usd"] else "",
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
        ("Expected cost", dollars(estimate["total_cost_usd"])),
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
    for model, model_id, roles in _asked_for(config):
        part, price = estimate["per_model"][model.name], price_of(model, roles[0])
        part = part["models"].get(model_id, part)
        row: list[Any] = [model.name, model.interface, model_id, ", ".join(roles), _parameters(model)]
        row += [price.input, price.output, part["estimated_calls"], _dollars(part["cost_usd"])]
        if probed is not None:
            state = probed.get(model.name, "not asked")
            row.append(Cell(state, state, "good" if state == "ok" else "bad" if model.name in probed else "quiet"))
        rows.append(row)
    return Table(columns, rows)


def _asked_for(config: Config) -> Iterator[tuple[Model, str, tuple[Role, ...]]]:
    """Yield each model, its provider's name for it, and the roles with this name."""
    for model in config.models:
        for name, roles in {"": model.roles}.items() if model.is_virtual else model.asked_for.items():
            yield model, name, roles


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


def _tasks(config: Config) -> list[dict[str, Any]]:
    """Return the tasks, those of a category together."""
    return [_task(config, task) for task in sorted(config.tasks, key=lambda task: task.category or "")]


def _task(config: Config, task: Task) -> dict[str, Any]:
    target, nuance, total = sampling_text(task.sampling)
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
        "rubric": _rubric(task),
        "prompts": prompts_of(config, task),
    }


def _attributes(attributes: Any, seed: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return a sentence, where teachers propose them, and the attributes of the configuration."""
    own = seed if isinstance(attributes, str) else attributes
    sentence = {"auto": "Proposed by the teachers.", "complete": "Extended by the teachers, from these:"}
    rows = [(name, ", ".join(map(str, values))) for name, values in own.items()]
    return (sentence[attributes] if isinstance(attributes, str) else "" if rows else "None."), rows


def _rubric(task: Task) -> tuple[str, list[tuple[str, str]]]:
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


def _phases(config: Config) -> Table:
    columns = [
        Column("Phase", number=False),
        Column("Mode", number=False),
        Column("In batches", number=False, wide=True),
    ]
    rows = [[phase, config.experiment.phases[phase], ", ".join(batched_in(config, phase))] for phase in PHASES]
    return Table(columns, rows)


def _budget(config: Config) -> Table:
    counts = calls_per_task(config, remaining(config).work)
    columns = [Column("Task", number=False), *(Column(phase) for phase in PHASES), Column("All")]
    rows: list[list[Value]] = [
        [name, *(of[phase] for phase in PHASES), sum(of.values())] for name, of in counts.items()
    ]
    totals = [sum(of[phase] for of in counts.values()) for phase in PHASES]
    rows.append(["all", *totals, sum(totals)])
    return Table(columns, rows)


def _costs(what: str, parts: Mapping[str, Any]) -> Table:
    columns = [Column(what, number=False), Column("Calls"), Column("Cost"), Column("Time")]
    return Table(
        columns,
        [
            [name, part["calls"], _dollars(part["cost_usd"]), Cell(minutes(part["time_min"]), part["time_min"])]
            for name, part in parts.items()
        ],
    )


def _dollars(amount: float) -> Cell:
    return Cell(dollars(amount), amount)


def _limits(config: Config) -> list[tuple[str, str]]:
    run = config.experiment
    concurrency = run.concurrency if isinstance(run.concurrency, int) else dict(run.concurrency)
    limits = [
        ("Resumed from", run.resume_from or ""),
        ("Budget", dollars(run.budget_usd) if run.budget_usd else "none"),
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
