"""`models[]` of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coeval.config.keys import REDACTED
from coeval.config.reading import Fields, Problems, Where, kind_of, shown
from coeval.interfaces import BATCHING, INTERFACES, LATER, VIRTUAL
from coeval.judging.metrics import METRICS
from coeval.schema import BATCH_PHASES, MODES, PHASES, ROLES, Experiment, Mode, Model, Role, Rubric, Task
from p2l.common.cli import nearest

MODEL_KEYS = (
    "name",
    "interface",
    "parameters",
    "roles",
    "role_parameters",
    "access_key",
    "batch_enabled",
    "resolved",
)
NAME_OF_MODEL = re.compile(r"[A-Za-z0-9._-]+")
_ONLY_ROLE: Mapping[str, Role] = {"benchmark": "teacher", "metric": "judge", "label": "judge"}
_TEXTS = ("system_prompt", "device", "base_url", "azure_endpoint", "api_version", "site_url", "site_name", "metric")
_OF_EVERY_ROLE = (
    "api_key",
    "base_url",
    "azure_endpoint",
    "api_version",
    "region",
    "project",
    "location",
    "service_account_key",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "site_url",
    "site_name",
)
_TRUTHS = ("load_in_4bit", "load_in_8bit")
_LONGEST_NAME = 72  # the name of a file has three of them, and 255 characters in all


def check_name(fields: Fields, pattern: re.Pattern[str], letters: str) -> str:
    """The name of a model or task, of the characters that files and ids may have."""
    name = fields.text("name", needed="a name that is its own")
    if len(name) > _LONGEST_NAME:
        fields.wrong("name", f"may have {_LONGEST_NAME} characters, and has {len(name)}", "V-04")
    if name and not pattern.fullmatch(name):
        fields.wrong("name", f"{name[:60]!r} may hold {letters} alone", "V-04")
    if "__" in name:
        fields.wrong("name", f"{name[:60]!r} must not hold '__', which parts the ids of records", "V-04")
    return name


def read_models(entries: list[Any], problems: Problems) -> tuple[Model, ...]:
    """Every model; those with `interface: auto` still have it."""
    models: list[Model] = []
    for number, entry in enumerate(entries):
        where = ("models", number)
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"].strip():
            problems.name(where, entry["name"])
        model = _read_model(Fields(entry, where, problems, MODEL_KEYS), where, problems)
        if model.name and any(model.name == other.name for other in models):
            problems.add((*where, "name"), f"{model.name!r} is the name of two models; rename one", "V-02")
        models.append(model)
    return tuple(models)


def _read_model(fields: Fields, where: Where, problems: Problems) -> Model:
    name = check_name(fields, NAME_OF_MODEL, "letters, digits, '.', '_' and '-'")
    interface = _interface(fields)
    parameters = fields.fields("parameters")
    given = parameters.values
    _check_parameters(parameters)
    roles, by_role = _roles(fields, interface), _role_parameters(fields, where, problems)
    is_asked = interface in INTERFACES and interface not in (*VIRTUAL, "mock")
    if is_asked and not (roles and all(by_role.get(role, {}).get("model") for role in roles)):
        parameters.required("model", f"what {interface} calls the model, such as `model: {name or 'NAME'}`")
    model = Model(
        name=name,
        interface=interface,
        roles=roles,
        parameters={key: value for key, value in parameters.values.items() if key != "api_key"},
        role_parameters=by_role,
        access_key=_access_key(fields) or parameters.secret("api_key"),
        key_left_out=REDACTED in (fields.values.get("access_key"), given.get("api_key")),
        batch_enabled=fields.truth("batch_enabled", False) if fields.has("batch_enabled") else None,
    )
    if model.batch_enabled and interface in INTERFACES and interface not in BATCHING:
        fields.wrong("batch_enabled", f"{interface} has no batches here; remove it", "V-13")
    return model


def _access_key(fields: Fields) -> str | None:
    key = fields.secret("access_key")
    return None if key == REDACTED else key


def _interface(fields: Fields) -> str:
    interface = fields.text("interface", needed="the provider, such as `interface: openai`, or `auto`")
    if interface in LATER:
        fields.wrong("interface", f"{interface} is not supported yet; reach the model through another provider", "V-06")
    elif interface and interface != "auto" and interface not in INTERFACES:
        known = [*INTERFACES, "auto"]
        hint = nearest(interface, known) or f"; there are {', '.join(known)}"
        fields.wrong("interface", f"there is no {interface[:60]!r}{hint}", "V-06")
    if fields.has("resolved") and interface != "auto":
        fields.wrong("resolved", "goes with `interface: auto` alone; remove it")
    return interface


def _roles(fields: Fields, interface: str) -> tuple[Role, ...]:
    given = [fields.values["roles"]] if isinstance(fields.values.get("roles"), str) else fields.entries("roles")
    for number, role in enumerate(given):
        if role not in ROLES:
            hint = nearest(role, ROLES) if isinstance(role, str) else ""
            message = f"there is no role {shown(role)}{hint}; choose from {', '.join(ROLES)}"
            fields.problems.add((*fields.where, "roles", number), message, "V-05")
    roles = tuple(role for role in ROLES if role in given)
    if not given and fields.is_mapping and not fields.problems.at(*fields.where, "roles"):
        fields.wrong("roles", f"name at least one of {', '.join(ROLES)}", "V-05")
    only = _ONLY_ROLE.get(interface)
    if only and roles and roles != (only,):
        fields.wrong("roles", f"a model with `interface: {interface}` is a {only} and nothing else", "V-19")
    return roles


def _role_parameters(fields: Fields, where: Where, problems: Problems) -> dict[str, Mapping[str, Any]]:
    by_role: dict[str, Mapping[str, Any]] = {}
    for role, inner in fields.fields("role_parameters", ROLES).values.items():
        parameters = Fields(inner, (*where, "role_parameters", role), problems, None)
        _check_parameters(parameters)
        for key in _OF_EVERY_ROLE:
            if parameters.has(key):
                parameters.wrong(key, "is the same in every role: move it to `parameters`, or add a second model")
        by_role[role] = parameters.values
    return by_role


def _check_parameters(parameters: Fields) -> None:
    """The parameters that are known; others go to the provider as they are."""
    values = parameters.values
    parameters.values = {key: value for key, value in values.items() if value != REDACTED}
    parameters.text("model")
    for key in _TEXTS:
        parameters.text(key)
    _check_addresses(parameters)
    for key in ("max_tokens", "max_new_tokens", "max_output_tokens"):
        parameters.whole(key, 1, least=1)
    for key in _TRUTHS:
        parameters.truth(key, False)
    for key in ("api_key", "session_token", "secret_access_key", "access_key_id"):
        parameters.secret(key)
    temperature = values.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2
    ):
        parameters.wrong("temperature", f"must be a number from 0 to 2, and is {kind_of(temperature)}")
    if all(values.get(key) is True for key in _TRUTHS):
        parameters.wrong("load_in_8bit", "does not go with load_in_4bit; remove one of the two")
    metric = values.get("metric")
    if isinstance(metric, str) and metric.strip() and metric not in METRICS:
        parameters.wrong("metric", f"there is no {metric[:60]!r}; choose from {', '.join(METRICS)}", "V-18")
    for key, value in values.items():
        if not _is_json(value) and not parameters.problems.at(*parameters.where, key):
            parameters.wrong(key, "must be what JSON can say; put dates in quotes")


def _check_addresses(parameters: Fields) -> None:
    """Whether an address holds a name or a password; the message does not repeat it."""
    for key in ("base_url", "azure_endpoint"):
        address = parameters.values.get(key)
        if isinstance(address, str) and "@" in address.partition("://")[2].partition("/")[0]:
            parameters.wrong(key, "holds a name or password; take it out, and write the key as access_key")


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


# Whether judges have something to score, and whatever is to be scored has a judge, as far as a configuration tells.


def check_judges(models: Sequence[Model], tasks: Sequence[Task], problems: Problems) -> None:
    """Metrics without a judge that computes them, judges of metrics without any, tasks in which nobody scores anything.

    Rubrics that teachers write, or that come from an earlier run, are not known yet: nothing is said of them.
    """
    judges = [model for model in models if "judge" in model.roles]
    if not judges:
        return
    for number, task in enumerate(tasks):
        rubric = _rubric(task)
        if rubric is not None and not problems.at("tasks", number) and not problems.within("tasks", number, "rubric"):
            _check_task(number, task, rubric, judges, problems)
    _check_metric_judges(models, tasks, problems)


def _rubric(task: Task) -> Rubric | None:
    return None if isinstance(task.rubric, str) or not task.rubric else task.rubric


def _check_task(number: int, task: Task, rubric: Rubric, judges: Sequence[Model], problems: Problems) -> None:
    where = ("tasks", number, "rubric")
    for factor, metric in _metrics(rubric).items():
        if not any(_computes(judge, metric) for judge in judges):
            message = (
                f"nobody computes {metric}; add a judge with `interface: metric` (a `metric` among its parameters is "
                "the only one that it computes), or remove the factor"
            )
            problems.add((*where, factor), message, "V-18")
    reads = any(judge.interface not in VIRTUAL for judge in judges)
    if not reads and not _metrics(rubric) and not task.label_attributes and task.evaluation_mode != "pairwise":
        problems.add(where, "no judge reads answers, and nothing of them is computed; add a judge that is a model")


def _check_metric_judges(models: Sequence[Model], tasks: Sequence[Task], problems: Problems) -> None:
    rubrics = [_rubric(task) for task in tasks]
    metrics = {metric for rubric in rubrics if rubric is not None for metric in _metrics(rubric).values()}
    if not rubrics or None in rubrics or any(problems.within("tasks", n, "rubric") for n in range(len(tasks))):
        return
    for number, model in enumerate(models):
        if model.interface == "metric" and not any(_computes(model, metric) for metric in metrics):
            own = model.parameters.get("metric") or "a metric"
            message = f"no rubric has {own} for it to compute; add a factor such as `NAME: {{metric: {_example(own)}}}`"
            problems.add(("models", number, "interface"), f"{message}, or remove this model", "V-18")


def _metrics(rubric: Rubric) -> dict[str, str]:
    """Factor -> metric, of those that are computed."""
    return {
        factor: str(definition["metric"])
        for factor, definition in rubric.items()
        if isinstance(definition, Mapping) and "metric" in definition
    }


def _computes(judge: Model, metric: str) -> bool:
    return judge.interface == "metric" and judge.parameters.get("metric") in (None, metric)


def _example(metric: object) -> str:
    return "bleu" if metric == "a metric" else str(metric)


# `experiment` of the file.

EXPERIMENT_KEYS = (
    "id",
    "storage_folder",
    "resume_from",
    "phases",
    "log_level",
    "quota",
    "generation_retries",
    "batch",
    "batch_poll_seconds",
    "probe_mode",
    "probe_on_fail",
    "estimate_cost",
    "estimate_samples",
    "seed",
    "concurrency",
    "rate_limit",
    "request_timeout",
    "budget_usd",
    "cache",
)
_ID = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST_ID = 200  # of the 255 that a folder's name may have
_STORAGE = "the folder that runs are kept in"


def read_experiment(value: object, problems: Problems, resume: str | None) -> Experiment:
    """The experiment; `resume` takes the place of its `resume_from`."""
    fields = Fields({} if value is None else value, ("experiment",), problems, EXPERIMENT_KEYS)
    resume_from = resume or fields.text("resume_from")
    written = _modes(fields)
    default: Mode = "Keep" if resume_from else "New"
    if value is None:
        problems.add(("experiment",), "is missing; add it with an id and a storage_folder", "V-01")
    return Experiment(
        id=_id(fields) if value is not None else "",
        storage_folder=fields.folder("storage_folder", needed=_STORAGE) if value is not None else Path(),
        resume_from=resume_from,
        phases={phase: written.get(phase, default) for phase in PHASES},
        written_phases=frozenset(written),
        log_level=fields.choice("log_level", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO"),
        quota=_quota(fields),
        generation_retries=fields.whole("generation_retries", 2, rule="V-12"),
        batch=_batch(fields),
        batch_poll_seconds=fields.above_zero("batch_poll_seconds"),
        probe_mode=fields.choice("probe_mode", ("full", "resume", "disable"), "full", "V-15"),
        probe_on_fail=fields.choice("probe_on_fail", ("abort", "warn"), "abort", "V-16"),
        estimate_cost=fields.truth("estimate_cost", False),
        estimate_samples=fields.whole("estimate_samples", 2),
        seed=fields.whole("seed", 0),
        concurrency=_concurrency(fields),
        rate_limit=_rates(fields),
        request_timeout=fields.above_zero("request_timeout") or 120.0,
        budget_usd=fields.above_zero("budget_usd"),
        cache=fields.truth("cache", True),
    )


def _id(fields: Fields) -> str:
    text = fields.text("id", needed="the name of the run's folder")
    if text and (not _ID.fullmatch(text) or set(text) == {"."}):
        fields.wrong("id", f"{text[:60]!r} may hold letters, digits, '.', '_' and '-' alone", "V-04")
    elif len(text) > _LONGEST_ID:
        fields.wrong("id", f"may have {_LONGEST_ID} characters, and has {len(text)}", "V-04")
    return text


def _modes(fields: Fields) -> dict[str, Mode]:
    inner = fields.fields("phases", PHASES)
    written: dict[str, Mode] = {}
    for phase in inner.values:
        if not inner.has(phase):
            inner.wrong(phase, f"is empty; choose from {', '.join(MODES)}")
            continue
        mode = inner.choice(phase, MODES, "New")
        if mode == "Model" and phase in PHASES[:2]:
            inner.wrong(phase, "`Model` is for the last three phases; choose New, Keep or Extend", "V-08")
        written[phase] = mode
    return written


def _quota(fields: Fields) -> dict[str, int]:
    inner = fields.fields("quota")
    quota: dict[str, int] = {}
    for model, value in inner.values.items():
        quota[model] = 0  # whose model's name is looked at, whatever the entry says
        if not isinstance(value, Mapping):
            inner.wrong(model, f"must be `{{max_calls: N}}`, and is {kind_of(value)}")
            continue
        limit = inner.fields(model, ("max_calls",))
        if limit.required("max_calls", "`max_calls: N`"):
            quota[model] = limit.whole("max_calls", 0)
    return quota


def _batch(fields: Fields) -> dict[str, dict[str, bool]]:
    inner = fields.fields("batch")
    batch: dict[str, dict[str, bool]] = {}
    for interface in inner.values:
        if interface not in BATCHING:
            known = interface in INTERFACES or interface in LATER
            why = "has no batches here" if known else f"is no interface{nearest(interface, BATCHING)}"
            inner.wrong(interface, f"{why}; those with batches are {', '.join(BATCHING)}", "V-13")
            continue
        phases = inner.fields(interface)
        for phase in phases.values:
            if phase not in BATCH_PHASES:
                hint = nearest(phase, BATCH_PHASES)
                phases.wrong(phase, f"is no phase with batches{hint}; those are {', '.join(BATCH_PHASES)}", "V-13")
        batch[interface] = {phase: phases.truth(phase, False) for phase in phases.values if phase in BATCH_PHASES}
    return batch


def _interfaces(inner: Fields) -> list[str]:
    """Those of a mapping's keys that are interfaces."""
    for name in inner.values:
        if name not in INTERFACES:
            inner.wrong(name, f"is no interface{nearest(name, INTERFACES)}")
    return [name for name in inner.values if name in INTERFACES and inner.has(name)]


def _concurrency(fields: Fields) -> int | dict[str, int]:
    value = fields.values.get("concurrency")
    if value is None or isinstance(value, int):
        return fields.whole("concurrency", 10, least=1)
    if not isinstance(value, Mapping):
        fields.wrong("concurrency", f"must be a whole number, or a map of interfaces to numbers; is {shown(value)}")
        return 10
    inner = fields.fields("concurrency")
    return {name: inner.whole(name, 10, least=1) for name in _interfaces(inner)}


def _rates(fields: Fields) -> dict[str, float]:
    inner = fields.fields("rate_limit")
    return {name: inner.above_zero(name) or 1.0 for name in _interfaces(inner)}
