"""`tasks[]` of the file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from coeval.config.models import check_name
from coeval.config.reading import Fields, Problems, Where, kind_of, shown
from coeval.interfaces import tells_logprobs
from coeval.judging.grading import clashing
from coeval.judging.metrics import METRICS, wrong_definition
from coeval.judging.prompts import PROMPTS, VARIABLES, unknown_variables
from coeval.schema import (
    DEFAULT,
    WANTED,
    Attributes,
    Experiment,
    Model,
    Pairwise,
    Rubric,
    Sampling,
    Scale,
    Task,
    scale_of,
)
from p2l.common.cli import nearest

# How judges of a task grade: `scale`, `rationale`, `expected_scores`, and the weights in its rubric.

GRADING_KEYS = ("scale", "rationale", "expected_scores")


def read_grading(fields: Fields, mode: str) -> dict[str, Any]:
    """The three keys, as arguments of `Task`."""
    found = {
        "scale": _scale(fields),
        "rationale": fields.truth("rationale", False),
        "expected_scores": fields.truth("expected_scores", False),
    }
    if fields.is_unclear("evaluation_mode"):
        return found
    if fields.has("scale") and mode == "pairwise":
        fields.wrong("scale", "has no use where answers are compared in pairs; remove it, or write another mode")
    if found["expected_scores"]:
        _check_alone(fields, mode, found)
    return found


def _scale(fields: Fields) -> Scale:
    given = fields.values.get("scale")
    if given is None:
        return DEFAULT
    try:
        return scale_of(given)
    except (ValueError, TypeError) as error:
        hint = nearest(given, ("levels",)) if isinstance(given, str) else ""
        why = str(error) if isinstance(error, ValueError) else f"must be {WANTED}"
        fields.wrong("scale", f"{why}, and is {shown(given)}{hint}" if why.startswith("must be") else why)
        return DEFAULT


def _check_alone(fields: Fields, mode: str, found: Mapping[str, Any]) -> None:
    """Whether the first token of an answer is the grade of one factor, and tells it from all others."""
    key, clash = "expected_scores", clashing(found["scale"])
    if mode != "per_factor":
        fields.wrong(key, "looks at the first token of an answer; write `evaluation_mode: per_factor`, or remove it")
    if found["rationale"]:
        fields.wrong(key, "looks at the first token of an answer, which `rationale` makes another; remove one of them")
    if clash is not None:
        one, other = clash
        fields.wrong(key, f"needs grades of which each begins with another token, not {one!r} and {other!r}; use `0-9`")


def check_expected(models: tuple[Model, ...], tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    """Whether somebody tells the probabilities that expected scores take."""
    judges = [model for model in models if "judge" in model.roles and not model.is_virtual]
    for number, task in enumerate(tasks):
        where = ("tasks", number, "expected_scores")
        if not task.expected_scores or not judges:
            continue
        batched = [model.name for model in judges if _is_batched(model, run)]
        if batched:
            message = f"cannot be had from batch jobs, and {batched[0]} judges in batches; turn one of them off"
            problems.add(where, message)
        if not any(tells_logprobs(model.interface) for model in judges):
            problems.add(where, "no judge's interface tells log-probabilities; add one that does, or remove it")


def _is_batched(model: Model, run: Experiment) -> bool:
    asked = bool(run.batch.get(model.interface, {}).get("evaluation", False))
    return asked if model.batch_enabled is None else model.batch_enabled


def is_weighted(definition: Mapping[str, Any]) -> bool:
    """Whether a factor's map is a description with a weight, and no metric."""
    return "metric" not in definition and ("weight" in definition or "description" in definition)


def check_weighted(inner: Fields, factor: str) -> None:
    """Check `{description, weight}`, and the weight of a metric."""
    given = inner.values[factor]
    if "metric" in given:
        given = {"weight": given.get("weight")}
    else:
        fields = inner.fields(factor, ("description", "weight"))
        fields.text("description", needed="what tells a good answer from a bad one")
    Fields(given, (*inner.where, factor), inner.problems, None).above_zero("weight")


TASK_KEYS = (
    "name",
    "description",
    "output_description",
    "target_attributes",
    "nuanced_attributes",
    "target_attributes_seed",
    "nuanced_attributes_seed",
    "sampling",
    "rubric",
    "evaluation_mode",
    "pairwise",
    "store_nuanced",
    "prompt_library",
    "label_attributes",
    "category",
    *GRADING_KEYS,
)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_Range = tuple[int, int]


def read_tasks(entries: list[Any], problems: Problems, models: Collection[str] | None) -> tuple[Task, ...]:
    """Every task.

    Args:
        entries: the list of the file.
        problems: where mistakes go.
        models: names that prompts may be written for; None where they are not known (tasks of an earlier run).
    """
    tasks: list[Task] = []
    for number, entry in enumerate(entries):
        where = ("tasks", number)
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"].strip():
            problems.name(where, entry["name"])
        task = _read_task(Fields(entry, where, problems, TASK_KEYS), models)
        if task.name and any(task.name == other.name for other in tasks):
            problems.add((*where, "name"), f"{task.name!r} is the name of two tasks; rename one", "V-03")
        tasks.append(task)
    return tuple(tasks)


def _read_task(fields: Fields, models: Collection[str] | None) -> Task:
    fields.required("target_attributes", "a map of attributes to values, `auto` or `complete`")
    target = _attributes(fields, "target_attributes")
    nuanced = _attributes(fields, "nuanced_attributes")
    seeds = {key: _seed(fields, f"{key}_attributes_seed", of) for key, of in (("target", target), ("nuanced", nuanced))}
    _check_overlap(fields, _names(target, seeds["target"]), _names(nuanced, seeds["nuanced"]))
    mode: Literal["single", "per_factor", "pairwise"] = fields.choice(
        "evaluation_mode", ("single", "per_factor", "pairwise"), "single"
    )
    return Task(
        name=check_name(fields, _NAME, "letters, digits, '_' and '-'"),
        description=fields.text("description", needed="a sentence that says what the task is"),
        output_description=fields.text("output_description", needed="a sentence that says what an answer looks like"),
        target_attributes=target,
        nuanced_attributes=nuanced,
        target_attributes_seed=seeds["target"],
        nuanced_attributes_seed=seeds["nuanced"],
        sampling=_sampling(fields, target, nuanced),
        rubric=_rubric(fields),
        evaluation_mode=mode,
        pairwise=_pairwise(fields, mode),
        store_nuanced=fields.truth("store_nuanced", False),
        prompt_library=_prompts(fields, models),
        label_attributes=_labels(fields, target, seeds["target"]),
        category=fields.text("category"),
        **read_grading(fields, mode),
    )


def _attributes(fields: Fields, key: str) -> Attributes | Literal["auto", "complete"]:
    value = fields.values.get(key)
    if value is None:
        return {}
    if value == "auto":
        return "auto"
    if value == "complete":
        if not fields.has(f"{key}_seed"):
            fields.wrong(key, f"`complete` needs {key}_seed to start from; add it, or write `auto`")
        return "complete"
    if isinstance(value, str):
        hint = nearest(value, ("auto", "complete"))
        fields.wrong(key, f"must be a map of attributes to values, `auto` or `complete`, and is {shown(value)}{hint}")
        return {}
    return _attribute_map(fields, key)


def _attribute_map(fields: Fields, key: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    inner = fields.fields(key)
    for name, values in inner.values.items():
        if not isinstance(values, list):
            inner.wrong(name, f"must be a list of values, and is {kind_of(values)}")
        elif not values:
            inner.wrong(name, "has no values; add some, or remove it")
        elif any(value is None or isinstance(value, list | Mapping) for value in values):
            inner.wrong(name, "each value must be text, a number, true or false")
        else:
            found[name] = [value if isinstance(value, str | bool | int | float) else str(value) for value in values]
    return found


def _seed(fields: Fields, key: str, of: Attributes | str) -> Attributes:
    if fields.has(key) and not isinstance(of, str) and not fields.is_unclear(key.removesuffix("_seed")):
        fields.wrong(key, f"goes with `{key.removesuffix('_seed')}: auto` or `complete`; remove one of the two")
    return _attribute_map(fields, key) if fields.has(key) else {}


def _names(attributes: Attributes | str, seed: Attributes) -> set[str]:
    return set(seed) if isinstance(attributes, str) else {*attributes, *seed}


def _check_overlap(fields: Fields, target: set[str], nuanced: set[str]) -> None:
    for name in sorted(target & nuanced):
        fields.wrong("nuanced_attributes", f"{name!r} is a target attribute too; keep it in one of the two")


def _sampling(
    fields: Fields, target: Attributes | Literal["auto", "complete"], nuanced: Attributes | Literal["auto", "complete"]
) -> Sampling:
    fields.required("sampling", "`target: [min, max]`, `nuance: [min, max]` and `total: N`")
    inner = fields.fields("sampling", ("target", "nuance", "total"))
    if fields.has("sampling"):
        inner.required("target", "`target: [min, max]`, or `all`")
        inner.required("total", "`total: N`, items for each teacher")
        if nuanced:
            inner.required("nuance", "`nuance: [min, max]`")
    drawn: _Range | Literal["all"] = "all"
    if inner.values.get("target") != "all":
        drawn = _range(inner, "target", target, " or `all`")
    nuance = _range(inner, "nuance", nuanced, "")
    return Sampling(drawn, nuance, inner.whole("total", 0))


def _range(inner: Fields, key: str, attributes: Attributes | Literal["auto", "complete"], other: str) -> _Range:
    """`[min, max]`, `[n]` or `n`, at most what there is to draw from."""
    value = inner.values[key] if inner.has(key) else 0
    ends = value if isinstance(value, list) else [value]
    if not 1 <= len(ends) <= 2 or any(isinstance(end, bool) or not isinstance(end, int) or end < 0 for end in ends):
        inner.wrong(key, f"must be `[min, max]`, `[n]`, `n`{other} with whole numbers, and is {_range_shown(value)}")
        return (0, 0)
    low, high = ends[0], ends[-1]
    if low > high:
        inner.wrong(key, f"the least, {low}, is above the most, {high}; turn them round")
    if attributes and not isinstance(attributes, str) and low > len(attributes):
        inner.wrong(key, f"asks for at least {low} attributes of {len(attributes)}; lower it, or add attributes")
    return (low, high)


def _range_shown(value: object) -> str:
    return str(value)[:40] if isinstance(value, list) else shown(value)


def _rubric(fields: Fields) -> Rubric | Literal["auto", "extend"]:
    what = "a map of factors to descriptions, `auto` or `extend`"
    if not fields.required("rubric", what):
        return {}
    value = fields.values["rubric"]
    if value == "auto":
        return "auto"
    if value == "extend":
        return "extend"
    if isinstance(value, str):
        fields.wrong("rubric", f"must be {what}, and is {shown(value)}{nearest(value, ('auto', 'extend'))}")
        return {}
    inner = fields.fields("rubric")
    if inner.is_mapping and not value:
        fields.wrong("rubric", "has no factors; add some, or write `auto`")
    for factor, definition in inner.values.items():
        _check_factor(inner, factor, definition)
    return inner.values


def _check_factor(inner: Fields, factor: str, definition: object) -> None:
    if not isinstance(definition, Mapping):
        inner.text(factor, needed="what tells a good answer from a bad one")
        return
    if is_weighted(definition):
        check_weighted(inner, factor)
        return
    metric = definition.get("metric")
    if metric not in METRICS:
        hint = nearest(metric, METRICS) if isinstance(metric, str) else ""
        inner.wrong(
            factor,
            f"needs a description, or `metric:` one of {', '.join(METRICS)}; it is {shown(metric)}{hint}",
            "V-18",
        )
    elif why := wrong_definition(definition):
        inner.wrong(factor, why, "V-18")
    else:
        check_weighted(inner, factor)
    if definition.get("description") is not None and not isinstance(definition["description"], str):
        inner.wrong(factor, "its description must be text")


def _pairwise(fields: Fields, mode: str) -> Pairwise:
    if fields.has("pairwise") and mode != "pairwise" and not fields.is_unclear("evaluation_mode"):
        fields.wrong("pairwise", "goes with `evaluation_mode: pairwise` alone; write that, or remove it")
    inner = fields.fields("pairwise", ("schedule", "pairs", "both_orders", "reference"))
    schedule: Literal["all", "active"] = inner.choice("schedule", ("all", "active"), "all")
    pairs = inner.whole("pairs", 1, least=1) if inner.has("pairs") else None
    if schedule == "active" and pairs is None:
        inner.wrong("pairs", "is missing; `schedule: active` needs the number of pairs that a judge may see")
    return Pairwise(schedule, pairs, inner.truth("both_orders", True), inner.truth("reference", True))


def _labels(fields: Fields, target: Attributes | str, seed: Attributes) -> tuple[str, ...]:
    known = _names(target, seed)
    is_known = not any(fields.is_unclear(key) for key in ("target_attributes", "target_attributes_seed"))
    labels: list[str] = []
    for number, label in enumerate(fields.entries("label_attributes")):
        where = (*fields.where, "label_attributes", number)
        if not isinstance(label, str):
            fields.problems.add(where, f"must be the name of a target attribute, and is {kind_of(label)}", "V-17")
        elif is_known and label not in known:
            hint = nearest(label, known) or "; it has to be given as a map, since labels are what is known"
            fields.problems.add(where, f"{label[:60]!r} is no target attribute written here{hint}", "V-17")
        elif label not in labels:
            labels.append(label)
    return tuple(labels)


def _prompts(fields: Fields, models: Collection[str] | None) -> dict[str, str]:
    inner = fields.fields("prompt_library")
    for key, template in inner.values.items():
        prompt, _, model = key.partition(".")
        if prompt not in PROMPTS:
            hint = nearest(prompt, PROMPTS) or f"; there are {', '.join(PROMPTS)}"
            inner.wrong(key, f"there is no prompt {prompt!r}{hint}")
            continue
        if model and models is not None and model not in models:
            inner.wrong(key, f"there is no model {model!r}{nearest(model, models)}; write {prompt} or {prompt}.MODEL")
        if inner.text(key, needed="the text of the prompt") and isinstance(template, str):
            _check_template((*inner.where, key), inner.problems, prompt, template)
    return {key: text for key, text in inner.values.items() if isinstance(text, str)}


def _check_template(where: Where, problems: Problems, prompt: str, template: str) -> None:
    known = sorted(VARIABLES[prompt])
    try:
        unknown = unknown_variables(prompt, template)
        if not unknown:
            template.format(**dict.fromkeys(known, ""))
    except (ValueError, LookupError, AttributeError) as error:
        problems.add(where, f"{error}; write braces that belong to the text twice, {{{{ and }}}}")
        return
    for name in unknown:
        hint = nearest(name, known) or f"; there are {', '.join(known)}, and braces of the text are written twice"
        problems.add(where, f"there is no variable {{{name}}}{hint}")
